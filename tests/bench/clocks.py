"""A clock that tests turn by hand; it has the methods of ``edl_agent.clock.Clock``."""

from __future__ import annotations

import threading
import time

from edl_agent.session import Instant


class FakeClock:
    """Stands still until told otherwise, or (``running=True``) runs with the real one plus what it was advanced by.

    Thread-safe. ``monotonic`` and ``boottime`` start at the real values, so that deadlines are comparable with
    ``time.monotonic()``.
    """

    def __init__(self, *, running: bool = False) -> None:
        self._running = running
        self._lock = threading.Lock()
        self._monotonic, self._boottime, self._wall = self._real()
        self._ahead = [0.0, 0.0, 0.0]

    @staticmethod
    def _real() -> tuple[float, float, float]:
        return time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time()

    def _reading(self) -> tuple[float, float, float]:
        with self._lock:
            base = self._real() if self._running else (self._monotonic, self._boottime, self._wall)
            return base[0] + self._ahead[0], base[1] + self._ahead[1], base[2] + self._ahead[2]

    def now(self) -> Instant:
        """This moment, on both clocks that decide over a lease."""
        monotonic, boottime, _ = self._reading()
        return Instant(monotonic, boottime)

    def monotonic(self) -> float:
        """Seconds for durations."""
        return self._reading()[0]

    def boottime(self) -> float:
        """Seconds, also those in which the machine was suspended."""
        return self._reading()[1]

    def wall(self) -> float:
        """Seconds since 1970."""
        return self._reading()[2]

    def _add(self, monotonic: float, boottime: float, wall: float) -> None:
        with self._lock:
            for place, seconds in enumerate((monotonic, boottime, wall)):
                self._ahead[place] += seconds

    def advance(self, seconds: float) -> None:
        """Time passes on all three. Raises ValueError for less than nothing."""
        if seconds < 0:
            raise ValueError("monotonic clocks do not go back; use jump_wall()")
        self._add(seconds, seconds, seconds)

    def suspend(self, seconds: float) -> None:
        """The machine sleeps: boottime and wall go on, monotonic stands still."""
        self._add(0.0, seconds, seconds)

    def jump_wall(self, seconds: float) -> None:
        """Somebody sets the wall clock, also backwards."""
        self._add(0.0, 0.0, seconds)
