"""The lease's state machine under every order of answers, losses, claims and passing time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edl_agent.errors import LeaseLost
from edl_agent.session import (
    SUSPENDED_AFTER,
    Instant,
    SessionState,
    SessionView,
    Slot,
    answered,
    claimed,
    closed,
    granted,
    lost,
    passed,
    released,
)

ALIVE = (SessionState.CONNECTED, SessionState.SUSPENDED)
SECONDS = st.integers(0, 30 * 64).map(lambda number: number / 64)
"""Exact in binary, so that sums and differences agree to the last bit."""
TTLS = st.integers(1, 20).map(float)


def at(monotonic: float, boottime: float | None = None) -> Instant:
    return Instant(monotonic, monotonic if boottime is None else boottime)


def fresh(ttl: float = 9.0) -> SessionView:
    return granted(SessionView(), 7, ttl, at(100.0))


# --- told one by one ---


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (at(100), SessionState.CONNECTED),
        (at(107.4), SessionState.CONNECTED),
        (at(107.5), SessionState.SUSPENDED),
        (at(108.9), SessionState.SUSPENDED),
        (at(109), SessionState.LOST),
        (at(1e9), SessionState.LOST),
        (at(101, 107.5), SessionState.SUSPENDED),
        (at(101, 109), SessionState.LOST),
        (at(109, 101), SessionState.LOST),
    ],
)
def test_state_by_the_age_of_the_last_answer_on_the_stricter_clock(now: Instant, state: SessionState) -> None:
    assert passed(fresh(), now).state is state


def test_the_deadline_counts_from_the_sending_not_from_the_answer() -> None:
    view = answered(fresh(), 7, 9.0, sent=at(103), now=at(108))
    assert view.lease is not None
    assert view.lease.deadline == 112
    assert passed(view, at(112)).state is SessionState.LOST


def test_an_outage_of_half_a_ttl_between_two_keepalives_is_not_reported() -> None:
    """A6: a keepalive is due after a third, so the last answer may be 1/3 + 1/2 old."""
    assert pytest.approx(1 / 3 + 1 / 2) == SUSPENDED_AFTER


@pytest.mark.parametrize("ttl", [0, -1, -0.5])
def test_a_ttl_of_nothing_in_the_answer_is_a_loss_whatever_the_timer_says(ttl: float) -> None:
    view = answered(fresh(), 7, ttl, at(101), at(101))
    assert view.state is SessionState.LOST
    assert "no longer knows" in str(view.loss)


def test_an_answer_for_another_lease_changes_nothing() -> None:
    assert answered(fresh(), 8, 0, at(101), at(101)) == fresh()
    assert answered(fresh(), 8, 9, at(101), at(101)) == fresh()


def test_an_answer_that_comes_after_the_deadline_comes_too_late() -> None:
    assert answered(fresh(), 7, 9.0, sent=at(108.9), now=at(109)).state is SessionState.LOST


def test_an_older_answer_does_not_move_the_deadline_back() -> None:
    view = answered(fresh(), 7, 9.0, at(105), at(105))
    assert answered(view, 7, 9.0, at(103), at(106)) == view


def test_a_slot_under_a_dead_or_foreign_lease_is_never_handed_out() -> None:
    slot = Slot(0, 17, "h:1")
    for view, lease, now in (
        (fresh(), 8, at(101)),
        (fresh(), 7, at(109)),
        (lost(fresh(), LeaseLost("x")), 7, at(101)),
        (closed(fresh()), 7, at(101)),
        (SessionView(), 7, at(101)),
    ):
        with pytest.raises(LeaseLost):
            claimed(view, lease, slot, now)
    assert claimed(fresh(), 7, slot, at(101)).slot == slot


def test_closed_is_final() -> None:
    view = closed(claimed(fresh(), 7, Slot(0, 17, "h:1"), at(101)))
    assert (view.slot, view.lease) == (None, None)
    assert granted(view, 9, 9, at(101)) == released(view) == lost(view, LeaseLost("x")) == passed(view, at(1e9)) == view


# --- in every order ---


class AnyOrder(RuleBasedStateMachine):
    """Time only grows, on each clock by itself; everything else comes when it wants to."""

    def __init__(self) -> None:
        super().__init__()
        self.view = SessionView()
        self.now = Instant(1000.0, 5000.0)
        self.moments = [self.now]
        self.leases = 0
        self.dead: set[int] = set()
        self.deadline = 0.0
        self.closed = False

    def _set(self, view: SessionView) -> None:
        before = self.view
        if before.lease is not None and (view.lease is None or view.lease.lease_id != before.lease.lease_id):
            self.dead.add(before.lease.lease_id)
        kept = before.lease is not None and view.lease is not None and view.lease.lease_id == before.lease.lease_id
        if kept and before.lease is not None and view.lease is not None and view.lease.ttl == before.lease.ttl:
            assert view.lease.deadline >= before.lease.deadline, "the deadline of a lease never moves back"
        if view.lease is not None:
            assert view.lease.lease_id not in self.dead, "what is lost stays lost"
        assert view.incarnation >= before.incarnation
        self.view = view

    @rule(monotonic=SECONDS, boottime=SECONDS)
    def time_passes(self, monotonic: float, boottime: float) -> None:
        self.now = Instant(self.now.monotonic + monotonic, self.now.boottime + max(monotonic, boottime))
        self.moments.append(self.now)
        self._set(passed(self.view, self.now))

    @rule()
    def a_look(self) -> None:
        self._set(passed(self.view, self.now))

    @rule(ttl=TTLS, data=st.data())
    def a_grant(self, ttl: float, data: st.DataObject) -> None:
        self.leases += 1
        self._set(granted(self.view, self.leases, ttl, data.draw(st.sampled_from(self.moments[-3:]))))

    @rule(ttl=st.one_of(TTLS, st.just(0.0)), data=st.data())
    def an_answer(self, ttl: float, data: st.DataObject) -> None:
        lease = data.draw(st.integers(0, self.leases))
        sent = data.draw(st.sampled_from(self.moments))
        before = passed(self.view, self.now)
        self._set(answered(self.view, lease, ttl, sent, self.now))
        if not before.alive:
            assert not passed(self.view, self.now).alive, "no answer wakes a lost session"

    @rule(data=st.data())
    def a_claim(self, data: st.DataObject) -> None:
        lease = data.draw(st.integers(0, self.leases))
        try:
            self._set(claimed(self.view, lease, Slot(3, 17, "h:1"), self.now))
        except LeaseLost:
            return
        assert self.view.lease is not None
        assert self.view.lease.lease_id == lease

    @rule()
    def a_loss(self) -> None:
        self._set(lost(self.view, LeaseLost("somebody says so")))
        assert not self.view.alive

    @rule()
    def a_release(self) -> None:
        self._set(released(self.view))

    @precondition(lambda self: self.leases > 2)
    @rule()
    def the_end(self) -> None:
        self._set(closed(self.view))
        self.closed = True

    @invariant()
    def never_alive_past_the_deadline_by_either_clock(self) -> None:
        view = passed(self.view, self.now)
        if view.alive:
            assert view.lease is not None
            answered_at = view.lease.answered
            assert self.now.monotonic < answered_at.monotonic + view.lease.ttl
            assert self.now.boottime < answered_at.boottime + view.lease.ttl

    @invariant()
    def a_slot_only_while_alive(self) -> None:
        if not self.view.alive:
            assert self.view.slot is None
            assert self.view.lease is None
        if self.closed:
            assert self.view.state is SessionState.CLOSED

    @invariant()
    def a_look_twice_is_a_look_once(self) -> None:
        once = passed(self.view, self.now)
        assert passed(once, self.now) == once


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase


@given(
    ttl=st.floats(0.5, 1000),
    gaps=st.lists(st.floats(0, 0.99), max_size=30),
)
def test_with_each_answer_inside_the_lease_time_the_session_lives_on(ttl: float, gaps: list[float]) -> None:
    view, now = granted(SessionView(), 1, ttl, at(0.0)), 0.0
    for gap in gaps:
        now += gap * ttl
        view = answered(view, 1, ttl, at(now), at(now))
        assert view.state is SessionState.CONNECTED
