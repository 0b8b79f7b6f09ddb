"""Which pods go first when there are too many: one line per rule, and all rules in their order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_controller.api.pods import Pod
from edl_controller.core.semantics.removal_order import deletion_cost, job_removal_order, replica_set_removal_order
from tests.semantics.objects import NOW, pod

# (why, the pod that goes first, the pod that stays longer)
BOTH = [
    ("without a node before one with a node", {"node": "", "phase": "Pending"}, {"phase": "Pending"}),
    ("Pending before Running", {"phase": "Pending"}, {}),
    ("Unknown before Running", {"phase": "Unknown"}, {}),
    ("Pending before Unknown", {"phase": "Pending"}, {"phase": "Unknown"}),
    ("not ready before ready", {}, {"ready": 0}),
    ("not ready before ready, however old", {"created": -9999}, {"ready": 0, "created": 0}),
    ("ready for a short time before ready for long", {"ready": -1}, {"ready": -1000}),
    ("more restarts before fewer", {"restarts": 2}, {"restarts": 1}),
    ("younger before older", {"created": -1}, {"created": -1000}),
    ("without a node before not ready", {"node": "", "phase": "Pending", "created": -1000}, {"created": 0}),
    ("ready lately before restarted often", {"ready": -1}, {"ready": -1000, "restarts": 9}),
    ("restarted often before young", {"restarts": 1, "created": -1000}, {"created": -1}),
]
ONLY_REPLICA_SETS = [
    ("lower cost before higher", {"cost": "1"}, {"cost": "2"}),
    ("no cost is 0", {"cost": "-1"}, {}),
    ("not ready before lower cost", {}, {"ready": 0, "cost": "-100"}),
    ("lower cost before ready lately", {"cost": "1", "ready": -1000}, {"cost": "2", "ready": -1}),
]


@pytest.mark.parametrize(("why", "first", "last"), BOTH, ids=[row[0] for row in BOTH])
def test_jobs_and_replica_sets(why: str, first: dict[str, Any], last: dict[str, Any]) -> None:
    # The names are against the expectation, so that they decide nothing.
    pods = [pod("a", **last), pod("b", **first)]

    assert [one.metadata.name for one in job_removal_order(pods)] == ["b", "a"], why
    assert [one.metadata.name for one in replica_set_removal_order(pods, NOW)] == ["b", "a"], why


@pytest.mark.parametrize(("why", "first", "last"), ONLY_REPLICA_SETS, ids=[row[0] for row in ONLY_REPLICA_SETS])
def test_replica_sets_alone(why: str, first: dict[str, Any], last: dict[str, Any]) -> None:
    pods = [pod("a", **last), pod("b", **first)]

    assert [one.metadata.name for one in replica_set_removal_order(pods, NOW)] == ["b", "a"], why


def test_jobs_ignore_the_deletion_cost() -> None:
    dear, cheap = pod("a", ready=-10, cost="100"), pod("b", ready=-20, cost="-100")

    assert job_removal_order([cheap, dear]) == [dear, cheap]


def test_replica_sets_thin_out_the_fullest_node() -> None:
    crowd = [pod(name, node="full", ready=-100) for name in "ab"]
    alone = pod("c", node="empty", ready=-100)

    assert replica_set_removal_order([alone, *crowd], NOW, [alone, *crowd])[-1] == alone


def test_pods_of_siblings_make_a_node_full_too() -> None:
    one, other = pod("a", node="n1", ready=-100), pod("b", node="n2", ready=-100)
    sibling = pod("of-another-set", node="n2", ready=None)

    assert replica_set_removal_order([one, other], NOW, [one, other, sibling]) == [other, one]


def test_nodes_do_not_matter_to_a_replica_set_that_nobody_controls() -> None:
    crowd = [pod(name, node="full", ready=-100) for name in "bc"]
    alone = pod("a", node="empty", ready=-100)

    assert replica_set_removal_order([*crowd, alone], NOW)[0] == alone, "the uid alone decides"


def test_replica_sets_compare_ages_by_powers_of_two_and_then_uids() -> None:
    # 600 s and 700 s are of the same magnitude (2^39 ns), 60 s is not.
    nearly = [pod("b", ready=-600), pod("a", ready=-700)]

    assert [one.metadata.name for one in replica_set_removal_order(nearly, NOW)] == ["a", "b"]
    assert [one.metadata.name for one in job_removal_order(nearly)] == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "cost"),
    [("5", 5), ("-5", -5), ("", 0), ("many", 0), ("1.5", 0), ("2147483648", 0), ("-2147483648", -(2**31))],
)
def test_costs_that_are_no_32_bit_number_count_as_none(text: str, cost: int) -> None:
    assert deletion_cost(pod(cost=text)) == cost


_ROWS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(["Pending", "Running", "Unknown"]),
        "node": st.sampled_from(["", "n1", "n2"]),
        "ready": st.none() | st.integers(-5, 0),
        "restarts": st.integers(0, 2),
        "created": st.integers(-3, 0),
        "cost": st.sampled_from(["", "1", "-1"]),
    }
)
_PODS = st.lists(_ROWS, max_size=6).map(lambda rows: [pod(f"p{number}", **row) for number, row in enumerate(rows)])


@given(_PODS)
def test_the_order_does_not_depend_on_the_order_of_the_list(pods: list[Pod]) -> None:
    for order in itertools.islice(itertools.permutations(pods), 20):
        assert job_removal_order(order) == job_removal_order(pods)
        assert replica_set_removal_order(order, NOW, order) == replica_set_removal_order(pods, NOW, pods)
