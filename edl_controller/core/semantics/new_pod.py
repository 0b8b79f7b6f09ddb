"""PURE: the pod that a workload makes from its template."""

from __future__ import annotations

from edl_controller.api.kinds import Kind
from edl_controller.api.meta import ObjectMeta, OwnerReference
from edl_controller.api.pods import Pod, PodTemplateSpec
from edl_controller.api.workloads import Job, ReplicaSet

Workload = Kind[Job] | Kind[ReplicaSet]

MOST_AT_ONCE = 500
"""Pods that one decision creates or removes: others have their turn, and what happened meanwhile is seen. Kubernetes'
own number (``MaxPodCreateDeletePerSync`` of the Job controller, ``BurstReplicas`` of the ReplicaSet controller)."""


def new_pod(kind: Workload, owner: ObjectMeta, template: PodTemplateSpec, *finalizers: str) -> Pod:
    """Return a pod of ``owner``; who stores it gives the name: the owner's, a dash, five random characters."""
    meta = ObjectMeta(
        generate_name=f"{owner.name}-",
        namespace=owner.namespace,
        labels=template.metadata.labels,
        annotations=template.metadata.annotations,
        finalizers=(*template.metadata.finalizers, *(f for f in finalizers if f not in template.metadata.finalizers)),
        owner_references=(owned_by(kind, owner),),
    )
    return Pod(metadata=meta, spec=template.spec)


def owned_by(kind: Workload, owner: ObjectMeta) -> OwnerReference:
    """Return the reference of what ``owner`` manages."""
    return OwnerReference(
        api_version=kind.api_version,
        kind=kind.name,
        name=owner.name,
        uid=owner.uid,
        controller=True,
        block_owner_deletion=True,
    )


def is_controlled_by(pod: Pod, uid: str) -> bool:
    """Tell whether the object with this uid manages the pod."""
    # No generator: this is asked of every pod in every pass.
    for owner in pod.metadata.owner_references:  # noqa: SIM110
        if owner.controller and owner.uid == uid:
            return True
    return False
