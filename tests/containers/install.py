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

from docker.build_images import NoBuilderError, find_builder
from tests.bench.kubelet_node import kernel_missing, missing_packages
from tests.kube.controlplane.build import KUBELET

ROOT = Path(__file__).resolve().parents[2]
CANNOT = 3


def main() -> int:
    """Install; returns the exit status."""
    wanted = [*missing_packages(), *missing_builder()]
    if wanted and not install(wanted):
        return CANNOT
    if (reason := kernel_missing()) is not None:
        print(reason, file=sys.stderr)
        return CANNOT
    if (code := KUBELET.main()) != 0:
        return code
    command = [sys.executable, "-m", "docker.build_images"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def missing_builder() -> tuple[str, ...]:
    """Return the package of a builder of images, where none works here (docker's command alone is none)."""
    try:
        find_builder(Path())
    except NoBuilderError:
        return ("buildah",)
    return ()


def install(packages: list[str]) -> bool:
    """Install Debian packages, or say how and why not; returns whether they are there."""
    how = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        print(f"the tests with real containers need, as root on Debian: {' '.join(how)}", file=sys.stderr)
        return False
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (how, ["apt-get", "update"], how):  # a new machine may have no lists yet, or old ones
        code = subprocess.run(command, stdout=sys.stderr, env=environment, check=False).returncode
        if command is how and code == 0:
            return True
    print(
        f"the tests with real containers need packages that cannot be installed here: {' '.join(how)}", file=sys.stderr
    )
    return False


if __name__ == "__main__":
    sys.exit(main())
