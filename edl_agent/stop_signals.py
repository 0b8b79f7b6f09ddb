"""Offered, never imposed: shut clients down on SIGTERM and SIGINT, then let the signal do what it did before."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

_log = logging.getLogger(__name__)

_LONGEST = 30.0
"""Seconds that the main thread waits for the end of a shutdown, which is bounded by ``dial_timeout``."""

_ChainedHandler = Callable[[int, FrameType | None], Any] | int | None


class StopSignals:
    """Handlers for some signals.

    The first signal starts ``shutdown`` on a thread of its own, since the interrupted main thread may hold any
    lock; when that is done the previous handler (or the default action) gets the signal. Signals in between are
    ignored: shutting down is bounded already.

    Args:
        shutdown: bounded and idempotent.
        signals: which.

    Raises:
        ValueError: not called on the main thread (Python's rule for signal handlers).
    """

    def __init__(self, shutdown: Callable[[], None], signals: Iterable[int]) -> None:
        self._shutdown = shutdown
        self._started = False
        self._done = False
        self._handed_on = threading.Event()
        self._previous: dict[int, _ChainedHandler] = {number: signal.signal(number, self._handle) for number in signals}

    def wait_until_handed_on(self) -> None:
        """Where a stop is under way: wait on the main thread until the signal has been handed on, which may end it."""
        if self._started and threading.current_thread() is threading.main_thread():
            self._handed_on.wait(_LONGEST)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._done:
            self._handed_on.set()
            previous = self._previous[number]
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)
            if callable(previous):
                previous(number, frame)
            elif previous != signal.SIG_IGN:
                signal.raise_signal(number)
        elif not self._started:
            self._started = True
            threading.Thread(target=self._stop, args=(number,), name="edl-shutdown", daemon=True).start()

    def _stop(self, number: int) -> None:
        try:
            self._shutdown()
        except Exception:
            _log.exception("Shutdown on signal %d failed", number)
        finally:
            self._done = True
            # A signal that comes just before the main thread blocks interrupts nothing: again, until it was heard.
            while not self._handed_on.is_set():
                os.kill(os.getpid(), number)
                self._handed_on.wait(0.1)
