"""The policy of installations that may not look at the nodes."""

from __future__ import annotations

import pytest

from edl_controller.core.planner.bounds import Bounds
from edl_controller.core.planner.policy import PlannerSettings
from edl_controller.core.planner.snapshot import JobView, Snapshot
from tests.planner.builders import job

ON_NODES = ("n1", "n1", "n2")
CASES = [
    ("it has what it may have", job("a", 1, 8, *ON_NODES), 3, ()),
    ("its minimum was raised", job("a", 5, 8, *ON_NODES), 5, ()),
    ("its maximum was lowered: the newest goes", job("a", 1, 2, *ON_NODES), 2, ("a-2",)),
    ("who does no work goes first", job("a", 1, 2, "n1", "", "n2"), 2, ("a-1",)),
    ("pods that are still to come are given up first", job("a", 1, 2, "n1", parallelism=4), 2, ()),
    ("a job near its end keeps its size", job("a", 5, 8, *ON_NODES, frozen="the last pass is done"), 3, ()),
]


@pytest.mark.parametrize(("why", "view", "target", "victims"), CASES, ids=[case[0] for case in CASES])
def test_jobs_stay_between_their_bounds(why: str, view: JobView, target: int, victims: tuple[str, ...]) -> None:
    plan = Bounds().plan(Snapshot((view,), (), ()), PlannerSettings(), 100.0)

    assert (plan.jobs[0].before, plan.jobs[0].target) == (view.committed, target), why
    assert plan.jobs[0].victims == victims
    assert plan.jobs[0].reason


def test_room_does_not_matter_for_growth() -> None:
    plan = Bounds().plan(Snapshot((job("a", 1, 8),), (), ()), PlannerSettings(), 0.0)

    assert plan.jobs[0].target == 1, "only what is asked for"
