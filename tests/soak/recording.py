"""What an agent process of the random test records about itself: what it believes, and what it uses.

`Recorder.observe` reads the belief and writes what changed since the last reading. It is called from a sampling thread
and from the product's hooks; a lock keeps the reading and its record together, so the file tells one story.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.soak.history import Claimed, Connected, Held, HistoryWriter, Lost, Released, Suspended, Usage

SAMPLE_EVERY = 0.05
"""Seconds between two readings of the belief."""
USAGE_EVERY = 5
"""Readings between two samples of what the process uses."""


@dataclasses.dataclass(frozen=True, slots=True)
class Belief:
    """What an agent believes at one moment, if it believes that it holds a slot."""

    index: int
    epoch: int
    lease: int
    deadline: float
    suspended: bool = False


class Recorder:
    """Writes one agent's history."""

    def __init__(self, path: Path, name: str, belief: Callable[[], Belief | None], calls: Callable[[], int]) -> None:
        """Open the file.

        Args:
            path: of the history.
            name: of the agent.
            belief: reads what the agent believes now; `None` where it holds nothing.
            calls: how many remote calls were started so far.
        """
        self.writer = HistoryWriter(path)
        self._name = name
        self._belief = belief
        self._calls = calls
        self._last: Belief | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="soak-sampler", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def observe(self) -> Belief | None:
        """Read the belief, write what it says and what changed, and return it; `None` once the agent is leaving."""
        with self._lock:
            if self._over.is_set():
                return None
            # Before the reading: a record may say too early, never too late, until when a slot was believed in.
            at = time.monotonic()
            now, last = self._belief(), self._last
            if last is not None and (now is None or now.epoch != last.epoch):
                self.writer.write(Lost(time.monotonic(), self._name, last.index, last.epoch, "no longer reported"))
            if now is not None:
                if last is None or now.epoch != last.epoch:
                    self.writer.write(Claimed(at, self._name, now.index, now.epoch, now.lease, now.deadline))
                elif now.suspended != last.suspended:
                    self.writer.write(Suspended(at, self._name) if now.suspended else Connected(at, self._name))
                self.writer.write(Held(at, self._name, now.index, now.epoch, now.deadline))
            self._last = now
            return now

    def leave(self) -> None:
        """Stop observing and record that the slot is given back. Call this before the release is sent."""
        with self._lock:
            self._over.set()
            last, self._last = self._last, None
            if last is not None:
                self.writer.write(Released(time.monotonic(), self._name, last.index, last.epoch))

    def _sample(self) -> None:
        count = 0
        while not self._over.wait(SAMPLE_EVERY):
            self.observe()
            count += 1
            if count % USAGE_EVERY == 0:
                self.writer.write(self._usage())

    def _usage(self) -> Usage:
        at = time.monotonic()
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
        # The list of descriptors holds the one that reads it: always, so it does no harm in a comparison.
        threads, descriptors = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        return Usage(at, self._name, self._calls(), threads, descriptors, resident)
