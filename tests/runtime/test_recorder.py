"""Events: repeated as a series, within a budget, never in anybody's way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from edl_controller.api.events import Event
from edl_controller.api.kinds import EVENTS
from edl_controller.api.meta import ObjectReference
from edl_controller.core.actions import Note
from edl_controller.errors import Forbidden, Unavailable
from edl_controller.runtime.plain_text import printable
from edl_controller.runtime.recorder import BURST, WAITING, Recorder
from tests.bench.clocks import FakeClock
from tests.bench.waiting import eventually, never
from tests.runtime.memory_cluster import MemoryCluster

JOB = ObjectReference(kind="TrainingJob", namespace="ns", name="tj", uid="u1")


class Bench:
    def __init__(self) -> None:
        self.cluster, self.clock, self.stop = MemoryCluster(), FakeClock(), threading.Event()
        self.recorder = Recorder(self.cluster, now=self.clock.wall, pause=0.01)
        self.thread = threading.Thread(target=self.recorder.run, args=(self.stop,), name="edl-test-recorder")

    def events(self) -> list[Event]:
        return list(self.cluster.list(EVENTS).items)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.thread.start()
    yield made
    made.stop.set()
    made.thread.join(5)
    assert not made.thread.is_alive()


def test_an_event_says_what_happened_to_whom(bench: Bench) -> None:
    bench.recorder.record(JOB, Note("Created", "Create", "Created the pservers", warning=False))
    event = eventually(bench.events)[0]
    assert (event.reason, event.action, event.note, event.type) == (
        "Created",
        "Create",
        "Created the pservers",
        "Normal",
    )
    assert event.regarding == JOB
    assert (event.metadata.namespace, event.metadata.name.startswith("tj.")) == ("ns", True)
    assert event.event_time is not None
    assert event.reporting_controller
    assert event.reporting_instance


def test_what_repeats_is_one_event_with_a_series_and_later_a_new_one(bench: Bench) -> None:
    for _ in range(5):
        bench.recorder.record(JOB, Note("Failed", "Sync", "again", warning=True))
    eventually(lambda: bench.events() and (series := bench.events()[0].series) and series.count == 5)
    assert len(bench.events()) == 1
    assert bench.events()[0].type == "Warning"
    bench.clock.advance(361)
    bench.recorder.record(JOB, Note("Failed", "Sync", "again", warning=True))
    eventually(lambda: len(bench.events()) == 2)


def test_an_expired_event_is_made_anew(bench: Bench) -> None:
    bench.recorder.record(JOB, Note("Failed", "Sync", "again"))
    first = eventually(bench.events)[0]
    bench.cluster.delete(EVENTS, "ns", first.metadata.name)
    bench.recorder.record(JOB, Note("Failed", "Sync", "again"))
    eventually(lambda: [one.metadata.name for one in bench.events()] not in ([], [first.metadata.name]))


def test_an_object_has_a_budget_and_others_theirs(bench: Bench) -> None:
    for number in range(3 * BURST):
        bench.recorder.record(JOB, Note("Storm", "Sync", f"n{number}"))
    eventually(lambda: bench.recorder.dropped == 2 * BURST)
    assert len(bench.events()) == BURST
    bench.recorder.record(ObjectReference(kind="TrainingJob", namespace="ns", name="b", uid="u2"), Note("A", "B", "c"))
    eventually(lambda: len(bench.events()) == BURST + 1)
    bench.clock.advance(301)
    bench.recorder.record(JOB, Note("Storm", "Sync", "one more"))
    eventually(lambda: len(bench.events()) == BURST + 2)


@pytest.mark.fault("K37")
@pytest.mark.parametrize("error", [Unavailable("500"), Forbidden("no")], ids=["slow", "refused"])
def test_events_that_are_not_taken_hold_nobody_up(bench: Bench, error: Exception) -> None:
    fault = bench.cluster.fail("create", EVENTS, error, times=None)
    started = time.monotonic()
    for number in range(2 * WAITING):
        bench.recorder.record(JOB, Note("Storm", "Sync", f"n{number}"))
    assert time.monotonic() - started < 1
    eventually(lambda: bench.recorder.dropped == 2 * WAITING, 20)
    fault.times = 0
    bench.clock.advance(301)
    bench.recorder.record(JOB, Note("Storm", "Sync", "last"))
    eventually(lambda: [one.note for one in bench.events()] == ["last"])


def test_an_outage_shorter_than_the_tries_loses_nothing(bench: Bench) -> None:
    bench.cluster.fail("create", EVENTS, Unavailable("500"), times=2)
    bench.recorder.record(JOB, Note("A", "B", "c"))
    eventually(bench.events)
    assert bench.recorder.dropped == 0


@pytest.mark.security(24)
def test_notes_are_cut_and_escaped(bench: Bench) -> None:
    bench.recorder.record(JOB, Note("A", "B", "\x1b[31m\nred\u202e " + "ü" * 2000))
    note = eventually(bench.events)[0].note
    assert note.startswith("\\x1b[31m\\nred\\u202e ü")
    assert len(note.encode()) <= 1024
    assert note.endswith("...")


def test_what_waits_at_the_stop_is_still_written() -> None:
    bench = Bench()
    bench.recorder.record(JOB, Note("A", "B", "last words"))
    bench.stop.set()
    bench.thread.start()
    bench.thread.join(5)
    assert [one.note for one in bench.events()] == ["last words"]


def test_memory_is_bounded(bench: Bench) -> None:
    for number in range(900):
        bench.recorder.record(ObjectReference(name="x", namespace="n", uid=f"u{number}"), Note("A", "B", "c"))
    eventually(lambda: len(bench.events()) + bench.recorder.dropped == 900, 20)
    never(lambda: len(bench.recorder._series) > 4096, 0.05)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢", "plain ü 漢"),
        ("a\tb\r\n", "a\\tb\\r\\n"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u2028b", "a\\u2028b"),
        ("\ud800", "\\ud800"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
