"""Workers that take keys from a queue and bring the world in line with each: level-triggered, errors to the back-off.

``reconcile(key)`` reads the current state, acts, and returns the seconds after which it wants to look again (None: when
something changes). What it raises goes to one place: the key alone is tried again, each time later (row K30).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from edl_controller.cluster.port import Stop
from edl_controller.errors import ClusterError, Conflict, Unavailable
from edl_controller.runtime.workqueue import QueueShutDown, WorkQueue

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)

STOP_WITHIN = 30.0
"""Seconds that the workers have to finish what they are at."""


def _ignore(key: object, error: Exception) -> None:
    """Do nothing about it."""


class Reconciler(Generic[K]):
    """A bounded number of workers over one queue.

    Args:
        name: for threads and logs.
        reconcile: see the module.
        workers: how many keys are worked on at once.
        queue: of the keys.
        on_error: is told what `reconcile` raised, by the worker; what it raises itself is logged.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], float | None],
        *,
        workers: int = 1,
        queue: WorkQueue[K] | None = None,
        on_error: Callable[[K, Exception], None] = _ignore,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers: at least 1, not {workers}")
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue(name) if queue is None else queue
        self._reconcile, self._workers, self._on_error = reconcile, workers, on_error

    def process_next_work_item(self) -> bool:
        """Wait for a key and work on it; False: the queue is shut down."""
        try:
            key = self.queue.get()
        except QueueShutDown:
            return False
        try:
            again_after = self._reconcile(key)
        except Exception as error:
            self._failed(key, error)
        else:
            self.queue.forget(key)
            if again_after is not None:
                self.queue.add_after(key, again_after)
        finally:
            self.queue.done(key)
        return True

    def run(self, stop: Stop) -> None:
        """Work until ``stop`` is set; then finish what is being worked on, and take nothing more."""
        threads = [
            threading.Thread(target=self._work, args=(stop,), name=f"edl-{self.name}-{number}", daemon=True)
            for number in range(self._workers)
        ]
        for thread in threads:
            thread.start()
        stop.wait()
        self.queue.shut_down()
        deadline = time.monotonic() + STOP_WITHIN
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if left := [thread.name for thread in threads if thread.is_alive()]:
            log.error("Workers were left behind at the stop: %s", ", ".join(left))

    def _work(self, stop: Stop) -> None:
        while not stop.is_set() and self.process_next_work_item():
            pass

    def _failed(self, key: K, error: Exception) -> None:
        delay = self.queue.add_rate_limited(key)
        if isinstance(error, Unavailable) and error.retry_after is not None:
            delay = max(delay, error.retry_after)
            self.queue.add_after(key, error.retry_after)
        failures = self.queue.failures(key)
        if isinstance(error, Conflict):
            log.debug("%s: %s is read again in %.3f s: %s", self.name, key, delay, error)
        elif isinstance(error, ClusterError):
            log.warning("%s: %s failed %d times, again in %.3f s: %s", self.name, key, failures, delay, error)
        else:
            log.error("%s: %s failed %d times, again in %.3f s", self.name, key, failures, delay, exc_info=error)
        try:
            self._on_error(key, error)
        except Exception as second:
            log.warning("%s: the failure of %s could not be reported: %s", self.name, key, second)
