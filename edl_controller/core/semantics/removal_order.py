"""PURE: which pods a smaller Job or ReplicaSet gives up first.

The rules are ``ActivePods`` and ``ActivePodsWithRanks`` of Kubernetes' ``controller_utils.go`` (1.36), and they were
measured. Where Kubernetes leaves the order to chance (equal pods), the name decides here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from edl_controller.api.pods import Pod
from edl_controller.core.semantics.pod_state import is_active, is_ready, ready_since, restarts, seconds

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASES = {"Pending": 0, "": 0, "Unknown": 1, "Running": 2}


def job_removal_order(pods: Iterable[Pod]) -> list[Pod]:
    """Return the active pods of a Job, the first to go first; ``pod-deletion-cost`` and nodes do not matter.

    Unassigned, Pending, not ready, most recently ready, more restarts, youngest.
    """
    return sorted(pods, key=_job_key)


def _job_key(pod: Pod) -> tuple[Any, ...]:
    own, sidecars = restarts(pod)
    return (
        *_stage(pod),
        -_or_latest(ready_since(pod)) if is_ready(pod) else 0.0,
        -own,
        -sidecars,
        -_or_latest(seconds(pod.metadata.creation_timestamp)),
        pod.metadata.name,
    )


def replica_set_removal_order(pods: Sequence[Pod], now: float, related: Iterable[Pod] = ()) -> list[Pod]:
    """Return the active pods of a ReplicaSet, the first to go first.

    Unassigned, Pending, not ready, lower ``pod-deletion-cost``, more related pods on the node, ready for a shorter
    time (by powers of two), more restarts, younger (by powers of two), lower uid.

    Args:
        pods: to put in order.
        now: Unix seconds.
        related: the pods of all ReplicaSets with the same controller, itself included. A ReplicaSet that nobody
            controls has none, and then the node does not matter (``getIndirectlyRelatedPods``).
    """
    siblings = Counter(pod.spec.node_name for pod in related if is_active(pod))

    def key(pod: Pod) -> tuple[Any, ...]:
        own, sidecars = restarts(pod)
        return (
            *_stage(pod),
            deletion_cost(pod),
            -siblings[pod.spec.node_name],
            _magnitude(ready_since(pod), now) if is_ready(pod) else 0,
            -own,
            -sidecars,
            _magnitude(seconds(pod.metadata.creation_timestamp), now),
            pod.metadata.uid,
            pod.metadata.name,
        )

    return sorted(pods, key=key)


def deletion_cost(pod: Pod) -> int:
    """Return what deleting the pod costs a ReplicaSet; 0 where nothing, or no number, is said."""
    text = pod.metadata.annotations.get(DELETION_COST, "0")
    try:
        cost = int(text)
    except ValueError:
        return 0
    return cost if -(2**31) <= cost < 2**31 else 0


def _stage(pod: Pod) -> tuple[bool, int, bool]:
    return bool(pod.spec.node_name), _PHASES.get(pod.status.phase, 0), is_ready(pod)


def _or_latest(moment: float | None) -> float:
    """An unknown time counts as later than all others."""
    return math.inf if moment is None else moment


def _magnitude(moment: float | None, now: float) -> int:
    """The age by powers of two, of nanoseconds as Kubernetes counts them; unknown comes before everything."""
    if moment is None:
        return -2
    age = now - moment
    return int(math.log2(age * 1e9)) if age > 0 else -1
