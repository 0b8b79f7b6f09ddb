"""PURE: a pod's phase and conditions from what its containers do (kubelet's ``getPhase``, ``status/generate.go``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from edl_controller.api import timestamps
from edl_controller.api.meta import Condition, find_condition
from edl_controller.api.pods import ContainerStatus, Pod, PodSpec, PodStatus
from edl_controller.machine.node.restart import is_sidecar

OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
"""Conditions that the node writes; all others (``PodScheduled``, readiness gates) belong to somebody else."""


@dataclass(frozen=True)
class Observation:
    """What a node sees of a pod. Statuses in the order of the spec.

    Attributes:
        init: statuses of the init containers.
        main: statuses of the containers.
        pod_ip: the pod's address; empty = it has none yet.
        host_ip: the node's.
        start_time: RFC 3339, when the node took the pod.
        sandbox: address and volumes are there.
        over: nothing of the pod will be started any more.
        reason: why the node ended the pod (``DeadlineExceeded``), with ``message``; the phase is then Failed.
    """

    init: tuple[ContainerStatus, ...]
    main: tuple[ContainerStatus, ...]
    pod_ip: str
    host_ip: str
    start_time: str
    sandbox: bool = False
    over: bool = False
    reason: str = ""
    message: str = ""


def phase(spec: PodSpec, seen: Observation) -> str:
    """Return the phase; the rules are those of kubelet's ``getPhase``."""
    if seen.reason and seen.over:
        return "Failed"
    pending_init = failed_init = waiting = running = stopped = succeeded = 0
    for container, status in zip(spec.init_containers, seen.init, strict=True):
        state, last = status.state, status.last_state.terminated
        if is_sidecar(container):
            if state.running:
                running += 1
                pending_init += not status.started
            elif state.waiting and last is None:
                waiting += 1
        elif state.terminated:
            failed_init += state.terminated.exit_code != 0
        elif state.running or last is None:
            pending_init += 1
        else:
            failed_init += last.exit_code != 0
    for status in seen.main:
        if status.state.running:
            running += 1
        elif status.state.terminated:
            stopped += 1
            succeeded += status.state.terminated.exit_code == 0
        elif status.last_state.terminated:
            stopped += 1
        else:
            waiting += 1
    policy = spec.restart_policy or "Always"
    if failed_init and (policy == "Never" or seen.over):
        return "Failed"
    if seen.over and not running and (waiting or not stopped):
        return "Failed"  # it was asked to end before all of it had run
    if (pending_init and not stopped and not _begun(seen.main)) or waiting or failed_init:
        return "Pending"
    if running:
        return "Running"
    if not stopped:
        return "Pending"
    if not seen.over and policy == "Always":
        return "Running"
    if stopped == succeeded:
        return "Succeeded"
    return "Failed" if seen.over or policy == "Never" else "Running"


def composed(pod: Pod, seen: Observation, now: float) -> PodStatus:
    """Return the whole status to write over that of ``pod``, which must be its newest state.

    Conditions that are not the node's own stay as they are; readiness gates are read from them. Transition times change
    with the status only.
    """
    is_phase = phase(pod.spec, seen)
    old = pod.status
    foreign = tuple(one for one in old.conditions if one.type not in OWN_CONDITIONS)
    wanted = (
        _condition("PodReadyToStartContainers", seen.sandbox and not seen.over),
        _initialized(pod.spec, seen, is_phase),
        *_readiness(pod, seen, is_phase, foreign),
    )
    conditions = tuple(_with_times(one, find_condition(old.conditions, one.type), pod, now) for one in wanted)
    return msgspec.structs.replace(
        old,
        phase=is_phase,
        conditions=foreign + conditions,
        reason=seen.reason,
        message=seen.message,
        pod_ip=seen.pod_ip,
        host_ip=seen.host_ip,
        start_time=old.start_time or seen.start_time,
        container_statuses=seen.main,
        init_container_statuses=seen.init,
        observed_generation=pod.metadata.generation,
    )


def _begun(main: Sequence[ContainerStatus]) -> bool:
    return any(status.state.running or status.state.terminated or status.last_state.terminated for status in main)


def _initialized(spec: PodSpec, seen: Observation, is_phase: str) -> Condition:
    missing = [
        status.name
        for container, status in zip(spec.init_containers, seen.init, strict=True)
        if not (
            status.started
            if is_sidecar(container)
            else status.state.terminated and status.state.terminated.exit_code == 0
        )
    ]
    if is_phase == "Succeeded":
        return _condition("Initialized", True, "PodCompleted")
    if missing and not _begun(seen.main):
        names = " ".join(missing)
        return _condition(
            "Initialized", False, "ContainersNotInitialized", f"containers with incomplete status: [{names}]"
        )
    return _condition("Initialized", True)


def _readiness(
    pod: Pod, seen: Observation, is_phase: str, foreign: tuple[Condition, ...]
) -> tuple[Condition, Condition]:
    """Return ``ContainersReady`` and ``Ready``."""
    if is_phase in ("Succeeded", "Failed"):
        reason = "PodCompleted" if is_phase == "Succeeded" else "PodFailed"
        return _condition("ContainersReady", False, reason), _condition("Ready", False, reason)
    sidecars = [
        status for container, status in zip(pod.spec.init_containers, seen.init, strict=True) if is_sidecar(container)
    ]
    unready = [status.name for status in (*sidecars, *seen.main) if not status.ready]
    if unready:
        text = f"containers with unready status: [{' '.join(unready)}]"
        return (
            _condition("ContainersReady", False, "ContainersNotReady", text),
            _condition("Ready", False, "ContainersNotReady", text),
        )
    closed = []
    for gate in pod.spec.readiness_gates:
        found = find_condition(foreign, gate.condition_type)
        if found is None:
            closed.append(f'corresponding condition of pod readiness gate "{gate.condition_type}" does not exist.')
        elif found.status != "True":
            closed.append(f'the status of pod readiness gate "{gate.condition_type}" is not "True", but {found.status}')
    ready = (
        _condition("Ready", False, "ReadinessGatesNotReady", ", ".join(closed)) if closed else _condition("Ready", True)
    )
    return _condition("ContainersReady", True), ready


def _condition(kind: str, status: bool, reason: str = "", message: str = "") -> Condition:
    return Condition(type=kind, status=str(status), reason=reason, message=message)


def _with_times(new: Condition, old: Condition | None, pod: Pod, now: float) -> Condition:
    same = old is not None and old.status == new.status
    return msgspec.structs.replace(
        new,
        last_transition_time=old.last_transition_time if old and same else timestamps.render(now),
        observed_generation=pod.metadata.generation,
    )
