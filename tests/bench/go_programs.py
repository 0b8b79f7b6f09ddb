"""Programs that the tests build from their Go modules, once, into a cache folder outside the checkout."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NO_GO = 3
"""Exit code where there is no Go to build with."""


@dataclass(frozen=True)
class GoPrograms:
    """Programs of one version that are built together.

    ``name``: how the whole is called in folders and messages. ``module``: the folder with go.mod, go.sum and the file
    that names the packages. ``packages``: file name of each program and the Go package that is built into it.
    ``build_seconds``: the longest that one of them may take.
    """

    name: str
    version: str
    module: Path
    packages: Mapping[str, str]
    linker_flags: Sequence[str] = ("-s", "-w")
    build_seconds: float = 1500.0

    def cache_folder(self) -> Path:
        """Return the folder of the programs: ``NAME-VERSION`` below ``$EDL_CACHE_DIR`` or ``$XDG_CACHE_HOME/edl``."""
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Path(os.environ.get("EDL_CACHE_DIR") or f"{base}/edl") / f"{self.name}-{self.version}"

    def complete_in(self, folder: Path) -> bool:
        """Whether every program is in ``folder`` and can be run."""
        return all(os.access(folder / program, os.X_OK) for program in self.packages)

    def cached(self) -> Path | None:
        """Return the folder when all programs are there, else ``None``. Never builds."""
        folder = self.cache_folder()
        return folder if self.complete_in(folder) else None

    def missing_go(self) -> str | None:
        """Return why nothing can be built here, or ``None`` when Go is at hand and new enough."""
        go = shutil.which("go")
        if go is None:
            return "no `go` on PATH"
        # `go list -m` reads go.mod only; it fails here at once when this Go is older than the modules need.
        probe = subprocess.run(
            [go, "list", "-m"],
            cwd=self.module,
            env=_go_environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return None if probe.returncode == 0 else f"this Go cannot build it: {probe.stderr.strip() or 'go list failed'}"

    def build(self) -> Path:
        """Build all programs and return their folder.

        They are built beside the folder and moved into it at the end, under a lock, so that two builds at the same
        time or one that is killed half-way never leave a half-written program behind.

        Raises:
            subprocess.CalledProcessError: a build failed; its output went to stderr.
            subprocess.TimeoutExpired: a build took longer than ``build_seconds``.
        """
        folder = self.cache_folder()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.complete_in(folder):
                return folder
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-building-") as scratch:
                for program, package in self.packages.items():
                    print(f"building {program} {self.version} ...", file=sys.stderr, flush=True)
                    self._build_one(package, Path(scratch) / program)
                folder.mkdir(exist_ok=True)
                for program in self.packages:
                    os.replace(Path(scratch) / program, folder / program)
        return folder

    def _build_one(self, package: str, target: Path) -> None:
        linker = ["-ldflags", " ".join(self.linker_flags)]
        subprocess.run(
            ["go", "build", "-trimpath", "-buildvcs=false", *linker, "-o", str(target), package],
            cwd=self.module,
            env=_go_environment(),
            stdout=sys.stderr,
            timeout=self.build_seconds,
            check=True,
        )

    def main(self, found: Path | None = None) -> int:
        """Build unless the programs are there (``found``, else the cache) and print their folder on stdout.

        Returns the exit code: 0; ``NO_GO``, with the reason on stderr, where nothing can be built; 1 when a build
        failed.
        """
        found = found or self.cached()
        if found is None:
            if (reason := self.missing_go()) is not None:
                print(f"{self.name} {self.version} is not built: {reason}", file=sys.stderr)
                return NO_GO
            try:
                found = self.build()
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                print(f"{self.name} {self.version} could not be built: {error}", file=sys.stderr)
                return 1
        print(found)
        return 0


def _go_environment() -> dict[str, str]:
    # readonly: the versions are those of go.mod and go.sum, or the build fails. local: never fetch another toolchain.
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"}
