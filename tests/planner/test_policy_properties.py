"""What must hold of every plan, whatever the cluster looks like. Run for each policy."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_controller.core.capacity import NodeRoom
from edl_controller.core.placement import Shape, add, insufficient, slots, subtract
from edl_controller.core.planner.classic import Classic
from edl_controller.core.planner.plan import Cause, Plan
from edl_controller.core.planner.policy import PlannerSettings, Policy
from edl_controller.core.planner.snapshot import JobView, Snapshot, TrainerPod, WaitingPod
from edl_controller.core.planner.victims import choose_victims
from tests.planner.builders import GPU, cluster, job, shape, waits

NOW = 10_000.0
POLICIES: tuple[Policy, ...] = (Classic(),)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    return shape(draw(st.integers(0, 5)), draw(st.integers(0, 5)), draw(st.sampled_from([0, 0, 0, 1, 2])))


@st.composite
def jobs(draw: st.DrawFn, name: str, nodes: list[str]) -> JobView:
    minimum = draw(st.integers(0, 4))
    where = draw(st.lists(st.sampled_from([*nodes, *nodes, ""]), max_size=6))
    return job(
        name,
        minimum,
        minimum + draw(st.integers(0, 5)),
        *where,
        trainer=draw(shapes()),
        parallelism=max(0, len(where) + draw(st.integers(-1, 2))),
        enabled=draw(st.sampled_from([True, True, True, False])),
        frozen=draw(st.sampled_from(["", "", "", "the end is near"])),
        agents_age=draw(st.sampled_from([0.0, 0.0, 0.0, 99.0])),
        missing_pservers=draw(st.sampled_from([(), (), (), (0,)])),
        priority=draw(st.sampled_from([0, 0, 0, 1])),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes = [f"n{number}" for number in range(draw(st.integers(1, 4)))]
    capacities = {name: (draw(st.integers(0, 16)), draw(st.integers(0, 16)), draw(st.integers(0, 3))) for name in nodes}
    return cluster(
        capacities,
        *(draw(jobs(name, nodes)) for name in ("a", "b", "c")[: draw(st.integers(1, 3))]),
        waiting=tuple(
            waits(f"w{number}", *draw(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 1))))
            for number in range(draw(st.integers(0, 4)))
        ),
        leaving={name: (draw(st.integers(0, 3)), draw(st.integers(0, 3))) for name in nodes},
        closed=frozenset(draw(st.lists(st.sampled_from(nodes), max_size=1))),
        places=draw(st.sampled_from([3, 110])),
    )


LIMITS = st.builds(PlannerSettings, max_load=st.sampled_from([0.5, 0.97, 1.0]), step=st.integers(1, 10))
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: str(policy.name))


CAUSES = {
    "Fewer than the minimum": Cause.BOUNDS,
    "More than the maximum": Cause.BOUNDS,
    "load limit": Cause.LOAD,
    "No node has room": Cause.NO_ROOM,
    "which waits for it": Cause.ROOM_FOR_OTHERS,
    "more fit": Cause.FITS,
}


@every_policy
@settings(max_examples=100, deadline=None)
@given(snapshots(), LIMITS)
def test_bounds_and_reasons(policy: Policy, snapshot: Snapshot, limits: PlannerSettings) -> None:
    plan = policy.plan(snapshot, limits, NOW)
    assert [one.key for one in plan.jobs] == [one.key for one in snapshot.jobs]
    for view, decided in zip(snapshot.jobs, plan.jobs, strict=True):
        assert decided.reason.endswith(".")
        if decided.change:
            assert [decided.cause] == [cause for words, cause in CAUSES.items() if words in decided.reason]
        if view.frozen:
            assert decided.change == 0
            continue
        assert view.minimum <= decided.target <= view.maximum or not view.enabled
        assert view.minimum <= decided.target
        assert decided.change <= max(limits.step, view.minimum - decided.before)
        assert len(set(decided.victims)) == len(decided.victims) <= max(0, -decided.change)
        assert set(decided.victims) <= {pod.name for pod in view.pods}
        if view.agents_age > limits.stale_after or view.missing_pservers or not view.enabled:
            assert decided.target <= max(decided.before, view.minimum), "only growth to the minimum is without question"


@pytest.mark.fault("C3")
@every_policy
@settings(max_examples=100, deadline=None)
@given(snapshots(), LIMITS)
def test_never_more_than_fits(policy: Policy, snapshot: Snapshot, limits: PlannerSettings) -> None:
    plan = policy.plan(snapshot, limits, NOW)
    rooms = {node.facts.name: dict(node.room) for node in snapshot.nodes}
    views = {view.key: view for view in snapshot.jobs}
    for key, nodes in plan.placed.items():
        grown = plan.of(key)
        assert grown is not None
        assert len(nodes) >= grown.target - max(grown.before, views[key].minimum)
        for node, count in Counter(nodes).items():
            for _ in range(count):
                assert not insufficient(views[key].trainer.amounts, rooms[node]), "planned more than the node has"
                subtract(rooms[node], views[key].trainer.amounts)
    closed = {node.facts.name for node in snapshot.nodes if not node.open}
    assert not closed & {node for nodes in plan.placed.values() for node in nodes}


@every_policy
@settings(max_examples=50, deadline=None)
@given(snapshots(), LIMITS)
def test_the_same_question_has_the_same_answer(policy: Policy, snapshot: Snapshot, limits: PlannerSettings) -> None:
    assert policy.plan(snapshot, limits, NOW) == policy.plan(snapshot, limits, NOW)


@every_policy
@settings(max_examples=80, deadline=None)
@given(snapshots(), LIMITS)
def test_who_waits_does_not_lose_by_growth(policy: Policy, snapshot: Snapshot, limits: PlannerSettings) -> None:
    """Minima and others first: with growing jobs no other pod waits in vain than without them."""
    still = replace(snapshot, jobs=tuple(replace(view, missing_pservers=(0,)) for view in snapshot.jobs))
    assert policy.plan(snapshot, limits, NOW).unplaced == policy.plan(still, limits, NOW).unplaced


@every_policy
@settings(max_examples=100, deadline=None)
@given(snapshots(), LIMITS)
def test_plans_come_to_rest(policy: Policy, snapshot: Snapshot, limits: PlannerSettings) -> None:
    """Each plan is carried out, pods are placed, leaving pods leave: after a while nothing changes any more."""
    changed: list[tuple[int, ...]] = []
    for _ in range(40):
        plan = policy.plan(snapshot, limits, NOW)
        after = placed(carried_out(snapshot, plan))
        if not plan.changes and after == snapshot:
            return
        changed.append(tuple(one.target for one in plan.jobs))
        snapshot = after
    pytest.fail(f"never at rest: {changed[-4:]}")


def carried_out(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Victims are gone at once, what was leaving too; new trainers have no node yet."""
    views = []
    for view, decided in zip(snapshot.jobs, plan.jobs, strict=True):
        pods = list(view.pods)
        if decided.change < 0:
            gone = choose_victims(pods, len(pods) - decided.target, decided.victims)
            pods = [pod for pod in pods if pod not in gone]
        while len(pods) < decided.target and not view.frozen:
            number = max((int(pod.name.rpartition("-")[2]) for pod in pods), default=-1) + 1
            pods.append(TrainerPod(f"{view.key}-{number}", pending=True, created=float(number)))
        views.append(replace(view, pods=tuple(pods), parallelism=decided.target))
    return booked(snapshot, tuple(views), snapshot.waiting, {})


def placed(snapshot: Snapshot) -> Snapshot:
    """The scheduler: each pod without a node goes where there is room, if anywhere."""
    rooms = {node.facts.name: dict(node.room) for node in snapshot.nodes if node.open}
    taken: dict[str, dict[str, int]] = {}

    def place(wanted: Shape) -> str:
        for name in sorted(rooms, key=lambda one: -rooms[one].get("cpu", 0)):
            if not insufficient(wanted.amounts, rooms[name]):
                subtract(rooms[name], wanted.amounts)
                return name
        return ""

    waiting: list[WaitingPod] = []
    for pod in snapshot.waiting:
        if node := place(pod.shape):
            add(taken.setdefault(node, {}), pod.shape.amounts)
        else:
            waiting.append(pod)
    views = []
    for view in snapshot.jobs:
        pods = [
            pod if pod.node else replace(pod, node=(node := place(view.trainer)), pending=not node) for pod in view.pods
        ]
        views.append(replace(view, pods=tuple(pods)))
    return booked(snapshot, tuple(views), tuple(waiting), taken)


def booked(
    snapshot: Snapshot, views: tuple[JobView, ...], waiting: tuple[WaitingPod, ...], taken: dict[str, dict[str, int]]
) -> Snapshot:
    nodes = []
    for node in snapshot.nodes:
        name = node.facts.name
        used = dict(node.used)
        for before, after in zip(snapshot.jobs, views, strict=True):
            for sign, view in ((subtract, before), (add, after)):
                for pod in view.pods:
                    if pod.node == name:
                        sign(used, view.trainer.amounts)
        add(used, taken.get(name, {}))
        room = subtract(dict(node.allocatable), used)
        nodes.append(NodeRoom(node.facts, node.allocatable, used, {}, room))
    return Snapshot(views, tuple(nodes), waiting)


def test_slots_and_gpus_of_the_builders_are_what_they_say() -> None:
    node = cluster({"n": (4, 4, 2)}).nodes[0]
    assert slots(shape(1, 1, 1).amounts, node.room) == 2
    assert node.allocatable[GPU] == 2
