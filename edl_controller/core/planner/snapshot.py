"""PURE: what a policy looks at: frozen, so that a plan can be made again from a file. Times are Unix seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edl_controller.core.capacity import NodeRoom
from edl_controller.core.placement import Shape

AgentWord = Literal["", "reporting", "lost"]
"""What a trainer's agent says: nothing is expected of it, it reports, or it went silent although the pod runs."""


@dataclass(frozen=True, slots=True)
class TrainerPod:
    """A trainer pod that has not ended and was not asked to end.

    Attributes:
        name: of the pod; its agent reports under it.
        uid: of the pod.
        node: where it runs; empty = unassigned.
        pending: its phase is still Pending.
        ready_since: since when it is Ready; None = it is not.
        created: when it was made.
        restarts: of its containers.
        draining: it was asked to drain and will be cut.
        agent: see `AgentWord`.
    """

    name: str
    uid: str = ""
    node: str = ""
    pending: bool = False
    ready_since: float | None = None
    created: float = 0.0
    restarts: int = 0
    draining: bool = False
    agent: AgentWord = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job whose number of trainers may change.

    Attributes:
        key: ``namespace/name/uid``.
        trainer: what the scheduler looks at of one trainer.
        minimum: of trainers.
        maximum: of trainers.
        parallelism: of the trainer Job now.
        pods: its trainers; those that end or terminate are not in it.
        enabled: whether the user lets it be scaled between its bounds.
        frozen: why its size must not change any more; empty = it may. Near the end nothing can be scaled.
        agents_age: seconds since its agents' state was last read whole; 0 where it has no agents to hear.
        missing_pservers: indexes that nobody holds.
        grown: when it last grew; None = never.
        shrunk: when it last shrank; None = never.
        up_cooldown: seconds after any change before it grows.
        down_cooldown: seconds after any change before it shrinks for the load's sake.
        priority: of its trainers; a higher one is served first and gives back last.
    """

    key: str
    trainer: Shape
    minimum: int
    maximum: int
    parallelism: int
    pods: tuple[TrainerPod, ...] = ()
    enabled: bool = True
    frozen: str = ""
    agents_age: float = 0.0
    missing_pservers: tuple[int, ...] = ()
    grown: float | None = None
    shrunk: float | None = None
    up_cooldown: float = 0.0
    down_cooldown: float = 0.0
    priority: int = 0

    @property
    def draining(self) -> int:
        """How many of its trainers are asked to drain: they are as good as gone."""
        return sum(pod.draining for pod in self.pods)

    @property
    def still_draining(self) -> int:
        """How many of them are still within the parallelism: the others are about to be removed by a cut already."""
        return max(0, self.draining - max(0, len(self.pods) - self.parallelism))

    @property
    def committed(self) -> int:
        """How many trainers it will have when all that is under way is done."""
        return self.parallelism - self.still_draining

    @property
    def lost(self) -> int:
        """How many of its trainers run but do no work any more."""
        return sum(pod.agent == "lost" and not pod.draining for pod in self.pods)

    @property
    def changed(self) -> float | None:
        """When its size last changed."""
        return max((time for time in (self.grown, self.shrunk) if time is not None), default=None)


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod without a node that is not a trainer above its job's minimum: it gets room first.

    Attributes:
        name: ``namespace/name``, for people.
        shape: what the scheduler looks at.
        priority: the higher is served first.
        since: when it was made.
    """

    name: str
    shape: Shape
    priority: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment.

    Attributes:
        jobs: elastic jobs.
        nodes: the accounts of all nodes; elastic trainers are booked there as everything else.
        waiting: pods that get room first; the minima of the jobs above are not in it.
    """

    jobs: tuple[JobView, ...] = ()
    nodes: tuple[NodeRoom, ...] = ()
    waiting: tuple[WaitingPod, ...] = ()
