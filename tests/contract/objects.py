"""Objects for the contract cases, as short as they can be."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from edl_controller.api import timestamps
from edl_controller.api.configuration import ConfigMap
from edl_controller.api.kinds import JOBS, PODS, REPLICA_SETS
from edl_controller.api.meta import LabelSelector, ObjectMeta, OwnerReference, is_true
from edl_controller.api.pods import (
    Container,
    Pod,
    PodSpec,
    PodTemplateSpec,
    ReadinessGate,
    ResourceRequirements,
)
from edl_controller.api.workloads import Job, JobSpec, ReplicaSet, ReplicaSetSpec
from tests.contract.world import World

GATE = "paddlepaddle.org/may-run"
JOB_TRACKING = "batch.kubernetes.io/job-tracking"


def config_map(world: World, name: str, *, owner: OwnerReference | None = None, **data: str) -> ConfigMap:
    """The plainest object that there is."""
    owners = (owner,) if owner is not None else ()
    return ConfigMap(
        metadata=ObjectMeta(name=name, namespace=world.namespace, owner_references=owners),
        data=data or {"key": "value"},
    )


def pod_spec(cpu: str = "100m", restart: str = "Never", gates: Sequence[str] = (), **spec: Any) -> PodSpec:
    """One container that asks for ``cpu``; on one machine it is a process that sleeps."""
    container = Container(
        name="main",
        image="registry.invalid/none",
        command=("sleep", "1000"),
        resources=ResourceRequirements(requests={"cpu": cpu} if cpu else {}),
    )
    return PodSpec(
        containers=(container,),
        restart_policy=restart,
        termination_grace_period_seconds=5,
        readiness_gates=tuple(ReadinessGate(condition_type=gate) for gate in gates),
        **spec,
    )


def pod(world: World, name: str, labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    """A pod of nobody."""
    meta = ObjectMeta(name=name, namespace=world.namespace, labels=labels or {})
    return Pod(metadata=meta, spec=pod_spec(**spec))


def job(world: World, name: str, parallelism: int, *, pods: PodSpec | None = None, **spec: Any) -> Job:
    """A work queue: no completions unless given."""
    template = PodTemplateSpec(metadata=ObjectMeta(labels={"app": name}), spec=pods or pod_spec())
    meta = ObjectMeta(name=name, namespace=world.namespace)
    return Job(metadata=meta, spec=JobSpec(parallelism=parallelism, template=template, **spec))


def replica_set(world: World, name: str, replicas: int, *, pods: PodSpec | None = None) -> ReplicaSet:
    """Its pods carry the label ``app=NAME``."""
    labels = {"app": name}
    template = PodTemplateSpec(metadata=ObjectMeta(labels=labels), spec=pods or pod_spec(restart="Always"))
    selector = LabelSelector(match_labels=labels)
    meta = ObjectMeta(name=name, namespace=world.namespace)
    return ReplicaSet(metadata=meta, spec=ReplicaSetSpec(replicas=replicas, selector=selector, template=template))


def pods_of(world: World, app: str) -> tuple[Pod, ...]:
    """The pods with the label ``app``, oldest first, those that terminate too."""
    found = world.cluster.list(PODS, world.namespace, labels={"app": app}).items
    return tuple(sorted(found, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name)))


def names(pods: Sequence[Pod]) -> set[str]:
    """The names of pods."""
    return {pod.metadata.name for pod in pods}


def get_pod(world: World, name: str) -> Pod:
    """The pod as it is now."""
    return world.cluster.get(PODS, world.namespace, name)


def get_job(world: World, name: str) -> Job:
    """The Job as it is now."""
    return world.cluster.get(JOBS, world.namespace, name)


def get_replica_set(world: World, name: str) -> ReplicaSet:
    """The ReplicaSet as it is now."""
    return world.cluster.get(REPLICA_SETS, world.namespace, name)


def is_ready(pod: Pod) -> bool:
    """Whether the pod's condition Ready is True."""
    return is_true(pod.status.conditions, "Ready")


def set_gate(world: World, name: str, passes: bool) -> None:
    """Set the readiness gate in the pod's status, as the controller does: a merge patch replaces the whole list."""
    pod = get_pod(world, name)
    others = [entry for entry in PODS.to_json(pod)["status"]["conditions"] if entry["type"] != GATE]
    since = timestamps.render(time.time())
    conditions = [*others, {"type": GATE, "status": "True" if passes else "False", "lastTransitionTime": since}]
    world.cluster.patch(
        PODS,
        world.namespace,
        name,
        {"status": {"conditions": conditions}},
        subresource="status",
        resource_version=pod.metadata.resource_version,
    )
