"""The etcd of a cluster on one machine: found or brought by the extra ``local``, and bound to this process."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from edl_agent.testing import EtcdNotFoundError, EtcdServer, EtcdServerError, find_etcd
from edl_controller import errors

AUTO_COMPACTION = "5m"
"""How long etcd keeps old revisions: every etcd that this project starts compacts itself."""

_START = 30.0
"""Seconds until a started etcd must be healthy."""


class LocalEtcd:
    """One etcd member on loopback ports that the kernel chooses; it ends with this process, however that ends.

    Args:
        folder: for data and log; made where it is missing. Data found there is served again.
        durable: wait for the disk with each write: data then survives a crash of the machine, too.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self._folder, self._durable = folder, durable
        self._server: EtcdServer | None = None

    @property
    def endpoint(self) -> str:
        """URL for clients.

        Raises:
            Unavailable: it does not run.
        """
        if self._server is None:
            raise errors.Unavailable("etcd does not run")
        return self._server.client_url

    @property
    def pid(self) -> int | None:
        """Process id while it runs, else None."""
        return None if self._server is None else self._server.pid

    @property
    def log_path(self) -> Path:
        """File that etcd writes its log to."""
        return self._folder / "etcd.log"

    def start(self) -> Self:
        """Start it and wait until it is healthy. Nothing happens where it runs.

        Raises:
            MissingExtra: there is no etcd on this machine; the message says how to get one.
            Unavailable: it did not become healthy; the message ends with its last log lines.
        """
        if self._server is not None and self._server.running:
            return self
        try:
            server = self._server or EtcdServer(
                binaries=find_etcd(),
                name="etcd",
                folder=self._folder,
                unsafe_no_fsync=not self._durable,
                auto_compaction=AUTO_COMPACTION,
            )
            self._folder.chmod(0o700)
            self._server = server
            server.start(_START)
        except EtcdNotFoundError as error:
            raise errors.MissingExtra(str(error)) from error
        except EtcdServerError as error:
            self.stop()
            raise errors.Unavailable(str(error)) from error
        return self

    def stop(self) -> None:
        """Stop it (SIGTERM first) and give its ports back; data stays. Idempotent."""
        if self._server is not None:
            self._server.stop()
            self._server.close()
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
