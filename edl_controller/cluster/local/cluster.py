"""`LocalCluster`: the port over a real etcd: its revision is the resource version, an update a compare-and-swap."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from edl_agent.clock import SystemClock
from edl_agent.config import DEFAULT_DIAL_TIMEOUT
from edl_agent.etcd import kv as etcd
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.endpoints import parse_endpoints
from edl_agent.etcd.kv import KeyValue, Kv
from edl_agent.etcd.watch import WatchStream
from edl_agent.watch_cursor import EventType, WatchEvent
from edl_controller import errors
from edl_controller.api.kinds import ApiObject, Kind, kind_of
from edl_controller.api.meta import ObjectMeta
from edl_controller.cluster.local.keys import DEFAULT_PREFIX, ObjectKeys
from edl_controller.cluster.local.shared_watch import SharedWatch, Subscription
from edl_controller.cluster.local.store import CALL_DEADLINE, cluster_errors
from edl_controller.cluster.port import Change, Listing, Propagation, Stop, Subresource
from edl_controller.cluster.workloads import WorkloadCalls
from edl_controller.core.semantics import storage

T = TypeVar("T", bound=ApiObject)

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Of random ends of names: as Kubernetes' (no vowels, so no words)."""

_QUEUES = 64
"""Locks that writers of one process queue for once they were overtaken; objects share them by chance."""

_LISTS = 3
"""Tries to read all pages of a list before etcd forgets the revision of the first."""


class _Unreadable(errors.Invalid):
    """What is stored is no object of its kind."""


class LocalCluster(WorkloadCalls):
    """Objects in etcd. Thread-safe; also a context manager that closes the connection.

    Args:
        endpoints: of the etcd, as for `edl_agent.EtcdClient`.
        prefix: below which the objects are kept.
        now: Unix seconds, for the times in objects.
    """

    def __init__(self, endpoints: str, *, prefix: str = DEFAULT_PREFIX, now: Callable[[], float] = time.time) -> None:
        self._clock = SystemClock()
        self._connection = Connection(
            parse_endpoints(endpoints), tls=None, login=None, dial_timeout=DEFAULT_DIAL_TIMEOUT, clock=self._clock
        )
        self._kv = Kv(self._connection)
        self._keys = ObjectKeys(prefix)
        self._now = now
        self._watching = threading.Lock()
        self._shared: SharedWatch | None = None
        self._queues = tuple(threading.Lock() for _ in range(_QUEUES))

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all calls and watches. Idempotent."""
        self._connection.close()

    # --- reading ---

    def get(self, kind: Kind[T], namespace: str, name: str) -> T:
        """See `ObjectReader.get`."""
        key = self._keys.of(kind, namespace or "default", name)
        return self._read(kind, key, name, self._deadline())[0]

    def list(self, kind: Kind[T], namespace: str = "", *, labels: dict[str, str] | None = None) -> Listing[T]:
        """See `ObjectReader.list`."""
        for _ in range(_LISTS - 1):
            with contextlib.suppress(errors.Gone):
                return self._list(kind, namespace, labels)
        return self._list(kind, namespace, labels)

    def _list(self, kind: Kind[T], namespace: str, labels: dict[str, str] | None) -> Listing[T]:
        items: list[T] = []
        revision = 0
        with cluster_errors():
            for page, revision in self._kv.pages(*self._keys.range(kind, namespace), self._deadline()):  # noqa: B007
                items += (_versioned(kind.decode_marked(pair.value), pair.mod_revision) for pair in page)
        return Listing(tuple(one for one in items if storage.selects(labels, one)), str(revision))

    def watch(self, kind: Kind[T], namespace: str, resource_version: str, stop: Stop) -> Iterator[Change[T]]:
        """See `ObjectReader.watch`."""
        news = self._subscribe(self._keys.range(kind, namespace), int(resource_version) + 1, stop)
        try:
            while not stop.is_set():
                one = news.inbox.get()
                if one is None:
                    return
                if isinstance(one, BaseException):
                    with cluster_errors():
                        raise one
                if isinstance(one, int):
                    yield Change("BOOKMARK", None, str(one))
                    continue
                if one.meaning is None:
                    one.meaning = _change(kind, one.event)
                yield one.meaning
        finally:
            news.leave()

    def _subscribe(self, wanted: tuple[bytes, bytes], revision: int, stop: Stop) -> Subscription:
        with self._watching:
            if self._shared is None or self._shared.is_over:
                self._shared = self._shared_watch(self._keys.everything, revision)
            joined = self._shared.join(*wanted, revision, stop)
            if joined is None:  # it fell silent just now, or does not remember what is wanted: a stream of its own
                joined = self._shared_watch(wanted, revision).join(*wanted, revision, stop)
            assert joined is not None, "a new one begins where it is wanted"
            return joined

    def _shared_watch(self, keys: tuple[bytes, bytes], revision: int) -> SharedWatch:
        def open_stream(revision: int) -> WatchStream:
            return WatchStream(self._connection, [keys], revision, self._clock, previous=True)

        def newest() -> int:
            return self._kv.range(keys[0], b"", self._deadline())[1]

        return SharedWatch(open_stream, newest, revision, self._clock)

    # --- writing ---

    def create(self, obj: T) -> T:
        """See `ObjectWriter.create`."""
        kind = kind_of(obj)
        suffix = "".join(secrets.choice(_ALPHABET) for _ in range(5))
        new = storage.created(kind, obj, uid=str(uuid.uuid4()), suffix=suffix, now=self._now())
        key = self._keys.of(kind, new.metadata.namespace, new.metadata.name)
        with cluster_errors():
            done = self._kv.txn([etcd.absent(key)], [etcd.put_op(key, kind.encode(new))], [], self._deadline())
        if not done.succeeded:
            raise errors.AlreadyExists(f'{kind.plural} "{new.metadata.name}" already exists')
        return _versioned(new, done.revision)

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

        def change(current: T) -> T | None:
            storage.check_preconditions(kind, current, resource_version=resource_version, uid=uid)
            after = storage.patched(kind, current, patch, subresource=subresource, now=self._now())
            return None if storage.is_removed(after) else after

        try:
            return self._swap(kind, namespace, name, change)
        except _Unreadable:
            if subresource != "status" or not kind.has_status:
                raise
        return self._patch_status_only(kind, namespace, name, patch, resource_version=resource_version, uid=uid)

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

        def change(current: T) -> T | None:
            storage.check_preconditions(kind, current, resource_version=resource_version, uid=uid)
            return storage.deleted(kind, current, propagation=propagation, grace_seconds=grace_seconds, now=self._now())

        self._swap(kind, namespace, name, change)

    # --- the inside ---

    def _swap(self, kind: Kind[T], namespace: str, name: str, change: Callable[[T], T | None]) -> T:
        """Read, change and compare-and-swap until nobody came in between; None from ``change`` removes the object.

        Whoever was overtaken queues with the others of this process, so that twenty writers of one object do not spend
        their time on overtaking each other.
        """
        key = self._keys.of(kind, namespace or "default", name)
        deadline = self._deadline()
        done = self._try_to_swap(kind, key, name, change, deadline)
        if done is not None:
            return done
        queue_of_key = self._queues[hash(key) % _QUEUES]
        if queue_of_key.acquire(timeout=max(0.0, deadline - self._clock.monotonic())):
            try:
                while self._clock.monotonic() < deadline:
                    done = self._try_to_swap(kind, key, name, change, deadline)
                    if done is not None:
                        return done
            finally:
                queue_of_key.release()
        raise errors.Unavailable(f'{kind.plural} "{name}": changed all the time while it was to be written')

    def _try_to_swap(
        self, kind: Kind[T], key: bytes, name: str, change: Callable[[T], T | None], deadline: float
    ) -> T | None:
        """Return the object as it is then, or None where somebody came in between."""
        current, revision = self._read(kind, key, name, deadline)
        after = change(current)
        if after is current:
            return current
        operation = etcd.delete_op(key) if after is None else etcd.put_op(key, kind.encode(_versioned(after, 0)))
        with cluster_errors():
            done = self._kv.txn([etcd.modified_at(key, revision)], [operation], [], deadline)
        if not done.succeeded:
            return None
        return current if after is None else _versioned(after, done.revision)

    def _read(self, kind: Kind[T], key: bytes, name: str, deadline: float) -> tuple[T, int]:
        with cluster_errors():
            pairs, _ = self._kv.range(key, b"", deadline)
        if not pairs:
            raise errors.NotFound(f'{kind.plural} "{name}" not found')
        pair: KeyValue = pairs[0]
        try:
            return _versioned(kind.decode(pair.value), pair.mod_revision), pair.mod_revision
        except msgspec.MsgspecError as error:
            raise _Unreadable(f'{kind.plural} "{name}" cannot be read: {error}') from error

    def _patch_status_only(
        self, kind: Kind[T], namespace: str, name: str, patch: dict[str, Any], *, resource_version: str, uid: str
    ) -> T:
        """Patch the status of an object that cannot be read, so that it can say so; the rest stays byte for byte."""
        key = self._keys.of(kind, namespace or "default", name)
        deadline = self._deadline()
        while self._clock.monotonic() < deadline:
            with cluster_errors():
                pairs, _ = self._kv.range(key, b"", deadline)
            if not pairs:
                raise errors.NotFound(f'{kind.plural} "{name}" not found')
            pair: KeyValue = pairs[0]
            current = _versioned(kind.decode_marked(pair.value), pair.mod_revision)
            storage.check_preconditions(kind, current, resource_version=resource_version, uid=uid)
            document = msgspec.json.decode(pair.value, type=dict[str, msgspec.Raw])
            before = msgspec.json.decode(document.get("status", msgspec.Raw(b"{}")))
            after = storage.merge(before, patch.get("status", {}))
            if after == before:
                return current
            data = msgspec.json.encode(document | {"status": msgspec.Raw(msgspec.json.encode(after))})
            with cluster_errors():
                done = self._kv.txn([etcd.modified_at(key, pair.mod_revision)], [etcd.put_op(key, data)], [], deadline)
            if done.succeeded:
                return _versioned(kind.decode_marked(data), done.revision)
        raise errors.Unavailable(f'{kind.plural} "{name}": changed all the time while it was to be written')

    def _deadline(self) -> float:
        return self._clock.monotonic() + CALL_DEADLINE


def _versioned(obj: T, revision: int) -> T:
    version = str(revision) if revision else ""
    return storage.with_metadata(obj, msgspec.structs.replace(obj.metadata, resource_version=version))


def _change(kind: Kind[T], event: WatchEvent) -> Change[T]:
    if event.type is EventType.DELETE:
        if event.previous:
            last = _versioned(kind.decode_marked(event.previous), event.mod_revision)
        else:  # compacted away in the meantime: who it was is in the key
            *_, namespace, name = event.key.decode().split("/")
            last = kind.type(metadata=ObjectMeta(name=name, namespace=namespace.strip("-")))  # type: ignore[call-arg]
        return Change("DELETED", last, str(event.mod_revision))
    obj = _versioned(kind.decode_marked(event.value), event.mod_revision)
    return Change("MODIFIED" if event.previous else "ADDED", obj, str(event.mod_revision))
