"""A wait that signals, threads and time can end.

Not an Event: a handler that interrupts its `wait` may find its lock taken, by the very thread that it runs on.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from types import TracebackType
from typing import Self


class SignalledEnd:
    """While it is open, signals no longer end the process but this wait. Main thread only, but for `wake`.

    Args:
        numbers: of the signals.
    """

    def __init__(self, numbers: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)) -> None:
        self._numbers = numbers

    def __enter__(self) -> Self:
        self._told, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        self._before = {number: signal.signal(number, lambda *_: self.wake()) for number in self._numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        tell, self._tell = self._tell, -1
        os.close(tell)
        os.close(self._told)

    def wake(self) -> None:
        """End the wait, now and later. From any thread."""
        with contextlib.suppress(OSError):  # full, or closed already
            os.write(self._tell, b"x")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, up to ``timeout`` seconds; tell whether it has come."""
        return bool(select.select([self._told], [], [], timeout)[0])
