"""The contract's calls for the children of a TrainingJob, on every cluster."""

from __future__ import annotations

import msgspec
import pytest

from edl_controller.api.kinds import JOBS, PODS
from edl_controller.api.meta import ObjectMeta
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job
from edl_controller.cluster.port import JobPods
from edl_controller.core.names import child_name, labels
from edl_controller.errors import Conflict, NotFound
from tests.contract.objects import job, pod_spec, pods_of, replica_set
from tests.contract.world import World, until

UID = "22222222-2222-2222-2222-222222222222"


def _training_job(world: World) -> TrainingJob:
    return TrainingJob(metadata=ObjectMeta(name="digits", namespace=world.namespace, uid=UID))


def _trainers(world: World, parallelism: int, cpu: str = "100m") -> Job:
    """The trainer Job of the TrainingJob, as the parser names and labels it."""
    plain = job(world, child_name("digits", "trainer"), parallelism, pods=pod_spec(cpu=cpu))
    template = plain.spec.template
    marks = {**template.metadata.labels, **labels("digits", UID, "trainer")}
    meta = msgspec.structs.replace(template.metadata, labels=marks)
    spec = msgspec.structs.replace(plain.spec, template=msgspec.structs.replace(template, metadata=meta))
    return msgspec.structs.replace(plain, spec=spec)


def test_the_trainer_job_is_found_by_its_training_job_and_by_name(world: World) -> None:
    with pytest.raises(NotFound):
        world.cluster.get_trainer_job(_training_job(world))

    made = world.cluster.create_job(_trainers(world, 0))

    assert world.cluster.get_trainer_job(_training_job(world)).metadata.uid == made.metadata.uid
    assert world.cluster.get_trainer_job_by_name(world.namespace, made.metadata.name).metadata.uid == made.metadata.uid


def test_the_parallelism_is_set_on_the_version_that_was_read_only(world: World) -> None:
    world.cluster.create_job(_trainers(world, 0))
    world.settle()
    old = world.cluster.get_trainer_job(_training_job(world))
    wish = msgspec.structs.replace(old, spec=msgspec.structs.replace(old.spec, parallelism=1, backoff_limit=99))

    changed = world.cluster.update_trainer_job(wish)

    assert (changed.spec.parallelism, changed.spec.backoff_limit) == (1, old.spec.backoff_limit)
    with pytest.raises(Conflict):
        world.cluster.update_trainer_job(wish)
    world.cluster.delete_trainer_job(world.namespace, old.metadata.name)
    until(world, lambda: not world.cluster.list(JOBS, world.namespace).items, what="the end of the Job")
    with pytest.raises(NotFound):
        world.cluster.update_trainer_job(wish)


def test_pods_that_end_count_in_the_total_only(world: World) -> None:
    world.add_node(f"{world.namespace}-n1", cpu="2")
    world.cluster.create_job(_trainers(world, 3, cpu="900m"))
    owner = _training_job(world)
    until(world, lambda: world.cluster.job_pods(owner) == JobPods(total=3, running=2, pending=1), what="two of three")
    world.hold_terminating()
    running = [p for p in world.cluster.list(PODS, world.namespace).items if p.status.phase == "Running"]

    world.cluster.patch(JOBS, world.namespace, child_name("digits", "trainer"), {"spec": {"parallelism": 1}})

    until(world, lambda: world.cluster.job_pods(owner) == JobPods(total=2, running=1, pending=0), what="one that ends")
    assert len(running) == 2


def test_deleting_what_is_not_there_is_fine(world: World) -> None:
    world.cluster.delete_trainer_job(world.namespace, "none")
    world.cluster.delete_replica_set(world.namespace, "none")


def test_a_replica_set_is_made_read_and_deleted_with_its_pods(world: World) -> None:
    world.add_node(f"{world.namespace}-n1")
    made = world.cluster.create_replica_set(replica_set(world, "a", 2))
    until(world, lambda: world.cluster.get_replica_set(world.namespace, "a").status.ready_replicas == 2, what="two")
    assert world.cluster.get_replica_set(world.namespace, "a").metadata.uid == made.metadata.uid

    world.cluster.delete_replica_set(world.namespace, "a")

    until(world, lambda: not pods_of(world, "a"), what="the end of the pods")
    with pytest.raises(NotFound):
        world.cluster.get_replica_set(world.namespace, "a")


def test_the_inquiry_adds_up_nodes_and_pods(world: World) -> None:
    world.add_node(f"{world.namespace}-n1", cpu="4", memory="1000M")
    world.add_node(f"{world.namespace}-n2", cpu="2", memory="500M")
    world.cluster.create_job(_trainers(world, 2, cpu="1500m"))
    until(world, lambda: world.cluster.job_pods(_training_job(world)).running == 2, what="two running trainers")

    found = world.cluster.inquiry_resource()

    assert (found.node_count, found.cpu_total_milli, found.memory_total_mega) == (2, 6000, 1500)
    assert found.cpu_request_milli == 3000
    assert sum(found.nodes.nodes_cpu_idle_milli.values()) == 3000
    assert set(found.nodes.nodes_cpu_idle_milli) == {f"{world.namespace}-n1", f"{world.namespace}-n2"}
