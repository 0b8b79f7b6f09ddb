"""The Autoscaler in a virtual cluster: what it does to Jobs and pods, and what it leaves alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from edl_controller.api.kinds import JOBS, PODS, TRAINING_JOBS
from edl_controller.api.meta import find_condition
from edl_controller.core.agents import AgentState
from edl_controller.core.names import IN_SERVICE_GATE
from edl_controller.core.placement import is_ready
from edl_controller.core.scaling import ScalingView
from edl_controller.errors import Conflict, Unavailable
from tests.autoscaler.sim_rooms import FULL, NoAgents, Room, training_job
from tests.bench.waiting import eventually


@pytest.fixture
def room() -> Room:
    found = Room()
    found.world.add_node("n1", cpu="4")
    found.world.add_node("n2", cpu="4")
    return found


def test_a_job_grows_to_what_the_nodes_hold(room: Room) -> None:
    room.submit(training_job("a", 1, 20))
    assert room.rounds(10, until=lambda: len([pod for pod in room.pods("a") if is_ready(pod)]) == 8)
    room.rounds(3)
    assert room.size("a") == 8
    view = room.scaler.scaling_of(room.key("a"))
    assert (view.desired, view.scaling) == (8, False)
    assert view.reason == "The load limit allows no more."
    assert sum(record.additional for record in view.records) == 7
    assert [(one.before, one.target, one.outcome) for one in room.scaler.decisions(room.key("a"))] == [(1, 8, "done")]


def test_at_rest_nothing_is_written(room: Room) -> None:
    room.submit(training_job("a", 1, 20))
    room.rounds(10)
    version = room.world.cluster.list(PODS).resource_version
    room.rounds(5)
    assert room.world.cluster.list(PODS).resource_version == version


def test_every_trainer_is_put_into_service_by_its_gate(room: Room) -> None:
    room.submit(training_job("a", 2, 2))
    room.rounds(4)
    gates = [find_condition(pod.status.conditions, IN_SERVICE_GATE) for pod in room.pods("a")]
    assert [gate.status for gate in gates if gate] == ["True", "True"]
    assert all(is_ready(pod) for pod in room.pods("a"))


def test_a_service_gets_room_and_the_victims_are_those_on_its_node(room: Room) -> None:
    room.submit(training_job("a", 1, 20))
    room.rounds(10)
    room.service("web", "3")
    assert room.rounds(20, until=lambda: room.pod("web").spec.node_name != "")
    room.rounds(3)
    assert room.size("a") == 5, "three trainers of one node, not one more"
    where = room.pod("web").spec.node_name
    assert sorted(pod.spec.node_name for pod in room.pods("a")).count(where) == 1
    assert room.job("a").status.failed == 0, "pods removed by a cut count as nothing"
    decision = room.scaler.decisions(room.key("a"))[-1]
    assert len(decision.victims) == 3
    assert decision.reason == f"Its room on node {where} goes to ns/web, which waits for it."


def test_never_below_the_minimum(room: Room) -> None:
    room.submit(training_job("a", 6, 20))
    room.rounds(10)
    room.service("big", "4")
    lowest = []
    for _ in range(40):
        room.rounds(0.25)
        lowest.append(room.size("a") or 0)
    assert min(lowest) >= 6
    assert room.pod("big").spec.node_name == ""


def test_two_jobs_share_and_a_new_one_gets_its_minimum_first(room: Room) -> None:
    room.submit(training_job("a", 1, 20))
    room.rounds(10)
    room.submit(training_job("b", 3, 20))
    assert room.rounds(20, until=lambda: len([pod for pod in room.pods("b") if is_ready(pod)]) == 3)
    assert (room.size("a"), room.size("b")) == (5, 3)


def test_one_name_in_two_namespaces_is_two_jobs(room: Room) -> None:
    room.submit(training_job("a", 1, 2))
    room.submit(training_job("a", 1, 3, namespace="other"))
    room.rounds(8)
    assert (room.size("a"), room.size("a", "other")) == (2, 3)


def test_edited_bounds_are_followed_at_once(room: Room) -> None:
    room.submit(training_job("a", 1, 6))
    room.rounds(8)
    assert room.size("a") == 6
    room.edit("a", trainer=training_job("a", 1, 3).spec.trainer)
    room.rounds(8)
    assert room.size("a") == 3
    room.edit("a", trainer=training_job("a", 5, 5).spec.trainer)
    room.rounds(8)
    assert room.size("a") == 5


@pytest.mark.fault("K36")
def test_a_size_that_a_user_set_is_taken_as_it_is(room: Room) -> None:
    room.submit(training_job("a", 2, 6, enabled=False))
    room.rounds(4)
    room.world.cluster.patch(JOBS, "ns", "a-trainer", {"spec": {"parallelism": 4}})
    room.rounds(4)
    assert room.size("a") == 4
    room.world.cluster.patch(JOBS, "ns", "a-trainer", {"spec": {"parallelism": 9}})
    room.rounds(6)
    assert room.size("a") == 6, "but the bounds are kept"


def test_a_suspended_an_ended_and_a_strangers_job_are_left_alone(room: Room) -> None:
    room.submit(training_job("a", 1, 6))
    room.submit(training_job("b", 1, 6))
    room.world.cluster.patch(JOBS, "ns", "a-trainer", {"spec": {"suspend": True}})
    room.world.advance(2)
    room.world.finish(room.pods("b")[0], 0)
    room.world.advance(2)
    room.rounds(5)
    assert (room.size("a"), room.size("b")) == (1, 1)
    assert room.scaler.scaling_of(room.key("a")).desired is None


def test_after_a_crash_the_next_one_finishes_what_is_half_done(room: Room) -> None:
    room.submit(training_job("a", 1, 20))
    room.rounds(10)
    room.service("web", "2")
    room.world.advance(1)
    room.scaler.round()  # gates closed, nothing cut yet
    closed = [pod.metadata.name for pod in room.pods("a") if gate(pod) == "False"]
    assert len(closed) == 2
    assert room.size("a") == 8
    room.new_scaler()
    room.rounds(8)
    assert room.size("a") == 6
    assert not {pod.metadata.name for pod in room.pods("a")} & set(closed)
    assert room.pod("web").spec.node_name


def gate(pod: Any) -> str:
    found = find_condition(pod.status.conditions, IN_SERVICE_GATE)
    return "" if found is None else found.status


def test_victims_come_back_into_service_where_the_minimum_has_risen(room: Room) -> None:
    room.submit(training_job("a", 1, 20))
    room.rounds(10)
    room.service("web", "2")
    room.world.advance(1)
    room.scaler.round()
    room.edit("a", trainer=training_job("a", 8, 20).spec.trainer)
    room.rounds(5)
    assert room.size("a") == 8
    assert [gate(pod) for pod in room.pods("a")] == ["True"] * 8


def test_a_conflict_is_looked_at_again_and_hinders_nobody_else(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    room.submit(training_job("a", 1, 2))
    room.submit(training_job("b", 1, 2))
    patch, left = room.world.cluster.patch, [3]

    def contended(kind: Any, namespace: str, name: str, *arguments: Any, **options: Any) -> Any:
        if name == "a-trainer" and left[0]:
            left[0] -= 1
            raise Conflict("somebody was faster")
        return patch(kind, namespace, name, *arguments, **options)

    monkeypatch.setattr(room.world.cluster, "patch", contended)
    room.rounds(5)
    assert (room.size("a"), room.size("b")) == (2, 2)
    assert left == [0]
    assert len(room.scaler.decisions(room.key("a"))) == 1, "what did not happen is no decision"


def test_the_calls_from_outside_never_block(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original's event channel had no buffer: a slow loop blocked the informer (defect 7)."""
    held, release = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        held.set()
        release.wait(10)
        raise Unavailable("the cluster does not answer")

    job = room.submit(training_job("a", 1, 2))
    monkeypatch.setattr(room.world.cluster, "list", slow)
    stop = threading.Event()
    thread = threading.Thread(target=room.scaler.run, args=(stop,))
    thread.start()
    try:
        assert held.wait(5)
        begin = time.monotonic()
        for _ in range(1000):
            room.scaler.on_update(job)
            room.scaler.on_del(job)
            room.scaler.on_add(job)
        assert room.scaler.scaling_of("ns/a/uid") == ScalingView()
        assert room.scaler.decisions("ns/a/uid") == ()
        assert time.monotonic() - begin < 1.0
    finally:
        stop.set()
        release.set()
        thread.join(5)
    assert not thread.is_alive(), "it stops though the cluster does not answer"


def test_it_runs_by_itself_and_says_what_changed(room: Room) -> None:
    told: list[str] = []
    room.scaler.on_change(told.append)
    stop = threading.Event()
    thread = threading.Thread(target=room.scaler.run, args=(stop,))
    thread.start()
    try:
        room.submit(training_job("a", 1, 3))

        def grown() -> bool:
            room.world.advance(0.1)
            return room.size("a") == 3

        eventually(grown, 10.0, "it grows")
        eventually(lambda: told, 10.0, "it says so")
        assert told[0] == room.key("a")
        room.scaler.on_del(room.world.cluster.get(TRAINING_JOBS, "ns", "a"))
        eventually(lambda: room.scaler.scaling_of(room.key("a")) == ScalingView(), 5.0, "a deleted job is forgotten")
    finally:
        stop.set()
        thread.join(5)
    assert not thread.is_alive()


class _Heard(NoAgents):
    """Agents that all say the same."""

    state = AgentState()

    def get(self, job: str) -> AgentState:
        return self.state


@pytest.fixture
def resting() -> Iterator[Room]:
    """One whose Autoscaler runs by itself, and rests for an hour of the room's clock where nothing happens."""
    settings = replace(FULL, interval=0.01, busy_interval=0.01, idle_interval=3600.0)
    found = Room(agents=_Heard(), settings=settings)
    found.world.add_node("n1", cpu="4")
    stop = threading.Event()
    thread = threading.Thread(target=found.scaler.run, args=(stop,))
    thread.start()
    yield found
    stop.set()
    thread.join(5)
    assert not thread.is_alive()


def turned(room: Room, turns: int = 3) -> float:
    """Let the loop turn, and tell of when its plan is then."""
    before = room.scaler.turns
    eventually(lambda: room.scaler.turns >= before + turns, 10.0, "the loop turns")
    return room.scaler.plan.time


def planned_since(room: Room, plan: float) -> bool:
    return turned(room) != plan


def set_back(room: Room, seconds: float) -> None:
    """As somebody sets a machine's clock; the room's own never goes back."""
    room.world.clock._now -= seconds


@pytest.mark.parametrize(
    ("what", "happen"),
    [
        ("the clock was set back", lambda room: set_back(room, 60)),
        ("a long time is over", lambda room: room.world.clock.set(room.world.clock.wall() + 3601)),
        ("agents have news", lambda room: room.scaler.notice()),
        ("the cluster has news", lambda room: room.scaler.wake()),
        ("a job is new", lambda room: room.submit(training_job("b", 1, 1))),
        ("a job is gone", lambda room: room.scaler.on_del(room.world.cluster.get(TRAINING_JOBS, "ns", "a"))),
    ],
)
def test_no_round_is_made_without_a_reason(resting: Room, what: str, happen: Callable[[Room], object]) -> None:
    """A thousand jobs at rest cost nearly nothing (`docs/benchmarks.md`)."""
    resting.submit(training_job("a", 1, 1))
    turned(resting)
    plans = []
    for _ in range(3):
        resting.world.clock.set(resting.world.clock.wall() + 1)
        plans.append(turned(resting))
    assert len({*plans}) == 1, "no round though nothing happened"
    resting.world.clock.set(resting.world.clock.wall() + 1)
    happen(resting)
    eventually(partial(planned_since, resting, plans[0]), 10.0, what)


def test_the_end_of_a_cooldown_is_a_reason(resting: Room) -> None:
    resting.submit(training_job("a", 1, 2, scale_up_cooldown_seconds=30))

    def has(size: int) -> bool:
        resting.world.advance(0.1)
        return resting.size("a") == size

    eventually(lambda: has(2), 10.0, "it grows")
    resting.edit("a", trainer=training_job("a", 1, 3).spec.trainer)
    turned(resting, 5)
    assert resting.size("a") == 2
    resting.world.clock.set(resting.world.clock.wall() + 31)
    eventually(lambda: has(3), 10.0, "it grows once more")


def test_agents_that_are_unheard_for_no_known_reason_leave_no_rest(resting: Room) -> None:
    """Where this process itself was stopped for a while they are heard again, and have no news to tell."""
    agents = resting.agents
    assert isinstance(agents, _Heard)
    agents.state = AgentState(observed=resting.world.clock.wall())
    resting.submit(training_job("a", 1, 1, mode="Sidecar"))
    plan = turned(resting)
    resting.world.clock.set(resting.world.clock.wall() + 1)
    assert turned(resting) == plan, "heard just now: rest"
    for error, rests in [("", False), ("etcd does not answer", True)]:
        agents.state = AgentState(observed=resting.world.clock.wall() - 60, error=error)
        resting.scaler.notice()
        resting.world.clock.set(resting.world.clock.wall() + 1)
        eventually(partial(planned_since, resting, plan), 10.0, "a round")
        plan = turned(resting)
        resting.world.clock.set(resting.world.clock.wall() + 1)
        assert (turned(resting) == plan) is rests, error
