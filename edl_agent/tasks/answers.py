"""PURE: what the task queue hands out."""

from dataclasses import dataclass, field
from typing import Any

from edl_agent.tasks.rules import PassSummary


@dataclass(frozen=True, slots=True)
class Task:
    """A task in hand.

    Attributes:
        pass_number: which pass over the data, from 0.
        index: which task of the data set, from 0.
        spec: as given to `TaskQueue.set_dataset`; ``None`` where only a number was given.
        failures: how often it failed before in this pass.
    """

    pass_number: int
    index: int
    spec: Any = None
    failures: int = 0
    _position: int = field(default=0, repr=False)
    _hold: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """All passes are finished: nothing waits, nothing is held.

    Attributes:
        passes: how many passes were finished in all.
    """

    passes: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the work stands, read at one moment.

    Attributes:
        current: counts of the pass under way; ``None`` before a data set is set and after the last pass.
        passes: end of the pass numbers: how many passes there will have been.
        held: chunks held at the moment.
        holders: who holds them, by name, for people.
        history: counts of the latest finished passes, the oldest first.
    """

    current: PassSummary | None
    passes: int
    held: int
    holders: tuple[str, ...]
    history: tuple[PassSummary, ...]
