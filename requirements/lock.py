"""Write the lock files in this folder anew from pyproject.toml (``make lock``; ``UPGRADE=1``: newest versions).

=============== ======================================================================================
lock.txt        what runs this script
dev.txt         the project's dependencies, the controller's too, and all that ``make`` needs, newest versions
oldest.txt      the lowest allowed version of each of the project's dependencies, and what runs the tests
interop.txt     etcd3 0.12 and the old protobuf that it needs, for tests/interop
agent.txt       what the image of the agent holds beside the project itself, in the versions of dev.txt, for Linux
controller.txt  the same for the controller's
examples.txt    the same for that of examples/digits
wheel.txt       what the wheel needs with every extra, in the versions of dev.txt: what `make release` tries and judges
fuzz.txt        libFuzzer for Python, for `make fuzz`
release.txt     what writes the bill of materials of a release
pip.txt         the pip that fills the images, itself in none of them
paddle.txt      PaddlePaddle for examples/paddle and the protobuf that it needs, for Linux on x86-64
=============== ======================================================================================

Each has hashes (for every platform where not said otherwise) and no name of an index host: whoever installs chooses
the index.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Relative to ROOT, in which uv runs: it repeats these names in the comments of the lock files.
FOLDER = "requirements"
PROJECT = "pyproject.toml"
COMMAND = "make lock"
IMAGES: dict[str, list[str]] = {"agent": ["sidecar"], "controller": ["controller"], "examples": ["examples"]}
"""Which extras each image installs."""


def compile_lock(output: str, *arguments: str, upgrade: bool, platform: str = "") -> None:
    """Resolve ``arguments`` into the file ``output`` of this folder, for one platform or for all.

    Raises:
        subprocess.CalledProcessError: there is no solution, or the index was not reached.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--generate-hashes"]
    command += ["--python-platform", platform] if platform else ["--universal"]
    command += ["--python-version", "3.11", "--custom-compile-command", COMMAND, "--output-file", f"{FOLDER}/{output}"]
    subprocess.run([*command, *(["--upgrade"] if upgrade else []), *arguments], cwd=ROOT, check=True)


def lowest_direct(folder: Path) -> Path:
    """Return a file in ``folder`` that pins each of the project's own dependencies to its lowest allowed version."""
    constraints = folder / "lowest.txt"
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--resolution", "lowest-direct"]
    command += [
        "--python-version",
        "3.11",
        "--no-annotate",
        "--output-file",
        str(constraints),
        PROJECT,
        "--extra",
        "controller",
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    return constraints


def main() -> int:
    """Write all lock files; ``--upgrade`` ignores the versions that they hold now."""
    upgrade = "--upgrade" in sys.argv[1:]
    compile_lock("lock.txt", f"{FOLDER}/lock.in", upgrade=upgrade)
    compile_lock("dev.txt", PROJECT, "--extra", "controller", "--group", "dev", upgrade=upgrade)
    compile_lock("interop.txt", "--group", "interop", upgrade=upgrade)
    for name, extras in IMAGES.items():
        chosen = [argument for extra in extras for argument in ("--extra", extra)]
        compile_lock(f"{name}.txt", PROJECT, *chosen, "--constraints", f"{FOLDER}/dev.txt", upgrade=upgrade)
    compile_lock("wheel.txt", PROJECT, "--all-extras", "--constraints", f"{FOLDER}/dev.txt", upgrade=upgrade)
    compile_lock("fuzz.txt", "--group", "fuzz", upgrade=upgrade)
    compile_lock("release.txt", "--group", "release", upgrade=upgrade)
    compile_lock("pip.txt", f"{FOLDER}/pip.in", upgrade=upgrade)
    # On Windows PaddlePaddle forbids the protobuf that it needs.
    compile_lock("paddle.txt", "--group", "paddle", upgrade=upgrade, platform="x86_64-manylinux_2_28")
    with tempfile.TemporaryDirectory() as scratch:
        constraints = lowest_direct(Path(scratch))
        test_group = ["--extra", "controller", "--group", "test", "--constraints", str(constraints)]
        # Never from the versions in the file: the lower bounds in pyproject.toml decide.
        compile_lock("oldest.txt", PROJECT, *test_group, upgrade=upgrade)
        oldest = ROOT / FOLDER / "oldest.txt"
        # uv notes in a comment where a constraint came from: a path that is gone and differs from run to run.
        text = re.sub(r"^ *#   -c .*\n", "", oldest.read_text(), flags=re.MULTILINE)
        oldest.write_text(text.replace(str(constraints), "lowest"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
