"""The one place that reads clocks; everything else is handed a `Clock` or a `now`."""

import time
from typing import Protocol

from edl_agent.session import Instant


class Clock(Protocol):
    """What the shells need of time."""

    def now(self) -> Instant:
        """This moment, on both clocks."""

    def monotonic(self) -> float:
        """Seconds for durations; never the wall clock."""

    def wall(self) -> float:
        """Seconds since 1970, only for what people read."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Instant:
        """This moment, on both clocks."""
        return Instant(time.monotonic(), _boottime())

    monotonic = staticmethod(time.monotonic)  # the function itself: each call to etcd asks for the time thrice

    def wall(self) -> float:
        """``time.time()``."""
        return time.time()


if hasattr(time, "CLOCK_BOOTTIME"):

    def _boottime() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # pragma: no cover - other systems than Linux
    _boottime = time.monotonic
