"""Where the cluster of this machine keeps its files, and who runs it.

Below the root: ``state.json`` (who serves, and where), ``serving.lock`` (held while it serves), ``etcd/`` (objects),
``nodes/<name>/`` (pods and their logs), ``controller.log``. The root is ``EDL_LOCAL_ROOT``, else
``$XDG_STATE_HOME/edl/local`` (XDG base directories).
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

import msgspec

from edl_controller import errors

ENVIRONMENT = "EDL_LOCAL_ROOT"

_TRIES, _MOMENT = 5, 0.05
"""Attempts to take the lock, and seconds between them."""


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Who serves the cluster: process id, etcd's endpoints, prefix of the objects, and since when (Unix seconds)."""

    pid: int
    endpoints: str
    prefix: str
    since: float
    nodes: tuple[str, ...] = ()


def default_root() -> Path:
    """Return the folder of the cluster of this user."""
    if given := os.environ.get(ENVIRONMENT):
        return Path(given)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "edl" / "local"


class LocalState:
    """The files below one root.

    Args:
        root: the folder; made at first use, readable by its owner only.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: IO[bytes] | None = None

    @property
    def etcd(self) -> Path:
        """Return the folder of etcd's data."""
        return self.root / "etcd"

    @property
    def nodes(self) -> Path:
        """Return the folder of the nodes' files: pods and logs."""
        return self.root / "nodes"

    @property
    def log(self) -> Path:
        """Return the file in which a cluster in the background writes its log."""
        return self.root / "controller.log"

    @property
    def _lock_file(self) -> Path:
        return self.root / "serving.lock"

    @property
    def foreign(self) -> bool:
        """Tell whether the folder holds something, but no cluster: what is in it was made by others."""
        names = {path.name for path in self.root.iterdir()} if self.root.is_dir() else set()
        return bool(names) and self._lock_file.name not in names

    def make(self) -> None:
        """Make the folder.

        Raises:
            ConfigurationError: it holds something else: that would be mixed up with the cluster's files, and removed
                with them.
            OSError: that is not possible.
        """
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.foreign:
            raise errors.ConfigurationError(f"{self.root} is not empty and no cluster's folder: name another --root")
        self._lock_file.touch()

    def take(self) -> None:
        """Become the one process that serves this cluster, until `release` or the end of the process.

        Raises:
            Unavailable: another process serves it.
        """
        self.make()
        file = self._lock_file.open("ab")
        for tries_left in reversed(range(_TRIES)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if tries_left:  # perhaps only somebody who looks whether it is served
                    time.sleep(_MOMENT)
                    continue
                file.close()
                serving = self.serving()
                who = f" (process {serving.pid})" if serving else ""
                raise errors.Unavailable(f"the cluster in {self.root} is served by another process{who}") from None
        (self.root / "state.json").unlink(missing_ok=True)  # of a process that was killed: nothing is served yet
        self._lock = file

    def announce(self, serving: Serving) -> None:
        """Say where the cluster is reached (atomically)."""
        new = self.root / "state.json.new"
        new.write_bytes(msgspec.json.encode(serving))
        new.replace(self.root / "state.json")

    def release(self) -> None:
        """Give the cluster up. Idempotent."""
        (self.root / "state.json").unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def serving(self) -> Serving | None:
        """Return who serves the cluster; None where nobody does (a file left by a killed process counts as nobody)."""
        try:
            serving = msgspec.json.decode((self.root / "state.json").read_bytes(), type=Serving)
        except (OSError, msgspec.MsgspecError):
            return None
        return serving if self.taken() else None

    def taken(self) -> bool:
        """Tell whether a process serves the cluster, starts or stops it."""
        if self._lock is not None:
            return True
        try:
            with self._lock_file.open("rb") as file:  # looking makes no file
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False
