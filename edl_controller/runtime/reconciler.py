"""Workers that take keys from a queue and bring the world in line with each: level-triggered, errors to the back-off.

``reconcile(key)`` reads the current state, acts, and returns the seconds after which it wants to look again (None: when
something changes). What it raises goes to one place: the key alone is tried again, each time later (row K30).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, Literal, Protocol, TypeVar

from edl_controller.cluster.port import Stop
from edl_controller.errors import ClusterError, Conflict, EdlControllerError, Unavailable
from edl_controller.runtime.workqueue import QueueShutDown, WorkQueue

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)

AWAY_AT_MOST = 15.0
"""Seconds between two tries while the cluster does not answer, so that all is level soon after its return (K1)."""
STOP_WITHIN = 30.0
"""Seconds that the workers have to finish what they are at."""
WORKERS_SEEN = 1.0
"""Seconds within which the end of a worker is noticed."""


Result = Literal["success", "requeue_after", "error"]


class WorkerDied(EdlControllerError):
    """A worker has ended by itself: a fault of this program, with which it must not go on."""


class ReconcileMetrics(Protocol):
    """What is told to whoever counts; must not block."""

    def reconciled(self, result: Result, seconds: float) -> None:
        """A pass over one key has ended."""
        ...


class NoMetrics:
    """Counts nothing."""

    def reconciled(self, result: Result, seconds: float) -> None:
        """Ignore it."""


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
        metrics: who counts.
        stop_within: seconds that the workers have to finish what they are at; default `STOP_WITHIN`.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], float | None],
        *,
        workers: int = 1,
        queue: WorkQueue[K] | None = None,
        on_error: Callable[[K, Exception], None] = _ignore,
        metrics: ReconcileMetrics | None = None,
        stop_within: float | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers: at least 1, not {workers}")
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue(name) if queue is None else queue
        self._reconcile, self._workers, self._on_error = reconcile, workers, on_error
        self._metrics, self._stop_within = metrics or NoMetrics(), stop_within or STOP_WITHIN

    def process_next_work_item(self) -> bool:
        """Wait for a key and work on it; False: the queue is shut down."""
        try:
            key = self.queue.get()
        except QueueShutDown:
            return False
        started = time.monotonic()
        result: Result = "success"
        try:
            again_after = self._reconcile(key)
        except Exception as error:
            result = "error"
            self._failed(key, error)
        else:
            self.queue.forget(key)
            if again_after is not None:
                result = "requeue_after"
                self.queue.add_after(key, again_after)
        finally:
            self.queue.done(key)
            self._metrics.reconciled(result, time.monotonic() - started)
        return True

    def run(self, stop: Stop) -> None:
        """Work until ``stop`` is set; then finish what is being worked on, and take nothing more.

        Raises:
            WorkerDied: one has ended by itself.
        """
        threads = [
            threading.Thread(target=self._work, args=(stop,), name=f"edl-{self.name}-{number}", daemon=True)
            for number in range(self._workers)
        ]
        for thread in threads:
            thread.start()
        while not stop.wait(WORKERS_SEEN) and all(thread.is_alive() for thread in threads):
            pass
        died = not (stop.is_set() or self.queue.is_shut_down)
        self.queue.shut_down()
        deadline = time.monotonic() + self._stop_within
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if left := [thread.name for thread in threads if thread.is_alive()]:
            log.error("Workers were left behind at the stop: %s", ", ".join(left))
        if died:
            raise WorkerDied(f"a worker of {self.name} has ended by itself")

    def _work(self, stop: Stop) -> None:
        while not stop.is_set() and self.process_next_work_item():
            pass

    def _failed(self, key: K, error: Exception) -> None:
        at_least, at_most = 0.0, float("inf")
        if isinstance(error, Unavailable):
            at_least, at_most = error.retry_after or 0.0, AWAY_AT_MOST
        delay = self.queue.add_rate_limited(key, at_least=at_least, at_most=at_most)
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
