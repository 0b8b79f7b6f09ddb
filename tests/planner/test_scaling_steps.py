"""The steps of a scale-down, one look after the other."""

from dataclasses import replace

from edl_controller.core.agents import AgentState
from edl_controller.core.planner.classic import Classic
from edl_controller.core.planner.plan import JobPlan
from edl_controller.core.planner.policy import PlannerSettings
from edl_controller.core.planner.snapshot import JobView
from edl_controller.core.scaling import PodInService, Steps, next_steps
from tests.planner.builders import cluster, job, trainers

NOW = 1000.0
PODS = trainers("a", "n1", "n1", "n1")


def steps(view: JobView, target: int, gates: dict[str, str]) -> Steps:
    plan = JobPlan("a", view.committed, target, "Why.")
    known = {pod.name: PodInService(pod.uid, gates.get(pod.name, "True")) for pod in view.pods}
    return next_steps(view, plan, AgentState(), known, NOW, drain_seconds=30, decision="edl-scale-1")


def test_nothing_is_cut_before_the_victim_is_seen_not_ready() -> None:
    first = steps(job("a", 1, 3, pods=PODS), 2, {})
    assert (first.close, first.parallelism) == (("a-2",), None)
    closed = (*PODS[:2], replace(PODS[2], draining=True))
    second = steps(job("a", 1, 3, pods=closed), 2, {"a-2": "False"})
    assert (second.close, second.parallelism) == ((), None), "the gate is closed, but the pod still counts as Ready"
    unready = (*PODS[:2], replace(closed[2], ready_since=None))
    assert steps(job("a", 1, 3, pods=unready), 2, {"a-2": "False"}).parallelism == 2


def test_a_victim_that_is_cut_but_still_there_is_not_counted_twice() -> None:
    pods = (*PODS[:2], replace(PODS[2], draining=True, ready_since=None))
    view = job("a", 2, 3, pods=pods, parallelism=2)
    assert (view.still_draining, view.committed) == (0, 2)
    plan = Classic().plan(cluster({"n1": (3, 9)}, view), PlannerSettings(), NOW)
    assert [(one.before, one.target) for one in plan.jobs] == [(2, 2)]
    after = steps(view, 2, {"a-2": "False"})
    assert (after.open, after.parallelism) == ((), None), "it is not taken back, and nothing more is cut"
