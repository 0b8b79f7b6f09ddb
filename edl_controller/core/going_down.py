"""PURE: takes the pods of a job away, in the order in which they need each other: trainers, pservers, master.

Pods are removed by suspending the Job and by taking the ReplicaSets to no replicas: neither counts as a failure, and
ended pods stay, with their logs. Each stage waits until the pods of the one before are gone, so that pservers write
their last checkpoint after the last trainer, while etcd is still there.
"""

from __future__ import annotations

from edl_controller.api.kinds import JOBS, REPLICA_SETS
from edl_controller.api.meta import is_true
from edl_controller.api.workloads import Job
from edl_controller.core.actions import Action, Delete, Patch
from edl_controller.core.children import Children
from edl_controller.core.names import Role
from edl_controller.core.replica_statuses import left


def stop_pods(children: Children, *, keep_master: bool) -> tuple[Action, ...]:
    """Return the next step of taking all pods away; none when that is done, or when something is waited for.

    Args:
        children: as they are.
        keep_master: leave the master, and with it the job's etcd.
    """
    trainer = children.trainer
    if trainer is not None and not trainer.spec.suspend and not has_ended(trainer):
        return (_patch(trainer, {"spec": {"suspend": True}}),)
    if left(children.trainer_pods):
        return ()
    pserver, master = children.pserver, children.master
    if pserver is not None and pserver.spec.replicas != 0:
        meta = pserver.metadata
        return (Patch(REPLICA_SETS, meta.namespace, meta.name, meta.uid, {"spec": {"replicas": 0}}),)
    if keep_master or left(children.pserver_pods):
        return ()
    if master is not None and master.spec.replicas != 0:
        meta = master.metadata
        return (Patch(REPLICA_SETS, meta.namespace, meta.name, meta.uid, {"spec": {"replicas": 0}}),)
    return ()


def delete_children(children: Children) -> tuple[Action, ...]:
    """Return the next step of deleting all children, with their pods and logs."""
    order: tuple[Role, ...] = ("trainer", "pserver", "master")
    for role in order:
        child = children.child(role)
        if child is not None:
            if child.metadata.deletion_timestamp is not None:
                return ()
            meta, kind = child.metadata, JOBS if isinstance(child, Job) else REPLICA_SETS
            return (Delete(kind, meta.namespace, meta.name, meta.uid),)
        if left(children.pods(role)):
            return ()
    return ()


def has_ended(trainer: Job) -> bool:
    """Tell whether the Job is Complete or Failed: it removes its pods itself then."""
    return any(is_true(trainer.status.conditions, kind) for kind in ("Complete", "Failed"))


def _patch(trainer: Job, patch: dict[str, object]) -> Patch:
    meta = trainer.metadata
    return Patch(JOBS, meta.namespace, meta.name, meta.uid, patch)
