"""What trainers did with tasks, as they saw it, and the check that no two ever had the same one at a time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass


@dataclass
class Turn:
    """One trainer's time with one task: from when it was handed out until it was let go, or its holder died."""

    who: str
    task: tuple[int, int]
    begin: float
    end: float = float("inf")
    outcome: str = "in hand"


class History:
    """Collects turns from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.turns: list[Turn] = []

    def begin(self, who: str, task: tuple[int, int]) -> Turn:
        """A task was handed out (now)."""
        turn = Turn(who, task, time.monotonic())
        with self._lock:
            self.turns.append(turn)
        return turn

    @property
    def finished(self) -> Counter[tuple[int, int]]:
        """How often each task was finished."""
        return Counter(turn.task for turn in self.turns if turn.outcome == "finished")

    def overlaps(self) -> list[tuple[Turn, Turn]]:
        """Pairs of turns with the same task at the same time."""
        found = []
        last: dict[tuple[int, int], Turn] = {}
        for turn in sorted(self.turns, key=lambda one: one.begin):
            before = last.get(turn.task)
            if before is not None and before.end > turn.begin:
                found.append((before, turn))
            if before is None or turn.end > before.end:
                last[turn.task] = turn
        return found

    def check(self, passes: int, tasks: int) -> None:
        """Never two holders at a time, every task finished, passes one after the other."""
        assert not self.overlaps(), self.overlaps()[:3]
        everything = {(number, index) for number in range(passes) for index in range(tasks)}
        # A finish is recorded before its trainer hears of it; one that died in between could not tell.
        told = {turn.task for turn in self.turns if turn.outcome in ("finished", "died while finishing")}
        assert told == everything, f"never finished: {sorted(everything - told)[:10]}"
        last_end = -1.0
        for number in range(passes):
            turns = [turn for turn in self.turns if turn.task[0] == number]
            assert min(turn.begin for turn in turns) > last_end, f"pass {number} began too early"
            last_end = max((turn.end for turn in turns if turn.outcome == "finished"), default=last_end)
