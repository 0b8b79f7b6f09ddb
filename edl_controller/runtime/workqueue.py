"""The work queue: keys to look at, each at most once at a time, with client-go's semantics.

- A key that waits is not added twice; a key that is being worked on and is added again gets one more pass after it.
- Later (`add_after`), and later each time (`add_rate_limited`, until `forget`). The earliest of several delays counts.
- Two priorities: what a user changed overtakes what a resync brings (row K44); one in sixteen goes to the lower one,
  so that it is never starved.
- `shut_down` hands out what still waits, then ends every `get`; what is delayed is dropped.

There is no timer thread: whoever waits in `get` wakes up for the next delayed key.
"""

from __future__ import annotations

import enum
import heapq
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from edl_controller.runtime.back_off import ItemBackOff, TokenBucket

K = TypeVar("K", bound=Hashable)

FAIR_SHARE = 16
"""Of this many keys handed out in a row, one is of the lower priority if there is one."""


class Priority(enum.IntEnum):
    """Who comes first."""

    CHANGE = 0
    """Something happened."""
    RESYNC = 1
    """Only to make sure."""


class QueueShutDown(Exception):
    """The queue is shut down and empty: the worker ends."""


class QueueMetrics(Protocol):
    """What is told to whoever counts. Called with the queue's lock held: only count, never block."""

    def depth(self, waiting: int) -> None:
        """So many keys wait now."""

    def added(self) -> None:
        """A key was added (one that was not waiting already)."""

    def retried(self) -> None:
        """A key was added again after a failure."""

    def waited(self, seconds: float) -> None:
        """A key was handed out after so long."""

    def worked(self, seconds: float) -> None:
        """The work on a key took so long."""


class NoMetrics:
    """Counts nothing."""

    def depth(self, waiting: int) -> None:
        """Ignore it."""

    def added(self) -> None:
        """Ignore it."""

    def retried(self) -> None:
        """Ignore it."""

    def waited(self, seconds: float) -> None:
        """Ignore it."""

    def worked(self, seconds: float) -> None:
        """Ignore it."""


class WorkQueue(Generic[K]):
    """A thread-safe queue of keys.

    Args:
        name: for people.
        clock: monotonic seconds.
        back_off: delays of `add_rate_limited`; the default is 5 ms doubling to 1000 s.
        bucket: also bounds all rate-limited adds together; None: it does not.
        metrics: who counts.
    """

    def __init__(
        self,
        name: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
        back_off: ItemBackOff[K] | None = None,
        bucket: TokenBucket | None = None,
        metrics: QueueMetrics | None = None,
    ) -> None:
        self.name = name
        self._clock = clock
        self._back_off: ItemBackOff[K] = ItemBackOff() if back_off is None else back_off
        self._bucket = bucket
        self._metrics: QueueMetrics = NoMetrics() if metrics is None else metrics
        self._changed = threading.Condition(threading.Lock())
        # What is to be handed out, in order, by priority: key -> when it was added.
        # (Ordered: a plain dict forgets its first keys in quadratic time.)
        self._ready: tuple[OrderedDict[K, float], OrderedDict[K, float]] = (OrderedDict(), OrderedDict())
        # What is worked on -> since when; and what of it was added meanwhile.
        self._working: dict[K, float] = {}
        self._again: dict[K, tuple[Priority, float]] = {}
        # What is delayed: the heap may hold entries that are outdated (another time than in `_due`).
        self._due: dict[K, tuple[float, Priority]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = 0
        self._in_a_row = 0
        self._shut_down = False

    def __len__(self) -> int:
        """Return how many keys wait to be handed out (not the delayed ones, not those being worked on)."""
        with self._changed:
            self._promote()
            return self._waiting()

    @property
    def is_shut_down(self) -> bool:
        """Whether adds are refused."""
        return self._shut_down

    def add(self, key: K, priority: Priority = Priority.CHANGE) -> None:
        """Have the key looked at; if it waits already, at the higher of both priorities. Ignored after `shut_down`."""
        with self._changed:
            if not self._shut_down:
                self._add(key, priority)

    def add_after(self, key: K, seconds: float, priority: Priority = Priority.CHANGE) -> None:
        """Have the key looked at in so many seconds; several delays of one key: the earliest counts."""
        with self._changed:
            self._add_after(key, seconds, priority)

    def add_rate_limited(
        self,
        key: K,
        priority: Priority = Priority.CHANGE,
        *,
        at_least: float = 0.0,
        at_most: float = float("inf"),
    ) -> float:
        """Have the key looked at later, each time twice as long, until `forget`. Returns the delay in seconds.

        ``at_least``: seconds that somebody has asked to wait. ``at_most``: where it is not the key that is at fault.
        """
        with self._changed:
            if self._shut_down:
                return 0.0
            delay = max(min(self._back_off.failed(key), at_most), at_least)
            if self._bucket is not None:
                delay = max(delay, self._bucket.reserve(self._clock()))
            self._metrics.retried()
            self._add_after(key, delay, priority)
            return delay

    def forget(self, key: K) -> None:
        """Forget the key's failures; call it when a pass succeeded, and when the object is gone."""
        with self._changed:
            self._back_off.forget(key)

    def failures(self, key: K) -> int:
        """Return how often the key was added by `add_rate_limited` since it was forgotten."""
        with self._changed:
            return self._back_off.failures(key)

    def get(self, timeout: float | None = None) -> K:
        """Wait for a key and take it; `done` must follow.

        Raises:
            QueueShutDown: nothing will come any more.
            TimeoutError: nothing came within ``timeout`` seconds.
        """
        deadline = None if timeout is None else self._clock() + timeout
        with self._changed:
            while True:
                self._promote()
                if self._ready[0] or self._ready[1]:
                    return self._take()
                if self._shut_down:
                    raise QueueShutDown(self.name)
                now = self._clock()
                if deadline is not None and now >= deadline:
                    raise TimeoutError(f"no key within {timeout} s")
                ends = [end for end in (deadline, self._next_due()) if end is not None]
                self._changed.wait(max(0.0, min(ends) - now) if ends else None)

    def done(self, key: K) -> None:
        """Say that the work on a key is done; if it was added meanwhile, it waits again.

        Raises:
            ValueError: it is not being worked on.
        """
        with self._changed:
            if key not in self._working:
                raise ValueError(f"{key!r} is not being worked on")
            self._metrics.worked(self._clock() - self._working.pop(key))
            again = self._again.pop(key, None)
            if again is not None:
                priority, since = again
                self._ready[priority][key] = since
                self._metrics.depth(self._waiting())
                self._changed.notify()
            if self._shut_down:
                self._changed.notify_all()

    def shut_down(self) -> None:
        """Take nothing more. Whoever waits in `get` is woken; what still waits is handed out first."""
        with self._changed:
            self._shut_down = True
            self._heap.clear()
            self._due.clear()
            self._changed.notify_all()

    def shut_down_with_drain(self, timeout: float) -> bool:
        """Shut down and wait up to ``timeout`` seconds until all keys are worked off. Tells whether they are."""
        self.shut_down()
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._working or self._waiting():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def longest_work(self) -> float:
        """Return for how many seconds the oldest key has been worked on; 0 with none: a sign of a stuck worker."""
        with self._changed:
            return self._clock() - min(self._working.values()) if self._working else 0.0

    def unfinished_work(self) -> float:
        """Return the seconds that all keys together have been worked on."""
        with self._changed:
            now = self._clock()
            return sum(now - since for since in self._working.values())

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all inner maps, so that a leak can be seen."""
        with self._changed:
            return {
                "waiting": self._waiting(),
                "working": len(self._working),
                "again": len(self._again),
                "delayed": len(self._due),
                "heap": len(self._heap),
                "failures": len(self._back_off),
            }

    def _waiting(self) -> int:
        return len(self._ready[0]) + len(self._ready[1])

    def _add(self, key: K, priority: Priority) -> None:
        if key in self._working:
            known = self._again.get(key)
            if known is None:
                self._metrics.added()
                self._again[key] = (priority, self._clock())
            elif priority < known[0]:
                self._again[key] = (priority, known[1])
            return
        if key in self._ready[Priority.CHANGE]:
            return
        if key in self._ready[Priority.RESYNC]:
            if priority is Priority.CHANGE:
                self._ready[Priority.CHANGE][key] = self._ready[Priority.RESYNC].pop(key)
            return
        self._ready[priority][key] = self._clock()
        self._metrics.added()
        self._metrics.depth(self._waiting())
        self._changed.notify()

    def _add_after(self, key: K, seconds: float, priority: Priority) -> None:
        if self._shut_down:
            return
        if seconds <= 0:
            self._add(key, priority)
            return
        due = self._clock() + seconds
        known = self._due.get(key)
        if known is not None:
            if known[0] <= due and known[1] <= priority:
                return
            due, priority = min(known[0], due), min(known[1], priority)
        self._due[key] = (due, priority)
        if known is None or due < known[0]:
            self._order += 1
            heapq.heappush(self._heap, (due, self._order, key))
            if self._heap[0][2] == key:
                self._changed.notify()
            if len(self._heap) > 2 * len(self._due) + 64:
                self._heap = [entry for entry in self._heap if self._is_current(entry)]
                heapq.heapify(self._heap)

    def _next_due(self) -> float | None:
        while self._heap:
            if self._is_current(self._heap[0]):
                return self._heap[0][0]
            heapq.heappop(self._heap)
        return None

    def _is_current(self, entry: tuple[float, int, K]) -> bool:
        return entry[2] in self._due and self._due[entry[2]][0] == entry[0]

    def _promote(self) -> None:
        """Move what is due to what waits."""
        while (due := self._next_due()) is not None and due <= self._clock():
            _, _, key = heapq.heappop(self._heap)
            _, priority = self._due.pop(key)
            self._add(key, priority)

    def _take(self) -> K:
        changes, resyncs = self._ready
        fair = bool(resyncs) and self._in_a_row >= FAIR_SHARE - 1
        source = changes if changes and not fair else resyncs
        self._in_a_row = self._in_a_row + 1 if source is changes and resyncs else 0
        key, since = source.popitem(last=False)
        now = self._clock()
        self._metrics.waited(now - since)
        self._metrics.depth(self._waiting())
        self._working[key] = now
        return key
