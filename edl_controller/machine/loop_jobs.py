"""The loop that acts on what the Job controller would decide (`edl_controller.core.semantics.job`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from edl_controller.api import timestamps
from edl_controller.api.kinds import JOBS, PODS
from edl_controller.api.pods import Pod
from edl_controller.api.workloads import Job, JobStatus
from edl_controller.cluster.port import Cluster
from edl_controller.core.merge_patch import difference
from edl_controller.core.semantics import happenings
from edl_controller.core.semantics import job as semantics
from edl_controller.core.semantics.failure_back_off import FRESH, FailureMemory
from edl_controller.core.semantics.garbage import without_finalizer
from edl_controller.core.semantics.new_pod import is_controlled_by
from edl_controller.errors import NotFound
from edl_controller.machine.loop_events import LoopEvents
from edl_controller.runtime.cache import Cache, Key
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.reconciler import Reconciler
from edl_controller.runtime.reflector import Delta
from edl_controller.runtime.workqueue import Priority

TRACKED = "tracked"
"""Index of the pods that a Job has not counted yet, by ``namespace/name`` of the Job."""


def tracked(pod: Pod) -> tuple[str, ...]:
    """Index function of `TRACKED`."""
    owner = pod.metadata.controller()
    if owner is None or owner.kind != JOBS.name or not semantics.is_tracked(pod):
        return ()
    return (f"{pod.metadata.namespace}/{owner.name}",)


class JobLoop:
    """Reconciles Jobs. Every write's answer is put into the cache at once, so that no pass repeats it.

    Args:
        cluster: to act on.
        informers: to read from; that of pods has the index `TRACKED`. Handlers are added.
        events: what is said beside.
        now: Unix seconds.
        workers: how many Jobs are worked on at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        informers: Informers,
        events: LoopEvents,
        now: Callable[[], float],
        workers: int = 2,
    ) -> None:
        self._cluster, self._events, self._now = cluster, events, now
        jobs, pods = informers.of(JOBS), informers.of(PODS)
        self._jobs: Cache[Job] = jobs.cache
        self._pods: Cache[Pod] = pods.cache
        self._memories: dict[str, FailureMemory] = {}
        self.reconciler: Reconciler[Key] = Reconciler("jobs", self.reconcile, workers=workers)
        jobs.add_handler(self._on_job)
        pods.add_handler(self._on_pod)

    def reconcile(self, key: Key) -> float | None:
        """Bring one Job in line; the order of the steps is that of `JobDecision`."""
        job = self._jobs.get(*key)
        self._let_go(key, "" if job is None else job.metadata.uid)
        if job is None:
            return None
        meta, uid = job.metadata, job.metadata.uid
        pods = self._pods.owned_by(uid)
        decision = semantics.decide(job, pods, self._now(), self._memories.get(uid, FRESH))
        for pod in decision.cut:
            self._delete(job, self._release(pod))
        for pod in decision.delete:
            self._delete(job, pod)
        for pod in decision.create:
            made = self._cluster.create(pod)
            self._pods.observe(made)
            self._events.made(job, made.metadata.name)
        changed = self._write_status(job, decision.status)
        self._memories[uid] = decision.memory
        for pod in decision.release:
            self._release(pod)
        if decision.delete_job:
            with contextlib.suppress(NotFound):
                self._cluster.delete(JOBS, meta.namespace, meta.name, uid=uid, propagation="Foreground")
        return 0.0 if changed else decision.again_after

    def _let_go(self, key: Key, uid: str) -> None:
        """Release the pods of a Job of this name that is gone: nobody will count them any more."""
        left = [pod for pod in self._pods.by_index(TRACKED, "/".join(key)) if not is_controlled_by(pod, uid)]
        if not left:
            return
        try:  # the cache of pods may be further than that of Jobs
            uid = self._cluster.get(JOBS, *key).metadata.uid
        except NotFound:
            uid = ""
        for pod in left:
            if not is_controlled_by(pod, uid):
                self._release(pod)

    def _write_status(self, job: Job, status: JobStatus) -> bool:
        patch = difference(msgspec.to_builtins(job.status), msgspec.to_builtins(status))
        if not patch:
            return False
        meta = job.metadata
        written = self._cluster.patch(
            JOBS,
            meta.namespace,
            meta.name,
            {"status": patch},
            subresource="status",
            resource_version=meta.resource_version,
            uid=meta.uid,
        )
        self._jobs.observe(written)
        for reason, note, warning in happenings.of_a_job(job.status, status):
            self._events.say(job, reason, note, warning=warning)
        return True

    def _release(self, pod: Pod) -> Pod:
        """Take the finalizer of the Job away; returns the pod as it is then."""
        meta = pod.metadata
        if semantics.TRACKING not in meta.finalizers:
            return pod
        left = without_finalizer(meta, semantics.TRACKING).finalizers
        with contextlib.suppress(NotFound):
            pod = self._cluster.patch(
                PODS,
                meta.namespace,
                meta.name,
                {"metadata": {"finalizers": list(left) or None}},
                resource_version=meta.resource_version,
                uid=meta.uid,
            )
            self._pods.observe(pod)
        return pod

    def _delete(self, job: Job, pod: Pod) -> None:
        meta = pod.metadata
        if meta.deletion_timestamp is not None:
            return
        with contextlib.suppress(NotFound):
            self._cluster.delete(PODS, meta.namespace, meta.name, uid=meta.uid)
        self._pods.observe_end(pod, timestamps.render(self._now()))
        self._events.removed(job, meta.name)

    def _on_job(self, delta: Delta[Job]) -> None:
        meta = delta.obj.metadata
        if delta.type == "deleted":
            self._memories.pop(meta.uid, None)
        self.reconciler.queue.add((meta.namespace, meta.name), _priority(delta))

    def _on_pod(self, delta: Delta[Pod]) -> None:
        owner = delta.obj.metadata.controller()
        if owner is not None and owner.kind == JOBS.name:
            self.reconciler.queue.add((delta.obj.metadata.namespace, owner.name), _priority(delta))


def _priority(delta: Delta[Job] | Delta[Pod]) -> Priority:
    return Priority.RESYNC if delta.origin == "resync" else Priority.CHANGE
