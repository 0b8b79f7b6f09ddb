"""The checker itself: a good history passes, and every forged violation is caught, by its name.

The forgeries are made from one good history of two agents and a waiter by changing a few records, so that each differs
from the truth in one thing only.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak import checker, evidence, history
from tests.soak.checker import Verdict, check
from tests.soak.evidence import Limits
from tests.soak.history import (
    AgentKilled,
    AgentPaused,
    AgentRecord,
    AgentResumed,
    AgentStarted,
    AgentStopAsked,
    AgentStopped,
    Claimed,
    Connected,
    DesiredChanged,
    FaultBegan,
    FaultEnded,
    GuardedValue,
    Held,
    Lost,
    Record,
    Released,
    Slot,
    Snapshot,
    StoreChange,
    Suspended,
    Usage,
    WriteAttempted,
    WriteCommitted,
    WriteRefused,
    WriteUnknown,
)

TTL = 2.0
LIMITS = Limits(ttl=TTL)


def usage(agent: str, at: float, calls: int, **changed: int) -> Usage:
    return Usage(at, agent, **({"calls": calls, "threads": 9, "descriptors": 20, "resident": 50_000} | changed))


def write(agent: str, seq: int, index: int, epoch: int, revision: int) -> StoreChange:
    return StoreChange(revision, f"/soak/{index}", GuardedValue(agent, seq, index, epoch).text())


def good() -> list[Record]:
    """`a` and `b` hold 0 and 1 of 2, `c` waits; `a` is killed, `c` gets its slot; the store goes away; `b` releases."""
    return [
        DesiredChanged(0.0, 2),
        *(AgentStarted(0.1, name, f"10.0.0.1:{port}") for name, port in (("a", 1), ("b", 2), ("c", 3))),
        Claimed(0.5, "a", 0, 10, 0xA, 2.4),
        Claimed(0.6, "b", 1, 11, 0xB, 2.5),
        Held(1.0, "a", 0, 10, 2.4),
        Held(1.0, "b", 1, 11, 2.5),
        WriteAttempted(1.1, "a", 1, "/soak/0", 0, 10),
        WriteCommitted(1.2, "a", 1),
        AgentKilled(2.0, "a"),
        Held(2.1, "b", 1, 11, 4.0),
        Claimed(4.6, "c", 0, 14, 0xC, 6.5),
        WriteAttempted(4.7, "c", 1, "/soak/0", 0, 14),
        WriteCommitted(4.8, "c", 1),
        WriteAttempted(4.9, "b", 1, "/soak/1", 1, 11),
        WriteUnknown(5.0, "b", 1, "timeout"),
        *(
            Held(at, name, index, epoch, at + 1.8)
            for at in (5.0, 6.0, 7.0)
            for name, index, epoch in (("b", 1, 11), ("c", 0, 14))
        ),
        *(usage(name, at, int(10 * at)) for at in (5.0, 6.0, 7.0) for name in ("b", "c")),
        FaultBegan(8.0, 1, "store_away"),
        Suspended(8.7, "b"),
        Suspended(8.7, "c"),
        Lost(8.8, "b", 1, 11, "no answer"),
        Lost(8.8, "c", 0, 14, "no answer"),
        *(
            usage(name, at, int(80 + 3 * (at - 8.0)), threads=8)
            for at in (8.1, 9.1, 10.1, 11.1, 12.1)
            for name in ("b", "c")
        ),
        FaultEnded(12.2, 1),
        Claimed(13.0, "b", 1, 17, 0xB1, 14.9),
        Claimed(13.1, "c", 0, 18, 0xC1, 15.0),
        Connected(13.1, "c"),
        *(
            Held(at, name, index, epoch, at + 1.8)
            for at in (14.0, 18.0, 21.5)
            for name, index, epoch in (("b", 1, 17), ("c", 0, 18))
        ),
        Snapshot(21.5, 21.6, 2, (Slot(0, "10.0.0.1:3", 0xC1, 18), Slot(1, "10.0.0.1:2", 0xB1, 17))),
        AgentStopAsked(23.0, "b"),
        Released(23.1, "b", 1, 17),
        AgentStopped(23.3, "b", 0, True),
        StoreChange(2, "/ps_desired", "2"),
        StoreChange(10, "/ps/0", "10.0.0.1:1", 0xA),
        StoreChange(11, "/ps/1", "10.0.0.1:2", 0xB),
        write("a", 1, 0, 10, 12),
        StoreChange(13, "/ps/0", None),
        StoreChange(14, "/ps/0", "10.0.0.1:3", 0xC),
        write("c", 1, 0, 14, 15),
        write("b", 1, 1, 11, 16),
        StoreChange(17, "/ps/1", "10.0.0.1:2", 0xB1),
        StoreChange(18, "/ps/0", "10.0.0.1:3", 0xC1),
        StoreChange(19, "/ps/1", None),
    ]


def same(record: Record) -> bool:
    """Stands for "all": used where a forgery only adds."""
    return False


def forge(
    add: list[Record],
    without: Callable[[Record], bool] = same,
    change: Callable[[Record], Record] = lambda record: record,
) -> list[Record]:
    """Return the good history with records added, left out, or changed."""
    return [change(record) for record in good() if not without(record)] + add


def of(agent: str, kind: type[Record]) -> Callable[[Record], bool]:
    return lambda record: isinstance(record, kind) and isinstance(record, AgentRecord) and record.agent == agent


def first_claim_of_c(record: Record) -> bool:
    return isinstance(record, Claimed) and record.agent == "c" and record.at < 5.0


def replace(picked: Callable[[Record], bool], **values: object) -> Callable[[Record], Record]:
    return lambda record: dataclasses.replace(record, **values) if picked(record) else record


def snapshot_with(desired: int, *slots: Slot) -> Callable[[Record], Record]:
    return replace(lambda record: isinstance(record, Snapshot), desired=desired, slots=slots)


def change_at(revision: int, **values: object) -> Callable[[Record], Record]:
    return replace(lambda record: isinstance(record, StoreChange) and record.revision == revision, **values)


SLOT_B, SLOT_C = Slot(1, "10.0.0.1:2", 0xB1, 17), Slot(0, "10.0.0.1:3", 0xC1, 18)

FORGERIES: dict[str, tuple[str, list[Record]]] = {
    # I1, by the agents' own times
    "a second holder before the first one's deadline": (
        "I1",
        forge([], without=of("a", AgentKilled), change=replace(first_claim_of_c, at=2.3)),
    ),
    "a second holder before a later keepalive's deadline": (
        "I1",
        forge([Held(4.2, "a", 0, 10, 6.0)], without=of("a", AgentKilled)),
    ),
    "a holder that has not learned its loss": (
        "I1",
        forge(
            [
                Held(12.0, "c", 0, 14, 13.9),
                Claimed(13.05, "a2", 0, 18, 0xA2, 14.9),
                AgentStarted(12.0, "a2", "10.0.0.1:9"),
            ],
            without=lambda r: of("c", Lost)(r) or (isinstance(r, Claimed) and r.at > 13 and r.agent == "c"),
        ),
    ),
    "still reported after the loss": ("I1", forge([Held(9.0, "b", 1, 11, 9.5)])),
    "still reported after the release": ("I1", forge([Held(23.2, "b", 1, 17, 24.0)])),
    "reported although the own deadline has passed": (
        "I1",
        forge([Held(3.0, "a", 0, 10, 2.9)], without=of("a", AgentKilled)),
    ),
    "a claim that the store does not have": ("I1", forge([], change=change_at(14, lease=0xD))),
    # I1, by fencing
    "an older epoch's write after the newer holder's": (
        "I1",
        forge([WriteAttempted(4.9, "a", 2, "/soak/0", 0, 10), write("a", 2, 0, 10, 16)]),
    ),
    "an older epoch's write after the newer one's, seen from the writes alone": (
        "I1",
        [
            AgentStarted(0.0, "a", "x:1"),
            WriteAttempted(1.0, "a", 1, "/soak/0", 0, 10),
            AgentStarted(0.0, "b", "x:2"),
            WriteAttempted(1.0, "b", 1, "/soak/0", 0, 20),
            write("b", 1, 0, 20, 21),
            write("a", 1, 0, 10, 22),
        ],
    ),
    "a write while nobody held the slot": (
        "I1",
        forge(
            [WriteAttempted(2.9, "a", 2, "/soak/0", 0, 10), write("a", 2, 0, 10, 13)],
            change=replace(lambda r: isinstance(r, StoreChange) and r.revision == 13, revision=12),
        ),
    ),
    "a refused write that is in the store": ("I1", forge([WriteRefused(5.1, "b", 1, "late")])),
    "a committed write that is not in the store": (
        "I1",
        forge([WriteAttempted(5.1, "b", 2, "/soak/1", 1, 11), WriteCommitted(5.2, "b", 2)]),
    ),
    "a write applied twice": ("I1", forge([write("b", 1, 1, 11, 16)])),
    "a write that nobody attempted": ("I1", forge([write("b", 7, 1, 11, 16)])),
    # I2
    "a slot put at the desired count": ("I2", forge([StoreChange(15, "/ps/2", "10.0.0.1:1", 0xD)])),
    "a slot put before there was a count": (
        "I2",
        forge([], without=lambda r: isinstance(r, StoreChange) and r.revision == 2),
    ),
    "a slot put after the count was lowered": ("I2", forge([StoreChange(16, "/ps_desired", "1")])),
    "a slot that is no number": ("I2", forge([StoreChange(15, "/ps/-1", "10.0.0.1:1", 0xD)])),
    "an index believed that was never desired": (
        "I2",
        forge(
            [AgentStarted(15.0, "d", "x:4"), Claimed(15.1, "d", 2, 18, 0xD, 17.0)],
            without=lambda r: isinstance(r, StoreChange),
        ),
    ),
    "a slot left above a lowered count": (
        "I2",
        forge([DesiredChanged(12.25, 1), StoreChange(18, "/ps_desired", "1")], change=snapshot_with(1, SLOT_C, SLOT_B)),
    ),
    # I3
    "a slot put without a lease": ("I3", forge([], change=change_at(14, lease=0))),
    "a slot without a lease in the end": (
        "I3",
        forge([], change=snapshot_with(2, dataclasses.replace(SLOT_C, lease=0), SLOT_B)),
    ),
    # I4
    "one address in two slots": ("I4", forge([StoreChange(13, "/ps/0", "10.0.0.1:2", 0xB)])),
    "one address in two slots in the end": (
        "I4",
        forge([], change=snapshot_with(2, dataclasses.replace(SLOT_C, address="10.0.0.1:2"), SLOT_B)),
    ),
    "an agent that believes in two slots": ("I4", forge([Held(5.5, "b", 0, 14, 7.3)])),
    # I5
    "a slot that stays empty": ("I5", forge([], change=snapshot_with(2, SLOT_B))),
    "a slot of a dead agent": (
        "I5",
        forge([], change=snapshot_with(2, dataclasses.replace(SLOT_C, address="10.0.0.1:1"), SLOT_B)),
    ),
    "an agent that reports another index than its key": (
        "I5",
        forge([], change=snapshot_with(2, dataclasses.replace(SLOT_C, index=1), dataclasses.replace(SLOT_B, index=0))),
    ),
    "an agent that reports nothing though its key is there": (
        "I5",
        forge([], without=lambda r: isinstance(r, Held | Claimed) and r.agent == "c" and r.at > 13),
    ),
    "more slots than live agents": ("I5", forge([AgentStopAsked(12.0, "b")])),
    "an agent that ends by itself": ("I5", forge([AgentStopped(22.0, "c", 0, False)])),
    "an agent that ends with an error": (
        "I5",
        forge([AgentStopped(23.3, "b", 1, True)], without=of("b", AgentStopped)),
    ),
    # I6
    "too many calls while the store is away": ("I6", forge([usage("b", 12.15, 130, threads=8)])),
    "a new thread while the store is away": ("I6", forge([usage("b", 12.15, 92, threads=10)])),
    "a descriptor leaked while the store is away": ("I6", forge([usage("c", 12.15, 92, descriptors=21)])),
    "memory that grows while the store is away": ("I6", forge([usage("c", 12.15, 92, resident=60_000)])),
}


def names(verdict: Verdict) -> set[str]:
    return {violation.invariant for violation in verdict.violations}


def test_a_good_history_passes() -> None:
    verdict = check(good(), LIMITS)
    assert [str(violation) for violation in verdict.violations] == []
    assert verdict.examined == {"tenures": 5, "slot_puts": 5, "writes": 3, "calm_snapshots": 1, "away_agents": 2}


@pytest.mark.parametrize(("invariant", "records"), FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_violation_is_caught(invariant: str, records: list[Record]) -> None:
    verdict = check(records, LIMITS)
    assert invariant in names(verdict), [str(violation) for violation in verdict.violations]
    found = next(violation for violation in verdict.violations if violation.invariant == invariant)
    assert found.agents, "a violation names the agents"
    assert found.text


def test_every_invariant_has_a_forgery() -> None:
    assert {invariant for invariant, _ in FORGERIES.values()} == {"I1", "I2", "I3", "I4", "I5", "I6"}


def test_an_overlap_names_both_agents_and_the_time() -> None:
    _, records = FORGERIES["a second holder before the first one's deadline"]
    overlap = next(violation for violation in check(records, LIMITS).violations if "overlaps" in violation.text)
    assert overlap.agents == ("a", "c")
    assert overlap.times == (2.3, 2.4)
    assert str(overlap).startswith("I1 [a, c] at 2.300, 2.400: ")


def test_an_outside_change_allows_overlap_but_no_older_write() -> None:
    """The key of slot 0 is removed by hand: two holders in time cannot be avoided, an older write can."""
    moved = forge(
        [FaultBegan(1.5, 9, "slot_changed", indexes=(0,)), FaultEnded(1.6, 9)],
        without=of("a", AgentKilled),
        change=replace(first_claim_of_c, at=2.3),
    )
    assert "I1" not in names(check(moved, LIMITS))
    late = [*moved, WriteAttempted(4.9, "a", 2, "/soak/0", 0, 10), write("a", 2, 0, 10, 16)]
    assert "I1" in names(check(late, LIMITS))
    # The excuse is for this index only, and for a newer epoch only.
    elsewhere = [
        replace(lambda r: isinstance(r, FaultBegan) and r.fault == 9, indexes=(1,))(record) for record in moved
    ]
    assert "I1" in names(check(elsewhere, LIMITS))


@pytest.mark.parametrize(
    "added",
    [
        [FaultBegan(20.0, 5, "cut", agents=("b",))],
        [DesiredChanged(20.0, 2)],
        [AgentPaused(12.3, "b")],
        [AgentPaused(12.3, "b"), AgentResumed(20.0, "b")],
        [AgentStarted(20.0, "d", "10.0.0.1:4"), AgentStopAsked(20.1, "d"), AgentStopped(20.2, "d", 0, True)],
    ],
    ids=[
        "a fault that is not over",
        "a fresh count",
        "a paused agent",
        "an agent just resumed",
        "an agent just stopped",
    ],
)
def test_nothing_is_demanded_before_the_calm(added: list[Record]) -> None:
    """The same empty slot that is a violation in a calm is none shortly after a disturbance."""
    verdict = check(forge(added, change=snapshot_with(2, SLOT_B)), LIMITS)
    assert verdict.examined["calm_snapshots"] == 0
    assert names(verdict) == set()


def test_an_agent_without_a_start_is_refused() -> None:
    with pytest.raises(ValueError, match="without a record of their start: ghost"):
        check([*good(), Suspended(1.0, "ghost")], LIMITS)


def test_records_survive_a_file(tmp_path: Path) -> None:
    writer = history.HistoryWriter(tmp_path / "all.jsonl")
    for record in good():
        writer.write(record)
    writer.close()
    assert history.read_history([tmp_path / "all.jsonl"]) == good()


def test_a_line_cut_by_a_kill_is_dropped_and_a_bad_line_is_named(tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_text(history.to_line(Suspended(1.0, "a")) + '\n{"kind":"lo')
    assert history.read_history([cut]) == [Suspended(1.0, "a")]
    bad = tmp_path / "bad.jsonl"
    bad.write_text(history.to_line(Suspended(1.0, "a")) + '\n{"kind":"suspended","at":1.0}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl:2: bad record"):
        history.read_history([bad])


@pytest.mark.parametrize("module", [checker, evidence, history])
def test_the_checker_shares_no_code_with_the_product(module: object) -> None:
    tree = ast.parse(Path(str(getattr(module, "__file__", ""))).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported, "the file was read"
    allowed = (
        "tests.soak.history",
        "tests.soak.evidence",
        "__future__",
        "ast",
        "bisect",
        "collections",
        "dataclasses",
        "itertools",
        "json",
        "pathlib",
        "typing",
    )
    assert {name for name in imported if not name.startswith(allowed)} == set()
