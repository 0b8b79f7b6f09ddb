"""PURE: how a virtual pod goes its way, and what a node would report of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from edl_controller.api.meta import Condition, find_condition
from edl_controller.api.pods import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodStatus,
)


@dataclass(frozen=True)
class PodCourse:
    """The course of a pod if nobody interferes.

    Attributes:
        start: seconds from its binding to Running.
        ready: seconds from Running until its containers are ready.
        runs: seconds from Running until it ends by itself; None = never.
        exit_code: with which it ends by itself.
        end: seconds from the request to end until it has ended; never more than its grace.
        end_code: its exit code then.
    """

    start: float = 1.0
    ready: float = 0.0
    runs: float | None = None
    exit_code: int = 0
    end: float = 0.1
    end_code: int = 143


Courses = Callable[[Pod], PodCourse]
"""Gives each pod its course, once, when it is bound."""

_OWN = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")


def running(pod: Pod, containers_ready: bool, stamp: str, address: str) -> PodStatus:
    """Return the status of a pod whose containers run."""
    status = pod.status
    start = status.start_time or stamp
    state = ContainerState(running=ContainerStateRunning(started_at=start))
    return msgspec.structs.replace(
        status,
        phase="Running",
        start_time=start,
        pod_ip=status.pod_ip or address,
        host_ip="127.0.0.1",
        container_statuses=tuple(
            ContainerStatus(name=one.name, image=one.image, ready=containers_ready, started=True, state=state)
            for one in pod.spec.containers
        ),
        conditions=_conditions(
            status.conditions,
            (
                _condition("PodReadyToStartContainers", "True", "", "", stamp),
                _condition("Initialized", "True", "", "", stamp),
                _ready(pod, containers_ready, stamp),
                _condition("ContainersReady", "True", "", "", stamp)
                if containers_ready
                else _condition("ContainersReady", "False", "ContainersNotReady", _unready(pod), stamp),
            ),
        ),
    )


def ended(pod: Pod, exit_code: int, stamp: str) -> PodStatus:
    """Return the status of a pod whose containers have ended."""
    status = pod.status
    good = exit_code == 0
    terminated = ContainerStateTerminated(
        exit_code=exit_code,
        reason="Completed" if good else "Error",
        started_at=status.start_time or stamp,
        finished_at=stamp,
    )
    state = ContainerState(terminated=terminated)
    why = "PodCompleted" if good else "PodFailed"
    return msgspec.structs.replace(
        status,
        phase="Succeeded" if good else "Failed",
        start_time=status.start_time or stamp,
        container_statuses=tuple(
            ContainerStatus(name=one.name, image=one.image, started=False, state=state) for one in pod.spec.containers
        ),
        conditions=_conditions(
            status.conditions,
            (
                _condition("PodReadyToStartContainers", "False", "", "", stamp),
                _condition("Initialized", "True", "PodCompleted" if good else "", "", stamp),
                _condition("Ready", "False", why, "", stamp),
                _condition("ContainersReady", "False", why, "", stamp),
            ),
        ),
    )


def _ready(pod: Pod, containers_ready: bool, stamp: str) -> Condition:
    if not containers_ready:
        return _condition("Ready", "False", "ContainersNotReady", _unready(pod), stamp)
    faults = []
    for gate in pod.spec.readiness_gates:
        found = find_condition(pod.status.conditions, gate.condition_type)
        if found is None:
            faults.append(f'corresponding condition of pod readiness gate "{gate.condition_type}" does not exist.')
        elif found.status != "True":
            faults.append(f'the status of pod readiness gate "{gate.condition_type}" is not "True", but {found.status}')
    if faults:
        return _condition("Ready", "False", "ReadinessGatesNotReady", ", ".join(faults), stamp)
    return _condition("Ready", "True", "", "", stamp)


def _unready(pod: Pod) -> str:
    return f"containers with unready status: [{' '.join(one.name for one in pod.spec.containers)}]"


@lru_cache(maxsize=4096)
def _condition(kind: str, status: str, reason: str, message: str, stamp: str) -> Condition:
    """Many pods say the same in the same second."""
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=stamp)


def _conditions(old: tuple[Condition, ...], new: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """What others wrote stays; a condition that is as it was keeps its time."""
    if len(old) == 0:
        return new
    kept = tuple(condition for condition in old if condition.type not in _OWN)
    known = {condition.type: condition for condition in old if condition.type in _OWN}
    if not known:
        return kept + new
    return kept + tuple(
        msgspec.structs.replace(one, last_transition_time=known[one.type].last_transition_time)
        if one.type in known and known[one.type].status == one.status
        else one
        for one in new
    )
