"""How an index is chosen: for every board, never a taken one, never one beyond the count, never a second one."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_agent.errors import InvalidDesiredCount, LeaseLost, SlotTakenOver, SlotWithdrawn
from edl_agent.keys import MAX_DESIRED
from edl_agent.slots import (
    Board,
    Claim,
    Claimant,
    CreateDesired,
    Holding,
    Queue,
    Refuse,
    SlotKey,
    Wait,
    decide,
    judge_desired,
    judge_slot,
    next_in_queue,
)

ME = b"10.0.0.1:7164"
OTHERS = [f"10.0.1.{number}:7164".encode() for number in range(40)]


def key(index: int, address: bytes = OTHERS[0], revision: int = 5, lease: int = 99) -> SlotKey:
    return SlotKey(index, address, revision, lease)


def board(desired: bytes | None, *slots: SlotKey) -> Board:
    return Board(100, desired, slots)


@pytest.mark.parametrize(
    ("seen", "me", "expected"),
    [
        (board(None), Claimant(ME), Wait("/ps_desired to be set")),
        (board(None), Claimant(ME, 4), CreateDesired(4)),
        (board(b"2"), Claimant(ME, 4), Claim(0, b"2")),
        (board(b"2", key(0)), Claimant(ME), Claim(1, b"2")),
        (board(b"3", key(1)), Claimant(ME), Claim(0, b"3")),
        (board(b"3"), Claimant(ME, preferred=2), Claim(2, b"3")),
        (board(b"3", key(2)), Claimant(ME, preferred=2), Claim(0, b"3")),
        (board(b"2"), Claimant(ME, preferred=5), Claim(0, b"2")),
        (board(b"4", key(0)), Claimant(ME, contended=True, draw=0.999), Claim(3, b"4")),
        (board(b"2", key(1, ME)), Claimant(ME), Claim(1, b"2", replaces=key(1, ME))),
        (
            board(b"2", key(1, ME)),
            Claimant(ME, held=True, own_leases=frozenset({99})),
            Claim(1, b"2", replaces=key(1, ME)),
        ),
    ],
)
def test_decisions(seen: Board, me: Claimant, expected: object) -> None:
    assert decide(seen, me) == expected


@pytest.mark.fault("A32")
@pytest.mark.parametrize("raw", [b"", b"abc", b"0", b"-1", b"1e9", b"1000000000", b"3\n", b"\xff\xfe"])
def test_a_bad_count_is_refused(raw: bytes) -> None:
    decision = decide(board(raw), Claimant(ME))
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, InvalidDesiredCount)


@pytest.mark.fault("A32")
def test_no_allocation_by_the_value() -> None:
    slots = tuple(key(index) for index in range(3))
    tracemalloc.start()
    started = time.monotonic()
    try:
        for raw in (b"1000000000", b"999999999", b"9" * 1000, str(MAX_DESIRED).encode()):
            decide(board(raw, *slots), Claimant(ME))
            judge_desired(raw, Holding(0, ME, 1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 2**20
    assert time.monotonic() - started < 1


@pytest.mark.fault("A33")
def test_keys_without_a_lease_are_named_and_not_replaced() -> None:
    full = decide(board(b"2", key(0, lease=0), key(1)), Claimant(ME))
    assert isinstance(full, Wait)
    assert full.full
    assert "[0]" in full.reason
    own = decide(board(b"2", key(0, ME, lease=0)), Claimant(ME))
    assert isinstance(own, Wait)
    assert "slot 0" in own.reason


@pytest.mark.fault("A27")
def test_after_having_held_a_slot_a_foreign_lease_on_the_own_address_is_final() -> None:
    decision = decide(board(b"2", key(1, ME, lease=5)), Claimant(ME, held=True, own_leases=frozenset({4})))
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, SlotTakenOver)


@st.composite
def boards(draw: st.DrawFn) -> Board:
    """Any board that a store can hold: at most one key per index and, when the rules are kept, per address."""
    indexes = draw(st.lists(st.integers(0, 24), unique=True, max_size=20))
    addresses = draw(st.permutations([*OTHERS[:24], ME]))
    slots = tuple(
        SlotKey(index, addresses[number], draw(st.integers(1, 1000)), draw(st.sampled_from([0, 7, 8, 99])))
        for number, index in enumerate(sorted(indexes))
    )
    raw = draw(st.one_of(st.none(), st.integers(1, 20).map(lambda n: str(n).encode()), st.binary(max_size=4)))
    return Board(draw(st.integers(1000, 2000)), raw, slots)


CLAIMANTS = st.builds(
    Claimant,
    address=st.just(ME),
    num_pservers=st.one_of(st.none(), st.integers(1, 20)),
    own_leases=st.frozensets(st.sampled_from([7, 8])),
    held=st.booleans(),
    preferred=st.one_of(st.none(), st.integers(0, 30)),
    contended=st.booleans(),
    draw=st.floats(0, 1, exclude_max=True),
)


@settings(max_examples=400)
@given(boards(), CLAIMANTS)
def test_every_decision_keeps_the_rules(seen: Board, me: Claimant) -> None:
    decision = decide(seen, me)
    mine = [slot for slot in seen.slots if slot.address == ME]
    taken = {slot.index: slot for slot in seen.slots}
    match decision:
        case Claim():
            assert seen.desired is not None
            assert decision.desired == seen.desired, "the transaction compares the very count that was decided on"
            assert 0 <= decision.index < int(seen.desired)
            if decision.replaces is None:
                assert decision.index not in taken, "never a taken slot"
                assert mine == [], "at most one slot per address"
            else:
                assert decision.replaces == taken[decision.index]
                assert decision.replaces.address == ME, "nobody else's"
                assert decision.replaces.lease != 0, "never one without a lease"
                assert not me.held or decision.replaces.lease in me.own_leases
        case CreateDesired(value):
            assert seen.desired is None
            assert value == me.num_pservers
        case Wait():
            if decision.full:
                assert seen.desired is not None
                assert all(index in taken for index in range(int(seen.desired))), "no free slot is overlooked"
        case Refuse():
            assert isinstance(decision.error, InvalidDesiredCount | SlotTakenOver)


@given(boards(), CLAIMANTS)
def test_without_a_limit_there_is_always_a_slot(seen: Board, me: Claimant) -> None:
    decision = decide(seen, replace(me, limited=False))
    if not any(slot.address == ME for slot in seen.slots):
        assert isinstance(decision, Claim)
        assert decision.index not in {slot.index for slot in seen.slots}
        assert decision.index <= len(seen.slots) + 16


@given(boards(), st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_the_guess_of_the_queue_is_a_free_index_of_the_board_or_none(
    seen: Board, held: int, waiting: int, claimed: bool
) -> None:
    decision = decide(seen, Claimant(ME))
    if not isinstance(decision, Claim):
        return
    found = next_in_queue(seen, decision, Queue(seen.desired, claimed, held, held, waiting))
    if found is not None:
        assert not claimed
        assert seen.desired is not None
        assert 0 <= found < int(seen.desired)
        assert found not in {slot.index for slot in seen.slots}


@given(st.integers(1, 30), st.integers(1, 30))
def test_contenders_in_the_queue_get_different_indices(desired: int, count: int) -> None:
    """Each leaves the queue with its slot, so held + place stays one to one."""
    seen, raw = board(str(desired).encode()), str(desired).encode()
    guesses = [next_in_queue(seen, Claim(0, raw), Queue(raw, False, 0, 0, place + 1)) for place in range(count)]
    real = [guess for guess in guesses if guess is not None]
    assert real == list(range(min(desired, count)))


# --- guarding ---

MINE = Holding(2, ME, 50)


@pytest.mark.parametrize(
    ("present", "loss"),
    [
        (SlotKey(2, ME, 50, 7), None),
        (SlotKey(2, OTHERS[0], 49, 7), None),  # older news
        (None, LeaseLost),
        (SlotKey(2, OTHERS[0], 51, 7), LeaseLost),
        (SlotKey(2, ME, 51, 0), LeaseLost),
        (SlotKey(2, ME, 51, 7), SlotTakenOver),
    ],
)
def test_what_the_own_key_says(present: SlotKey | None, loss: type[LeaseLost] | None) -> None:
    found = judge_slot(present, MINE)
    assert (type(found) if found is not None else None) is loss


@given(st.binary(max_size=12), st.integers(0, 30))
def test_only_a_usable_lower_count_withdraws_a_slot(raw: bytes, index: int) -> None:
    desired, loss = judge_desired(raw, Holding(index, ME, 1))
    assert (loss is not None) == (desired is not None and index >= desired)
    assert loss is None or isinstance(loss, SlotWithdrawn)
