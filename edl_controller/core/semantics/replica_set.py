"""PURE: what the ReplicaSet controller of Kubernetes (1.36) does for one ReplicaSet, given its pods.

Rules: ``pkg/controller/replicaset/replica_set.go`` and measurements: a pod that has ended or was asked to end is
replaced at once, without a back-off; the object of an ended pod stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from edl_controller.api.kinds import REPLICA_SETS
from edl_controller.api.meta import OwnerReference
from edl_controller.api.pods import Pod
from edl_controller.api.workloads import ReplicaSet, ReplicaSetStatus
from edl_controller.core.semantics.new_pod import MOST_AT_ONCE, is_controlled_by, new_pod, owned_by
from edl_controller.core.semantics.pod_state import is_active, is_ready, is_terminating, ready_since
from edl_controller.core.semantics.removal_order import replica_set_removal_order


@dataclass(frozen=True)
class ReplicaSetDecision:
    """What to do; the status last, and only if it differs.

    Attributes:
        adopt: pods without a manager that the selector selects: add `owner`.
        release: own pods that it no longer selects: take `owner` away.
        owner: the reference.
        again_after: decide again after so many seconds, whatever happens; None = only when something changes.
    """

    status: ReplicaSetStatus
    owner: OwnerReference
    delete: tuple[Pod, ...] = ()
    create: tuple[Pod, ...] = ()
    adopt: tuple[Pod, ...] = ()
    release: tuple[Pod, ...] = ()
    again_after: float | None = None


def decide(replica_set: ReplicaSet, pods: Sequence[Pod], now: float, related: Iterable[Pod] = ()) -> ReplicaSetDecision:
    """Decide what becomes of a ReplicaSet.

    Args:
        replica_set: as it is stored.
        pods: at least all pods that it controls, and those of its namespace that nobody does; others are not looked at.
        now: Unix seconds.
        related: the pods of all ReplicaSets with the same controller, its own included; none where nobody controls it.
    """
    meta, spec = replica_set.metadata, replica_set.spec
    is_leaving = meta.deletion_timestamp is not None
    active: list[Pod] = []
    adopt: list[Pod] = []
    release: list[Pod] = []
    terminating = 0
    for pod in pods:
        fits = spec.selector.matches(pod.metadata.labels)
        if is_controlled_by(pod, meta.uid):
            terminating += fits and is_terminating(pod)
            if not is_active(pod):
                continue
            if fits:
                active.append(pod)
            elif not is_leaving:
                release.append(pod)
        elif pod.metadata.controller() is None and fits and is_active(pod) and not is_leaving:
            adopt.append(pod)
            active.append(pod)

    wanted = 1 if spec.replicas is None else spec.replicas
    delete: tuple[Pod, ...] = ()
    create: tuple[Pod, ...] = ()
    if not is_leaving:
        create = (new_pod(REPLICA_SETS, meta, spec.template),) * max(0, min(MOST_AT_ONCE, wanted - len(active)))
        if len(active) > wanted:
            surplus = min(MOST_AT_ONCE, len(active) - wanted)
            delete = tuple(replica_set_removal_order(active, now, related)[:surplus])

    # As the real one does it: the status shows what was seen, not what was just done about it.
    ready = [pod for pod in active if is_ready(pod)]
    ages = [now - since for pod in ready if (since := ready_since(pod)) is not None]
    available = sum(age >= spec.min_ready_seconds for age in ages) if spec.min_ready_seconds else len(ready)
    labels = spec.template.metadata.labels.items()
    status = msgspec.structs.replace(
        replica_set.status,
        replicas=len(active),
        fully_labeled_replicas=sum(labels <= pod.metadata.labels.items() for pod in active),
        ready_replicas=len(ready),
        available_replicas=available,
        terminating_replicas=terminating,
        observed_generation=meta.generation,
    )
    waits = [spec.min_ready_seconds - age for age in ages if age < spec.min_ready_seconds]
    return ReplicaSetDecision(
        status,
        owned_by(REPLICA_SETS, meta),
        delete,
        create,
        tuple(adopt),
        tuple(release),
        again_after=min(waits, default=None),
    )
