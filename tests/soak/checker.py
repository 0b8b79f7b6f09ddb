"""Proves the agent's invariants I1 to I6 from a recorded history, after the run.

The checker knows the meaning of the records (`history.py`) and nothing else: it imports nothing of the product, so a
mistake of the product cannot hide in it. It never looks at a clock.

What is proved, and from what:

* **I1** For one index the tenures of two agents never overlap. A tenure is [claim acknowledged, min(local deadline,
  loss learned, release, end of the process)], all from the agents' own records. Where a fault removes or replaces the
  key from outside (`FaultBegan.indexes`) overlap cannot be avoided; there, and everywhere else as well, fencing is
  proved from the store's change log: a guarded write is in the store only if the slot key had the writer's epoch at
  that moment, epochs of an index never go down in commit order, nothing is applied twice, nothing that was refused is
  in the store.
* **I2** No slot key at or above the desired count is ever put, none is left when things are calm, no such index is ever
  believed.
* **I3** Every slot key that was ever put carries a lease.
* **I4** At no revision has one address two slots; no agent holds two.
* **I5** When nothing has been disturbed for 2 x TTL + 5 s, exactly min(live agents, desired) slots are filled, by live
  agents, and each agent reports the index of the key that holds its address. No agent ends that was not asked to, and
  none ends with an error.
* **I6** While the store is away: at most 5 calls/s per agent, no new threads or descriptors, memory flat.

A `Verdict` also counts what was examined, since a history in which nothing happened breaks no rule: callers assert the
counts.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tests.soak.evidence import History, Limits, Tenure, Violation
from tests.soak.history import (
    DESIRED_KEY,
    SLOT_PREFIX,
    WRITE_PREFIX,
    AgentKilled,
    AgentPaused,
    AgentRecord,
    AgentResumed,
    AgentStarted,
    AgentStopAsked,
    AgentStopped,
    Claimed,
    GuardedValue,
    Lost,
    Record,
    Released,
    Slot,
    Snapshot,
    Usage,
    WriteAttempted,
    WriteCommitted,
    WriteRefused,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker found.

    Attributes:
        violations: empty for a good history.
        examined: how many things of each sort were examined, see the keys in `EXAMINED`.
    """

    violations: tuple[Violation, ...]
    examined: dict[str, int]


EXAMINED = ("tenures", "slot_puts", "writes", "calm_snapshots", "away_agents")
"""Keys of `Verdict.examined`."""


def check(records: Iterable[Record], limits: Limits) -> Verdict:
    """Check a history.

    Args:
        records: of all files, in any order between files.
        limits: the numbers.
    """
    history = History(records)
    found: list[Violation] = []
    examined: Counter[str] = Counter()
    tenures = [tenure for tenures in history.tenures(found).values() for tenure in tenures]
    examined["tenures"] = len(tenures)
    found += _overlaps(history, tenures)
    found += _replay(history, examined)
    found += _claims_are_in_store(history)
    found += _writes_tell_the_truth(history)
    found += _believed_indexes(history)
    found += _calm(history, tenures, limits, examined)
    found += _ends(history)
    found += _store_away(history, limits, examined)
    return Verdict(violations=tuple(found), examined={name: examined[name] for name in EXAMINED})


def _overlaps(history: History, tenures: Iterable[Tenure]) -> Iterator[Violation]:
    """I1: tenures of one index."""
    by_index: dict[int, list[Tenure]] = defaultdict(list)
    for tenure in tenures:
        if tenure.end > tenure.start:
            by_index[tenure.index].append(tenure)
    for index, held in by_index.items():
        held.sort(key=lambda tenure: tenure.start)
        for first, second in itertools.combinations(held, 2):
            if first.agent == second.agent or second.start >= first.end:
                continue
            # The key was taken away from outside while the first held it: only fencing can protect there, see
            # `_replay`.
            changed = any(index in f.indexes and first.start <= f.at <= second.start for f in history.faults)
            if not (changed and second.epoch > first.epoch):
                text = f"{first} overlaps {second}"
                yield Violation("I1", (first.agent, second.agent), (second.start, min(first.end, second.end)), text)


def _slot_index(key: str) -> int | None:
    """Return the index of a slot key; -1 where the key is no canonical index; `None` where it is no slot key."""
    if not key.startswith(SLOT_PREFIX):
        return None
    text = key.removeprefix(SLOT_PREFIX)
    return int(text) if text.isascii() and text.isdecimal() and str(int(text)) == text else -1


def _replay(history: History, examined: Counter[str]) -> Iterator[Violation]:
    """I1 (fencing), I2, I3, I4: replay the change log of the store."""
    owner = {address: agent for agent, address in history.address.items()}
    slots: dict[int, Slot] = {}
    desired: int | None = None
    newest: dict[int, tuple[int, str]] = {}
    for revision, group in itertools.groupby(history.changes, key=lambda change: change.revision):
        changes = list(group)
        for change in changes:
            if change.key.startswith(WRITE_PREFIX) and change.value is not None:
                examined["writes"] += 1
                value = GuardedValue.parse(change.value)
                slot = slots.get(value.index)
                if slot is None or slot.revision != value.epoch:
                    now = "nobody" if slot is None else f"{slot.address} with epoch {slot.revision}"
                    what = f"write {value.seq} for index {value.index} epoch {value.epoch}"
                    text = f"{what} committed at {revision} while {now} held it"
                    yield Violation("I1", (value.agent,), (), text)
                epoch, agent = newest.get(value.index, (0, ""))
                if value.epoch < epoch:
                    text = (
                        f"epoch {value.epoch} of index {value.index} written at {revision} after epoch {epoch} had been"
                    )
                    yield Violation("I1", (agent, value.agent), (), text)
                newest[value.index] = max(newest.get(value.index, (0, "")), (value.epoch, value.agent))
        for change in changes:
            if change.key == DESIRED_KEY:
                desired = None if change.value is None else int(change.value)
            index = _slot_index(change.key)
            if index is None:
                continue
            if change.value is None:
                slots.pop(index, None)
                continue
            examined["slot_puts"] += 1
            who = (owner.get(change.value, change.value),)
            slots[index] = Slot(index, change.value, change.lease, revision)
            # A key that the test itself put there is not the product's doing.
            by_hand = index in history.outside and change.value not in owner
            if change.lease == 0 and not by_hand:
                yield Violation("I3", who, (), f"{change.key} put at {revision} without a lease")
            if index < 0 or desired is None or index >= desired:
                yield Violation("I2", who, (), f"{change.key} put at {revision} while desired was {desired}")
        for address, count in Counter(slot.address for slot in slots.values()).items():
            if count > 1 and any(_slot_index(change.key) is not None for change in changes):
                held = ", ".join(str(slot.index) for slot in slots.values() if slot.address == address)
                yield Violation(
                    "I4", (owner.get(address, address),), (), f"{address} has slots {held} at revision {revision}"
                )


def _claims_are_in_store(history: History) -> Iterator[Violation]:
    """I1: an acknowledged claim is the very key in the store, with this epoch, address and lease."""
    if not history.changes:
        return
    puts = {(c.key, c.revision): c for c in history.changes if c.value is not None}
    for agent, records in history.by_agent.items():
        for record in records:
            if isinstance(record, Claimed):
                put = puts.get((f"{SLOT_PREFIX}{record.index}", record.epoch))
                if put is None or put.value != history.address[agent] or put.lease != record.lease:
                    claim = f"index {record.index} epoch {record.epoch} lease {record.lease:x}"
                    text = f"the claim of {claim} is not in the store: {put}"
                    yield Violation("I1", (agent,), (record.at,), text)


def _writes_tell_the_truth(history: History) -> Iterator[Violation]:
    """I1: what the product said about a guarded write is what the store has."""
    if not history.changes:
        return
    applied: dict[tuple[str, int], list[int]] = defaultdict(list)
    for change in history.changes:
        if change.key.startswith(WRITE_PREFIX) and change.value is not None:
            value = GuardedValue.parse(change.value)
            applied[value.agent, value.seq].append(change.revision)
    for (agent, seq), revisions in applied.items():
        if len(revisions) > 1:
            yield Violation("I1", (agent,), (), f"write {seq} was applied {len(revisions)} times, at {revisions}")
    attempted = {
        (record.agent, record.seq)
        for records in history.by_agent.values()
        for record in records
        if isinstance(record, WriteAttempted)
    }
    for agent, seq in sorted(set(applied) - attempted):
        yield Violation("I1", (agent,), (), f"write {seq} is in the store although it was never attempted")
    for agent, records in history.by_agent.items():
        for record in records:
            if isinstance(record, WriteRefused) and (agent, record.seq) in applied:
                yield Violation(
                    "I1", (agent,), (record.at,), f"write {record.seq} was reported refused but is in the store"
                )
            if isinstance(record, WriteCommitted) and (agent, record.seq) not in applied:
                yield Violation(
                    "I1", (agent,), (record.at,), f"write {record.seq} was reported committed but is not in the store"
                )


def _believed_indexes(history: History) -> Iterator[Violation]:
    """I2: an index believed to be held was below a count in force since the agent last held nothing."""
    if not history.desired:
        return
    times = [change.at for change in history.desired]
    for agent, records in history.by_agent.items():
        since = records[0].at
        for record in records:
            if isinstance(record, Claimed):
                # The value in force at `since`, and all that came in until the claim. The record of a change is written
                # after the answer, so a claim may have seen the next value already: it is allowed too.
                first = max(bisect.bisect_right(times, since) - 1, 0)
                last = bisect.bisect_right(times, record.at) + 1
                allowed = max(change.value for change in history.desired[first:last])
                if not 0 <= record.index < allowed:
                    text = f"claimed index {record.index} while at most {allowed} were desired"
                    yield Violation("I2", (agent,), (record.at,), text)
                since = record.at
            elif isinstance(record, Lost | Released):
                since = record.at


def _calm(history: History, tenures: Sequence[Tenure], limits: Limits, examined: Counter[str]) -> Iterator[Violation]:
    """I2 and I5: snapshots after a calm of `limits.settle` seconds."""
    disturbances = [fault.at for fault in history.faults] + list(history.fault_ends.values())
    disturbances += [change.at for change in history.desired]
    lives = (AgentStarted, AgentStopAsked, AgentStopped, AgentKilled, AgentPaused, AgentResumed)
    disturbances += [
        record.at for records in history.by_agent.values() for record in records if isinstance(record, lives)
    ]
    disturbances.sort()
    by_agent: dict[str, list[Tenure]] = defaultdict(list)
    for tenure in tenures:
        by_agent[tenure.agent].append(tenure)
    for snapshot in history.snapshots:
        position = bisect.bisect_right(disturbances, snapshot.at)
        last = disturbances[position - 1] if position else float("-inf")
        if position < len(disturbances) and disturbances[position] <= snapshot.done:
            continue
        if snapshot.at - last < limits.settle:
            continue
        if any(f.at <= snapshot.at < history.fault_ends.get(f.fault, float("inf")) for f in history.faults):
            continue
        live = {agent for agent, records in history.by_agent.items() if _live(records, snapshot.at)}
        if any(_paused(history.by_agent[agent], snapshot.at) for agent in live):
            continue
        examined["calm_snapshots"] += 1
        yield from _judge(history, snapshot, live, by_agent, last)


def _live(records: Sequence[AgentRecord], at: float) -> bool:
    """Return whether the agent was started, and neither asked to stop nor ended, before `at`."""
    over = any(isinstance(r, AgentStopAsked | AgentStopped | AgentKilled) for r in records if r.at <= at)
    return not over and any(isinstance(r, AgentStarted) for r in records if r.at <= at)


def _paused(records: Sequence[AgentRecord], at: float) -> bool:
    """Return whether the agent's process stood still at `at`."""
    marks = [record for record in records if isinstance(record, AgentPaused | AgentResumed) and record.at <= at]
    return bool(marks) and isinstance(marks[-1], AgentPaused)


def _judge(
    history: History, snapshot: Snapshot, live: set[str], tenures: dict[str, list[Tenure]], last: float
) -> Iterator[Violation]:
    """I2, I3, I4, I5 for one calm snapshot."""
    times = (last, snapshot.at)
    for slot in snapshot.slots:
        if not 0 <= slot.index < snapshot.desired:
            yield Violation(
                "I2", (slot.address,), times, f"slot {slot.index} is left although {snapshot.desired} are desired"
            )
        if slot.lease == 0 and slot.index not in history.outside:
            yield Violation("I3", (slot.address,), times, f"slot {slot.index} has no lease")
    for address, count in Counter(slot.address for slot in snapshot.slots).items():
        if count > 1:
            yield Violation("I4", (address,), times, f"{address} has {count} slots")
    wanted = min(len(live), snapshot.desired)
    if len(snapshot.slots) != wanted:
        text = f"{len(snapshot.slots)} slots are filled, not min({len(live)} live agents, {snapshot.desired} desired)"
        yield Violation("I5", tuple(sorted(live)), times, text)
    addresses = {history.address[agent] for agent in live}
    for slot in snapshot.slots:
        if slot.address not in addresses:
            yield Violation("I5", (slot.address,), times, f"slot {slot.index} belongs to no live agent")
    for agent in sorted(live):
        keys = {slot.index for slot in snapshot.slots if slot.address == history.address[agent]}
        # What it reports may change in mid-read (it must not in a calm, and the count above would show that it did).
        reported = [{t.index for t in tenures[agent] if t.open_at(time)} for time in (snapshot.at, snapshot.done)]
        if keys not in reported:
            text = f"reports {sorted(reported[0]) or 'no index'}, its address is at {sorted(keys) or 'no slot'}"
            yield Violation("I5", (agent,), times, text)


def _ends(history: History) -> Iterator[Violation]:
    """I5: nobody leaves without being asked, nobody fails."""
    for agent, records in history.by_agent.items():
        for record in records:
            if isinstance(record, AgentStopped) and (record.code != 0 or not record.asked):
                asked = "" if record.asked else " without being asked"
                yield Violation("I5", (agent,), (record.at,), f"ended with exit code {record.code}{asked}")


def _store_away(history: History, limits: Limits, examined: Counter[str]) -> Iterator[Violation]:
    """I6."""
    for fault in history.faults:
        if fault.name != "store_away":
            continue
        end = history.fault_ends.get(fault.fault, float("inf"))
        for agent, records in history.by_agent.items():
            warm = records[0].at + limits.usage_warm
            usage = [record for record in records if isinstance(record, Usage)]
            before = [sample for sample in usage if warm <= sample.at < fault.at]
            during = [sample for sample in usage if fault.at <= sample.at <= end]
            if before and len(during) > 1:
                examined["away_agents"] += 1
                yield from _usage(agent, before, during, limits)


def _usage(agent: str, before: Sequence[Usage], during: Sequence[Usage], limits: Limits) -> Iterator[Violation]:
    """I6 for one agent: samples before and during the outage."""
    worst, where = 0.0, (0.0, 0.0)
    for first, last in itertools.combinations(during, 2):
        # Longer spans than twice the window are made of shorter ones.
        if limits.calls_window <= last.at - first.at <= 2 * limits.calls_window:
            rate = (last.calls - first.calls) / (last.at - first.at)
            if rate > worst:
                worst, where = rate, (first.at, last.at)
    if worst > limits.calls_per_second:
        yield Violation("I6", (agent,), where, f"{worst:.1f} calls/s while the store was away")
    for name, allowed in (("threads", 0), ("descriptors", 0), ("resident", limits.memory_kib)):
        usual = max(getattr(sample, name) for sample in before)
        peak = max(during, key=lambda sample: int(getattr(sample, name)))
        if getattr(peak, name) > usual + allowed:
            text = f"{name} rose from {usual} to {getattr(peak, name)} while the store was away"
            yield Violation("I6", (agent,), (peak.at,), text)
