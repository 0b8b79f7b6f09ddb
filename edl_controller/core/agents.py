"""PURE: what the agents of one job say in etcd, as one value with its age."""

from __future__ import annotations

from dataclasses import dataclass

from edl_agent.drain_request import DrainRequest
from edl_agent.report import Report


@dataclass(frozen=True)
class Slot:
    """One held index: ``/ps/<index>``. ``epoch`` is the key's mod revision, ``lease`` the holder's."""

    index: int
    address: str
    epoch: int
    lease: int


@dataclass(frozen=True)
class AgentState:
    """One look at a job's keys.

    Attributes:
        observed: Unix seconds of the last whole look; None = never seen.
        error: why the newest look failed; empty = it did not.
        cluster_id: of the etcd; another one means that coordination state was lost.
        desired: ``/ps_desired``; None = not there.
        pservers: held pserver slots, by index.
        trainers: held trainer slots, by index.
        reports: fresh reports (they vanish with their agents), by name.
        drains: names for which a drain request is written.
        drain_requests: these requests as written, by name; a value that is none is only in ``drains``.
        passes: passes of the data set that are to be made; 0 = no task queue is used.
        passes_finished: passes finished so far.
    """

    observed: float | None = None
    error: str = ""
    cluster_id: int = 0
    desired: int | None = None
    pservers: tuple[Slot, ...] = ()
    trainers: tuple[Slot, ...] = ()
    reports: tuple[Report, ...] = ()
    drains: frozenset[str] = frozenset()
    drain_requests: tuple[tuple[str, DrainRequest], ...] = ()
    passes: int = 0
    passes_finished: int = 0

    @property
    def finished(self) -> bool:
        """Whether the final pass is recorded."""
        return 0 < self.passes <= self.passes_finished

    def age(self, now: float) -> float:
        """Return the seconds since the last whole look; infinite where there was none."""
        return float("inf") if self.observed is None else now - self.observed

    def missing(self, pservers: int) -> tuple[int, ...]:
        """Return the pserver indexes below ``pservers`` that nobody holds."""
        held = {slot.index for slot in self.pservers}
        return tuple(index for index in range(pservers) if index not in held)


NEVER_SEEN = AgentState()
