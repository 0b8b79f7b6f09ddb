"""The controllers of a virtual cluster: Jobs, ReplicaSets, and the collector of what nobody owns any longer."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import msgspec

from edl_controller.api.kinds import JOBS, PODS, REPLICA_SETS, ApiObject, Kind
from edl_controller.api.meta import ObjectMeta
from edl_controller.api.pods import Pod
from edl_controller.api.workloads import Job, ReplicaSet
from edl_controller.cluster.sim.cluster import SimCluster
from edl_controller.cluster.sim.notes import Notes
from edl_controller.cluster.sim.timetable import Timetable
from edl_controller.core.semantics import garbage, happenings, replica_set
from edl_controller.core.semantics import job as job_rules
from edl_controller.core.semantics.failure_back_off import FRESH, FailureMemory
from edl_controller.core.semantics.pod_state import is_active
from edl_controller.core.semantics.storage import selects, with_metadata
from edl_controller.errors import AlreadyExists, Invalid, NotFound

_replace = msgspec.structs.replace

REFUSED_AGAIN = 5.0
"""Seconds after which a refused pod is tried again."""


class Controllers:
    """Sees every change, plans what has to be looked at, and acts when its time has come."""

    def __init__(self, cluster: SimCluster, timetable: Timetable, notes: Notes) -> None:
        self._cluster = cluster
        self._notes = notes
        self._timetable = timetable
        self._memories: dict[str, FailureMemory] = {}

    def see(self, kind: Kind[Any], before: Any, after: Any) -> None:
        """Take notice of a change, and plan what follows."""
        obj = before if after is None else after
        meta: ObjectMeta = obj.metadata
        if kind is JOBS:
            self._see_workload(meta.uid, after, self._sync_job)
        elif kind is REPLICA_SETS:
            self._see_workload(meta.uid, after, self._sync_replica_set)
        elif kind is PODS:
            self._see_pod(before, after)
        self._see_owners(meta, before, after)

    # --- what has to be looked at ---

    def _see_workload(self, uid: str, after: Any, sync: Any) -> None:
        if after is not None:
            self._timetable.plan(("sync", uid), 0.0, partial(sync, uid))
            return
        self._memories.pop(uid, None)
        self._timetable.forget(("sync", uid))
        self._timetable.forget(("sync batch", uid))
        self._timetable.forget(("sync again", uid))

    def _see_pod(self, before: Pod | None, after: Pod | None) -> None:
        pod = before if after is None else after
        assert pod is not None
        owner = pod.metadata.controller()
        if owner is None:
            if after is not None and job_rules.is_tracked(after):
                self._plan_letting_go(after)
            if is_active(pod):
                self._see_orphan(pod)
            return
        if self._cluster.find(owner.uid) is None:
            if after is not None and job_rules.is_tracked(after):
                self._plan_letting_go(after)
        elif owner.kind == JOBS.name:
            # Pods' events are batched, as in the real controller; a change of the Job in between does not forestall it.
            uid = owner.uid
            self._timetable.plan(("sync batch", uid), job_rules.EVENTS_BATCHED, partial(self._sync_job, uid))
        elif owner.kind == REPLICA_SETS.name:
            self._timetable.plan(("sync", owner.uid), 0.0, partial(self._sync_replica_set, owner.uid))

    def _see_orphan(self, pod: Pod) -> None:
        """A pod that nobody manages may be what a ReplicaSet looks for."""
        for found in self._cluster.list(REPLICA_SETS, pod.metadata.namespace).items:
            if found.spec.selector.matches(pod.metadata.labels):
                uid = found.metadata.uid
                self._timetable.plan(("sync", uid), 0.0, partial(self._sync_replica_set, uid))

    def _plan_letting_go(self, pod: Pod) -> None:
        self._timetable.plan(("let go", pod.metadata.uid), 0.0, partial(self._let_go, pod.metadata.uid))

    def _see_owners(self, meta: ObjectMeta, before: ApiObject | None, after: ApiObject | None) -> None:
        if after is None:
            for kind, dependent in self._cluster.dependents(meta.uid):
                uid = dependent.metadata.uid
                self._timetable.plan(("collect", uid), 0.0, partial(self._collect, kind, uid))
            for owner in meta.owner_references:
                self._see_waiting_owner(owner.uid)
            return
        if before is None and meta.owner_references and garbage.is_garbage(after, self._cluster.uids):
            kind = self._cluster.uids[meta.uid][0]
            self._timetable.plan(("collect", meta.uid), 0.0, partial(self._collect, kind, meta.uid))
        if meta.deletion_timestamp is not None:
            self._see_waiting_owner(meta.uid)

    def _see_waiting_owner(self, uid: str) -> None:
        found = self._cluster.find(uid)
        if found is not None and garbage.waits_for_dependents(found[1].metadata):
            self._timetable.plan(("owner", uid), 0.0, partial(self._let_owner_go, uid))

    # --- acts ---

    def _sync_job(self, uid: str) -> None:
        found = self._cluster.find(uid)
        if found is None:
            return
        job: Job = found[1]
        pods = [pod for kind, pod in self._cluster.dependents(uid) if kind is PODS]
        decision = job_rules.decide(job, pods, self._timetable.clock.wall(), self._memories.get(uid, FRESH))
        for pod in decision.cut:
            self._release(pod)
            self._remove(JOBS, job, pod)
        for pod in decision.delete:
            self._remove(JOBS, job, pod)
        refused = self._create(JOBS, job, decision.create)
        if decision.status != job.status:
            self._cluster.rewrite(
                JOBS, job.metadata.namespace, job.metadata.name, lambda job: _replace(job, status=decision.status)
            )
            for reason, note, warning in happenings.of_a_job(job.status, decision.status):
                self._notes.write(JOBS, job, reason, note, warning=warning)
        self._memories[uid] = decision.memory
        for pod in decision.release:
            self._release(pod)
        if decision.delete_job:
            self._delete(JOBS, job, "Foreground")
        self._again(uid, REFUSED_AGAIN if refused else decision.again_after, self._sync_job)

    def _sync_replica_set(self, uid: str) -> None:
        found = self._cluster.find(uid)
        if found is None:
            return
        own: ReplicaSet = found[1]
        where, name = own.metadata.namespace, own.metadata.name
        pods = [pod for kind, pod in self._cluster.dependents(uid) if kind is PODS]
        pods += self._orphans(own)
        decision = replica_set.decide(own, pods, self._timetable.clock.wall(), self._related(own))
        for pod in decision.adopt:
            self._change_metadata(pod, partial(garbage.with_owner, owner=decision.owner))
        for pod in decision.release:
            self._change_metadata(pod, partial(garbage.without_owner, uid=uid))
        for pod in decision.delete:
            self._remove(REPLICA_SETS, own, pod)
        refused = self._create(REPLICA_SETS, own, decision.create)
        if decision.status != own.status:
            self._cluster.rewrite(REPLICA_SETS, where, name, lambda one: _replace(one, status=decision.status))
        self._again(uid, REFUSED_AGAIN if refused else decision.again_after, self._sync_replica_set)

    def _related(self, own: ReplicaSet) -> list[Pod]:
        """The pods of all ReplicaSets that have its controller."""
        owner = own.metadata.controller()
        family = self._cluster.dependents(owner.uid) if owner is not None else ()
        siblings = [each.metadata.uid for kind, each in family if kind is REPLICA_SETS]
        return [pod for uid in siblings for kind, pod in self._cluster.dependents(uid) if kind is PODS]

    def _orphans(self, own: ReplicaSet) -> list[Pod]:
        labels = own.spec.selector.match_labels
        where = own.metadata.namespace
        return [pod for pod in self._cluster.unmanaged_pods(where) if selects(labels, pod)]

    def _again(self, uid: str, wait: float | None, sync: Any) -> None:
        self._timetable.forget(("sync again", uid))
        if wait is not None:
            self._timetable.plan(("sync again", uid), wait, partial(sync, uid), soon=False)

    def _create(self, kind: Kind[Any], owner: ApiObject, pods: tuple[Pod, ...]) -> bool:
        """Create pods; tells whether one was refused. A name that is taken by chance is replaced by the next pass."""
        for pod in pods:
            try:
                made = self._cluster.create(pod)
            except (Invalid, AlreadyExists) as error:
                self._notes.write(kind, owner, "FailedCreate", f"Error creating: {error}", warning=True)
                return True
            self._notes.write(kind, owner, "SuccessfulCreate", f"Created pod: {made.metadata.name}")
        return False

    def _remove(self, kind: Kind[Any], owner: ApiObject, pod: Pod) -> None:
        self._delete(PODS, pod)
        self._notes.write(kind, owner, "SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")

    def _let_go(self, uid: str) -> None:
        """A pod whose Job is gone is not going to be counted."""
        found = self._cluster.find(uid)
        if found is not None:
            self._release(found[1])

    def _collect(self, kind: Kind[Any], uid: str) -> None:
        found = self._cluster.find(uid)
        if found is not None and garbage.is_garbage(found[1], self._cluster.uids):
            self._delete(kind, found[1])

    def _let_owner_go(self, uid: str) -> None:
        found = self._cluster.find(uid)
        if found is None:
            return
        kind, owner = found
        dependents = self._cluster.dependents(uid)
        kinds = {one.metadata.uid: of for of, one in dependents}
        step = garbage.owner_step(owner.metadata, [one for _, one in dependents])
        for one in step.delete:
            self._delete(kinds[one.metadata.uid], one)
        for one in step.orphan:
            self._change_metadata(one, partial(garbage.without_owner, uid=uid), kinds[one.metadata.uid])
        if step.release:
            self._change_metadata(owner, partial(garbage.without_finalizer, finalizer=step.release), kind)

    # --- tools ---

    def _release(self, pod: Pod) -> None:
        self._change_metadata(pod, partial(garbage.without_finalizer, finalizer=job_rules.TRACKING))

    def _change_metadata(self, obj: Any, change: Any, kind: Kind[Any] = PODS) -> None:
        def changed(current: Any) -> Any:
            meta = change(current.metadata)
            return current if meta == current.metadata else with_metadata(current, meta)

        with contextlib.suppress(NotFound):
            self._cluster.rewrite(kind, obj.metadata.namespace, obj.metadata.name, changed)

    def _delete(self, kind: Kind[Any], obj: Any, propagation: Any = "Background") -> None:
        meta = obj.metadata
        with contextlib.suppress(NotFound):
            self._cluster.delete(kind, meta.namespace, meta.name, uid=meta.uid, propagation=propagation)
