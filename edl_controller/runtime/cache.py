"""The cache of one kind of object: what the watch has said so far, with indexes; and what this program wrote itself.

A cache is always a little behind. What this program has just written would be missed by its next pass, which would
write it once more (row K14), so `Cache.observe` takes the answer of a write in at once. Versions of one cluster are
numbers that grow with every write (all three clusters have them), so it is known exactly which of both is newer: an
answer at or before the last version that the watch has reached, whose object is not here, is of an object that has
come and gone. Where versions are no numbers, `observe` does nothing. `Cache.observe_end` does the same for deletions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, cast

import msgspec

from edl_controller.api.kinds import ApiObject

T = TypeVar("T", bound=ApiObject)

Key = tuple[str, str]
"""Namespace and name."""

IndexFunction = Callable[[T], Iterable[str]]
"""Under which values an object is to be found; it must not raise."""


def key_of(obj: ApiObject) -> Key:
    """Return namespace and name of an object."""
    return obj.metadata.namespace, obj.metadata.name


def by_owner(obj: ApiObject) -> tuple[str, ...]:
    """Index function: the uid of the controller of an object."""
    owner = obj.metadata.controller()
    return () if owner is None else (owner.uid,)


def by_label(label: str) -> Callable[[ApiObject], tuple[str, ...]]:
    """Return an index function: the value of a label."""

    def index(obj: ApiObject) -> tuple[str, ...]:
        value = obj.metadata.labels.get(label)
        return () if value is None else (value,)

    return index


OWNER = "owner"
"""The name under which `by_owner` is always there."""


class Cache(Generic[T]):
    """Objects of one kind by namespace and name; thread-safe. What it returns is frozen: share it freely.

    Args:
        indexes: name to index function; `OWNER` is always there, and so is the namespace.
    """

    def __init__(self, indexes: Mapping[str, IndexFunction[T]] | None = None) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, dict[str, T]] = {}
        self._functions: dict[str, IndexFunction[T]] = {OWNER: by_owner, **(indexes or {})}
        self._indexes: dict[str, dict[str, dict[Key, T]]] = {name: {} for name in self._functions}
        # What the watch said last of objects that `observe` has taken further; None: nothing yet.
        self._overtaken: dict[Key, T | None] = {}
        # What this program has deleted and the watch does not know of yet: uid -> deletion time.
        self._ending: dict[str, str] = {}
        # How far each watched namespace ("" for all) has come.
        self._reached: dict[str, int] = {}

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._objects.values()))

    def get(self, namespace: str, name: str) -> T | None:
        """Return the object, or None."""
        with self._lock:
            return self._objects.get(namespace, {}).get(name)

    def all(self, namespace: str = "") -> list[T]:
        """Return all objects of a namespace, or of all."""
        with self._lock:
            if namespace:
                return [*self._objects.get(namespace, {}).values()]
            return [obj for objects in self._objects.values() for obj in objects.values()]

    def by_index(self, index: str, value: str) -> list[T]:
        """Return the objects that the index has under this value, in no order.

        Raises:
            KeyError: there is no such index.
        """
        with self._lock:
            return [*self._indexes[index].get(value, {}).values()]

    def owned_by(self, uid: str) -> list[T]:
        """Return the objects whose controller has this uid."""
        return self.by_index(OWNER, uid)

    def put(self, obj: T, scope: str = "") -> T | None:
        """Take in what the watch of ``scope`` says is there; return what the watch had said before.

        What `observe` has overtaken does not come back.
        """
        with self._lock:
            self._reach(scope, _number(obj.metadata.resource_version))
            key = namespace, name = key_of(obj)
            known = self._objects.get(namespace, {}).get(name)
            old = self._overtaken.pop(key, known)
            if known is not None and _newer(known, obj):
                self._overtaken[key] = obj
            elif known is None or known.metadata.resource_version != obj.metadata.resource_version:
                self._store(self._with_end(obj))
            return old

    def remove(self, obj: T, version: str, scope: str = "") -> T | None:
        """Take in what the watch of ``scope`` says is gone since ``version``; return what the watch had said before.

        A newer object of the same name, which `observe` has brought, stays.
        """
        with self._lock:
            self._reach(scope, _number(version))
            key = namespace, name = key_of(obj)
            known = self._objects.get(namespace, {}).get(name)
            old = self._overtaken.pop(key, known)
            if known is not None and obj.metadata.uid in (
                known.metadata.uid,
                "",
            ):  # who it was may not be known any more
                self._drop(known)
            elif known is not None:
                self._overtaken[key] = None
            return old

    def reach(self, version: str, scope: str = "") -> None:
        """Take in that the watch of ``scope`` has come to this version."""
        with self._lock:
            self._reach(scope, _number(version))

    def missing(self, listed: set[Key], version: str, scope: str = "") -> list[T]:
        """Return what is here but was not in a list made at ``version``, and is not newer than it."""
        with self._lock:
            reached = _number(version)
            spaces = [self._objects.get(scope, {})] if scope else self._objects.values()
            return [
                obj
                for objects in spaces
                for obj in objects.values()
                if key_of(obj) not in listed and not (reached and _number(obj.metadata.resource_version) > reached)
            ]

    def observe(self, obj: T) -> None:
        """Take in the answer of a write of this program, unless the watch has come further already."""
        version = _number(obj.metadata.resource_version)
        if not version:
            return
        with self._lock:
            key = namespace, name = key_of(obj)
            known = self._objects.get(namespace, {}).get(name)
            if known is not None:
                wanted = _newer(obj, known)
            else:
                wanted = version > self._reached.get(namespace, self._reached.get("", 0))
            if wanted:
                self._overtaken.setdefault(key, known)
                self._store(self._with_end(obj))

    def observe_end(self, obj: T, when: str) -> None:
        """Take in that this program has deleted the object: it is shown with a deletion time until the watch has it."""
        with self._lock:
            known = self._objects.get(obj.metadata.namespace, {}).get(obj.metadata.name)
            if known is not None and known.metadata.uid == obj.metadata.uid:
                self._ending[obj.metadata.uid] = when
                self._store(self._with_end(known))

    def _with_end(self, obj: T) -> T:
        meta = obj.metadata
        if meta.uid not in self._ending:
            return obj
        if meta.deletion_timestamp is not None:
            del self._ending[meta.uid]
            return obj
        meta = msgspec.structs.replace(meta, deletion_timestamp=self._ending[meta.uid])
        return cast(T, msgspec.structs.replace(cast(Any, obj), metadata=meta))

    def _reach(self, scope: str, version: int) -> None:
        if version > self._reached.get(scope, 0):
            self._reached[scope] = version

    def _store(self, obj: T) -> T | None:
        key = namespace, name = key_of(obj)
        old = self._objects.setdefault(namespace, {}).get(name)
        self._objects[namespace][name] = obj
        for index, function in self._functions.items():
            values = set(function(obj))
            entries = self._indexes[index]
            if old is not None:
                for value in set(function(old)) - values:
                    _discard(entries, value, key)
            for value in values:
                entries.setdefault(value, {})[key] = obj
        return old

    def _drop(self, obj: T) -> T:
        key = namespace, name = key_of(obj)
        del self._objects[namespace][name]
        if not self._objects[namespace]:
            del self._objects[namespace]
        for index, function in self._functions.items():
            for value in function(obj):
                _discard(self._indexes[index], value, key)
        return obj


def _discard(entries: dict[str, dict[Key, T]], value: str, key: Key) -> None:
    found = entries.get(value)
    if found is not None:
        found.pop(key, None)
        if not found:
            del entries[value]


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0


def _newer(one: ApiObject, other: ApiObject) -> bool:
    """Tell whether ``one`` is surely newer."""
    first, second = _number(one.metadata.resource_version), _number(other.metadata.resource_version)
    return first > second > 0
