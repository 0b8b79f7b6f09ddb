"""`SimCluster`: the port over objects in memory, at the time of a virtual clock."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from edl_controller.api.kinds import ALL, ApiObject, Kind, kind_of
from edl_controller.api.pods import Pod
from edl_controller.cluster.port import Change, Listing, Propagation, Stop, Subresource
from edl_controller.cluster.sim.history import History
from edl_controller.cluster.sim.timetable import VirtualClock
from edl_controller.cluster.workloads import WorkloadCalls
from edl_controller.core.semantics import storage
from edl_controller.errors import AlreadyExists, NotFound

T = TypeVar("T", bound=ApiObject)
Listener = Callable[[Kind[Any], Any, Any], None]
"""Gets a kind and an object before and after a change; None where it was not there, or is no longer."""

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Of random ends of names: as Kubernetes' (no vowels, so no words)."""

_STOP_SEEN = 0.05
"""Real seconds within which a watch that waits sees that it is to stop."""


class SimCluster(WorkloadCalls):
    """Objects in memory. Thread-safe. The same seed and the same calls give the same names, uids and versions.

    Args:
        clock: what time it is.
        seed: of uids and of the random ends of names.
        history: how many changes of each kind are kept for watches, at least.
    """

    def __init__(self, clock: VirtualClock, *, seed: int = 0, history: int = 50_000) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        """Held during each call, and while listeners are told."""
        self._changed = threading.Condition(self.lock)
        self._random = random.Random(seed)
        self._version = 0
        self._objects: dict[str, dict[str, dict[str, Any]]] = {kind.plural: {} for kind in ALL}
        self._history: dict[str, History[Any]] = {kind.plural: History(history) for kind in ALL}
        self._by_uid: dict[str, tuple[Kind[Any], Any]] = {}
        self._dependents: dict[str, dict[str, tuple[Kind[Any], Any]]] = {}
        self._unmanaged: dict[str, Pod] = {}
        self._listeners: list[Listener] = []

    # --- reading ---

    def get(self, kind: Kind[T], namespace: str, name: str) -> T:
        """See `ObjectReader.get`."""
        with self.lock:
            found: T | None = self._objects[kind.plural].get(_place(kind, namespace), {}).get(name)
        if found is None:
            raise NotFound(f'{kind.plural} "{name}" not found')
        return found

    def list(self, kind: Kind[T], namespace: str = "", *, labels: dict[str, str] | None = None) -> Listing[T]:
        """See `ObjectReader.list`."""
        with self.lock:
            places = self._objects[kind.plural]
            chosen = [namespace] if namespace and kind.namespaced else sorted(places)
            items = [
                obj
                for place in chosen
                for _, obj in sorted(places.get(place, {}).items())
                if storage.selects(labels, obj)
            ]
            return Listing(tuple(items), str(self._version))

    def watch(self, kind: Kind[T], namespace: str, resource_version: str, stop: Stop) -> Iterator[Change[T]]:
        """See `ObjectReader.watch`. Waits in real time: for threads, not for a simulation (`changes_after`)."""
        version = resource_version
        while not stop.is_set():
            with self._changed:
                changes = self.changes_after(kind, version)
                if not changes:
                    self._changed.wait(_STOP_SEEN)
                    continue
            for change in changes:
                version = change.resource_version
                if change.obj is not None and namespace in ("", change.obj.metadata.namespace):
                    yield change
                    if stop.is_set():
                        return

    def changes_after(self, kind: Kind[T], resource_version: str) -> Sequence[Change[T]]:
        """Return the next changes after a version, without waiting; none: there are none yet.

        Raises:
            Gone: some of them are no longer kept.
        """
        with self.lock:
            return self._history[kind.plural].after(int(resource_version or 0))

    def find(self, uid: str) -> tuple[Kind[Any], Any] | None:
        """Return the object with this uid and its kind, or None."""
        return self._by_uid.get(uid)

    @property
    def uids(self) -> dict[str, tuple[Kind[Any], Any]]:
        """All objects by uid; not to be changed."""
        return self._by_uid

    def unmanaged_pods(self, namespace: str) -> Sequence[Pod]:
        """Return the pods of a namespace that no controller manages, oldest first."""
        return [pod for pod in self._unmanaged.values() if pod.metadata.namespace == namespace]

    def dependents(self, uid: str) -> Sequence[tuple[Kind[Any], Any]]:
        """Return what names the object with this uid as an owner, oldest first."""
        return [*self._dependents.get(uid, {}).values()]

    # --- writing ---

    def create(self, obj: T) -> T:
        """See `ObjectWriter.create`."""
        kind = kind_of(obj)
        with self.lock:
            new = storage.created(kind, obj, uid=self._uid(), suffix=self._suffix(), now=self.clock.wall())
            meta = new.metadata
            if meta.name in self._objects[kind.plural].get(meta.namespace, {}):
                raise AlreadyExists(f'{kind.plural} "{meta.name}" already exists')
            return self._put(kind, None, new)

    def patch(
        self,
        kind: Kind[T],
        namespace: str,
        name: str,
        patch: dict[str, Any],
        *,
        subresource: Subresource = "",
        resource_version: str = "",
        uid: str = "",
    ) -> T:
        """See `ObjectWriter.patch`."""

        def change(current: T) -> T:
            storage.check_preconditions(kind, current, resource_version=resource_version, uid=uid)
            return storage.patched(kind, current, patch, subresource=subresource, now=self.clock.wall())

        return self.rewrite(kind, namespace, name, change)

    def delete(
        self,
        kind: Kind[T],
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = "Background",
        grace_seconds: int | None = None,
    ) -> None:
        """See `ObjectWriter.delete`."""
        with self.lock:
            current = self.get(kind, namespace, name)
            storage.check_preconditions(kind, current, resource_version=resource_version, uid=uid)
            after = storage.deleted(
                kind, current, propagation=propagation, grace_seconds=grace_seconds, now=self.clock.wall()
            )
            if after is None:
                self._remove(kind, current)
            elif after is not current:
                self._put(kind, current, after)

    def rewrite(self, kind: Kind[T], namespace: str, name: str, change: Callable[[T], T]) -> T:
        """Change an object as those inside of a cluster do: any part of it, without a patch and without its rules.

        The very same object writes nothing. A deleted object that nothing holds any longer is removed.

        Raises:
            NotFound: there is no such object.
        """
        with self.lock:
            current = self.get(kind, namespace, name)
            after = change(current)
            if after is current:
                return current
            if storage.is_removed(after):
                self._remove(kind, after)
                return after
            return self._put(kind, current, after)

    def compact(self) -> None:
        """Forget all changes so far: who watches from an older version has to list again."""
        with self.lock:
            for history in self._history.values():
                history.drop(self._version)

    def subscribe(self, listener: Listener) -> None:
        """Tell ``listener`` of every change, while the lock is held; it plans work and does none."""
        self._listeners.append(listener)

    # --- the inside ---

    def _put(self, kind: Kind[T], before: T | None, after: T) -> T:
        after = self._next_version(after)
        meta = after.metadata
        self._objects[kind.plural].setdefault(meta.namespace, {})[meta.name] = after
        entry = (kind, after)
        self._by_uid[meta.uid] = entry
        if before is not None and before.metadata.owner_references != meta.owner_references:
            self._disown(before)
        for owner in meta.owner_references:
            self._dependents.setdefault(owner.uid, {})[meta.uid] = entry
        if isinstance(after, Pod):
            if after.metadata.controller() is None:
                self._unmanaged[meta.uid] = after
            else:
                self._unmanaged.pop(meta.uid, None)
        self._tell(kind, before, after)
        return after

    def _remove(self, kind: Kind[T], last: T) -> None:
        last = self._next_version(last)
        del self._objects[kind.plural][last.metadata.namespace][last.metadata.name]
        del self._by_uid[last.metadata.uid]
        self._unmanaged.pop(last.metadata.uid, None)
        self._disown(last)
        self._tell(kind, last, None)

    def _disown(self, obj: ApiObject) -> None:
        for owner in obj.metadata.owner_references:
            owned = self._dependents.get(owner.uid, {})
            owned.pop(obj.metadata.uid, None)
            if not owned:
                self._dependents.pop(owner.uid, None)

    def _next_version(self, obj: T) -> T:
        self._version += 1
        return storage.with_metadata(obj, msgspec.structs.replace(obj.metadata, resource_version=str(self._version)))

    def _tell(self, kind: Kind[T], before: T | None, after: T | None) -> None:
        version = str(self._version)
        if after is None:
            change: Change[T] = Change("DELETED", before, version)
        else:
            change = Change("ADDED" if before is None else "MODIFIED", after, version)
        self._history[kind.plural].add(self._version, change)
        for listener in self._listeners:
            listener(kind, before, after)
        self._changed.notify_all()

    def _uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _suffix(self) -> str:
        return "".join(self._random.choices(_ALPHABET, k=5))


def _place(kind: Kind[Any], namespace: str) -> str:
    return (namespace or "default") if kind.namespaced else ""
