"""The watch cursor: cut a stream wherever you like, what is delivered is the history, once and in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_agent.watch_cursor import (
    Cursor,
    EventType,
    Known,
    Step,
    WatchAnswer,
    WatchEvent,
    advance,
    differences,
    resumed,
)

State = dict[bytes, Known]


def put(revision: int, key: bytes = b"/a", value: bytes = b"v", lease: int = 0) -> WatchEvent:
    return WatchEvent(EventType.PUT, key, value, revision, lease)


def delete(revision: int, key: bytes = b"/a") -> WatchEvent:
    return WatchEvent(EventType.DELETE, key, b"", revision, 0)


@pytest.mark.parametrize(
    ("cursor", "answer", "step"),
    [
        (Cursor(5), WatchAnswer(9, (), created=True), Step(Cursor(5))),
        (Cursor(5), WatchAnswer(5, (put(5),)), Step(Cursor(6), (put(5),))),
        (Cursor(5), WatchAnswer(9, ()), Step(Cursor(10))),  # progress
        (Cursor(5), WatchAnswer(4, ()), Step(Cursor(5))),  # progress of long ago
        (Cursor(5), WatchAnswer(6, (put(4), put(5))), Step(Cursor(6), (put(5),))),  # sent again
        (Cursor(5), WatchAnswer(4, (put(3), put(4))), Step(Cursor(5))),
        (Cursor(5), WatchAnswer(9, (), canceled=True, compact_revision=8), Step(Cursor(5), compacted=8)),
        (Cursor(5), WatchAnswer(9, (), created=True, canceled=True, cancel_reason="no"), Step(Cursor(5), ended="no")),
        (Cursor(5), WatchAnswer(5, (put(5, b"/a"),), fragment=True), Step(Cursor(5, (put(5, b"/a"),)))),
        (
            Cursor(5, (put(5, b"/a"),)),
            WatchAnswer(5, (put(5, b"/b"),)),
            Step(Cursor(6), (put(5, b"/a"), put(5, b"/b"))),
        ),
    ],
)
def test_steps(cursor: Cursor, answer: WatchAnswer, step: Step) -> None:
    assert advance(cursor, answer) == step


def test_an_end_without_a_reason_says_so() -> None:
    assert "without a reason" in (advance(Cursor(1), WatchAnswer(9, (), canceled=True)).ended or "")


def test_a_break_inside_a_fragmented_revision_repeats_all_of_it() -> None:
    half = advance(Cursor(5), WatchAnswer(5, (put(5, b"/a"),), fragment=True)).cursor
    assert resumed(half) == Cursor(5)


# --- any history, any packing, any cut ---


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[WatchEvent, ...]]:
    """Events by revision, of several keys each; revisions have gaps (other people's keys)."""
    revision, found = 1, []
    for _ in range(draw(st.integers(0, 12))):
        revision += draw(st.integers(1, 3))
        keys = draw(st.lists(st.sampled_from([b"/a", b"/b", b"/c", b"/d"]), min_size=1, max_size=3, unique=True))
        found.append(
            tuple(
                delete(revision, key) if draw(st.booleans()) else put(revision, key, draw(st.binary(max_size=2)))
                for key in keys
            )
        )
    return found


def served(history: list[tuple[WatchEvent, ...]], start: int, draw: Any) -> list[WatchAnswer]:
    """What a server may send from ``start`` on: batches of revisions, fragments, progress notices in between."""
    answers = [WatchAnswer(start + 5, (), created=True)]
    wanted = [events for events in history if events[0].mod_revision >= start]
    while wanted:
        size = draw(st.integers(1, len(wanted)))
        batch, wanted = [event for events in wanted[:size] for event in events], wanted[size:]
        last = batch[-1].mod_revision
        cuts = sorted(draw(st.sets(st.integers(1, max(1, len(batch) - 1)), max_size=2))) if len(batch) > 1 else []
        pieces = [batch[a:b] for a, b in zip([0, *cuts], [*cuts, len(batch)], strict=True)]
        for number, piece in enumerate(pieces):
            answers.append(WatchAnswer(last, tuple(piece), fragment=number < len(pieces) - 1))
        if draw(st.booleans()):
            answers.append(WatchAnswer(last, ()))
    return answers


def apply(state: State, event: WatchEvent) -> None:
    if event.type is EventType.DELETE:
        state.pop(event.key, None)
    else:
        state[event.key] = Known(event.value, event.mod_revision, event.lease)


def replay(events: list[WatchEvent]) -> State:
    state: State = {}
    for event in events:
        apply(state, event)
    return state


@pytest.mark.fault("A11")
@given(histories(), st.data())
def test_any_cut_of_the_stream_replays_to_the_same_state_without_loss_or_double(
    history: list[tuple[WatchEvent, ...]], data: st.DataObject
) -> None:
    cursor = Cursor(1)
    delivered: list[WatchEvent] = []
    for _ in range(data.draw(st.integers(0, 6))):  # streams that break somewhere
        answers = served(history, cursor.next_revision, data.draw)
        for answer in answers[: data.draw(st.integers(0, len(answers)))]:
            step = advance(cursor, answer)
            cursor = step.cursor
            delivered += step.events
        cursor = resumed(cursor)
    for answer in served(history, cursor.next_revision, data.draw):  # and one that does not
        step = advance(cursor, answer)
        cursor = step.cursor
        delivered += step.events
    assert delivered == [event for events in history for event in events]


# --- after a compaction ---


@pytest.mark.fault("A11")
@given(histories(), st.data())
def test_differences_lead_from_what_was_known_to_the_fresh_read(
    history: list[tuple[WatchEvent, ...]], data: st.DataObject
) -> None:
    events = [event for one in history for event in one]
    seen = data.draw(st.integers(0, len(history)))
    before = replay([event for one in history[:seen] for event in one])
    after = replay(events)
    revision = events[-1].mod_revision if events else 1
    found = differences(before, after, revision)

    state = dict(before)
    for event in found:
        apply(state, event)
    assert state == after
    keys = [event.key for event in found]
    assert len(keys) == len(set(keys)), "one event per key"
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert set(keys) == changed, "nothing about what did not change"
    puts = [event.mod_revision for event in found if event.type is EventType.PUT]
    assert puts == sorted(puts)
    assert all(event.mod_revision <= revision for event in found)


def test_a_key_deleted_and_put_again_with_the_same_value_is_a_difference() -> None:
    before, after = {b"/a": Known(b"v", 3, 7)}, {b"/a": Known(b"v", 9, 8)}
    assert differences(before, after, 9) == (WatchEvent(EventType.PUT, b"/a", b"v", 9, 8),)
    assert differences(before, before, 9) == ()
