"""The loops over a store in memory and over a real etcd: what Kubernetes' own controllers would do is done once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from edl_controller.api import timestamps
from edl_controller.api.events import Event, EventSeries
from edl_controller.api.kinds import EVENTS, JOBS, NODES, PODS, REPLICA_SETS, TRAINING_JOBS
from edl_controller.api.meta import LabelSelector, ObjectMeta, OwnerReference, find_condition, is_true
from edl_controller.api.pods import Container, Pod, PodSpec, PodTemplateSpec, ResourceRequirements
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job, JobSpec, ReplicaSet, ReplicaSetSpec
from edl_controller.core.semantics.job import TRACKING, is_finished
from edl_controller.machine.loop_old_events import OldEventsLoop
from edl_controller.machine.loops import Loops
from tests.bench.waiting import eventually, never
from tests.controller.conftest import Start, drive
from tests.controller.light_node import LightNodes, add_node, node
from tests.runtime.memory_cluster import MemoryCluster

HOUR = 3600.0


@pytest.mark.parametrize(
    ("what", "fields", "old"),
    [
        ("seen once, long ago", {"event_time": 0.0}, True),
        ("seen once, an hour ago", {"event_time": HOUR}, False),
        ("seen again just now", {"event_time": 0.0, "again": 2 * HOUR}, False),
        ("seen again, long ago", {"event_time": 0.0, "again": 10.0}, True),
        ("without a time: it was created just now", {}, False),
    ],
)
def test_events_go_an_hour_after_they_were_seen_last(what: str, fields: dict[str, float], old: bool) -> None:
    now = 2 * HOUR
    cluster = MemoryCluster(now=lambda: now)
    times = {name: timestamps.render_micro(moment) for name, moment in fields.items()}
    again = times.pop("again", None)
    series = None if again is None else EventSeries(count=2, last_observed_time=again)
    meta = ObjectMeta(name="e", namespace=NS)
    made = cluster.create(Event(metadata=meta, reason=what, series=series, **times))  # type: ignore[arg-type]
    OldEventsLoop(cluster, lambda: now).look(threading.Event())
    assert [one.metadata.uid for one in cluster.list(EVENTS).items] == ([] if old else [made.metadata.uid])


Driven = tuple[Any, Loops, LightNodes]
NS = "default"


def template(restart: str = "", cpu: str = "100m", **labels: str) -> PodTemplateSpec:
    container = Container(name="main", image="i", resources=ResourceRequirements(requests={"cpu": cpu}))
    return PodTemplateSpec(
        metadata=ObjectMeta(labels=labels), spec=PodSpec(containers=(container,), restart_policy=restart)
    )


def replica_set(name: str, replicas: int, **meta: Any) -> ReplicaSet:
    return ReplicaSet(
        metadata=ObjectMeta(name=name, namespace=NS, **meta),
        spec=ReplicaSetSpec(
            replicas=replicas, selector=LabelSelector(match_labels={"app": name}), template=template(app=name)
        ),
    )


def job(name: str, parallelism: int, **spec: Any) -> Job:
    return Job(
        metadata=ObjectMeta(name=name, namespace=NS),
        spec=JobSpec(parallelism=parallelism, template=template("Never"), **spec),
    )


def pods(cluster: Any) -> list[Pod]:
    return list(cluster.list(PODS, NS).items)


def running(cluster: Any) -> list[Pod]:
    return [p for p in pods(cluster) if p.status.phase == "Running" and p.metadata.deletion_timestamp is None]


def settled(cluster: Any, count: int) -> list[Pod]:
    """Wait until so many pods run, and that stays so."""
    eventually(
        lambda: len(running(cluster)) == len(pods(cluster)) == count, 15, lambda: f"{count} of {len(pods(cluster))}"
    )
    never(lambda: len(pods(cluster)) != count, 0.3, "the number of pods changes again")
    return running(cluster)


def test_a_replica_set_has_its_pods_and_replaces_a_deleted_one(driven: Driven) -> None:
    cluster, _, _ = driven
    cluster.create(replica_set("ps", 3))
    first = settled(cluster, 3)
    assert {pod.spec.node_name for pod in first} == {"node-0"}
    cluster.delete(PODS, NS, first[0].metadata.name)
    eventually(lambda: first[0].metadata.uid not in {pod.metadata.uid for pod in pods(cluster)}, 10)
    settled(cluster, 3)
    eventually(lambda: cluster.get(REPLICA_SETS, NS, "ps").status.ready_replicas == 3)
    cluster.patch(REPLICA_SETS, NS, "ps", {"spec": {"replicas": 1}})
    settled(cluster, 1)
    eventually(lambda: cluster.get(REPLICA_SETS, NS, "ps").status.replicas == 1)


def test_an_unmanaged_pod_is_adopted_and_one_with_other_labels_let_go(driven: Driven) -> None:
    cluster, _, _ = driven
    cluster.create(Pod(metadata=ObjectMeta(name="found", namespace=NS, labels={"app": "ps"}), spec=template().spec))
    cluster.create(replica_set("ps", 2))
    both = settled(cluster, 2)
    assert "found" in {pod.metadata.name for pod in both}
    cluster.patch(PODS, NS, "found", {"metadata": {"labels": {"app": "other"}}})
    settled(cluster, 3)
    assert cluster.get(PODS, NS, "found").metadata.owner_references == ()


def test_a_job_grows_shrinks_succeeds_and_is_counted_right(driven: Driven) -> None:
    cluster, _, nodes = driven
    cluster.create(job("tr", 2))
    settled(cluster, 2)
    cluster.patch(JOBS, NS, "tr", {"spec": {"parallelism": 4}})
    settled(cluster, 4)
    cluster.patch(JOBS, NS, "tr", {"spec": {"parallelism": 3}})
    left = settled(cluster, 3)
    assert cluster.get(JOBS, NS, "tr").status.failed == 0, "what is cut is no failure"
    for pod in left:
        nodes.finish(pod, "Succeeded")
    eventually(lambda: is_true(cluster.get(JOBS, NS, "tr").status.conditions, "Complete"), 15)
    status = cluster.get(JOBS, NS, "tr").status
    assert (status.succeeded, status.failed, status.active) == (3, 0, 0)
    assert status.completion_time
    assert all(TRACKING not in pod.metadata.finalizers for pod in pods(cluster))


def test_a_job_past_its_limit_fails(driven: Driven) -> None:
    cluster, _, nodes = driven
    cluster.create(job("tr", 2, backoff_limit=0))
    for pod in settled(cluster, 2)[:1]:
        nodes.finish(pod, "Failed")
    eventually(lambda: is_finished(cluster.get(JOBS, NS, "tr")), 15)
    done = cluster.get(JOBS, NS, "tr")
    assert is_true(done.status.conditions, "Failed")
    assert done.status.failed == 2, "what ran when it failed is a failure, too"


def test_a_suspended_job_has_no_pods_and_resumes(driven: Driven) -> None:
    cluster, _, _ = driven
    cluster.create(job("tr", 2))
    settled(cluster, 2)
    cluster.patch(JOBS, NS, "tr", {"spec": {"suspend": True}})
    eventually(lambda: not pods(cluster), 10)
    cluster.patch(JOBS, NS, "tr", {"spec": {"suspend": False}})
    settled(cluster, 2)


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_what_was_owned_goes_with_its_owner(driven: Driven, propagation: str) -> None:
    cluster, _, _ = driven
    owner = cluster.create(TrainingJob(metadata=ObjectMeta(name="tj", namespace=NS)))
    reference = OwnerReference(
        api_version=TRAINING_JOBS.api_version,
        kind="TrainingJob",
        name="tj",
        uid=owner.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
    cluster.create(replica_set("ps", 2, owner_references=(reference,)))
    cluster.create(job("kept", 1))
    settled(cluster, 3)
    cluster.delete(TRAINING_JOBS, NS, "tj", propagation=propagation)
    settled(cluster, 1)
    eventually(lambda: not cluster.list(REPLICA_SETS, NS).items, 10)
    eventually(lambda: not cluster.list(TRAINING_JOBS, NS).items, 10)
    assert cluster.list(JOBS, NS).items


def test_orphans_stay(driven: Driven) -> None:
    cluster, _, _ = driven
    cluster.create(replica_set("ps", 2))
    settled(cluster, 2)
    cluster.delete(REPLICA_SETS, NS, "ps", propagation="Orphan")
    eventually(lambda: not cluster.list(REPLICA_SETS, NS).items, 10)
    assert [pod.metadata.owner_references for pod in settled(cluster, 2)] == [(), ()]


def test_a_child_made_after_its_owner_is_gone_is_collected(driven: Driven) -> None:
    cluster, _, _ = driven
    ghost = OwnerReference(api_version="paddlepaddle.org/v1", kind="TrainingJob", name="gone", uid="u", controller=True)
    cluster.create(replica_set("ps", 1, owner_references=(ghost,)))
    eventually(lambda: not cluster.list(REPLICA_SETS, NS).items and not pods(cluster), 10)


def test_pods_wait_for_room_and_say_why(driven: Driven) -> None:
    cluster, _, _ = driven
    cluster.create(Pod(metadata=ObjectMeta(name="big", namespace=NS), spec=template("Never", cpu="100").spec))
    condition = eventually(lambda: find_condition(cluster.get(PODS, NS, "big").status.conditions, "PodScheduled"), 10)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "Unschedulable")
    assert condition.message.startswith("0/1 nodes are available: 1 Insufficient cpu.")
    add_node(cluster, node("large", cpu="128"))
    eventually(lambda: cluster.get(PODS, NS, "big").spec.node_name == "large", 10)
    eventually(lambda: is_true(cluster.get(PODS, NS, "big").status.conditions, "PodScheduled"))


def test_the_pods_of_a_node_that_is_not_ready_are_not_ready(driven: Driven) -> None:
    cluster, _, _ = driven
    cluster.create(replica_set("ps", 1))
    settled(cluster, 1)
    conditions = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    cluster.patch(NODES, "", "node-0", conditions, subresource="status")
    eventually(lambda: not any(is_true(pod.status.conditions, "Ready") for pod in pods(cluster)), 10)
    eventually(
        lambda: [t.key for t in cluster.get(NODES, "", "node-0").spec.taints] == ["node.kubernetes.io/unreachable"]
    )
    conditions = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    cluster.patch(NODES, "", "node-0", conditions, subresource="status")
    eventually(lambda: not cluster.get(NODES, "", "node-0").spec.taints, 10)


@pytest.mark.fault("K14")
@pytest.mark.parametrize("make", [replica_set, job], ids=["ReplicaSet", "Job"])
def test_a_cache_that_lags_behind_makes_no_pod_twice(memory: MemoryCluster, start: Start, make: Any) -> None:
    cluster, _, _ = drive(memory, start)
    memory.hold(PODS)
    kind = REPLICA_SETS if make is replica_set else JOBS
    cluster.create(make("x", 5))
    eventually(lambda: len(pods(cluster)) == 5)
    for number in range(20):  # each change brings one more pass over the stale news
        cluster.patch(kind, NS, "x", {"metadata": {"annotations": {"n": str(number)}}})
    never(lambda: len(pods(cluster)) != 5, 0.5)
    field = "replicas" if make is replica_set else "parallelism"
    cluster.patch(kind, NS, "x", {"spec": {field: 2}})
    eventually(lambda: sum(pod.metadata.deletion_timestamp is None for pod in pods(cluster)) == 2)
    for number in range(20):
        cluster.patch(kind, NS, "x", {"metadata": {"annotations": {"n": str(-number)}}})
    never(lambda: sum(pod.metadata.deletion_timestamp is None for pod in pods(cluster)) != 2, 0.5)
    memory.release(PODS)
    eventually(lambda: len(running(cluster)) == len(pods(cluster)) == 2, 10)
    assert sum(write.verb == "create" and write.kind == "Pod" for write in memory.writes) == 5


@pytest.mark.report("M55")
def test_a_deletion_that_is_told_twice_makes_nothing_twice(memory: MemoryCluster, start: Start) -> None:
    cluster, _, _ = drive(memory, start)
    cluster.create(replica_set("ps", 3))
    first = settled(cluster, 3)
    cluster.delete(PODS, NS, first[0].metadata.name)
    eventually(lambda: first[0].metadata.uid not in {p.metadata.uid for p in pods(cluster)}, 10)
    gone = [entry for entry in memory._log if entry[2].type == "DELETED"][-1]
    with memory._changed:
        memory._version += 1
        memory._log.append((memory._version, gone[1], gone[2]))
        memory._changed.notify_all()
    memory.compact()  # and a list on top, which shows the replacement
    eventually(lambda: len(running(cluster)) == 3, 10)
    never(lambda: len(pods(cluster)) != 3, 0.3)
    assert sum(write.verb == "create" and write.kind == "Pod" for write in memory.writes) == 4


def test_at_rest_nothing_is_written(memory: MemoryCluster, start: Start) -> None:
    cluster, loops, _ = drive(memory, start)
    cluster.create(replica_set("ps", 3))
    cluster.create(job("tr", 3))
    settled(cluster, 6)
    eventually(lambda: cluster.get(JOBS, NS, "tr").status.ready == 3)
    eventually(loops.is_idle)
    before = len(memory.writes)
    never(lambda: len(memory.writes) > before, 1.0)


def test_the_loops_stop_at_once(memory: MemoryCluster) -> None:
    loops, stop = Loops(memory), threading.Event()
    thread = threading.Thread(target=loops.run, args=(stop,), name="edl-test-loops")
    thread.start()
    eventually(lambda: loops.has_synced)
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
