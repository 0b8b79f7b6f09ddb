"""Pods, Jobs and nodes for the tests of the semantics, as short as they can be."""

from __future__ import annotations

from typing import Any

import msgspec

from edl_controller.api import timestamps
from edl_controller.api.kinds import JOBS, REPLICA_SETS
from edl_controller.api.meta import Condition, LabelSelector, ObjectMeta, OwnerReference
from edl_controller.api.nodes import Node, NodeSpec, NodeStatus, Taint
from edl_controller.api.pods import (
    Container,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    PodTemplateSpec,
    ResourceRequirements,
)
from edl_controller.api.workloads import Job, JobSpec, ReplicaSet, ReplicaSetSpec
from edl_controller.core.semantics import storage
from edl_controller.core.semantics.job import TRACKING

NOW = 1_500_000_000.0
JOB_UID = "job-uid"


def at(seconds: float) -> str:
    """So many seconds after NOW, as the API writes it."""
    return timestamps.render(NOW + seconds)


def job_owner(uid: str = JOB_UID) -> OwnerReference:
    return OwnerReference(api_version="batch/v1", kind="Job", name="j", uid=uid, controller=True)


def pod(
    name: str = "p",
    phase: str = "Running",
    *,
    node: str = "n1",
    ready: float | None = None,
    restarts: int = 0,
    created: float = 0.0,
    deleted: bool = False,
    cost: str = "",
    owner: OwnerReference | None = None,
    tracked: bool = True,
    exit_code: int | None = None,
    ended: float = 0.0,
    conditions: tuple[Condition, ...] = (),
    labels: dict[str, str] | None = None,
) -> Pod:
    """A pod of the Job; ``ready``: since so many seconds after NOW; None = it is not."""
    is_ready = Condition(
        type="Ready", status="False" if ready is None else "True", last_transition_time=at(ready or created)
    )
    state = ContainerState()
    if exit_code is not None:
        state = ContainerState(terminated=ContainerStateTerminated(exit_code=exit_code, finished_at=at(ended)))
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            uid=f"uid-{name}",
            creation_timestamp=at(created),
            deletion_timestamp=at(30) if deleted else None,
            deletion_grace_period_seconds=30 if deleted else None,
            annotations={"controller.kubernetes.io/pod-deletion-cost": cost} if cost else {},
            owner_references=(owner or job_owner(),),
            finalizers=(TRACKING,) if tracked else (),
            labels=labels or {},
        ),
        spec=spec_of({}, node_name=node),
        status=PodStatus(
            phase=phase,
            conditions=(is_ready, *conditions),
            container_statuses=(ContainerStatus(name="main", restart_count=restarts, state=state),),
        ),
    )


def spec_of(requests: dict[str, Any], **spec: Any) -> PodSpec:
    container = Container(name="main", image="none", resources=ResourceRequirements(requests=requests))
    return PodSpec(containers=(container,), **{"restart_policy": "Never", **spec})


def job(parallelism: int = 1, **spec: Any) -> Job:
    """A Job as an API server stores it, with the uid JOB_UID."""
    template = PodTemplateSpec(metadata=ObjectMeta(labels={"app": "j"}), spec=spec_of({"cpu": "1"}))
    wish = Job(
        metadata=ObjectMeta(name="j", namespace="default"),
        spec=JobSpec(parallelism=parallelism, **{"template": template, **spec}),
    )
    return storage.created(JOBS, wish, uid=JOB_UID, suffix="", now=NOW)


def with_job_status(one: Job, **status: Any) -> Job:
    return msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, **status))


def replica_set(replicas: int = 1, **spec: Any) -> ReplicaSet:
    """A ReplicaSet as an API server stores it."""
    template = PodTemplateSpec(metadata=ObjectMeta(labels={"app": "r"}), spec=spec_of({}, restart_policy="Always"))
    wish = ReplicaSet(
        metadata=ObjectMeta(name="r", namespace="default"),
        spec=ReplicaSetSpec(
            replicas=replicas, selector=LabelSelector(match_labels={"app": "r"}), template=template, **spec
        ),
    )
    return storage.created(REPLICA_SETS, wish, uid="rs-uid", suffix="", now=NOW)


def node(
    name: str,
    cpu: str = "4",
    memory: str = "8Gi",
    *,
    pods: int = 110,
    ready: bool = True,
    cordoned: bool = False,
    taints: tuple[Taint, ...] = (),
    labels: dict[str, str] | None = None,
) -> Node:
    room: dict[str, str | int | float] = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    return Node(
        metadata=ObjectMeta(name=name, labels=labels or {}),
        spec=NodeSpec(unschedulable=cordoned, taints=taints),
        status=NodeStatus(
            capacity=room,
            allocatable=room,
            conditions=(Condition(type="Ready", status="True" if ready else "False"),),
        ),
    )
