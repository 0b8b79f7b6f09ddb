"""What the checker's rules look at: the records sorted by who and when, and the tenures of slots that the agents
reported.

Like the checker, this module knows the records and nothing of the product.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tests.soak.history import (
    AgentKilled,
    AgentRecord,
    AgentStarted,
    AgentStopped,
    Claimed,
    DesiredChanged,
    FaultBegan,
    FaultEnded,
    Held,
    Lost,
    Record,
    Released,
    Snapshot,
    StoreChange,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The numbers in the invariants.

    Attributes:
        ttl: seconds; the lease TTL that the server granted.
        settle_extra: seconds; I5 allows 2 x TTL + this.
        calls_per_second: I6, per agent.
        calls_window: seconds; the shortest time over which calls are counted.
        memory_kib: I6; growth of resident memory that still counts as flat (an allocator's arena, not a leak).
        usage_warm: seconds an agent must have lived before its samples are a baseline for I6.
    """

    ttl: float
    settle_extra: float = 5.0
    calls_per_second: float = 5.0
    calls_window: float = 2.0
    memory_kib: int = 4096
    usage_warm: float = 2.0

    @property
    def settle(self) -> float:
        """Seconds after the last disturbance until everything must be in order."""
        return 2 * self.ttl + self.settle_extra


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant.

    Attributes:
        invariant: `I1` to `I6`.
        agents: names of those concerned.
        times: seconds on the monotonic clock that show it; empty where only revisions are known.
        text: what was seen.
    """

    invariant: str
    agents: tuple[str, ...]
    times: tuple[float, ...]
    text: str

    def __str__(self) -> str:
        """Return one line for a person."""
        who = ", ".join(self.agents) or "-"
        when = ", ".join(f"{time:.3f}" for time in self.times) or "-"
        return f"{self.invariant} [{who}] at {when}: {self.text}"


@dataclasses.dataclass(slots=True)
class Tenure:
    """One agent's hold of one index, as the agent saw it.

    Attributes:
        start: when the agent first said so.
        deadline: the latest local deadline that it is known to have had.
        closed: when it learned the loss, released, or its process ended; `None` while open.
    """

    agent: str
    index: int
    epoch: int
    start: float
    deadline: float
    closed: float | None = None

    @property
    def end(self) -> float:
        """Return the end of the interval of I1."""
        return self.deadline if self.closed is None else min(self.deadline, self.closed)

    def open_at(self, time: float) -> bool:
        """Return whether the agent reported this slot at `time`."""
        return self.start <= time and (self.closed is None or time < self.closed)

    def __str__(self) -> str:
        """Return one tenure for a person."""
        return f"{self.agent} index {self.index} epoch {self.epoch} [{self.start:.3f}, {self.end:.3f}]"


class _Once:
    """Says of each epoch whether it is the first time: a wrong belief is sampled many times, and one line of it is
    enough.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def add(self, epoch: int) -> bool:
        if epoch in self._seen:
            return False
        self._seen.add(epoch)
        return True


class History:
    """The records, sorted by who and when."""

    def __init__(self, records: Iterable[Record]) -> None:
        all_records = list(records)
        timed: list[AgentRecord] = [record for record in all_records if isinstance(record, AgentRecord)]
        # A stable sort: records of one file with equal times stay in the order in which they were written.
        timed.sort(key=lambda record: record.at)
        self.by_agent: dict[str, list[AgentRecord]] = defaultdict(list)
        for record in timed:
            self.by_agent[record.agent].append(record)
        self.faults = sorted((r for r in all_records if isinstance(r, FaultBegan)), key=lambda r: r.at)
        self.fault_ends = {r.fault: r.at for r in all_records if isinstance(r, FaultEnded)}
        self.desired = sorted((r for r in all_records if isinstance(r, DesiredChanged)), key=lambda r: r.at)
        self.snapshots = sorted((r for r in all_records if isinstance(r, Snapshot)), key=lambda r: r.at)
        self.changes = sorted((r for r in all_records if isinstance(r, StoreChange)), key=lambda r: r.revision)
        self.address = {r.agent: r.address for r in timed if isinstance(r, AgentStarted)}
        self.outside = {index for fault in self.faults for index in fault.indexes}
        unknown = sorted(set(self.by_agent) - set(self.address))
        if unknown:
            raise ValueError(f"agents without a record of their start: {', '.join(unknown)}")

    def tenures(self, found: list[Violation]) -> dict[str, list[Tenure]]:
        """Return each agent's tenures in order of time; what contradicts itself goes to `found`."""
        return {agent: self._tenures_of(agent, records, found) for agent, records in self.by_agent.items()}

    @staticmethod
    def _tenures_of(agent: str, records: Sequence[AgentRecord], found: list[Violation]) -> list[Tenure]:
        by_epoch: dict[int, Tenure] = {}
        current: Tenure | None = None
        late, ghosts = _Once(), _Once()
        for record in records:
            if isinstance(record, Claimed | Held):
                if isinstance(record, Held) and record.at > record.deadline and late.add(record.epoch):
                    text = f"reports index {record.index} although its own deadline {record.deadline:.3f} has passed"
                    found.append(Violation("I1", (agent,), (record.at, record.deadline), text))
                tenure = by_epoch.get(record.epoch)
                if tenure is None:
                    tenure = Tenure(agent, record.index, record.epoch, record.at, record.deadline)
                    by_epoch[record.epoch] = tenure
                    if current is not None and current.closed is None:
                        if current.end > record.at:
                            text = (
                                f"holds epoch {record.epoch} of index {record.index} without having given up {current}"
                            )
                            found.append(Violation("I4", (agent,), (record.at,), text))
                        current.closed = record.at
                    current = tenure
                elif tenure.closed is not None and ghosts.add(record.epoch):
                    text = f"reports index {record.index} epoch {record.epoch} after its loss or release"
                    found.append(Violation("I1", (agent,), (tenure.closed, record.at), text))
                elif tenure.index != record.index:
                    text = f"reports epoch {record.epoch} for the indexes {tenure.index} and {record.index}"
                    found.append(Violation("I4", (agent,), (tenure.start, record.at), text))
                tenure.deadline = max(tenure.deadline, record.deadline)
            elif isinstance(record, Lost | Released):
                closing = by_epoch.get(record.epoch)
                if closing is not None and closing.closed is None:
                    closing.closed = record.at
            elif isinstance(record, AgentKilled | AgentStopped):
                for tenure in by_epoch.values():
                    if tenure.closed is None:
                        tenure.closed = record.at
        return list(by_epoch.values())
