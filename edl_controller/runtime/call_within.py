"""Calls with an end in time, whatever they are made of: one that hangs is left behind in its thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from edl_controller.errors import Unavailable

T = TypeVar("T")

LEFT_BEHIND = 8
"""Calls without an answer at a time, at most. Each call of a cluster ends by itself within 30 s."""


class CallsWithin:
    """Runs calls in threads. Thread-safe.

    Args:
        name: of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._places = threading.BoundedSemaphore(LEFT_BEHIND)
        self._lock = threading.Lock()
        self._running: set[_Call[Any]] = set()

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """Return what ``function`` returns, or raise what it raises.

        Raises:
            Unavailable: it has not ended within ``seconds``; it may still do what it was to do.
        """
        if not self._places.acquire(timeout=max(0.0, seconds)):
            raise Unavailable(f"{LEFT_BEHIND} requests have no answer yet")
        running = _Call(function, self._places)
        with self._lock:
            self._running.add(running)
        try:
            threading.Thread(target=running.run, name=self._name, daemon=True).start()
            if not running.ended.wait(seconds):
                raise Unavailable(f"no answer within {seconds:.1f} s")
            return running.result()
        finally:
            with self._lock:
                self._running.discard(running)

    def leave_behind(self) -> None:
        """Have all who wait for an answer at this moment get `Unavailable` at once."""
        with self._lock:
            for one in self._running:
                one.ended.set()


class _Call(Generic[T]):
    """One call and what came of it."""

    def __init__(self, function: Callable[[], T], places: threading.BoundedSemaphore) -> None:
        self._function, self._places = function, places
        self.ended = threading.Event()
        self._value: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value.append(self._function())
        except BaseException as error:
            self._error = error
        finally:
            self._places.release()
            self.ended.set()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        if not self._value:
            raise Unavailable("nobody waits for the answer any more")
        return self._value[0]
