"""Names of children, labels, and the job's place in etcd."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_agent.keys import KeySchema
from edl_controller.core.names import ROLES, child_name, etcd_prefix, labels
from edl_controller.core.parser import DefaultJobParser
from tests.core.jobs import OWN, training_job

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
job_names = st.from_regex(
    r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?){0,9}", fullmatch=True
)


@given(job_names)
@pytest.mark.security(13)
def test_children_have_legal_names_that_say_whose_they_are(name: str) -> None:
    for role in ROLES:
        found = child_name(name, role)
        assert len(found) <= 63
        assert _NAME.fullmatch(found)
        assert found.endswith(f"-{role}")
        if len(name) <= 55:
            assert found == f"{name}-{role}"
        for value in labels(name, "u", role).values():
            assert len(value) <= 63
            assert _LABEL.fullmatch(value)


@pytest.mark.report("M62")
@pytest.mark.parametrize("length", [1, 40, 54, 55, 56, 57, 63, 64, 100, 253])
@pytest.mark.security(13)
def test_names_of_any_length_give_short_stable_names(length: int) -> None:
    names = ["a" * (length - 1) + last for last in "bc"]
    for role in ROLES:
        first, second = (child_name(name, role) for name in names)
        assert first != second
        assert max(len(first), len(second)) <= 63
        assert child_name(names[0], role) == first
    job = training_job(name=names[0])
    parser = DefaultJobParser(OWN)
    parser.validate(job)
    for child in (parser.parse_to_trainer(job), parser.parse_to_pserver(job), parser.parse_to_master(job)):
        assert child is not None
        assert all(len(value) <= 63 for value in child.spec.template.metadata.labels.values())


NASTY = st.one_of(st.text(max_size=12), st.sampled_from(["", ".", "..", "a/b", "%2f", "a\0b", "~", "../x", "\ud800"]))


@given(NASTY, NASTY, NASTY)
@pytest.mark.security(13)
def test_nothing_leaves_its_place_in_etcd(namespace: str, name: str, uid: str) -> None:
    found = etcd_prefix(namespace, name, uid)
    assert found.startswith("/edl/jobs/")
    assert found.count("/") == 5
    assert not {".", ".."} & set(found.split("/"))
    assert KeySchema(found).prefix == found


@given(st.tuples(NASTY, NASTY, NASTY), st.tuples(NASTY, NASTY, NASTY))
@pytest.mark.security(13)
def test_two_jobs_never_share_a_place(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (etcd_prefix(*one) == etcd_prefix(*other)) == (one == other)


def test_usual_names_stay_readable() -> None:
    assert etcd_prefix("team-a", "mnist.v2", "0b1-c2") == "/edl/jobs/team-a/mnist.v2/0b1-c2"
