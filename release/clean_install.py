"""The wheel in a virtual environment with nothing else than it needs, by hashes, and the demo from there."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from release.commands import ReleaseError, run

PROGRAMS = ("edl", "edl-agent", "edl-controller", "kubectl-edl")
VERSIONED = ("edl-agent", "edl-controller")
"""Programs whose ``--version`` says their name and the version."""


def make_environment(folder: Path, locks: Sequence[Path], wheel: Path | None = None) -> Path:
    """Make a virtual environment of lock files, and of the wheel where one is given; returns its folder.

    pip stays outside, so that the environment holds what is needed and no more.

    Raises:
        ReleaseError: something could not be had, has another hash, or is missing in the lock files.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin" / "python")]
    install = [*pip, "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    for lock in locks:
        run(f"pip install -r {lock.name}", [*install, "-r", str(lock)], cwd=folder)
    if wheel is not None:
        line = folder / "wheel.txt"
        line.write_text(f"{wheel} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
        run(f"pip install {wheel.name}", [*install, "--no-index", "-r", str(line)], cwd=folder)
    run("pip check", [*pip, "check"], cwd=folder)
    return folder


def environment_of(folder: Path) -> dict[str, str]:
    """Return the variables of somebody who has activated the virtual environment and set nothing else."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("EDL_", "PYTHON", "VIRTUAL_ENV"))}
    return {**own, "PATH": os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]), "VIRTUAL_ENV": str(folder)}


def program_versions(folder: Path) -> dict[str, str]:
    """Start each installed program, and return what those that print a version print.

    Raises:
        ReleaseError: one does not start.
    """
    for name in PROGRAMS:
        run(f"{name} --help", [str(folder / "bin" / name), "--help"], cwd=folder, environment=environment_of(folder))
    return {
        name: run(name, [str(folder / "bin" / name), "--version"], cwd=folder, environment=environment_of(folder))
        for name in VERSIONED
    }


def run_demo(folder: Path, examples: Path, outside: Path) -> list[str]:
    """Run ``make demo`` from the virtual environment, on a copy of the examples; returns the figures that it prints.

    Args:
        folder: of the virtual environment.
        examples: the folder to copy.
        outside: where to; in no checkout, so that the packages can only be those that are installed.

    Raises:
        ReleaseError: the packages are not the installed ones, or the demo failed.
    """
    python, environment = str(folder / "bin" / "python"), environment_of(folder)
    shutil.copytree(examples, outside / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    where = "import edl_agent, edl_controller; print(edl_agent.__file__); print(edl_controller.__file__)"
    for path in run("import", [python, "-c", where], cwd=outside, environment=environment).split():
        if not Path(path).is_relative_to(folder):
            raise ReleaseError(f"the demo would run with {path}, which is not what was installed")
    command = [python, "-W", "error", "-m", "examples.digits.cluster_demo", "--plain"]
    said = run("the demo", command, cwd=outside, environment=environment)
    return said.rstrip().rpartition("\n\n")[2].splitlines()
