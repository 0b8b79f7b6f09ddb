"""The policy `classic`: what it does in situations that people tell."""

from dataclasses import replace

import pytest

from edl_controller.api.nodes import Taint
from edl_controller.core.placement import Rules, Shape
from edl_controller.core.planner.classic import Classic
from edl_controller.core.planner.plan import Plan
from edl_controller.core.planner.policy import PlannerSettings, Policy
from edl_controller.core.planner.snapshot import JobView, Snapshot
from tests.planner.builders import Capacities, Capacity, cluster, job, shape, trainers, waits

FULL = PlannerSettings(max_load=1.0, step=100)
NOW = 1000.0


def plan(snapshot: Snapshot, settings: PlannerSettings = FULL) -> Plan:
    policy: Policy = Classic()
    return policy.plan(snapshot, settings, NOW)


def targets(snapshot: Snapshot, settings: PlannerSettings = FULL) -> dict[str, int]:
    return {one.key: one.target for one in plan(snapshot, settings).jobs}


def why(snapshot: Snapshot, key: str = "a") -> str:
    found = plan(snapshot).of(key)
    assert found is not None
    return found.reason


# --- growth ---


def test_a_job_grows_to_its_maximum_where_there_is_room() -> None:
    assert targets(cluster({"n1": (4, 8), "n2": (4, 8)}, job("a", 1, 5, "n1"))) == {"a": 5}


def test_room_in_two_halves_is_no_room_for_a_whole_trainer() -> None:
    """The original compared sums: 2 + 2 idle cores were taken for room for a trainer of 3."""
    snapshot = cluster({"n1": (5, 8), "n2": (2, 8)}, job("a", 1, 5, "n1", trainer=shape(3)))
    assert targets(snapshot) == {"a": 1}
    assert why(snapshot) == "No node has room for one more trainer."


@pytest.mark.parametrize(
    ("node", "trainer", "expected"),
    [
        ((8, 3), shape(1, 1), 3),
        ((8, 8, 2), shape(1, 1, 1), 2),
        ((8, 8), shape(1, 1, 1), 1),
    ],
    ids=["memory", "gpu", "no gpu at all"],
)
def test_every_resource_counts(node: Capacity, trainer: Shape, expected: int) -> None:
    assert targets(cluster({"n1": node}, job("a", 1, 8, "n1", trainer=trainer))) == {"a": expected}


def test_the_number_of_pods_of_a_node_counts() -> None:
    assert targets(cluster({"n1": (8, 8)}, job("a", 1, 8, "n1"), places=3)) == {"a": 3}


def test_taints_selectors_and_cordons_count() -> None:
    nodes: Capacities = {"n1": (4, 8), "n2": (4, 8), "n3": (4, 8)}
    taint = {"n2": Taint(key="gpu", effect="NoSchedule")}
    assert targets(cluster(nodes, job("a", 1, 99, "n1"), taints=taint, closed=frozenset({"n3"}))) == {"a": 4}
    picky = shape(rules=Rules(node_selector=(("name", "n3"),)))
    assert targets(cluster(nodes, job("a", 1, 99, "n3", trainer=picky))) == {"a": 4}


def test_growth_goes_to_the_least_fulfilled_and_levels_are_kept() -> None:
    nodes: Capacities = {"n1": (12, 99)}
    snapshot = cluster(nodes, job("a", 1, 9, "n1", "n1", "n1", "n1", "n1"), job("b", 1, 9, "n1"))
    assert targets(snapshot) == {"a": 6, "b": 6}


def test_the_load_limit_is_kept() -> None:
    assert targets(cluster({"n1": (10, 99)}, job("a", 1, 10, "n1")), PlannerSettings(max_load=0.8)) == {"a": 8}


def test_what_is_only_about_to_be_free_is_no_room_for_growth() -> None:
    assert targets(cluster({"n1": (4, 8)}, job("a", 1, 4, "n1"), leaving={"n1": (2, 1)})) == {"a": 2}


def test_a_step_is_limited() -> None:
    assert targets(cluster({"n1": (50, 99)}, job("a", 1, 50, "n1")), PlannerSettings(max_load=1.0, step=4)) == {"a": 5}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"missing_pservers": (1,)}, "Nobody holds pserver 1."),
        ({"agents_age": 31.0}, "Its agents' news is stale."),
        ({"agents_age": float("inf")}, "Nothing is known of its agents."),
        ({"frozen": "one trainer has succeeded"}, "One trainer has succeeded."),
        ({"enabled": False}, "Scaling is switched off."),
        ({"grown": NOW - 5, "up_cooldown": 10.0}, "It changed less than 10 s ago."),
        ({"shrunk": NOW - 5, "up_cooldown": 10.0}, "It changed less than 10 s ago."),
        ({"parallelism": 2, "pods": trainers("a", "n1", "")}, "Its newest trainers have no node yet."),
    ],
)
def test_why_a_job_does_not_grow(change: dict[str, object], reason: str) -> None:
    one = replace(job("a", 1, 4, "n1"), **change)  # type: ignore[arg-type]
    snapshot = cluster({"n1": (8, 8)}, one)
    assert why(snapshot) == reason
    assert targets(snapshot) == {"a": one.parallelism}


def test_a_lost_trainer_does_not_count_as_one() -> None:
    """Both have three pods, but only two of the trainers of b work: the one free place is for b."""
    lost = (*trainers("b", "n1", "n1"), replace(trainers("c", "n1")[0], agent="lost"))
    snapshot = cluster({"n1": (7, 9)}, job("a", 1, 9, "n1", "n1", "n1"), job("b", 1, 9, pods=lost))
    assert targets(snapshot) == {"a": 3, "b": 4}


# --- bounds ---


def test_a_job_below_its_minimum_gets_it_whatever_the_agents_say() -> None:
    assert targets(cluster({"n1": (4, 4)}, job("a", 2, 4, "n1", agents_age=float("inf")))) == {"a": 2}


def test_a_job_above_its_maximum_comes_down() -> None:
    found = plan(cluster({"n1": (9, 9)}, job("a", 1, 2, "n1", "n1", "n1", "n1")))
    assert [(one.target, len(one.victims)) for one in found.jobs] == [(2, 2)]
    assert found.jobs[0].victims == ("a-3", "a-2"), "the most recently ready go"


def test_nothing_moves_at_the_end_of_a_job() -> None:
    one = job("a", 2, 3, "n1", "n1", "n1", "n1", frozen="the final pass is over")
    assert targets(cluster({"n1": (4, 4)}, one, waiting=(waits(),))) == {"a": 4}


# --- others first ---


def test_a_waiting_pod_gets_room_from_the_most_fulfilled() -> None:
    found = plan(
        cluster(
            {"n1": (4, 8), "n2": (4, 8)},
            job("a", 1, 5, "n1", "n1", "n1", "n1"),
            job("b", 1, 99, "n2", "n2", "n2", "n2"),
            waiting=(waits(cpu=2),),
        )
    )
    assert {one.key: one.target for one in found.jobs} == {"a": 2, "b": 4}
    assert found.jobs[0].reason == "Its room on node n1 goes to web, which waits for it."


def test_only_a_node_where_it_makes_the_pod_fit_gives_trainers() -> None:
    """The most fulfilled job sits where the pod does not fit anyway."""
    found = plan(
        cluster(
            {"small": (2, 8), "big": (4, 8)},
            job("a", 1, 2, "small", "small"),
            job("b", 1, 9, "big", "big", "big", "big"),
            waiting=(waits(cpu=3),),
        )
    )
    assert {one.key: one.target for one in found.jobs} == {"a": 2, "b": 1}


def test_nothing_is_taken_for_a_pod_that_fits_nowhere() -> None:
    found = plan(cluster({"n1": (4, 8)}, job("a", 1, 4, "n1", "n1", "n1", "n1"), waiting=(waits(cpu=99),)))
    assert [one.target for one in found.jobs] == [4]
    assert found.unplaced == ("web",)


def test_nothing_is_taken_where_enough_is_leaving() -> None:
    one = job("a", 1, 3, "n1", "n1", "n1")
    assert targets(cluster({"n1": (4, 8)}, one, waiting=(waits(),), leaving={"n1": (1, 1)})) == {"a": 3}


def test_who_drains_is_as_good_as_gone() -> None:
    pods = (*trainers("a", "n1", "n1", "n1"), replace(trainers("d", "n1")[0], draining=True))
    found = plan(cluster({"n1": (4, 8)}, job("a", 1, 3, pods=pods), waiting=(waits(),)))
    assert [(one.before, one.target, one.victims) for one in found.jobs] == [(3, 3, ())]


def test_minima_of_new_jobs_come_before_growth_and_take_room_back() -> None:
    new = job("b", 2, 4, "", "")
    assert targets(cluster({"n1": (4, 8)}, job("a", 1, 4, "n1", "n1", "n1", "n1"), new)) == {"a": 2, "b": 2}
    assert targets(cluster({"n1": (4, 8)}, job("a", 1, 4, "n1"), new)) == {"a": 2, "b": 2}


def test_many_pods_wait_and_one_trainer_gives_room_for_several() -> None:
    web = tuple(waits(f"web-{number}", cpu=1) for number in range(4))
    one = job("a", 1, 4, "n1", "n1", "n1", trainer=shape(4, 1))
    assert targets(cluster({"n1": (12, 99)}, one, waiting=web)) == {"a": 2}


def test_trainers_of_a_higher_priority_are_not_taken() -> None:
    snapshot = cluster({"n1": (2, 8)}, job("a", 1, 2, "n1", "n1", priority=5), waiting=(waits(),))
    assert targets(snapshot) == {"a": 2}
    snapshot = replace(snapshot, waiting=(waits(priority=5),))
    assert targets(snapshot) == {"a": 1}


def test_trainers_that_find_no_node_are_given_up() -> None:
    snapshot = cluster({"n1": (2, 8)}, job("a", 1, 6, "n1", "n1", "", ""))
    assert targets(snapshot) == {"a": 2}
    assert why(snapshot) == "No node has room for a trainer that waits for one."


# --- the load limit, downwards ---


@pytest.mark.parametrize(
    ("nodes", "trainer", "others"),
    [
        ({"n1": (10, 99)}, shape(1, 1), (4, 1)),
        ({"n1": (99, 10)}, shape(1, 1), (1, 4)),
        ({"n1": (99, 99, 6)}, shape(1, 1, 1), (1, 1)),
    ],
    ids=["cpu", "memory", "gpu"],
)
def test_above_the_load_limit_the_most_fulfilled_gives(
    nodes: Capacities, trainer: Shape, others: tuple[int, int]
) -> None:
    snapshot = cluster(
        nodes,
        job("a", 1, 4, "n1", "n1", "n1", "n1", trainer=trainer),
        job("b", 1, 9, "n1", "n1", trainer=trainer),
        others={"n1": others},
    )
    found = targets(snapshot, PlannerSettings(max_load=0.8))
    assert found["b"] == 2
    assert found["a"] == 2


@pytest.mark.parametrize("change", [{"agents_age": 99.0}, {"grown": NOW - 1, "down_cooldown": 60.0}])
def test_the_load_alone_is_no_reason_to_shrink_on_stale_news_or_at_once(change: dict[str, object]) -> None:
    one: JobView = replace(job("a", 1, 4, "n1", "n1", "n1", "n1"), **change)  # type: ignore[arg-type]
    assert targets(cluster({"n1": (4, 8)}, one), PlannerSettings(max_load=0.5)) == {"a": 4}
    waiting = cluster({"n1": (4, 8)}, one, waiting=(waits(),))
    assert targets(waiting, PlannerSettings(max_load=1.0)) == {"a": 3}, "who waits is served all the same"
