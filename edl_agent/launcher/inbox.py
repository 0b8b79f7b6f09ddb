"""What happens, in the order it comes; the main thread waits here."""

import contextlib
import os
import queue
import select
import signal
from typing import Generic, TypeVar

_Event = TypeVar("_Event")


class Inbox(Generic[_Event]):
    """A queue whose reader is woken by signals too.

    It waits for a pipe that the signal's own C handler writes to, not for a queue: a signal that comes after Python's
    last look at pending ones and before the thread sleeps on the queue's lock interrupts nothing, and would be noticed
    only at the next event. Made on the main thread.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def put(self, event: _Event) -> None:
        """From any thread or signal handler."""
        self._queue.put(event)
        with contextlib.suppress(OSError):  # full: the reader is woken anyway; closed: nobody reads
            os.write(self._write, b"\0")

    def get(self, seconds: float) -> _Event | None:
        """The next event, ``None`` when there is none for ``seconds`` or a signal came."""
        with contextlib.suppress(queue.Empty):
            return self._queue.get_nowait()
        select.select([self._read], [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        with contextlib.suppress(queue.Empty):
            return self._queue.get_nowait()
        return None

    def close(self) -> None:
        """Give the pipe back."""
        signal.set_wakeup_fd(self._before)
        os.close(self._read)
        os.close(self._write)
