"""The rules of the election, case by case (the whole of several replicas: `test_elections_together`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl_controller.api import timestamps
from edl_controller.api.leases import Lease, LeaseSpec
from edl_controller.api.meta import ObjectMeta
from edl_controller.core import election
from edl_controller.core.election import (
    Acquire,
    Decision,
    ElectionSettings,
    Look,
    Renew,
    StepDown,
    View,
    Wait,
    decide,
)
from edl_controller.errors import ConfigurationError

SETTINGS = ElectionSettings()
NOW = 1000.0
WALL = 1_800_000_000.0
HOUR = 3600.0


def lease(holder: str, renewed: float = WALL, seconds: int = 15, version: str = "7", uid: str = "u") -> Lease:
    stamp = timestamps.render_micro(renewed)
    spec = LeaseSpec(
        holder_identity=holder,
        lease_duration_seconds=seconds,
        acquire_time=stamp,
        renew_time=stamp,
        lease_transitions=3,
    )
    return Lease(metadata=ObjectMeta(name="l", namespace="ns", uid=uid, resource_version=version), spec=spec)


def follower(seen: Lease | None, at: float = NOW, pause: float = 2.0, before: View | None = None) -> View:
    """One that has read this at that moment."""
    return election.looked(before or View(identity="me"), SETTINGS, seen, at, pause)


def leader(sent: float = NOW, pause: float = 2.0, seen: Lease | None = None) -> View:
    """One whose write of that moment was answered."""
    return election.wrote(View(identity="me"), SETTINGS, seen or lease("me"), sent, sent + 0.1, pause)


OTHERS = lease("other")
TWICE = follower(lease("other", version="8"), NOW + 14, before=follower(OTHERS))
RENEWED = follower(lease("other", renewed=WALL + 2), NOW + 14, before=follower(OTHERS))
VANISHED = follower(None, NOW + 14, before=follower(OTHERS))
VANISHED_RELEASED = follower(None, NOW + 14, before=follower(lease("")))
DELETED_OWN = election.looked(election.failed(leader(), NOW + 2, 2.0), SETTINGS, None, NOW + 4, 2.0)
TAKEN = election.looked(election.failed(leader(), NOW + 2, 2.0), SETTINGS, lease("other"), NOW + 4, 2.0)
EMPTIED = election.looked(election.failed(leader(), NOW + 2, 2.0), SETTINGS, lease(""), NOW + 4, 2.0)
UNKNOWN_OWN = election.failed(leader(), NOW + 2, 2.0)
LOST = election.stepped_down(leader(), "why")


@pytest.mark.parametrize(
    ("view", "now", "decision"),
    [
        pytest.param(View(identity="me"), NOW, Look(), id="nothing is known: look"),
        pytest.param(follower(None), NOW, Acquire(), id="no lease at the first look: create it"),
        pytest.param(follower(lease("")), NOW, Acquire(), id="released: acquire at once"),
        pytest.param(follower(lease("me")), NOW, Acquire(), id="own write whose answer was lost: acquire"),
        pytest.param(follower(OTHERS), NOW, Wait(NOW + 2), id="held by another: look again later"),
        pytest.param(follower(OTHERS), NOW + 2, Look(), id="later: look"),
        pytest.param(TWICE, NOW + 14.5, Wait(NOW + 15), id="unchanged but for a label: the first sight counts"),
        pytest.param(TWICE, NOW + 15, Acquire(), id="unchanged for the whole length: take over at once"),
        pytest.param(RENEWED, NOW + 28, Look(), id="renewed since: no"),
        pytest.param(RENEWED, NOW + 29, Acquire(), id="the renewed one has run out, too"),
        pytest.param(follower(lease("other", seconds=40)), NOW + 39, Look(), id="the record's own length counts"),
        pytest.param(follower(lease("other", seconds=0)), NOW + 15, Acquire(), id="no length: one's own"),
        pytest.param(follower(lease("other", WALL - HOUR)), NOW + 1, Wait(NOW + 2), id="stamps of the past: no"),
        pytest.param(follower(lease("other", WALL + HOUR)), NOW + 15, Acquire(), id="stamps of the future: yes"),
        pytest.param(VANISHED, NOW + 20, Look(), id="vanished: its holder may write it anew"),
        pytest.param(VANISHED, NOW + 29, Acquire(), id="vanished for the whole length: create it"),
        pytest.param(VANISHED_RELEASED, NOW + 28, Look(), id="vanished after a release: somebody may have had it"),
        pytest.param(election.failed(follower(lease("")), NOW, 2.0), NOW + 1, Wait(NOW + 2), id="came too late: wait"),
        pytest.param(election.failed(follower(lease("")), NOW, 2.0), NOW + 2, Look(), id="came too late: look again"),
        pytest.param(leader(), NOW + 1, Wait(NOW + 2), id="leads: nothing to do yet"),
        pytest.param(leader(), NOW + 2, Renew(), id="leads: renew"),
        pytest.param(leader(pause=50), NOW + 9, Wait(NOW + 10), id="leads: the deadline ends every wait"),
        pytest.param(leader(), NOW + 10, StepDown("the lease could not be renewed within 10 s"), id="too late"),
        pytest.param(UNKNOWN_OWN, NOW + 3, Wait(NOW + 4), id="renewal without an answer: not at once again"),
        pytest.param(UNKNOWN_OWN, NOW + 4, Look(), id="renewal without an answer: look first"),
        pytest.param(UNKNOWN_OWN, NOW + 10, StepDown("the lease could not be renewed within 10 s"), id="no answer"),
        pytest.param(DELETED_OWN, NOW + 4, Acquire(), id="the leader's lease was deleted: create it anew"),
        pytest.param(TAKEN, NOW + 4, StepDown("the lease is held by 'other'"), id="another has it"),
        pytest.param(EMPTIED, NOW + 4, StepDown("the lease is held by ''"), id="somebody emptied it"),
        pytest.param(LOST, NOW + 1, StepDown("why"), id="lost is lost, even before the deadline"),
    ],
)
def test_what_to_do(view: View, now: float, decision: Decision) -> None:
    assert decide(view, SETTINGS, now) == decision


def test_one_leads_from_the_sending_of_the_last_known_write_to_the_deadline() -> None:
    view = leader(NOW)
    assert election.leads(view, SETTINGS, NOW + 9.99)
    assert not election.leads(view, SETTINGS, NOW + 10)
    again = election.wrote(view, SETTINGS, lease("me"), NOW + 5, NOW + 7, 2.0)
    assert election.leads(again, SETTINGS, NOW + 14.99)
    assert not election.leads(again, SETTINGS, NOW + 15)
    assert not election.leads(election.stepped_down(again, "why"), SETTINGS, NOW + 6)
    assert not election.leads(follower(lease("me")), SETTINGS, NOW)


@pytest.mark.report("M64")
def test_an_answer_after_the_deadline_makes_nobody_the_leader_again() -> None:
    late = election.wrote(leader(NOW), SETTINGS, lease("me"), NOW + 9.5, NOW + 10.5, 2.0)
    assert not election.leads(late, SETTINGS, NOW + 10.5)
    assert isinstance(decide(late, SETTINGS, NOW + 10.5), StepDown)
    slept = election.wrote(follower(lease("")), SETTINGS, lease("me"), NOW, NOW + 11, 2.0)
    assert not election.leads(slept, SETTINGS, NOW + 11)
    assert decide(slept, SETTINGS, NOW + 13) == Look()  # it never led: it may still compete


def test_the_first_reason_stays() -> None:
    assert election.stepped_down(LOST, "another").lost == "why"


def test_the_record_of_who_takes_over_renews_and_releases() -> None:
    now = timestamps.render_micro(WALL + 20)
    assert now.endswith("Z")
    assert len(now) == len("2026-12-01T00:00:00.000000Z")
    created = election.acquired_spec(follower(None), SETTINGS, WALL + 20)
    assert created == LeaseSpec(holder_identity="me", lease_duration_seconds=15, acquire_time=now, renew_time=now)
    taken = election.acquired_spec(follower(OTHERS), SETTINGS, WALL + 20)
    assert (taken.lease_transitions, taken.acquire_time, taken.renew_time) == (4, now, now)
    renewed = election.acquired_spec(leader(), SETTINGS, WALL + 20)
    assert (renewed.lease_transitions, renewed.acquire_time) == (3, timestamps.render_micro(WALL))
    assert renewed.renew_time == now
    released = election.released_spec(renewed, WALL + 30)
    assert (released.holder_identity, released.lease_duration_seconds, released.lease_transitions) == ("", 1, 3)
    assert election.patch_of(released)["spec"]["holderIdentity"] == ""
    short = replace(SETTINGS, lease=2.5, renew_deadline=2.0, retry=0.4)
    assert election.acquired_spec(follower(None), short, WALL).lease_duration_seconds == 3


@pytest.mark.fault("K20")
def test_a_renewal_is_a_change_even_where_the_wall_clock_stands() -> None:
    spec = election.acquired_spec(leader(), SETTINGS, WALL)
    assert spec.renew_time != lease("me").spec.renew_time


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lease": 10.0}, r"the lease \(10 s\) must be longer than the renew deadline \(10 s\)"),
        ({"renew_deadline": 2.4}, r"must be longer than retry x jitter \(2 s x 1.2\)"),
        ({"retry": 0.0}, "retry must be a positive number, not 0.0"),
        ({"lease": float("nan")}, "lease must be a positive number, not nan"),
        ({"renew_deadline": float("inf")}, "renew_deadline must be a positive number"),
        ({"retry": "2"}, "retry must be a positive number, not '2'"),
        ({"jitter": 0.5}, "jitter must be at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_reason(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ElectionSettings(**wrong)


def test_the_times_between_two_tries_and_of_one_try() -> None:
    assert SETTINGS.pause(0.0) == 2.0
    assert SETTINGS.pause(1.0) == pytest.approx(2.4)
    assert 2.4 + 2 * SETTINGS.attempt < SETTINGS.renew_deadline
    tight = ElectionSettings(lease=3, renew_deadline=2, retry=1.5)
    assert 1.8 + 2 * tight.attempt <= tight.renew_deadline + 1e-9
