"""Install what real nodes need (``make test-containers``): Debian packages, the kubelet, the images.

As root on Debian the packages are installed; elsewhere it is said how. Ends with 3, and the reason, where they cannot
be had: the tests are then skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.kubelet_node import missing_packages
from tests.kube.controlplane.build import KUBELET

ROOT = Path(__file__).resolve().parents[2]
CANNOT = 3


def main() -> int:
    """Install; returns the exit status."""
    builders = () if any(shutil.which(name) for name in ("docker", "podman", "buildah")) else ("buildah",)
    wanted = [*missing_packages(), *builders]
    if wanted and not install(wanted):
        return CANNOT
    if (code := KUBELET.main()) != 0:
        return code
    command = [sys.executable, "-m", "docker.build_images"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def install(packages: list[str]) -> bool:
    """Install Debian packages, or say how; returns whether they are there."""
    how = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        print(f"the tests with real containers need, as root: {' '.join(how)}", file=sys.stderr)
        return False
    return subprocess.run(how, stdout=sys.stderr, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
