"""Inside the build stage: make the virtual environment argv[1] from the wheels that argv[2] names, each with its hash.

pip runs from its own wheel, so that neither the base nor the result holds a package manager.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

UNUSED = ("kubernetes/aio",)
"""What nothing here imports, of packages that are needed: a copy of Kubernetes' client for asyncio, 68 MB."""


def main(target: str, requirements: str) -> int:
    """Install; the exit code is pip's."""
    wheels = Path(requirements).parent / "wheels"
    venv.create(target, with_pip=False, symlinks=True)
    (pip,) = wheels.glob("pip-*.whl")
    options = ["--no-index", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--find-links", str(wheels)]
    quiet = ["--disable-pip-version-check", "--no-cache-dir", "--quiet"]
    command = [f"{target}/bin/python", f"{pip}/pip", "install", *quiet, *options, "-r", requirements]
    code = subprocess.run(command, cwd=Path(requirements).parent, check=False).returncode
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": target, "platbase": target}))
    for folder in UNUSED:
        shutil.rmtree(packages / folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
