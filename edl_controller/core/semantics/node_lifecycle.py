"""PURE: what becomes of the pods of a node that fails or vanishes.

A node that is not Ready: its pods are not Ready any more, at once, and deleted after the seconds that they tolerate it
(300 by default). A node that is gone: its pods are declared failed and removed after 40 s. Both are disruptions: pods
carry the condition ``DisruptionTarget``, which a Job's policy may ignore. Rules: ``pkg/controller/tainteviction``,
``podgc`` and ``nodelifecycle`` of Kubernetes 1.36.
"""

from __future__ import annotations

import msgspec

from edl_controller.api import timestamps
from edl_controller.api.meta import Condition, find_condition
from edl_controller.api.nodes import Node, Taint
from edl_controller.api.pods import Pod
from edl_controller.core.placement import tolerates
from edl_controller.core.semantics.pod_state import ENDED

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
TOLERATED = 300.0
"""Seconds that a pod tolerates a node that is not ready, where it says nothing itself (added by the API server)."""
MISSED = 40.0
"""Seconds that a vanished node is waited for."""
SWEEP = 20.0
"""Seconds between two looks at pods that no node will ever report of."""


def with_condition(conditions: tuple[Condition, ...], new: Condition) -> tuple[Condition, ...]:
    """Return the conditions with this one; the same tuple where it says what was said already."""
    old = find_condition(conditions, new.type)
    if old is None:
        return (*conditions, new)
    if (old.status, old.reason, old.message) == (new.status, new.reason, new.message):
        return conditions
    if old.status == new.status:
        new = msgspec.structs.replace(new, last_transition_time=old.last_transition_time)
    return tuple(new if condition.type == new.type else condition for condition in conditions)


def without_readiness(pod: Pod, now: float) -> Pod:
    """Return a pod whose node is not Ready: not Ready either, whatever its containers are. The same pod if it is so."""
    ready = find_condition(pod.status.conditions, "Ready")
    if ready is None or ready.status == "False":
        return pod
    changed = msgspec.structs.replace(ready, status="False", last_transition_time=timestamps.render(now))
    return _with_status(pod, conditions=with_condition(pod.status.conditions, changed))


def stays_for(pod: Pod, node: Node, now: float) -> float | None:
    """Return the seconds before a pod is deleted for the ``NoExecute`` taints of its node; None: it may stay."""
    waits = [_tolerated(pod, taint, now) for taint in node.spec.taints if taint.effect == "NoExecute"]
    return min((wait for wait in waits if wait is not None), default=None)


def _tolerated(pod: Pod, taint: Taint, now: float) -> float | None:
    since = timestamps.parse(taint.time_added) if taint.time_added else now
    matching = [toleration for toleration in pod.spec.tolerations if tolerates(toleration, taint)]
    if not matching:
        allowed = TOLERATED if taint.key in (NOT_READY, UNREACHABLE) else 0.0
        return max(0.0, since + allowed - now)
    limits = [one.toleration_seconds for one in matching if one.toleration_seconds is not None]
    return max(0.0, since + min(limits) - now) if limits else None


def evicted(pod: Pod, now: float) -> Pod:
    """Return a pod that is about to be deleted for a taint of its node."""
    return _disrupted(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", now)


def lost(pod: Pod, now: float) -> Pod:
    """Return a pod whose node is gone, about to be removed without grace: nobody is left to say how it ended."""
    pod = _disrupted(pod, "DeletionByPodGC", "PodGC: node no longer exists", now)
    return pod if pod.status.phase in ENDED else _with_status(pod, phase="Failed")


def never_placed(pod: Pod) -> bool:
    """Tell whether the pod was asked to end before it had a node, and something holds it (its Job, to count it).

    No node will say that it has ended: it is declared `unplaced` within `SWEEP` seconds, and removed.
    """
    return not pod.spec.node_name and pod.metadata.deletion_timestamp is not None and pod.status.phase not in ENDED


def unplaced(pod: Pod) -> Pod:
    """Return a pod that never got a node, about to be removed: failed, and no disruption."""
    return pod if pod.status.phase in ENDED else _with_status(pod, phase="Failed")


def _disrupted(pod: Pod, reason: str, message: str, now: float) -> Pod:
    disruption = Condition(
        type="DisruptionTarget",
        status="True",
        reason=reason,
        message=message,
        last_transition_time=timestamps.render(now),
    )
    return _with_status(pod, conditions=with_condition(pod.status.conditions, disruption))


def _with_status(pod: Pod, **changes: object) -> Pod:
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, **changes))
