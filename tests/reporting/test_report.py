"""Reports and drain requests as values: at most 1 KiB, always valid, read tolerantly; the rate of samples."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_agent.drain_request import LONGEST, DrainRequest
from edl_agent.report import MAX_BYTES, WINDOW, RateMeter, Report

FULL = Report(
    name="digits-trainer-x7k2p",
    role="trainer",
    pod_uid="0b6f9a3e-8f3c-4a38-9d8c-6a1e8f1a2b3c",
    slot=3,
    epoch=1234567,
    address="10.0.0.7:7164",
    step=1200,
    samples=76800,
    rate=512.5,
    busy=0.93,
    queue=4,
    checkpoint_age=12.5,
    drain="requested",
    time=1764512345.123,
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def test_report_comes_back_as_it_was() -> None:
    assert Report.decode(FULL.encode()) == FULL
    assert set(json.loads(FULL.encode())) == {
        *("v", "name", "pod_uid", "role", "slot", "epoch", "address", "step", "samples", "rate", "busy", "queue"),
        *("checkpoint_age", "drain", "time"),
    }


@given(
    st.builds(
        Report,
        name=st.text(max_size=3000),
        role=st.text(max_size=3000),
        pod_uid=st.text(max_size=3000),
        address=st.text(max_size=3000),
        step=st.integers(),
        samples=st.integers(),
        rate=st.floats(),
        busy=st.none() | st.floats(),
        queue=st.none() | st.integers(),
        checkpoint_age=st.none() | st.floats(),
        time=st.floats(),
    )
)
def test_whatever_it_holds_a_report_is_small_valid_and_finite(report: Report) -> None:
    data = report.encode()
    assert len(data) <= MAX_BYTES
    fields = json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert all(math.isfinite(value) for value in fields.values() if isinstance(value, int | float))
    again = Report.decode(data)
    assert again is not None
    assert again.encode() == data
    assert again.name == report.name.encode(errors="replace").decode()[: len(again.name)]


def test_the_longest_names_of_all_kinds_still_fit() -> None:
    report = replace(FULL, name="\x01" * 253, address="\u20ac" * 253, pod_uid="\x02" * 64, role='"' * 32)
    assert len(report.encode()) <= MAX_BYTES
    assert json.loads(report.encode())["step"] == FULL.step


@given(st.binary() | anything.map(lambda value: json.dumps(value).encode()))
def test_bytes_that_are_no_report_are_none_or_a_valid_report(data: bytes) -> None:
    found = Report.decode(data)
    assert found is None or len(found.encode()) <= MAX_BYTES


@given(st.sampled_from(sorted(json.loads(FULL.encode()))), anything)
def test_a_field_of_a_wrong_type_does_not_spoil_the_others(field: str, value: object) -> None:
    fields = json.loads(FULL.encode()) | {field: value, "a_field_of_version_2": [1]}
    found = Report.decode(json.dumps(fields).encode())
    if field in ("v", "name"):
        return
    assert found is not None
    assert replace(found, **{field: getattr(FULL, field)}) == FULL


def test_deeply_nested_json_is_no_report() -> None:
    assert Report.decode(b"[" * 100_000) is None


def test_time_and_the_checkpoints_age_alone_are_no_news() -> None:
    assert FULL.same_news(replace(FULL, time=1.0, checkpoint_age=99.0))
    assert not FULL.same_news(replace(FULL, step=1201))


# -- rate ----------------------------------------------------------------------------------------------------------


def test_rate_of_a_steady_trainer_is_its_speed() -> None:
    meter = RateMeter()
    for tick in range(1000):
        meter.add(tick * 0.1, tick * 64)
    assert meter.rate(99.9) == pytest.approx(640, rel=0.01)


def test_rate_follows_a_change_of_speed_within_the_window() -> None:
    meter = RateMeter()
    for tick in range(100):
        meter.add(float(tick), tick * 100)
    for tick in range(100, 100 + int(WINDOW) + 2):
        meter.add(float(tick), 10_000 + (tick - 100) * 10)
    assert meter.rate(100 + WINDOW + 1) == pytest.approx(10, rel=0.05)


def test_rate_of_one_who_stands_still_falls_to_zero_and_stays_there() -> None:
    meter = RateMeter()
    for tick in range(10):
        meter.add(float(tick), tick * 100)
    rates = [meter.rate(9.0 + later) for later in range(int(WINDOW) + 5)]
    assert rates[0] == pytest.approx(100)
    assert rates == sorted(rates, reverse=True)
    assert rates[-3:] == [0, 0, 0]


def test_rate_of_steps_longer_than_the_window_does_not_flap() -> None:
    meter = RateMeter()
    for step in range(4):
        meter.add(step * 60.0, step * 600)
    assert [meter.rate(180.0 + later) for later in (0, 30, 59)] == [pytest.approx(10)] * 3
    assert meter.rate(180 + 181) == 0


def test_a_count_that_begins_again_gives_no_negative_rate() -> None:
    meter = RateMeter()
    meter.add(0, 1000)
    meter.add(1, 2000)
    meter.add(2, 10)
    assert meter.rate(2) == 0
    meter.add(4, 30)
    assert meter.rate(4) == pytest.approx(10)


def test_before_the_second_number_there_is_no_rate() -> None:
    meter = RateMeter()
    assert meter.rate(1) == 0
    meter.add(1, 100)
    assert meter.rate(5) == 0


# -- drain requests ------------------------------------------------------------------------------------------------


def test_request_comes_back_as_it_was_with_the_fields_of_version_1() -> None:
    request = DrainRequest("cycle-17", 1764512345.5, "node n3 is wanted back")
    assert DrainRequest.decode(request.encode()) == request
    assert json.loads(request.encode()) == {
        "v": 1,
        "decision": "cycle-17",
        "deadline": 1764512345.5,
        "reason": "node n3 is wanted back",
    }
    named = replace(request, pod_uid="uid-1")
    assert DrainRequest.decode(named.encode()) == named


@given(st.binary() | anything.map(lambda value: json.dumps(value).encode()))
def test_bytes_that_are_no_request_are_none(data: bytes) -> None:
    assert DrainRequest.decode(data) is None


@pytest.mark.parametrize(
    "broken",
    [
        {"v": 0, "decision": "d", "deadline": 1},
        {"decision": "d", "deadline": 1},
        {"v": 1, "decision": "", "deadline": 1},
        {"v": 1, "decision": 7, "deadline": 1},
        {"v": 1, "decision": "d"},
        {"v": 1, "decision": "d", "deadline": "soon"},
        {"v": 1, "decision": "d", "deadline": True},
        {"v": 1, "decision": "d", "deadline": 10**400},
    ],
)
def test_request_without_decision_or_usable_deadline_is_none(broken: dict[str, object]) -> None:
    assert DrainRequest.decode(json.dumps(broken).encode()) is None


def test_deadline_far_away_counts_as_one_in_a_day() -> None:
    assert DrainRequest("d", 1e14).left(now=1000.0) == LONGEST
    assert DrainRequest("d", 1100.0).left(now=1000.0) == 100.0
    assert DrainRequest("d", 900.0).left(now=1000.0) == -100.0


@pytest.mark.parametrize(
    ("asked_uid", "own_uid", "deadline", "found_at_start", "concerns"),
    [
        ("", "", 1100.0, True, True),
        ("", "", 900.0, True, False),  # for an earlier process of the name
        ("", "", 900.0, False, True),  # just came: the clocks differ, or it is late
        ("", "me", 1100.0, True, True),
        ("me", "me", 900.0, True, True),  # this very pod, after a restart of its container
        ("other", "me", 1100.0, True, False),
        ("other", "me", 1100.0, False, False),
        ("other", "", 1100.0, True, True),  # cannot be told apart
        ("other", "", 900.0, True, False),
    ],
)
def test_whom_a_request_concerns(
    asked_uid: str, own_uid: str, deadline: float, found_at_start: bool, concerns: bool
) -> None:
    request = DrainRequest("d", deadline, pod_uid=asked_uid)
    assert request.concerns(own_uid, found_at_start=found_at_start, now=1000.0) is concerns
