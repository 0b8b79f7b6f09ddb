"""A wait that signals, threads and time can end.

Not an Event: a handler that interrupts its `wait` may find its lock taken, by the very thread that it runs on. And not
the handlers' doing: Python calls them on the main thread only, which may have looked for signals for the last time
before it sleeps, or sleep on while another thread has got the signal. The pipe is written to by the signal's own C
handler (``signal.set_wakeup_fd``).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from types import TracebackType
from typing import Self

_WAKE = 0
"""What `SignalledEnd.wake` writes; no signal has this number."""


class SignalledEnd:
    """While it is open, signals no longer end the process but this wait. Main thread only, but for `wake`.

    Args:
        numbers: of the signals.
    """

    def __init__(self, numbers: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)) -> None:
        self._numbers = numbers
        self._come = False

    def __enter__(self) -> Self:
        self._told, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        self._woken_before = signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, lambda *_: None) for number in self._numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._woken_before)
        tell, self._tell = self._tell, -1
        os.close(tell)
        os.close(self._told)

    def wake(self) -> None:
        """End the wait, now and later. From any thread."""
        with contextlib.suppress(OSError):  # full, or closed already
            os.write(self._tell, bytes([_WAKE]))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, up to ``timeout`` seconds; tell whether it has come."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._come:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._told], [], [], left)[0]:
                return False
            # Signals that others have handlers for are in there, too.
            self._come = any(number == _WAKE or number in self._numbers for number in os.read(self._told, 4096))
        return True
