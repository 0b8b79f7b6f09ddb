"""PURE: one line of a table for each kind of object, as users of kubectl expect it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edl_controller.api import timestamps
from edl_controller.api.conditions import SUSPENDED
from edl_controller.api.configuration import ConfigMap, Secret
from edl_controller.api.events import Event
from edl_controller.api.kinds import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    NODES,
    PODS,
    REPLICA_SETS,
    SECRETS,
    TRAINING_JOBS,
    Kind,
)
from edl_controller.api.meta import find_condition, is_true
from edl_controller.api.nodes import Node
from edl_controller.api.pods import Pod
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job, ReplicaSet

Row = list[str]


def duration(seconds: float) -> str:
    """Write an age as kubectl does: ``5s``, ``3m20s``, ``4h``, ``2d``."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 600:
        return f"{whole // 60}m{whole % 60}s"
    if whole < 3 * 3600:
        return f"{whole // 60}m"
    return f"{whole // 3600}h" if whole < 2 * 86400 else f"{whole // 86400}d"


def _training_job(job: TrainingJob, now: float) -> tuple[Row, Row]:
    status, spec = job.status, job.spec
    # A phase is a word of the original's, which knew no suspension.
    suspended = find_condition(status.conditions, SUSPENDED)
    phase = suspended.reason.lower() if suspended and suspended.status == "True" else status.phase or "new"
    bounds = f"{spec.trainer.min_instance}..{spec.trainer.max_instance}"
    return [
        phase,
        f"{status.trainers}/{status.desired_trainers}",
        f"{status.pservers}/{spec.pserver.min_instance or 0}",
    ], [bounds, status.agents.rate if status.agents else "", status.reason]


def pod_state(pod: Pod) -> str:
    """Return what kubectl shows as the status of a pod."""
    if pod.metadata.deletion_timestamp:
        return "Terminating"
    for one in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if one.state.waiting and one.state.waiting.reason not in ("", "PodInitializing", "ContainerCreating"):
            return one.state.waiting.reason
        if one.state.terminated and one.state.terminated.exit_code:
            return one.state.terminated.reason or f"ExitCode:{one.state.terminated.exit_code}"
    return pod.status.reason or pod.status.phase


def _pod(pod: Pod, now: float) -> tuple[Row, Row]:
    statuses = pod.status.container_statuses
    ready = f"{sum(one.ready for one in statuses)}/{len(pod.spec.containers)}"
    restarts = sum(one.restart_count for one in statuses)
    return [ready, pod_state(pod), str(restarts)], [pod.status.pod_ip or "<none>", pod.spec.node_name or "<none>"]


def _job(job: Job, now: float) -> tuple[Row, Row]:
    state = next(
        (name for name in ("Failed", "Complete", "Suspended") if is_true(job.status.conditions, name)), "Running"
    )
    return [state, f"{job.status.ready or 0}/{job.status.active}/{job.spec.parallelism}"], [
        f"{job.status.succeeded} succeeded, {job.status.failed} failed"
    ]


def _replica_set(one: ReplicaSet, now: float) -> tuple[Row, Row]:
    return [str(one.spec.replicas), str(one.status.replicas or 0), str(one.status.ready_replicas)], []


def _node(node: Node, now: float) -> tuple[Row, Row]:
    ready = "Ready" if is_true(node.status.conditions, "Ready") else "NotReady"
    if node.spec.unschedulable:
        ready += ",SchedulingDisabled"
    room = node.status.allocatable
    return [ready, str(room.get("cpu", "")), str(room.get("memory", "")), str(room.get("pods", ""))], []


def _event(event: Event, now: float) -> tuple[Row, Row]:
    times = event.series.count if event.series else 1
    return [event.type, event.reason, f"{event.regarding.kind}/{event.regarding.name}", str(times), event.note], [
        event.action
    ]


def _content(one: Secret | ConfigMap, now: float) -> tuple[Row, Row]:
    return [str(len(one.data))], []


_Cells = Callable[[Any, float], tuple[Row, Row]]

_TABLES: dict[Kind[Any], tuple[Row, Row, _Cells]] = {
    TRAINING_JOBS: (["STATE", "TRAINERS", "PSERVERS"], ["BOUNDS", "SAMPLES/S", "REASON"], _training_job),
    PODS: (["READY", "STATUS", "RESTARTS"], ["IP", "NODE"], _pod),
    JOBS: (["STATUS", "READY/ACTIVE/WANTED"], ["COUNTS"], _job),
    REPLICA_SETS: (["DESIRED", "CURRENT", "READY"], [], _replica_set),
    NODES: (["STATUS", "CPU", "MEMORY", "PODS"], [], _node),
    EVENTS: (["TYPE", "REASON", "OBJECT", "TIMES", "NOTE"], ["ACTION"], _event),
    SECRETS: (["DATA"], [], _content),
    CONFIG_MAPS: (["DATA"], [], _content),
}


def header(kind: Kind[Any], *, wide: bool, namespaces: bool) -> Row:
    """Return the titles of the columns. Events are found by what they are about, not by their own names."""
    narrow, more, _ = _TABLES.get(kind, ([], [], None))
    narrow = ["AGE", *narrow] if kind is EVENTS else ["NAME", *narrow, "AGE"]
    return [*(["NAMESPACE"] if namespaces else []), *narrow, *(more if wide else [])]


def row(kind: Kind[Any], obj: Any, now: float, *, wide: bool, namespaces: bool) -> Row:
    """Return the cells of one object. ``now``: Unix seconds."""
    meta = obj.metadata
    since = obj.last_seen if kind is EVENTS else meta.creation_timestamp
    age = duration(timestamps.age(since, now)) if since else "<unknown>"
    cells, more = _TABLES[kind][2](obj, now) if kind in _TABLES else ([], [])
    cells = [age, *cells] if kind is EVENTS else [meta.name, *cells, age]
    return [*([meta.namespace] if namespaces else []), *cells, *(more if wide else [])]
