"""``session.json`` and ``pservers.json`` beside the socket: the present state at the cost of reading a file.

Each is written whole under another name and then renamed, so a reader sees an old one or a new one, never half of one.
Each has its ``time``, and is written anew at least every `FRESH` seconds: an old one tells that the sidecar is gone.
"""

import contextlib
import json
import logging
import math
import os
import threading
from collections.abc import Callable
from typing import Any

from edl_agent.clock import Clock
from edl_agent.drain import Drain
from edl_agent.membership import Members
from edl_agent.session import SessionState, SessionView
from edl_agent.sidecar.feed import Feed
from edl_agent.sidecar.life import Program

_log = logging.getLogger(__name__)

FRESH = 5.0
"""Seconds."""

VERSION = 1


def session_file(program: Program | None, drain: Drain, clock: Clock, closed: bool) -> dict[str, Any]:
    """What ``session.json`` says. ``deadline_monotonic`` is on CLOCK_MONOTONIC, as ``monotonic``; a lease is hex."""
    view = program.view if program is not None else SessionView()
    state = SessionState.CLOSED if closed else view.state
    slot, lease = view.slot, view.lease
    if closed:
        slot = lease = None
    return {
        "v": VERSION,
        "state": state.value,
        "role": slot.role if slot else program.role if program is not None else None,
        "index": slot.index if slot else None,
        "epoch": slot.epoch if slot else None,
        "address": slot.address if slot else None,
        "lease": f"{lease.lease_id:x}" if lease else None,
        "ttl": lease.ttl if lease else None,
        "deadline_monotonic": lease.deadline if lease else None,
        "attached": program is not None and not closed,
        "name": drain.name,
        "drain": drain.state,
        "drain_reason": drain.reason,
        "time": clock.wall(),
        "monotonic": clock.monotonic(),
    }


def pservers_file(members: Members | None, clock: Clock) -> dict[str, Any]:
    """What ``pservers.json`` says; before etcd was read an incomplete list of nobody."""
    found = members or Members((), None, 0, math.inf, False)
    return {
        "v": VERSION,
        "pservers": [{"index": one.index, "address": one.address, "epoch": one.epoch} for one in found.pservers],
        "desired": found.desired,
        "complete": found.complete,
        "revision": found.revision,
        "age": found.age if math.isfinite(found.age) else None,
        "time": clock.wall(),
        "monotonic": clock.monotonic(),
    }


class StateFiles:
    """Keeps the two files until `close`, by a thread.

    Args:
        folder: descriptor of the socket's folder.
        mode: of the files.
        news: at which they are written.
        session: the object of ``session.json``; gets whether the sidecar has ended.
        pservers: the object of ``pservers.json``.
    """

    def __init__(
        self,
        folder: int,
        mode: int,
        news: Feed,
        session: Callable[[bool], dict[str, Any]],
        pservers: Callable[[], dict[str, Any]],
    ) -> None:
        self._folder, self._mode = folder, mode
        self._news = news
        self._session, self._pservers = session, pservers
        self._closed = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="edl-sidecar-files", daemon=True)

    def start(self) -> None:
        """Write both, then keep them."""
        self._write_both()
        self._thread.start()

    def close(self) -> None:
        """End, leaving a ``session.json`` that says ``closed``. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._news.tell()
        if self._thread.is_alive():
            self._thread.join(2.0)
        self._write("session.json", self._session(True))

    def _run(self) -> None:
        while not self._closed.is_set():
            seen = self._news.version
            self._write_both()
            self._news.wait(seen, FRESH)

    def _write_both(self) -> None:
        self._write("session.json", self._session(False))
        self._write("pservers.json", self._pservers())

    def _write(self, name: str, content: dict[str, Any]) -> None:
        scratch = f".{name}.new"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(scratch, dir_fd=self._folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(scratch, flags, self._mode, dir_fd=self._folder), "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), self._mode)
                file.write(json.dumps(content) + "\n")
            os.rename(scratch, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self._failing = False
        except OSError as error:
            if not self._failing:
                _log.warning("%s is not written: %s", name, error)
            self._failing = True
