"""The loop that collects what deleted objects owned (`edl_controller.core.semantics.garbage`).

Caches of different kinds are not equally far, so an owner that none of them has is asked for by name before anything
is deleted for its absence.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from edl_controller.api.kinds import CONFIG_MAPS, JOBS, PODS, REPLICA_SETS, SECRETS, TRAINING_JOBS, Kind, find_kind
from edl_controller.api.meta import ObjectMeta, OwnerReference
from edl_controller.cluster.port import Cluster
from edl_controller.core.semantics import garbage as semantics
from edl_controller.errors import NotFound
from edl_controller.runtime.cache import Cache
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.reconciler import Reconciler
from edl_controller.runtime.reflector import Delta

COLLECTED: tuple[Kind[Any], ...] = (TRAINING_JOBS, JOBS, REPLICA_SETS, PODS, CONFIG_MAPS, SECRETS)
"""What is looked after, as owner and as owned."""
OWNERS = "owners"
"""Index of all owners (not only the controller), by uid."""

ObjectKey = tuple[str, str, str]
"""Plural of the kind, namespace, name."""


def owner_uids(obj: Any) -> tuple[str, ...]:
    """Index function of `OWNERS`."""
    return tuple(owner.uid for owner in obj.metadata.owner_references)


class GarbageLoop:
    """Collects garbage.

    Args:
        cluster: to act on.
        informers: to read from; each kind of `COLLECTED` has the index `OWNERS`. Handlers are added.
        workers: how many objects are looked at at once.
    """

    def __init__(self, cluster: Cluster, informers: Informers, workers: int = 2) -> None:
        self._cluster = cluster
        self._kinds = {kind.plural: kind for kind in COLLECTED}
        self._caches: dict[str, Cache[Any]] = {kind.plural: informers.of(kind).cache for kind in COLLECTED}
        self.reconciler: Reconciler[ObjectKey] = Reconciler("garbage", self.reconcile, workers=workers)
        for kind in COLLECTED:
            informers.of(kind).add_handler(lambda delta, kind=kind: self._on_change(kind, delta))  # type: ignore[misc]

    def reconcile(self, key: ObjectKey) -> float | None:
        """See to one object: as garbage, or as an owner that waits to go."""
        plural, namespace, name = key
        obj = self._caches[plural].get(namespace, name)
        if obj is None:
            return None
        meta: ObjectMeta = obj.metadata
        if semantics.waits_for_dependents(meta):
            self._see_off(self._kinds[plural], meta)
        elif meta.deletion_timestamp is None and semantics.is_garbage(obj, self._live(meta)):
            self._delete(self._kinds[plural], meta)
        return None

    def _live(self, meta: ObjectMeta) -> set[str]:
        return {owner.uid for owner in meta.owner_references if self._is_live(meta.namespace, owner)}

    def _is_live(self, namespace: str, owner: OwnerReference) -> bool:
        kind = find_kind(owner.kind)
        if kind is None or kind.api_version != owner.api_version:
            return True  # of a kind that is not known here: nothing is deleted for it
        space = namespace if kind.namespaced else ""
        if kind.plural in self._caches:
            known = self._caches[kind.plural].get(space, owner.name)
            if known is not None and known.metadata.uid == owner.uid:
                return True
        try:
            return bool(self._cluster.get(kind, space, owner.name).metadata.uid == owner.uid)
        except NotFound:
            return False

    def _see_off(self, kind: Kind[Any], owner: ObjectMeta) -> None:
        dependents = [
            (own_kind, one)
            for own_kind in COLLECTED
            for one in self._caches[own_kind.plural].by_index(OWNERS, owner.uid)
        ]
        kinds = {one.metadata.uid: own_kind for own_kind, one in dependents}
        step = semantics.owner_step(owner, [one for _, one in dependents])
        for one in step.delete:
            self._delete(kinds[one.metadata.uid], one.metadata, blocking=True)
        for one in step.orphan:
            left = semantics.without_owner(one.metadata, owner.uid).owner_references
            self._patch(kinds[one.metadata.uid], one.metadata, {"ownerReferences": msgspec.to_builtins(left) or None})
        if step.release:
            left_finalizers = semantics.without_finalizer(owner, step.release).finalizers
            self._patch(kind, owner, {"finalizers": list(left_finalizers) or None})

    def _patch(self, kind: Kind[Any], meta: ObjectMeta, patch: dict[str, Any]) -> None:
        with contextlib.suppress(NotFound):
            written = self._cluster.patch(
                kind,
                meta.namespace,
                meta.name,
                {"metadata": patch},
                resource_version=meta.resource_version,
                uid=meta.uid,
            )
            self._caches[kind.plural].observe(written)

    def _delete(self, kind: Kind[Any], meta: ObjectMeta, *, blocking: bool = False) -> None:
        with contextlib.suppress(NotFound):
            # What blocks its owner waits for its own dependents, too: that is what "foreground" promises.
            self._cluster.delete(
                kind,
                meta.namespace,
                meta.name,
                uid=meta.uid,
                propagation="Foreground" if blocking and kind is not PODS else "Background",
            )

    def _on_change(self, kind: Kind[Any], delta: Delta[Any]) -> None:
        meta: ObjectMeta = delta.obj.metadata
        if delta.type == "deleted":
            for plural, cache in self._caches.items():
                for one in cache.by_index(OWNERS, meta.uid):
                    self._add(plural, one.metadata)
        elif meta.owner_references or meta.deletion_timestamp is not None:
            self._add(kind.plural, meta)
        # Whoever waits for this one to go.
        if delta.type == "deleted" or (delta.old is not None and delta.old.metadata.owner_references):
            for owner in meta.owner_references:
                found = find_kind(owner.kind)
                if found is not None and found.plural in self._caches:
                    self.reconciler.queue.add((found.plural, meta.namespace, owner.name))

    def _add(self, plural: str, meta: ObjectMeta) -> None:
        self.reconciler.queue.add((plural, meta.namespace, meta.name))
