"""Conditions, the phase that follows from them, and the scale records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_controller.api import conditions as c
from edl_controller.api.meta import Condition, find_condition, is_true
from edl_controller.api.v1 import ScaleRecords

steps = st.lists(
    st.tuples(st.sampled_from(c.TYPES), st.sampled_from(c.STATUSES), st.sampled_from(["A", "B"])), max_size=30
)


def build(**statuses: str) -> tuple[Condition, ...]:
    found: tuple[Condition, ...] = ()
    for kind, status in statuses.items():
        found = c.set_condition(found, kind, status, "Because", now=0)
    return found


@pytest.mark.parametrize(
    ("statuses", "phase"),
    [
        ({}, ""),
        ({"Invalid": "True"}, ""),
        ({"Placeable": "False"}, ""),
        ({"Created": "False"}, "creating"),
        ({"Created": "True"}, "creating"),
        ({"Created": "True", "Running": "False"}, "creating"),
        ({"Created": "True", "Running": "True"}, "running"),
        ({"Created": "True", "Running": "True", "Invalid": "True"}, "running"),
        ({"Created": "True", "Running": "True", "AgentStateKnown": "False"}, "running"),
        ({"Created": "True", "Running": "True", "Scaling": "True"}, "scaling"),
        ({"Created": "True", "Running": "True", "Scaling": "False"}, "running"),
        ({"Created": "True", "Running": "False", "Scaling": "True"}, "scaling"),
        ({"Created": "True", "Running": "True", "Suspended": "True"}, "creating"),
        ({"Created": "True", "Running": "True", "Succeeded": "True"}, "succeeded"),
        ({"Succeeded": "False", "Failed": "False", "Created": "True", "Running": "True"}, "running"),
        ({"Running": "True", "Failed": "True", "Scaling": "True", "Suspended": "True"}, "failed"),
        ({"Failed": "True", "Succeeded": "True"}, "failed"),
    ],
)
def test_the_classic_phase(statuses: dict[str, str], phase: str) -> None:
    assert c.phase(build(**statuses)) == phase
    assert c.is_final(build(**statuses)) is (phase in ("succeeded", "failed"))


@pytest.mark.parametrize(
    ("reason", "phase"),
    [("PserversMissing", "running"), ("TrainersMissing", "running"), ("Suspended", "creating"), ("", "creating")],
)
def test_a_job_that_ran_and_misses_pods_runs_on(reason: str, phase: str) -> None:
    found = c.set_condition(build(Created="True"), c.RUNNING, "False", reason, now=0)
    assert c.phase(found) == phase


def test_the_time_of_a_condition_is_that_of_its_last_change() -> None:
    first = c.set_condition((), c.RUNNING, "False", "Starting", "0 of 2", now=10, generation=1)
    same = c.set_condition(first, c.RUNNING, "False", "Waiting", "1 of 2", now=20, generation=2)
    other = c.set_condition(same, c.RUNNING, "True", "Ready", now=30, generation=2)
    assert [x[0].last_transition_time for x in (first, same, other)] == [
        *("1970-01-01T00:00:10Z", "1970-01-01T00:00:10Z", "1970-01-01T00:00:30Z"),
    ]
    assert (same[0].reason, same[0].message, same[0].observed_generation) == ("Waiting", "1 of 2", 2)


def test_nothing_new_is_nothing_changed() -> None:
    first = c.set_condition((), c.RUNNING, "True", "Ready", "all", now=10, generation=1)
    assert c.set_condition(first, c.RUNNING, "True", "Ready", "all", now=99, generation=1) == first


def test_an_unknown_status_is_refused() -> None:
    with pytest.raises(ValueError, match="Maybe"):
        c.set_condition((), c.RUNNING, "Maybe", "R", now=0)


def test_a_long_message_is_cut() -> None:
    (condition,) = c.set_condition((), c.FAILED, "True", "R", "x" * 100_000, now=0)
    assert len(condition.message) == c.MESSAGE_LIMIT
    assert condition.message.endswith("...")


@given(steps)
def test_there_is_one_condition_of_a_type_and_it_is_the_last_one_set(taken: list[tuple[str, str, str]]) -> None:
    found: tuple[Condition, ...] = ()
    changed: dict[str, tuple[str, int]] = {}
    for now, (kind, status, reason) in enumerate(taken):
        found = c.set_condition(found, kind, status, reason, now=now)
        if changed.get(kind, ("", 0))[0] != status:
            changed[kind] = (status, now)
        assert is_true(found, kind) is (status == "True")
    assert len(found) == len({condition.type for condition in found}) == len(changed)
    for kind, (status, since) in changed.items():
        condition = find_condition(found, kind)
        assert condition is not None
        assert condition.status == status
        assert condition.last_transition_time == f"1970-01-01T00:00:{since:02}Z"


def test_only_the_newest_scale_records_stay() -> None:
    records = ScaleRecords()
    for number in range(100):
        records = c.add_scale_record(records, c.scale_record(number, "True", "GrewIntoIdleNodes", now=number))
    assert [record.additional for record in records.scale_records] == list(range(80, 100))
    assert records.scale_records[-1].scale_timestamp == "1970-01-01T00:01:39Z"
