"""PURE: the journal of decisions: why a job has the trainers it has. Bounded, newest last."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from edl_controller.core.planner.plan import Cause

KEPT = 100
"""Decisions kept per job."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one job, and what became of it.

    Attributes:
        id: names it, in drain requests too.
        time: Unix seconds.
        job: key of the job.
        before: trainers before.
        target: trainers wanted.
        reason: one sentence.
        victims: pods that were chosen to go.
        outcome: ``""`` = under way, ``done``, or why it did not come to be.
        cause: the class of the reason.
    """

    id: str
    time: float
    job: str
    before: int
    target: int
    reason: str
    victims: tuple[str, ...] = ()
    outcome: str = ""
    cause: Cause = Cause.OTHER


@dataclass(frozen=True, slots=True)
class Journal:
    """The decisions about one job. Each change returns a new journal."""

    entries: tuple[Decision, ...] = ()
    kept: int = field(default=KEPT)

    def add(self, decision: Decision) -> Journal:
        """Return the journal with one more decision; the oldest is dropped where there are too many."""
        return replace(self, entries=(*self.entries, decision)[-self.kept :])

    def close(self, decision_id: str, outcome: str) -> Journal:
        """Return the journal with the outcome of a decision; one that is not known (any more) changes nothing."""
        return replace(
            self,
            entries=tuple(replace(one, outcome=outcome) if one.id == decision_id else one for one in self.entries),
        )

    @property
    def last(self) -> Decision | None:
        """Return the newest decision, or None."""
        return self.entries[-1] if self.entries else None
