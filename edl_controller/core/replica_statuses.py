"""PURE: how the pods of each role are, in the words of the classic status."""

from __future__ import annotations

from collections import Counter

from edl_controller.api.pods import Pod
from edl_controller.api.v1 import ReplicaStatus
from edl_controller.core.children import Children
from edl_controller.core.names import ROLES, Role
from edl_controller.core.semantics.pod_state import is_active, is_ready
from edl_controller.core.success import some_succeeded

_STATES = {"": "starting", "Pending": "starting", "Running": "running", "Failed": "failed", "Succeeded": "succeeded"}


def replica_statuses(children: Children, *, ended: str = "") -> tuple[ReplicaStatus, ...]:
    """Return one status for each role that has a child.

    Args:
        children: of the job.
        ended: ``succeeded`` or ``failed``, where the job has ended: the trainers' state then.
    """
    return tuple(_status(children, role, ended) for role in ROLES if children.child(role) is not None)


def ready(pods: tuple[Pod, ...]) -> int:
    """Count the pods that are ready and not asked to end."""
    return sum(is_active(pod) and is_ready(pod) for pod in pods)


def active(pods: tuple[Pod, ...]) -> int:
    """Count the pods that have neither ended nor been asked to."""
    return sum(map(is_active, pods))


def left(pods: tuple[Pod, ...]) -> int:
    """Count the pods that have not ended, also those asked to."""
    return sum(pod.status.phase not in ("Succeeded", "Failed") for pod in pods)


def _status(children: Children, role: Role, ended: str) -> ReplicaStatus:
    pods = children.pods(role)
    states = Counter(_STATES.get(pod.status.phase, "starting") for pod in pods if not _leaving(pod))
    state = "running" if ready(pods) else "starting"
    if role == "trainer" and (ended or some_succeeded(children)):
        state = ended or "succeeded"
    elif not active(pods):
        state = "starting" if not ended else ""
    return ReplicaStatus(training_resource_type=role, state=state, resource_states=dict(sorted(states.items())))


def _leaving(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None
