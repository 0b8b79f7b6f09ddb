"""The cluster in virtual time: its clock, its nodes, and that it comes to rest whatever happens to it."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_controller.api.kinds import JOBS, NODES, PODS, REPLICA_SETS
from edl_controller.api.meta import LabelSelector, ObjectMeta, is_true
from edl_controller.api.pods import Container, Pod, PodSpec, PodTemplateSpec, ResourceRequirements
from edl_controller.api.workloads import Job, JobSpec, JobStatus, ReplicaSet, ReplicaSetSpec
from edl_controller.cluster.port import Cluster
from edl_controller.cluster.sim import PodCourse, SimWorld
from edl_controller.core.semantics.job import TRACKING
from edl_controller.core.semantics.pod_state import ENDED, is_active, is_ready
from edl_controller.core.semantics.removal_order import job_removal_order
from edl_controller.errors import NotFound


def template(name: str, restart: str = "Never", cpu: str = "1") -> PodTemplateSpec:
    container = Container(name="main", image="none", resources=ResourceRequirements(requests={"cpu": cpu}))
    return PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": name}), spec=PodSpec(containers=(container,), restart_policy=restart)
    )


def job(name: str, parallelism: int, **spec: Any) -> Job:
    return Job(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=JobSpec(parallelism=parallelism, **{"template": template(name), **spec}),
    )


def replica_set(name: str, replicas: int) -> ReplicaSet:
    return ReplicaSet(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=ReplicaSetSpec(
            replicas=replicas,
            selector=LabelSelector(match_labels={"app": name}),
            template=template(name, "Always"),
        ),
    )


def world(nodes: int = 1, cpu: str = "16", **options: Any) -> SimWorld:
    result = SimWorld(**options)
    for number in range(nodes):
        result.add_node(f"n{number}", cpu)
    return result


def pods(of: SimWorld, name: str) -> list[Pod]:
    return list(of.cluster.list(PODS, "default", labels={"app": name}).items)


def active(of: SimWorld, name: str) -> list[Pod]:
    return [pod for pod in pods(of, name) if is_active(pod)]


def status(of: SimWorld, name: str) -> JobStatus:
    return of.cluster.get(JOBS, "default", name).status


def scale(of: SimWorld, name: str, parallelism: int) -> None:
    of.cluster.patch(JOBS, "default", name, {"spec": {"parallelism": parallelism}})


def test_it_is_a_cluster() -> None:
    cluster: Cluster = SimWorld().cluster

    assert cluster.inquiry_resource().node_count == 0


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_pod_takes_the_time_that_its_course_says() -> None:
    it = world(courses=lambda _: PodCourse(start=3.0, ready=2.0, runs=10.0, exit_code=0))
    it.cluster.create(job("j", 1))

    seen = []
    for seconds in (2.5, 1.0, 2.0, 9.0, 1.0):
        it.advance(seconds)
        pod = pods(it, "j")[0]
        seen.append((round(it.clock.monotonic(), 1), pod.status.phase, is_ready(pod)))

    assert seen == [
        (2.5, "Pending", False),
        (3.5, "Running", False),
        (5.5, "Running", True),
        (14.5, "Succeeded", False),
        (15.5, "Succeeded", False),
    ]
    assert is_true(status(it, "j").conditions, "Complete")


def test_settling_does_not_wait_for_waits() -> None:
    it = world(courses=lambda _: PodCourse(start=1.0, runs=3600.0))
    it.cluster.create(job("j", 2, active_deadline_seconds=600))
    done: list[float] = []
    it.after(100.0, lambda: done.append(it.clock.monotonic()))

    it.settle()

    assert status(it, "j").ready == 2
    assert it.clock.monotonic() < 5
    it.advance(100.0)
    assert done == [100.0]


def test_pods_events_are_batched_and_changes_of_the_job_are_not() -> None:
    it = world(courses=lambda _: PodCourse(start=0.5, end=0.0))
    it.cluster.create(job("j", 1))
    it.advance(0.0)
    assert len(active(it, "j")) == 1, "at once"
    it.advance(0.9)
    assert (active(it, "j")[0].status.phase, status(it, "j").ready) == ("Running", 0), "not counted yet"
    it.advance(0.2)
    assert status(it, "j").ready == 1
    scale(it, "j", 0)
    it.advance(0.0)
    assert active(it, "j") == []


def test_a_failed_pod_is_replaced_after_the_back_off() -> None:
    it = world()
    it.cluster.create(job("j", 1))
    it.settle()
    for failures, wait in ((1, 10.0), (2, 20.0), (3, 40.0)):
        it.finish(active(it, "j")[0], 1)
        it.advance(wait - 1.0)
        assert (active(it, "j"), status(it, "j").failed) == ([], failures)
        it.advance(3.0)
        assert len(active(it, "j")) == 1


def test_the_time_to_live_removes_a_finished_job_with_its_pods() -> None:
    it = world(courses=lambda _: PodCourse(runs=1.0))
    it.cluster.create(job("j", 1, ttl_seconds_after_finished=60))
    it.advance(30.0)
    assert is_true(status(it, "j").conditions, "Complete")

    it.advance(60.0)

    assert pods(it, "j") == []
    with pytest.raises(NotFound):
        status(it, "j")


def test_equal_seeds_give_equal_histories() -> None:
    def history(seed: int) -> list[tuple[str, str, str]]:
        it = world(3, seed=seed)
        changes: list[tuple[str, str, str]] = []

        def see(_: Any, before: Any, after: Any) -> None:
            meta = (after or before).metadata
            changes.append((meta.name, meta.uid, meta.resource_version))

        it.cluster.subscribe(see)
        it.cluster.create(job("j", 10))
        it.cluster.create(replica_set("r", 3))
        it.settle()
        it.finish(active(it, "j")[0], 1)
        scale(it, "j", 4)
        it.fail_node("n1")
        it.advance(1000.0)
        return changes

    assert history(7) == history(7)
    assert history(7) != history(8)


# -- placing -----------------------------------------------------------------------------------------------------------


def test_room_is_given_to_who_waits_as_soon_as_it_is_there() -> None:
    it = world(cpu="2")
    it.cluster.create(job("j", 3))
    it.settle()
    waiting = [pod for pod in active(it, "j") if not pod.spec.node_name]
    assert [pod.status.conditions[0].reason for pod in waiting] == ["Unschedulable"]

    it.add_node("n1", "1")
    it.settle()

    assert status(it, "j").ready == 3


def test_priority_comes_before_patience() -> None:
    it = world(0)
    it.cluster.create(job("patient", 1))
    urgent = template("urgent")
    urgent = msgspec.structs.replace(urgent, spec=msgspec.structs.replace(urgent.spec, priority=100))
    it.cluster.create(job("urgent", 1, template=urgent))
    it.settle()

    it.add_node("n0", "1")
    it.settle()

    assert (status(it, "urgent").ready, status(it, "patient").ready) == (1, 0)


# -- nodes -------------------------------------------------------------------------------------------------------------

DISRUPTIONS_IGNORED = {
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}


def test_a_silent_node_loses_its_pods_after_five_minutes() -> None:
    it = world(1)
    it.cluster.create(job("j", 2))
    it.settle()
    it.add_node("n1")

    it.fail_node("n0")
    it.advance(290.0)
    assert {pod.spec.node_name for pod in active(it, "j")} == {"n0"}
    assert status(it, "j").ready == 0
    it.advance(30.0)

    assert {pod.spec.node_name for pod in active(it, "j")} == {"n1"}
    assert status(it, "j").failed == 2
    # Nobody says that the old ones have ended, until the node is back.
    assert status(it, "j").terminating == 2
    it.recover_node("n0")
    it.advance(5.0)
    assert status(it, "j").terminating == 0


def test_a_node_that_comes_back_in_time_keeps_its_pods() -> None:
    it = world(1)
    it.cluster.create(job("j", 2))
    it.settle()
    before = {pod.metadata.uid for pod in active(it, "j")}

    it.fail_node("n0")
    it.advance(200.0)
    it.recover_node("n0")
    it.advance(500.0)

    assert {pod.metadata.uid for pod in active(it, "j")} == before
    assert status(it, "j").ready == 2
    assert it.cluster.get(NODES, "", "n0").spec.taints == ()


def test_a_pod_deleted_before_it_had_a_node_does_not_hang() -> None:
    """Its Job counts only what has ended, and no node will ever say that it has."""
    it = world(0)
    it.cluster.create(job("j", 1, pod_replacement_policy="Failed"))
    it.settle()

    it.cluster.delete(PODS, "default", pods(it, "j")[0].metadata.name)
    it.advance(5.0)
    assert (status(it, "j").terminating, len(active(it, "j"))) == (1, 0)
    it.advance(40.0)

    assert (status(it, "j").terminating, status(it, "j").failed, len(pods(it, "j"))) == (0, 1, 1)


def test_a_vanished_node_is_a_disruption_that_is_not_counted() -> None:
    it = world(2)
    it.cluster.create(job("j", 4, pod_failure_policy=DISRUPTIONS_IGNORED, backoff_limit=0))
    it.settle()

    it.remove_node("n0")
    it.advance(60.0)

    assert {pod.spec.node_name for pod in active(it, "j")} == {"n1"}
    assert (len(active(it, "j")), status(it, "j").failed) == (4, 0)
    assert len(pods(it, "j")) == 4, "nothing is left of the lost ones"


# -- whatever happens --------------------------------------------------------------------------------------------------

_ACTIONS = ("scale", "finish", "fail", "unready", "delete", "node fails", "node returns", "stranger", "time", "suspend")


class _Chaos:
    """Does one thing after the other to a world with a Job and a ReplicaSet, and checks what must always hold."""

    def __init__(self, seed: int, **spec: Any) -> None:
        self.world = world(3, cpu="4", seed=seed, courses=self._course)
        self.chance = random.Random(seed)
        self.parallelism, self.suspended = 4, False
        self.counts = (0, 0)
        self.strangers: set[str] = set()
        self.failed_nodes: set[str] = set()
        self.world.cluster.subscribe(self._see)
        self.world.cluster.create(job("j", 4, backoff_limit=10_000, **spec))
        self.world.cluster.create(replica_set("r", 2))

    def _course(self, _: Pod) -> PodCourse:
        return PodCourse(start=self.chance.choice((0.1, 1.0, 3.0)), end=self.chance.choice((0.0, 0.5, 5.0)))

    def _see(self, kind: Any, before: Any, after: Any) -> None:
        if kind is PODS and before is not None and before.metadata.uid in self.strangers:
            # Nobody but the scheduler, the nodes and we ourselves touch a pod that no Job made.
            evicted = is_true(before.status.conditions, "DisruptionTarget")
            assert evicted or after is not None, "a foreign pod was removed"
            if after is not None:
                assert after.metadata.owner_references == ()
                assert evicted or after.metadata.deletion_timestamp is None
        if kind is JOBS and after is not None:
            now = after.status
            assert min(now.active, now.ready or 0, now.terminating or 0, now.succeeded, now.failed) >= 0
            assert (now.ready or 0) <= now.active
            # What is counted stays counted.
            assert now.succeeded >= self.counts[0]
            assert now.failed >= self.counts[1]
            self.counts = (now.succeeded, now.failed)

    def do(self, action: str, number: int) -> None:
        it = self.world
        own = (pod for pod in active(it, "j") if pod.metadata.uid not in self.strangers)
        living = sorted(own, key=lambda pod: pod.metadata.name)
        running = [pod for pod in living if pod.status.phase == "Running"]
        match action:
            case "scale":
                self.parallelism = number % 7
                scale(it, "j", self.parallelism)
            case "suspend":
                self.suspended = not self.suspended
                it.cluster.patch(JOBS, "default", "j", {"spec": {"suspend": self.suspended}})
            case "finish" if running and number % 4 == 0:
                it.finish(running[number % len(running)], 0)
            case "fail" if running:
                it.finish(running[number % len(running)], 1)
            case "unready" if running:
                it.set_ready(running[number % len(running)], False)
            case "delete" if living:
                it.cluster.delete(PODS, "default", living[number % len(living)].metadata.name)
            case "node fails":
                self.failed_nodes.add(f"n{number % 3}")
                it.fail_node(f"n{number % 3}")
            case "node returns" if self.failed_nodes:
                it.recover_node(self.failed_nodes.pop())
            case "stranger":
                labels = {"app": "j", "batch.kubernetes.io/job-name": "j"}
                spec = template("j").spec
                made = it.cluster.create(
                    Pod(metadata=ObjectMeta(generate_name="j-", namespace="default", labels=labels), spec=spec)
                )
                self.strangers.add(made.metadata.uid)
            case "time":
                it.advance(number % 20)
        it.advance(0.0)

    def rest(self) -> None:
        """Heal all nodes, let back-offs pass, and check what must be so at rest."""
        it = self.world
        for name in sorted(self.failed_nodes):
            it.recover_node(name)
        if self.suspended:
            it.cluster.patch(JOBS, "default", "j", {"spec": {"suspend": False}})
        for number in range(10):
            it.add_node(f"more{number}", "16")
        it.advance(2000.0)
        it.settle()
        found = it.cluster.get(JOBS, "default", "j")
        own = [pod for pod in pods(it, "j") if pod.metadata.uid not in self.strangers]
        living = [pod for pod in own if is_active(pod)]
        assert found.status.active == len(living)
        assert found.status.terminating == 0
        assert found.status.ready == sum(map(is_ready, living))
        assert found.status.uncounted_terminated_pods == {}
        if found.status.succeeded == 0:
            assert len(living) == self.parallelism, found.status
        else:
            assert is_true(found.status.conditions, "Complete") == (not living)
        for pod in own:
            assert (TRACKING in pod.metadata.finalizers) == (pod.status.phase not in ENDED)
        found_set = it.cluster.get(REPLICA_SETS, "default", "r")
        assert (found_set.status.replicas, found_set.status.terminating_replicas) == (2, 0)
        self._assert_quiet()

    def _assert_quiet(self) -> None:
        changes: list[Any] = []
        self.world.cluster.subscribe(lambda *change: changes.append(change))
        self.world.advance(3000.0)
        assert changes == [], "at rest nothing is written"


_POLICIES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}, {"pod_replacement_policy": "Failed"}, {"pod_failure_policy": DISRUPTIONS_IGNORED}]
)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    policy=_POLICIES,
    actions=st.lists(st.tuples(st.sampled_from(_ACTIONS), st.integers(0, 100)), max_size=25),
)
def test_whatever_happens_the_job_comes_to_rest(
    seed: int, policy: dict[str, Any], actions: list[tuple[str, int]]
) -> None:
    chaos = _Chaos(seed, **policy)
    for action, number in actions:
        chaos.do(action, number)
    chaos.rest()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), unready=st.sets(st.integers(0, 7)), cut=st.integers(0, 8))
def test_a_cut_removes_those_that_rank_first_and_counts_nothing(seed: int, unready: set[int], cut: int) -> None:
    it = world(2, seed=seed, courses=lambda pod: PodCourse(start=(hash(pod.metadata.uid) + seed) % 5 / 2))
    it.cluster.create(job("j", 8))
    it.settle()
    for number in sorted(unready):
        it.set_ready(active(it, "j")[number], False)
    it.settle()
    ranked = job_removal_order(active(it, "j"))

    scale(it, "j", 8 - cut)
    it.settle()

    assert {pod.metadata.name for pod in active(it, "j")} == {pod.metadata.name for pod in ranked[cut:]}
    assert (status(it, "j").failed, status(it, "j").succeeded, status(it, "j").terminating) == (0, 0, 0)


@pytest.mark.parametrize("remove", ["Background", "Foreground"])
def test_nothing_is_left_of_a_deleted_owner(remove: Any) -> None:
    it = world()
    it.cluster.create(job("j", 3))
    it.cluster.create(replica_set("r", 2))
    it.settle()
    it.cluster.delete(JOBS, "default", "j", propagation=remove)
    it.cluster.delete(REPLICA_SETS, "default", "r", propagation=remove)

    it.settle()

    assert it.cluster.list(PODS).items == ()
    assert it.cluster.list(JOBS).items == ()
    assert it.cluster.list(REPLICA_SETS).items == ()
    assert all(room.used == {} and room.leaving == {} for room in it.accounts)


def test_orphans_are_let_go_and_live_on() -> None:
    it = world()
    it.cluster.create(job("j", 2))
    it.settle()

    it.cluster.delete(JOBS, "default", "j", propagation="Orphan")
    it.settle()

    assert [(pod.metadata.finalizers, pod.metadata.owner_references) for pod in active(it, "j")] == [((), ())] * 2
