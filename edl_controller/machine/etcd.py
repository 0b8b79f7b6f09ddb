"""The etcd of a cluster on one machine: found or brought by the extra ``local``, bound to this process, and kept."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from edl_agent.testing import EtcdNotFoundError, EtcdServer, EtcdServerError, find_etcd
from edl_controller import errors

AUTO_COMPACTION = "5m"
"""How long etcd keeps old revisions: every etcd that this project starts compacts itself."""

_START = 30.0
"""Seconds until a started etcd must be healthy."""

_LOOK_EVERY = 0.5
"""Seconds between two looks whether it still runs."""

_LONGEST_PAUSE = 30.0
"""Seconds between two attempts to start one that ends again and again."""

_log = logging.getLogger(__name__)


class LocalEtcd:
    """One etcd member on loopback ports that the kernel chooses; it ends with this process, however that ends.

    Where it ends by itself (killed for its memory, say) it is started again, with the same ports and data.

    Args:
        folder: for data and log; made where it is missing. Data found there is served again.
        durable: wait for the disk with each write: data then survives a crash of the machine, too.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self._folder, self._durable = folder, durable
        self._server: EtcdServer | None = None
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None

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
        self._stopping.clear()
        self._keeper = threading.Thread(target=self._keep, args=(server,), name="edl-local-etcd", daemon=True)
        self._keeper.start()
        return self

    def stop(self) -> None:
        """Stop it (SIGTERM first) and give its ports back; data stays. Idempotent."""
        self._stopping.set()
        if self._server is not None:
            self._server.stop()
            # The kernel ends an etcd with the very thread that started it: this one goes last.
            if self._keeper is not None:
                self._keeper.join()
                self._keeper = None
            self._server.stop()
            self._server.close()
            self._server = None

    def _keep(self, server: EtcdServer) -> None:
        pause = _LOOK_EVERY
        while not self._stopping.wait(pause):
            if server.running:
                pause = _LOOK_EVERY
                continue
            _log.warning("etcd has ended with %s: it is started again", server.returncode)
            try:
                server.launch()
                server.wait_healthy(_START)
            except (EtcdServerError, OSError) as error:
                pause = min(_LONGEST_PAUSE, max(1.0, 2 * pause))
                _log.error("etcd could not be started, again in %.0f s: %s", pause, error)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
