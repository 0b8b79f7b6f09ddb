"""One thread that waits for sockets, timers and calls from other threads, and sleeps in between."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)

Call = Callable[[], object]


class Timer:
    """A call that is due at a time."""

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call

    def cancel(self) -> None:
        """Forget the call."""
        self.call = None


class EventLoop:
    """Runs calls one after the other on a thread of its own; a call that raises is logged and nothing else.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._calls: deque[Call] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Make the calls that are posted, then end the thread and wait for it. From another thread."""
        self.post(self._end)
        self._thread.join()
        self._selector.close()
        os.close(self._wake)

    @staticmethod
    def time() -> float:
        """Return seconds on the clock of the timers."""
        return time.monotonic()

    def post(self, call: Call) -> None:
        """Make a call soon. From any thread; after `close` nothing happens."""
        self._calls.append(call)
        if not self._ending:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake, 1)

    def call_at(self, due: float, call: Call) -> Timer:
        """Make a call at a time. On the loop's thread only."""
        timer = Timer(call)
        heapq.heappush(self._timers, (due, next(self._numbers), timer))
        return timer

    def call_later(self, delay: float, call: Call) -> Timer:
        """Make a call after ``delay`` seconds. On the loop's thread only."""
        return self.call_at(self.time() + delay, call)

    def watch(self, connection: socket.socket, readable: Call) -> None:
        """Call ``readable`` whenever something can be read. On the loop's thread only."""
        self._selector.register(connection, selectors.EVENT_READ, readable)

    def unwatch(self, connection: socket.socket) -> None:
        """Stop that. On the loop's thread only."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)

    def _end(self) -> None:
        self._ending = True

    def _run(self) -> None:
        while not self._ending:
            for key, _ in self._selector.select(self._patience()):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                else:
                    self._make(key.data)
            for _ in range(len(self._calls)):
                self._make(self._calls.popleft())
            now = self.time()
            while self._timers and (self._timers[0][0] <= now or self._timers[0][2].call is None):
                call = heapq.heappop(self._timers)[2].call
                if call is not None:
                    self._make(call)

    def _patience(self) -> float | None:
        if self._calls:
            return 0.0
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self.time()) if self._timers else None

    def _make(self, call: Any) -> None:
        try:
            call()
        except Exception:
            _log.exception("a step of %s failed", self._thread.name)
