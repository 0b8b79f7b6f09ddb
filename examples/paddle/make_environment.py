"""Make the virtual environment with PaddlePaddle, once for each version of its lock file (about 600 MB).

Run as ``python examples/paddle/make_environment.py``: it prints the path of the environment's Python as the last line
of stdout. The environment is in ``$EDL_CACHE_DIR``, else in ``$XDG_CACHE_HOME/edl`` (``~/.cache/edl``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

LOCK_FILE = Path(__file__).resolve().parents[2] / "requirements" / "paddle.txt"
INSTALL_SECONDS = 900.0


class NoPaddleError(RuntimeError):
    """PaddlePaddle cannot be had here; the text says why."""


def python_with_paddle() -> Path:
    """Return the Python of the environment, which is made where it is missing.

    Raises:
        NoPaddleError: on a platform for which there is no such PaddlePaddle, or when the installation failed.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.version_info[:2] not in ((3, 11), (3, 12)):
        raise NoPaddleError("PaddlePaddle 2.6.2 is locked for CPython 3.11 and 3.12 on Linux, x86-64")
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    base = Path(os.environ.get("EDL_CACHE_DIR") or f"{caches}/edl")
    key = hashlib.sha256(LOCK_FILE.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = base / f"paddle-{key}"
    base.mkdir(parents=True, exist_ok=True)
    with (base / f"paddle-{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            _install(folder)
    return folder / "bin" / "python"


def _install(folder: Path) -> None:
    print(f"installing {LOCK_FILE.name} into {folder} (about 600 MB) ...", file=sys.stderr, flush=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-cache-dir", "install"]
    try:
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK_FILE)],
            [python, "-c", "import paddle"],
        ):
            subprocess.run(command, check=True, timeout=INSTALL_SECONDS, capture_output=True, text=True)
    except subprocess.SubprocessError as error:
        shutil.rmtree(folder, ignore_errors=True)
        said = getattr(error, "stderr", None) or str(error)
        raise NoPaddleError(f"no environment with PaddlePaddle: {said.strip()[-500:]}") from error
    (folder / "ready").touch()


if __name__ == "__main__":
    try:
        print(python_with_paddle())
    except NoPaddleError as problem:
        print(problem, file=sys.stderr)
        sys.exit(1)
