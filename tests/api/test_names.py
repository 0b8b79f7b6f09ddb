"""Names that follow from a job's name are legal, stable and unique."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_controller.api.names import ROLE_LABELS, child_name, is_label, is_subdomain, label_value

job_names = st.from_regex(
    r"[a-z0-9]([a-z0-9-]{0,100}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,100}[a-z0-9])?){0,2}", fullmatch=True
)
roles = st.sampled_from(sorted(ROLE_LABELS))
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def test_classic_names_are_kept() -> None:
    assert [child_name("mnist", role) for role in ("master", "pserver", "trainer")] == [
        *("mnist-master", "mnist-pserver", "mnist-trainer"),
    ]
    assert label_value("mnist") == "mnist"
    assert ROLE_LABELS == {"master": "paddle-job-master", "pserver": "paddle-job-pserver", "trainer": "paddle-job"}


@pytest.mark.report("M62")
@pytest.mark.parametrize("length", [1, 40, 54, 55, 56, 57, 62, 63, 64, 100, 200, 253])
@pytest.mark.security(13)
def test_names_of_any_length_give_legal_ones(length: int) -> None:
    name = "a" * length
    for role in ROLE_LABELS:
        child = child_name(name, role)
        assert len(child) <= 63
        assert is_subdomain(child)
        assert child.endswith(f"-{role}")
        assert child == child_name(name, role)
    assert len(label_value(name)) <= 63


@given(job_names, roles)
def test_derived_names_are_legal(job: str, role: str) -> None:
    assert is_subdomain(child_name(job, role))
    assert LABEL_VALUE.fullmatch(label_value(job))


@given(st.sets(st.text("ab", min_size=50, max_size=80), min_size=2, max_size=20))
def test_different_jobs_have_different_children(jobs: set[str]) -> None:
    children = {child_name(job, role) for job in jobs for role in ROLE_LABELS}
    assert len(children) == len(jobs) * len(ROLE_LABELS)
    assert len({label_value(job) for job in jobs}) == len(jobs)


def test_a_cut_before_a_dash_leaves_no_double_dash_or_dot() -> None:
    name = "a" * 46 + "-" + "b" * 46
    assert "--" not in child_name(name, "trainer")
    assert ".-" not in child_name("a" * 46 + "." + "b" * 46, "trainer")


@pytest.mark.parametrize(
    ("text", "label", "subdomain"),
    [
        *(("a", True, True), ("a-b", True, True), ("0a", True, True), ("a" * 63, True, True), ("a.b", False, True)),
        *(("", False, False), ("-a", False, False), ("a-", False, False), ("A", False, False), ("a_b", False, False)),
        *(("a..b", False, False), (".a", False, False), ("a/b", False, False), ("..", False, False)),
        *(("a%2fb", False, False), ("a\x00", False, False), ("a\n", False, False), ("é", False, False)),
        *(("a" * 64, False, True), ("a" * 253, False, True), ("a" * 254, False, False)),
    ],
)
def test_what_is_a_name(text: str, label: bool, subdomain: bool) -> None:
    assert is_label(text) is label
    assert is_subdomain(text) is subdomain


def test_a_long_text_costs_nothing() -> None:
    start = time.process_time()
    for text in ("a" * 100_000, "a-" * 50_000, "a." * 50_000, "-" * 100_000):
        assert not is_label(text)
        assert not is_subdomain(text)
    assert time.process_time() - start < 0.05
