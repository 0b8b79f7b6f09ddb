"""Virtual time: a clock that stands still until it is set, and what is to happen when."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass

START = 1_500_000_000.0
"""Unix seconds at which virtual time begins: July 2017."""


class VirtualClock:
    """A clock that somebody else moves. Seconds."""

    def __init__(self, start: float = START) -> None:
        self._start = start
        self._now = start

    def wall(self) -> float:
        """Return Unix seconds."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds since the beginning of virtual time."""
        return self._now - self._start

    def set(self, moment: float) -> None:
        """Go to a moment (Unix seconds); never back."""
        self._now = max(self._now, moment)


@dataclass(frozen=True, slots=True)
class _Plan:
    due: float
    number: int
    soon: bool


class Timetable:
    """What is to happen when. Equal moments: first planned, first done. Not thread-safe.

    Each entry has a key; planning the same key again keeps the earlier of both moments. ``soon`` entries are those that
    `settle` waits for: what goes on by itself; the others are time that has to be let pass.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self._heap: list[tuple[float, int, Hashable, Callable[[], None]]] = []
        self._plans: dict[Hashable, _Plan] = {}
        self._numbers = itertools.count()
        self._soon = 0

    def plan(self, key: Hashable, seconds: float, action: Callable[[], None], *, soon: bool = True) -> None:
        """Do ``action`` in so many seconds."""
        due = self.clock.wall() + seconds
        known = self._plans.get(key)
        if known is not None:
            if known.due <= due:
                return
            self._soon -= known.soon
        number = next(self._numbers)
        self._plans[key] = _Plan(due, number, soon)
        self._soon += soon
        heapq.heappush(self._heap, (due, number, key, action))

    def forget(self, key: Hashable) -> None:
        """Do not do it."""
        known = self._plans.pop(key, None)
        if known is not None:
            self._soon -= known.soon

    def next_due(self) -> float | None:
        """Return when the next thing happens (Unix seconds); None = never."""
        while self._heap:
            due, number, key, _ = self._heap[0]
            plan = self._plans.get(key)
            if plan is not None and plan.number == number:
                return due
            heapq.heappop(self._heap)
        return None

    def step(self) -> bool:
        """Go to the next thing and do it; False = there is none."""
        if self.next_due() is None:
            return False
        due, _, key, action = heapq.heappop(self._heap)
        self._soon -= self._plans.pop(key).soon
        self.clock.set(due)
        action()
        return True

    def advance(self, seconds: float) -> None:
        """Let time pass, and do what falls into it."""
        end = self.clock.wall() + seconds
        while (due := self.next_due()) is not None and due <= end:
            self.step()
        self.clock.set(end)

    def settle(self) -> None:
        """Let time pass until nothing is going on by itself."""
        while self._soon and self.step():
            pass

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is going on by itself."""
        return self._soon == 0
