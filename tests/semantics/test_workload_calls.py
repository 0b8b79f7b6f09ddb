"""The contract's calls for the children of a TrainingJob, on the cluster in virtual time."""

from __future__ import annotations

import msgspec
import pytest

from edl_controller.api.meta import ObjectMeta
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job
from edl_controller.cluster.port import Cluster, JobPods
from edl_controller.cluster.sim import SimWorld
from edl_controller.core.names import child_name, labels
from edl_controller.errors import AlreadyExists, Conflict, NotFound
from tests.semantics.test_sim_world import job, replica_set, template

TRAINING = TrainingJob(metadata=ObjectMeta(name="train", namespace="default", uid="train-uid"))


def a_world() -> tuple[SimWorld, Cluster]:
    """One node for two trainers, of three that are wished."""
    world = SimWorld()
    world.add_node("n0", "2")
    plain = template("x")
    trainers = msgspec.structs.replace(plain, metadata=ObjectMeta(labels=labels("train", "train-uid", "trainer")))
    world.cluster.create_job(job(child_name("train", "trainer"), 3, template=trainers))
    world.settle()
    return world, world.cluster


def test_the_trainers_are_counted_terminating_ones_in_total_only() -> None:
    world, cluster = a_world()
    assert cluster.job_pods(TRAINING) == JobPods(total=3, running=2, pending=1)

    world.hold_terminating()
    cluster.update_trainer_job(_with_parallelism(cluster, 1))
    world.settle()

    assert cluster.job_pods(TRAINING) == JobPods(total=2, running=1, pending=0)
    another = msgspec.structs.replace(TRAINING, metadata=ObjectMeta(name="train", namespace="default", uid="later"))
    assert cluster.job_pods(another) == JobPods(0, 0, 0), "of a job that had the same name"


def _with_parallelism(cluster: Cluster, parallelism: int) -> Job:
    found = cluster.get_trainer_job(TRAINING)
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, parallelism=parallelism))


def test_the_parallelism_is_set_only_on_what_was_read() -> None:
    _, cluster = a_world()
    wish = _with_parallelism(cluster, 2)

    assert cluster.update_trainer_job(wish).spec.parallelism == 2
    with pytest.raises(Conflict):
        cluster.update_trainer_job(wish)


def test_children_are_made_once_and_deleted_without_a_fuss() -> None:
    world, cluster = a_world()
    cluster.create_replica_set(replica_set("train-pserver", 1))
    with pytest.raises(AlreadyExists):
        cluster.create_replica_set(replica_set("train-pserver", 1))
    assert cluster.get_replica_set("default", "train-pserver").spec.replicas == 1

    for _ in range(2):
        cluster.delete_replica_set("default", "train-pserver")
        cluster.delete_trainer_job("default", "train-trainer")
    world.settle()

    for missing in (
        lambda: cluster.get_trainer_job(TRAINING),
        lambda: cluster.get_trainer_job_by_name("default", "train-trainer"),
        lambda: cluster.get_replica_set("default", "train-pserver"),
        lambda: cluster.update_trainer_job(job("train-trainer", 1)),
    ):
        with pytest.raises(NotFound):
            missing()
    assert cluster.job_pods(TRAINING) == JobPods(0, 0, 0)


def test_the_whole_cluster_is_added_up() -> None:
    _, cluster = a_world()

    found = cluster.inquiry_resource()

    assert (found.node_count, found.cpu_total_milli, found.cpu_request_milli) == (1, 2000, 2000)
    assert found.nodes.nodes_cpu_idle_milli == {"n0": 0}
