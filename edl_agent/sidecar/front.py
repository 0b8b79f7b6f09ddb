"""The front door: accepts connections, asks the kernel who is there, and passes the bytes on to the gRPC server.

gRPC for Python can neither be handed a listening socket nor say who is at the other end of a Unix socket, and it takes
every connection that comes. So the server listens on an inner socket that only this user can reach, and one thread here
listens where the programs connect. It costs some 30 us a call (`python -m benchmarks --only sidecar`), and it is what
holds against connections that say nothing or nonsense: gRPC gets to see only those that begin like HTTP/2.
"""

import contextlib
import logging
import os
import select
import socket as sockets
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

_log = logging.getLogger(__name__)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What every HTTP/2 client says first (RFC 9113, section 3.4)."""

MOST_CONNECTIONS = 128
"""At once; of a full house the one that has been silent for longest is shown out."""

SILENCE = 10.0
"""Seconds for a new connection to say what it is."""

_LINGER = 5.0
"""Seconds for a peer to take what was left when the other one had gone."""

_CHUNK = 65536

_AT_ONCE = 64
"""Connections accepted before the others get their turn again."""

_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT


class Listener(Protocol):
    """See `edl_agent.sidecar.listening`."""

    socket: sockets.socket

    def welcomes(self, connection: sockets.socket) -> bool:
        """Whether this peer may come in."""


@dataclass(eq=False)
class _End:
    """One side of a pair."""

    socket: sockets.socket
    other: "_End | None" = None
    held: bytes = b""  # bytes for this side that it did not take yet; while there are some, the other is not read
    since: float = 0.0
    outer: bool = False  # a program's, not the server's
    silent: bool = False  # has not said yet that it speaks HTTP/2
    ending: bool = False  # the other side has gone; this one may take what is held
    heard: bytearray = field(default_factory=bytearray)


class Front:
    """Forwards between the listeners and the inner address until `close`.

    Args:
        listener: where programs connect.
        inner: path of the server's Unix socket.
        expects_preface: whether the bytes are HTTP/2 in clear, which is looked at; false for TLS.
    """

    def __init__(self, listener: Listener, inner: str, *, expects_preface: bool = True) -> None:
        self._listener = listener
        self._inner = inner
        self._preface = PREFACE if expects_preface else b""
        self._poll = select.epoll()
        self._ends: dict[int, _End] = {}
        self._silent: dict[int, _End] = {}  # outer ends that have said nothing yet, the oldest first
        self._lingering: dict[int, _End] = {}
        self._connections = 0
        self._stop_read, self._stop_write = os.pipe()
        self._full_told = float("-inf")
        self._poll.register(listener.socket.fileno(), _READ)
        self._poll.register(self._stop_read, _READ)
        self._thread = threading.Thread(target=self._run, name="edl-sidecar-front", daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def close(self) -> None:
        """End all connections. Idempotent."""
        with contextlib.suppress(OSError):
            os.write(self._stop_write, b"\0")
        if self._thread.is_alive():
            self._thread.join(2.0)

    # --- the thread ---

    def _run(self) -> None:
        listening = self._listener.socket.fileno()
        try:
            while True:
                waits = 1.0 if self._silent or self._lingering else -1
                for number, events in self._poll.poll(waits):
                    if number == self._stop_read:
                        return
                    if number == listening:
                        for _ in range(_AT_ONCE):
                            if not self._accept():
                                break
                    elif (end := self._ends.get(number)) is not None:
                        try:
                            self._serve(end, events)
                        except OSError:
                            self._drop(end)
                self._show_out()
        except Exception:
            _log.exception("The sidecar's front door broke")
        finally:
            for end in list(self._ends.values()):
                self._drop(end)
            self._poll.close()
            os.close(self._stop_read)
            os.close(self._stop_write)

    def _accept(self) -> bool:
        """Let one in, or not. Returns whether there was one."""
        try:
            connection, _ = self._listener.socket.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError | ConnectionError):
                _log.warning("A connection could not be accepted: %s", error)
                time.sleep(0.05)  # no descriptors left: the queue stays readable, and must not be spun on
            return False
        try:
            connection.setblocking(False)
            if not self._listener.welcomes(connection):
                _log.warning("A connection of another user was refused; see --peer-uid")
                connection.close()
                return True
        except OSError:
            connection.close()
            return True
        if self._connections >= MOST_CONNECTIONS and not self._make_room():
            connection.close()
            return True
        end = _End(connection, since=time.monotonic(), outer=True, silent=True)
        self._ends[connection.fileno()] = self._silent[connection.fileno()] = end
        self._connections += 1
        self._poll.register(connection.fileno(), _READ)
        return True

    def _make_room(self) -> bool:
        oldest = next(iter(self._silent.values()), None)
        if oldest is not None:
            self._drop(oldest)
            return True
        if time.monotonic() - self._full_told > 60:
            self._full_told = time.monotonic()
            _log.warning("All %d connections are in use; further ones are refused", MOST_CONNECTIONS)
        return False

    def _show_out(self) -> None:
        now = time.monotonic()
        while (oldest := next(iter(self._silent.values()), None)) is not None and now - oldest.since > SILENCE:
            self._drop(oldest)
        for end in [one for one in self._lingering.values() if now - one.since > _LINGER]:
            self._drop(end)

    def _serve(self, end: _End, events: int) -> None:
        if end.silent:
            self._listen_to(end)
            return
        if events & _WRITE and end.held:
            self._pass(end, b"")
        if events & _READ and end.other is not None:
            data = end.socket.recv(_CHUNK)
            if data:
                self._pass(end.other, data)
            else:
                self._finish(end, end.other)
        elif events & (select.EPOLLHUP | select.EPOLLERR):
            self._drop(end)

    def _listen_to(self, end: _End) -> None:
        """The first bytes: is it HTTP/2 at all?"""
        data = end.socket.recv(_CHUNK)
        end.heard += data
        compared = min(len(end.heard), len(self._preface))
        if not data or end.heard[:compared] != self._preface[:compared]:
            self._drop(end)
            return
        if compared < len(self._preface):
            return
        self._silent.pop(end.socket.fileno(), None)
        inner = sockets.socket(sockets.AF_UNIX)
        try:
            inner.setblocking(False)
            inner.connect(self._inner)
        except OSError:
            inner.close()
            raise
        end.silent = False
        end.other = _End(inner, end)
        self._ends[inner.fileno()] = end.other
        self._poll.register(inner.fileno(), _READ)
        heard, end.heard = bytes(end.heard), bytearray()
        self._pass(end.other, heard)

    def _pass(self, end: _End, data: bytes) -> None:
        """Give ``data`` to this side; what it does not take is held, and nothing more is read for it meanwhile."""
        had = bool(end.held)
        left = end.held + data if had else data
        with contextlib.suppress(BlockingIOError):
            left = left[end.socket.send(left) :]
        end.held = left
        if bool(left) == had:
            return
        self._poll.modify(end.socket.fileno(), self._interest(end))
        if end.other is not None:
            self._poll.modify(end.other.socket.fileno(), self._interest(end.other))
        if end.ending and not left:
            self._drop(end)

    def _interest(self, end: _End) -> int:
        stopped = end.ending or (end.other is not None and bool(end.other.held))
        return (0 if stopped else _READ) | (_WRITE if end.held else 0)

    def _finish(self, end: _End, other: _End) -> None:
        """This side has gone: the other one may still take what is held for it."""
        end.other = other.other = None
        self._drop(end)
        if not other.held:
            self._drop(other)
            return
        other.ending, other.since = True, time.monotonic()
        self._lingering[other.socket.fileno()] = other
        self._poll.modify(other.socket.fileno(), _WRITE)

    def _drop(self, end: _End) -> None:
        """Close this side and, if there is one, the other."""
        for one in (end, end.other):
            if one is None or (number := one.socket.fileno()) < 0:
                continue
            with contextlib.suppress(OSError):
                self._poll.unregister(number)
            for book in (self._ends, self._silent, self._lingering):
                book.pop(number, None)
            self._connections -= one.outer
            one.socket.close()
