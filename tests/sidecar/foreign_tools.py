"""Programs of other languages that the tests need: put into a cache folder outside the checkout, pinned by lock files.

``None`` with a reason where one cannot be had (no program, no network): the tests that need it are skipped and say so.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
NODE_CLIENT = HERE / "node_client"
_SECONDS = 300.0


class CannotBeHad(Exception):
    """Why a tool is not here."""


def cache_folder() -> Path:
    """``$EDL_CACHE_DIR`` or ``$XDG_CACHE_HOME/edl``, as for the etcd that is built."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("EDL_CACHE_DIR") or f"{base}/edl")


def buf() -> Path:
    """The ``buf`` program. Raises CannotBeHad."""
    if (found := shutil.which("buf")) is not None:
        return Path(found)
    requirements = HERE / "buf-requirements.txt"

    def install(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
        command += ["--require-hashes", "--only-binary", ":all:", "--target", str(folder), "-r", str(requirements)]
        _run(command)

    return _cached("buf", requirements.read_bytes(), install) / "bin" / "buf"


def node_modules() -> tuple[str, Path]:
    """Node and the folder of the client's packages. Raises CannotBeHad."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise CannotBeHad("no node with npm on PATH")

    def install(folder: Path) -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NODE_CLIENT / name, folder)
        _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], folder)

    lock = (NODE_CLIENT / "package-lock.json").read_bytes()
    return node, _cached("node-client", lock, install) / "node_modules"


def _run(command: list[str], folder: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise CannotBeHad(f"{command[0]} took longer than {_SECONDS:g} s") from None
    if done.returncode != 0:
        raise CannotBeHad(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[-300:]}")


def _cached(name: str, pins: bytes, install: Callable[[Path], None]) -> Path:
    """The folder of what these pins name, installed under a lock when it is not there."""
    folder = cache_folder() / f"{name}-{hashlib.sha256(pins).hexdigest()[:16]}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as scratch:
                    made = Path(scratch) / "made"
                    made.mkdir()
                    install(made)
                    made.rename(folder)
    except OSError as error:
        raise CannotBeHad(f"{folder} cannot be made: {error}") from error
    return folder
