"""Build etcd and etcdctl 3.6.16 from their Go modules into a cache folder outside the checkout.

Run as ``python tests/etcd36/build.py``: it prints the folder with the two programs as the last line of stdout and exits
0. It exits 3, with the reason on stderr, where there is no Go to build with (``make test`` then goes on with two etcd
versions), and 1 when a build fails. A second run finds the programs and builds nothing.

The tests look for the same folder through :func:`cached_programs`, which never builds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "3.6.16"
"""Version of etcd, as required in the go.mod beside this file."""

PROGRAMS = {"etcd": "go.etcd.io/etcd/server/v3", "etcdctl": "go.etcd.io/etcd/etcdctl/v3"}
"""File name of each program and the Go package that is built into it."""

HERE = Path(__file__).resolve().parent
NO_GO = 3
BUILD_SECONDS = 1500.0


def cache_folder() -> Path:
    """Return the folder of the two programs: ``etcd-3.6.16`` below ``$EDL_CACHE_DIR`` or ``$XDG_CACHE_HOME/edl``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("EDL_CACHE_DIR") or f"{base}/edl") / f"etcd-{VERSION}"


def cached_programs() -> Path | None:
    """Return the folder when both programs are there and can be run, else ``None``."""
    folder = cache_folder()
    return folder if all(os.access(folder / name, os.X_OK) for name in PROGRAMS) else None


def missing_go() -> str | None:
    """Return why nothing can be built here, or ``None`` when Go is at hand and new enough."""
    go = shutil.which("go")
    if go is None:
        return "no `go` on PATH"
    # `go list -m` reads go.mod only; it fails here at once when this Go is older than the modules need.
    probe = subprocess.run(
        [go, "list", "-m"], cwd=HERE, env=_go_environment(), capture_output=True, text=True, timeout=120, check=False
    )
    return None if probe.returncode == 0 else f"this Go cannot build it: {probe.stderr.strip() or 'go list failed'}"


def build() -> Path:
    """Build both programs and return their folder.

    The programs are built beside the folder and moved into it at the end, under a lock, so that two builds at the same
    time or one that is killed half-way never leave a half-written program behind.

    Raises:
        subprocess.CalledProcessError: a build failed; its output went to stderr.
        subprocess.TimeoutExpired: a build took longer than ``BUILD_SECONDS``.
    """
    folder = cache_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"etcd-{VERSION}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := cached_programs()) is not None:
            return found
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"etcd-{VERSION}-building-") as scratch:
            for name, package in PROGRAMS.items():
                print(f"building {name} {VERSION} ...", file=sys.stderr, flush=True)
                subprocess.run(
                    [
                        "go",
                        "build",
                        "-trimpath",
                        "-buildvcs=false",
                        "-ldflags",
                        "-s -w",
                        "-o",
                        f"{scratch}/{name}",
                        package,
                    ],
                    cwd=HERE,
                    env=_go_environment(),
                    stdout=sys.stderr,
                    timeout=BUILD_SECONDS,
                    check=True,
                )
            folder.mkdir(exist_ok=True)
            for name in PROGRAMS:
                os.replace(Path(scratch) / name, folder / name)
    return folder


def _go_environment() -> dict[str, str]:
    # readonly: the versions are those of go.mod and go.sum, or the build fails. local: never fetch another toolchain.
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def main() -> int:
    """Build unless the programs are there; return the exit code that the module's docstring lists."""
    if (found := cached_programs()) is None:
        if (reason := missing_go()) is not None:
            print(f"etcd {VERSION} is not built: {reason}", file=sys.stderr)
            return NO_GO
        try:
            found = build()
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"etcd {VERSION} could not be built: {error}", file=sys.stderr)
            return 1
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
