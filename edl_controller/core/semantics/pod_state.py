"""PURE: what the controllers of Kubernetes read out of a pod, by the rules of their source (1.36)."""

from __future__ import annotations

from functools import lru_cache

from edl_controller.api import timestamps
from edl_controller.api.meta import find_condition
from edl_controller.api.pods import Container, ContainerStatus, Pod

ENDED = ("Succeeded", "Failed")
# The same few seconds are read again and again: when pods are ranked, and when failures are dated.
_seconds = lru_cache(maxsize=65536)(timestamps.parse)


def seconds(text: str | None) -> float | None:
    """Return an API time as Unix seconds, or None where there is none."""
    return _seconds(text) if text else None


def is_active(pod: Pod) -> bool:
    """Tell whether the pod has neither ended nor been asked to."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in ENDED


def is_terminating(pod: Pod) -> bool:
    """Tell whether the pod has been asked to end and has not yet."""
    return pod.metadata.deletion_timestamp is not None and pod.status.phase not in ENDED


def is_ready(pod: Pod) -> bool:
    """Tell whether the pod's condition ``Ready`` is True."""
    for condition in pod.status.conditions:  # no generator: this is asked of every pod in every pass
        if condition.type == "Ready":
            return condition.status == "True"
    return False


def ready_since(pod: Pod) -> float | None:
    """Return since when the pod is ready (Unix seconds); None where it is not, or nobody knows."""
    ready = find_condition(pod.status.conditions, "Ready")
    return seconds(ready.last_transition_time) if ready is not None and ready.status == "True" else None


def restarts(pod: Pod) -> tuple[int, int]:
    """Return the most restarts of any container, and of any native sidecar."""
    sidecars = _sidecars(pod)
    return (
        max((status.restart_count for status in pod.status.container_statuses), default=0),
        max((s.restart_count for s in pod.status.init_container_statuses if s.name in sidecars), default=0),
    )


def all_restarts(pod: Pod) -> int:
    """Return how often the containers of the pod were restarted, all together."""
    return sum(s.restart_count for s in (*pod.status.container_statuses, *pod.status.init_container_statuses))


def finished_at(pod: Pod) -> float:
    """Return when the pod ended (Unix seconds).

    The first of: the end of its last container; since when it is not ready; when it was asked to end; its creation.
    """
    sidecars = _sidecars(pod)
    containers = [
        *pod.status.container_statuses,
        *(status for status in pod.status.init_container_statuses if status.name in sidecars),
    ]
    ends = [_end(status) for status in containers]
    known = [end for end in ends if end is not None]
    if known and len(known) == len(ends):
        return max(known)
    ready = find_condition(pod.status.conditions, "Ready")
    if ready is not None and ready.status == "False" and (since := seconds(ready.last_transition_time)) is not None:
        return since
    if (deadline := seconds(pod.metadata.deletion_timestamp)) is not None:
        return deadline - (pod.metadata.deletion_grace_period_seconds or 0)
    return seconds(pod.metadata.creation_timestamp) or 0.0


def is_sidecar(container: Container) -> bool:
    """Tell whether an init container is a native sidecar (KEP-753)."""
    return container.restart_policy == "Always"


def _sidecars(pod: Pod) -> frozenset[str]:
    if not pod.spec.init_containers:
        return frozenset()
    return frozenset(container.name for container in pod.spec.init_containers if is_sidecar(container))


def _end(status: ContainerStatus) -> float | None:
    return seconds(status.state.terminated.finished_at) if status.state.terminated is not None else None
