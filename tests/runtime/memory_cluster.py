"""A cluster in memory that does as it is told: late events, lost ones, errors, and a record of every write.

It stands where the proxy before the API server stands for Kubernetes (B7): what a cluster answers when things go wrong
cannot be had from one that works. Objects behave by the same rules as in the others (`core.semantics.storage`).
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid as uuids
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from edl_controller import errors
from edl_controller.api.kinds import ApiObject, Kind, kind_of
from edl_controller.cluster.port import Change, Listing, Stop
from edl_controller.cluster.workloads import WorkloadCalls
from edl_controller.core.semantics import storage


@dataclass
class Write:
    """One mutating request that changed something."""

    verb: str
    kind: str
    name: str
    subresource: str = ""
    patch: dict[str, Any] = field(default_factory=dict)


@dataclass
class Fault:
    """Answers of one kind of call that are errors; ``times`` None: until removed."""

    verb: str
    kind: str
    error: Exception
    times: int | None = 1
    name: str = ""
    after: bool = False
    """Raised after the call was carried out: its answer is lost."""


class MemoryCluster(WorkloadCalls):
    """Thread-safe. ``now`` is the wall clock of the objects."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._changed = threading.Condition(threading.RLock())
        self._objects: dict[tuple[str, str, str], Any] = {}
        self._log: list[tuple[int, str, Change[Any]]] = []
        self._version = 10
        self._oldest = 0
        self._names = itertools.count()
        self.writes: list[Write] = []
        self.calls: list[tuple[float, str, str]] = []
        self.faults: list[Fault] = []
        self.held: dict[str, int] = {}
        """Kind name -> watches of it deliver nothing after this version."""
        self.lost: Callable[[Change[Any]], bool] = lambda change: False
        """Which changes no watch ever delivers."""
        self.before_write: Callable[[str, str, str], None] = lambda verb, kind, name: None

    # --- what tests turn ---

    def hold(self, kind: Kind[Any]) -> None:
        """Have the watches of a kind deliver nothing from now on."""
        with self._changed:
            self.held[kind.name] = self._version

    def release(self, kind: Kind[Any]) -> None:
        """Have them go on."""
        with self._changed:
            del self.held[kind.name]
            self._changed.notify_all()

    def compact(self) -> None:
        """Forget all history: who watches from an old version is told that it is gone."""
        with self._changed:
            self._oldest = self._version
            self._log.clear()
            self._changed.notify_all()

    def fail(self, verb: str, kind: Kind[Any], error: Exception, **options: Any) -> Fault:
        """Have calls fail."""
        fault = Fault(verb, kind.name, error, **options)
        with self._changed:
            self.faults.append(fault)
            self._changed.notify_all()
        return fault

    def count(self, verb: str, kind: Kind[Any]) -> int:
        """Return how often a call was made."""
        return sum((v, k) == (verb, kind.name) for _, v, k in self.calls)

    # --- the port ---

    def get(self, kind: Kind[Any], namespace: str, name: str) -> Any:
        with self._call("get", kind, name):
            return self._find(kind, namespace, name)

    def list(self, kind: Kind[Any], namespace: str = "", *, labels: dict[str, str] | None = None) -> Listing[Any]:
        with self._call("list", kind, ""):
            found = tuple(
                obj
                for (plural, space, _), obj in self._objects.items()
                if plural == kind.plural and (not namespace or space == namespace) and storage.selects(labels, obj)
            )
            return Listing(found, str(self._version))

    def watch(self, kind: Kind[Any], namespace: str, resource_version: str, stop: Stop) -> Iterator[Change[Any]]:
        with self._call("watch", kind, ""):
            at = int(resource_version)
        yield Change("BOOKMARK", None, resource_version)
        while not stop.is_set():
            with self._changed:
                self._raise_fault("stream", kind, "", after=False)
                if at < self._oldest:
                    raise errors.Gone(f"version {at} is too old")
                limit = self.held.get(kind.name, self._version)
                fresh = [
                    (version, change)
                    for version, plural, change in self._log
                    if plural == kind.plural
                    and at < version <= limit
                    and change.obj is not None
                    and (not namespace or change.obj.metadata.namespace == namespace)
                ]
                if not fresh:
                    self._changed.wait(0.05)
            for version, change in fresh:
                at = version
                if not self.lost(change):
                    yield change

    def create(self, obj: ApiObject) -> Any:
        kind = kind_of(obj)
        suffix = f"{next(self._names):05x}"
        new = storage.created(kind, obj, uid=str(uuids.uuid4()), suffix=suffix, now=self._now())
        meta = new.metadata
        self.before_write("create", kind.name, meta.name)
        with self._call("create", kind, meta.name):
            key = (kind.plural, meta.namespace, meta.name)
            if key in self._objects:
                raise errors.AlreadyExists(f"{kind.plural} {meta.name!r} already exists")
            self.writes.append(Write("create", kind.name, meta.name))
            return self._store("ADDED", kind, new)

    def patch(
        self,
        kind: Kind[Any],
        namespace: str,
        name: str,
        patch: dict[str, Any],
        *,
        subresource: str = "",
        resource_version: str = "",
        uid: str = "",
    ) -> Any:
        self.before_write("patch", kind.name, name)
        with self._call("patch", kind, name):
            current = self._find(kind, namespace, name)
            storage.check_preconditions(kind, current, resource_version=resource_version, uid=uid)
            after = storage.patched(kind, current, patch, subresource=subresource, now=self._now())
            if after is current:
                return current
            self.writes.append(Write("patch", kind.name, name, subresource, patch))
            if storage.is_removed(after):
                return self._remove(kind, after)
            return self._store("MODIFIED", kind, after)

    def delete(
        self,
        kind: Kind[Any],
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
        grace_seconds: int | None = None,
    ) -> None:
        self.before_write("delete", kind.name, name)
        with self._call("delete", kind, name):
            current = self._find(kind, namespace, name)
            storage.check_preconditions(kind, current, resource_version=resource_version, uid=uid)
            after = storage.deleted(
                kind, current, propagation=propagation, grace_seconds=grace_seconds, now=self._now()
            )
            if after is current:
                return
            self.writes.append(Write("delete", kind.name, name))
            if after is None:
                self._remove(kind, current)
            else:
                self._store("MODIFIED", kind, after)

    # --- the inside ---

    def _find(self, kind: Kind[Any], namespace: str, name: str) -> Any:
        try:
            return self._objects[kind.plural, namespace if kind.namespaced else "", name]
        except KeyError:
            raise errors.NotFound(f"{kind.plural} {name!r} not found") from None

    def _store(self, type_: str, kind: Kind[Any], obj: Any) -> Any:
        self._version += 1
        obj = storage.with_metadata(obj, msgspec.structs.replace(obj.metadata, resource_version=str(self._version)))
        self._objects[kind.plural, obj.metadata.namespace, obj.metadata.name] = obj
        self._log.append((self._version, kind.plural, Change(cast(Any, type_), obj, str(self._version))))
        self._changed.notify_all()
        return obj

    def _remove(self, kind: Kind[Any], obj: Any) -> Any:
        self._version += 1
        del self._objects[kind.plural, obj.metadata.namespace, obj.metadata.name]
        self._log.append((self._version, kind.plural, Change("DELETED", obj, str(self._version))))
        self._changed.notify_all()
        return obj

    def _call(self, verb: str, kind: Kind[Any], name: str) -> _Call:
        return _Call(self, verb, kind, name)

    def _raise_fault(self, verb: str, kind: Kind[Any], name: str, *, after: bool) -> None:
        for fault in self.faults:
            if (
                (fault.verb, fault.kind, fault.after) == (verb, kind.name, after)
                and fault.name in ("", name)
                and fault.times != 0
            ):
                if fault.times is not None:
                    fault.times -= 1
                raise fault.error


class _Call:
    """Holds the lock for one call and raises the faults before and after it."""

    def __init__(self, cluster: MemoryCluster, verb: str, kind: Kind[Any], name: str) -> None:
        self._cluster, self._verb, self._kind, self._name = cluster, verb, kind, name

    def __enter__(self) -> None:
        self._cluster._changed.acquire()
        self._cluster.calls.append((time.monotonic(), self._verb, self._kind.name))
        try:
            self._cluster._raise_fault(self._verb, self._kind, self._name, after=False)
        except BaseException:
            self._cluster._changed.release()
            raise

    def __exit__(self, error: object, *_: object) -> None:
        try:
            if error is None:
                self._cluster._raise_fault(self._verb, self._kind, self._name, after=True)
        finally:
            self._cluster._changed.release()
