"""Inside the build stage: make the virtual environment argv[1] from the wheels that argv[2] names, each with its hash.

pip runs from its own wheel, so that neither the base nor the result holds a package manager.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path


def main(target: str, requirements: str) -> int:
    """Install; the exit code is pip's."""
    wheels = Path(requirements).parent / "wheels"
    venv.create(target, with_pip=False, symlinks=True)
    (pip,) = wheels.glob("pip-*.whl")
    options = ["--no-index", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--find-links", str(wheels)]
    quiet = ["--disable-pip-version-check", "--no-cache-dir", "--quiet"]
    command = [f"{target}/bin/python", f"{pip}/pip", "install", *quiet, *options, "-r", requirements]
    return subprocess.run(command, cwd=Path(requirements).parent, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
