"""PURE: what a policy decides: a target for each job, the victims it chose, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """Why a job changes, for those who count: the class of the reason."""

    BOUNDS = "bounds"
    """Fewer than its minimum, or more than its maximum."""
    FITS = "fits"
    """There is room for more."""
    LOAD = "load"
    """The load limit is passed."""
    NO_ROOM = "no_room"
    """What it was promised fits nowhere."""
    ROOM_FOR_OTHERS = "room_for_others"
    """Its room goes to a pod that waits."""
    OTHER = "other"
    """It does not change."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What becomes of one job.

    Attributes:
        key: of the job.
        before: trainers that it has or will have (those that drain already are not among them).
        target: how many it should have.
        reason: one sentence, for people.
        victims: names of pods that have to go (at most ``before - target``); the others are for `victims` to choose.
        cause: the class of the reason.
    """

    key: str
    before: int
    target: int
    reason: str
    victims: tuple[str, ...] = ()
    cause: Cause = Cause.OTHER

    @property
    def change(self) -> int:
        """By how many trainers it changes."""
        return self.target - self.before


@dataclass(frozen=True, slots=True)
class Plan:
    """One decision for the whole cluster.

    Attributes:
        time: Unix seconds.
        jobs: one entry for each job of the snapshot, in its order.
        placed: for each job that grows, the nodes with room for its new trainers (the scheduler may choose others).
        unplaced: waiting pods for which no taking back makes room.
    """

    time: float
    jobs: tuple[JobPlan, ...] = ()
    placed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unplaced: tuple[str, ...] = ()

    def of(self, key: str) -> JobPlan | None:
        """Return what becomes of a job, or None."""
        return next((job for job in self.jobs if job.key == key), None)

    @property
    def changes(self) -> tuple[JobPlan, ...]:
        """Return the jobs that change."""
        return tuple(job for job in self.jobs if job.change)
