"""The loop that acts on what the ReplicaSet controller would decide (`edl_controller.core.semantics.replica_set`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from edl_controller.api import timestamps
from edl_controller.api.kinds import PODS, REPLICA_SETS
from edl_controller.api.meta import ObjectMeta, OwnerReference
from edl_controller.api.pods import Pod
from edl_controller.api.workloads import ReplicaSet
from edl_controller.cluster.port import Cluster
from edl_controller.core.merge_patch import difference
from edl_controller.core.semantics import replica_set as semantics
from edl_controller.core.semantics.garbage import without_owner
from edl_controller.errors import NotFound
from edl_controller.machine.loop_events import LoopEvents
from edl_controller.runtime.cache import Cache, Key
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.reconciler import Reconciler
from edl_controller.runtime.reflector import Delta
from edl_controller.runtime.workqueue import Priority

UNMANAGED = "unmanaged"
"""Index of the pods that nobody manages, by namespace: a ReplicaSet adopts those that its selector selects."""


def unmanaged(pod: Pod) -> tuple[str, ...]:
    """Index function of `UNMANAGED`."""
    return () if pod.metadata.controller() is not None else (pod.metadata.namespace,)


class ReplicaSetLoop:
    """Reconciles ReplicaSets. Every write's answer is put into the cache at once, so that no pass repeats it.

    Args:
        cluster: to act on.
        informers: to read from; that of pods has the index `UNMANAGED`. Handlers are added.
        events: what is said beside.
        now: Unix seconds.
        workers: how many ReplicaSets are worked on at once.
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
        sets, pods = informers.of(REPLICA_SETS), informers.of(PODS)
        self._sets: Cache[ReplicaSet] = sets.cache
        self._pods: Cache[Pod] = pods.cache
        self.reconciler: Reconciler[Key] = Reconciler("replicasets", self.reconcile, workers=workers)
        sets.add_handler(self._on_set)
        pods.add_handler(self._on_pod)

    def _related(self, replica_set: ReplicaSet) -> list[Pod]:
        """Return the pods of all ReplicaSets that have its controller."""
        owner = replica_set.metadata.controller()
        siblings = self._sets.owned_by(owner.uid) if owner is not None else []
        return [pod for sibling in siblings for pod in self._pods.owned_by(sibling.metadata.uid)]

    def reconcile(self, key: Key) -> float | None:
        """Bring one ReplicaSet in line; its status last."""
        replica_set = self._sets.get(*key)
        if replica_set is None:
            return None
        meta = replica_set.metadata
        pods = [*self._pods.owned_by(meta.uid), *self._pods.by_index(UNMANAGED, meta.namespace)]
        decision = semantics.decide(replica_set, pods, self._now(), self._related(replica_set))
        for pod in decision.adopt:
            self._set_owners(pod, (*pod.metadata.owner_references, decision.owner))
        for pod in decision.release:
            self._set_owners(pod, without_owner(pod.metadata, meta.uid).owner_references)
        for pod in decision.delete:
            with contextlib.suppress(NotFound):
                self._cluster.delete(PODS, pod.metadata.namespace, pod.metadata.name, uid=pod.metadata.uid)
            self._pods.observe_end(pod, timestamps.render(self._now()))
            self._events.removed(replica_set, pod.metadata.name)
        for pod in decision.create:
            made = self._cluster.create(pod)
            self._pods.observe(made)
            self._events.made(replica_set, made.metadata.name)
        patch = difference(msgspec.to_builtins(replica_set.status), msgspec.to_builtins(decision.status))
        if patch:
            written = self._cluster.patch(
                REPLICA_SETS,
                meta.namespace,
                meta.name,
                {"status": patch},
                subresource="status",
                resource_version=meta.resource_version,
                uid=meta.uid,
            )
            self._sets.observe(written)
        return 0.0 if decision.create or decision.delete else decision.again_after

    def _set_owners(self, pod: Pod, owners: tuple[OwnerReference, ...]) -> None:
        meta = pod.metadata
        with contextlib.suppress(NotFound):
            self._pods.observe(
                self._cluster.patch(
                    PODS,
                    meta.namespace,
                    meta.name,
                    {"metadata": {"ownerReferences": msgspec.to_builtins(owners)}},
                    resource_version=meta.resource_version,
                    uid=meta.uid,
                )
            )

    def _on_set(self, delta: Delta[ReplicaSet]) -> None:
        self._add(delta.obj.metadata.namespace, delta.obj.metadata.name, delta.origin == "resync")

    def _on_pod(self, delta: Delta[Pod]) -> None:
        resync = delta.origin == "resync"
        metas = [delta.obj.metadata] if delta.old is None else [delta.obj.metadata, delta.old.metadata]
        for meta in metas:
            owner = meta.controller()
            if owner is None:
                self._add_selecting(meta, resync)
            elif owner.kind == REPLICA_SETS.name:
                self._add(meta.namespace, owner.name, resync)

    def _add_selecting(self, pod: ObjectMeta, resync: bool) -> None:
        for one in self._sets.all(pod.namespace):
            if one.spec.selector.matches(pod.labels):
                self._add(one.metadata.namespace, one.metadata.name, resync)

    def _add(self, namespace: str, name: str, resync: bool) -> None:
        self.reconciler.queue.add((namespace, name), Priority.RESYNC if resync else Priority.CHANGE)
