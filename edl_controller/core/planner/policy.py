"""PURE: what every policy is, and what it may be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edl_controller.core.planner.plan import Plan
from edl_controller.core.planner.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """What users of the autoscaler choose.

    Attributes:
        max_load: share of the CPU, memory and GPUs of all nodes up to which trainers are added, and above which they
            are taken back. The original's default.
        step: by how many trainers a job grows, or shrinks for the load's sake, in one plan at most. What waits for room
            is not made to wait for it.
        stale_after: seconds; with an older agents' state a job neither grows nor shrinks for the load's sake.
    """

    max_load: float = 0.97
    step: int = 10
    stale_after: float = 30.0


class Policy(Protocol):
    """Decides. Must be pure: the same arguments give the same plan."""

    @property
    def name(self) -> str:
        """How users choose it."""
        ...

    def plan(self, snapshot: Snapshot, settings: PlannerSettings, now: float) -> Plan:
        """Return a target between minimum and maximum for each job; ``now`` in Unix seconds."""
        ...
