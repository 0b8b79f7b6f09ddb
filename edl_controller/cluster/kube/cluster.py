"""`KubeCluster`: the port over an API server. It never binds pods, evicts or executes: there is no call for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast, get_args
from urllib.parse import quote

import msgspec

from edl_controller import errors
from edl_controller.api.kinds import PODS, ApiObject, Kind, kind_of
from edl_controller.cluster.kube import watching
from edl_controller.cluster.kube.credentials import Credentials, CredentialSource
from edl_controller.cluster.kube.decode import Decoder, WholeObjects
from edl_controller.cluster.kube.lean_pods import LeanPods
from edl_controller.cluster.kube.transport import ANSWER_WITHIN, MERGE_PATCH, Transport
from edl_controller.cluster.port import Change, Listing, Propagation, Stop, Subresource
from edl_controller.cluster.workloads import WorkloadCalls

T = TypeVar("T", bound=ApiObject)

FIELD_MANAGER = "edl-controller"
"""Under which the API server notes who set which field."""


class KubeCluster(WorkloadCalls):
    """Objects behind an API server. Thread-safe; also a context manager that closes it.

    Args:
        source: where it is, and who we are (`edl_controller.cluster.kube.credentials`).
        lean_pods: lists and watches give pods with what a controller reads only
            (`edl_controller.cluster.kube.lean_pods`); `get` and writes always give whole ones.
        silence: seconds without a byte after which a watch is given up.
        answer_within: seconds to the whole answer of a request.
        before_write: asked right before a write is sent; what it raises ends it undone
            (`edl_controller.runtime.leader.Leader.check`).
        transport: in place of one made from ``source``.
    """

    def __init__(
        self,
        source: CredentialSource,
        *,
        lean_pods: bool = False,
        silence: float = watching.SILENCE,
        answer_within: float = ANSWER_WITHIN,
        before_write: Callable[[], None] | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._transport = transport or Transport(
            Credentials(source), answer_within=answer_within, before_write=before_write
        )
        self._silence = silence
        self._stopper = watching.Stopper()
        self._decoders: dict[str, Decoder[Any]] = {PODS.name: LeanPods()} if lean_pods else {}
        self._lock = threading.Lock()

    def __enter__(self) -> KubeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all watches and drop all connections. Idempotent."""
        self._stopper.close()
        self._transport.close()

    # --- reading ---

    def get(self, kind: Kind[T], namespace: str, name: str) -> T:
        """See `ObjectReader.get`."""
        return _object(kind, self._transport.request("GET", _path_of(kind, namespace, name)))

    def list(self, kind: Kind[T], namespace: str = "", *, labels: dict[str, str] | None = None) -> Listing[T]:
        """See `ObjectReader.list`."""
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())} if labels else {}
        return watching.list_all(self._transport, _path(kind, namespace), query, self._decoder(kind))

    def watch(self, kind: Kind[T], namespace: str, resource_version: str, stop: Stop) -> Iterator[Change[T]]:
        """See `ObjectReader.watch`."""
        path, decoder = _path(kind, namespace), self._decoder(kind)
        return watching.watch(
            self._transport, path, resource_version, decoder, stop, self._stopper, silence=self._silence
        )

    # --- writing ---

    def create(self, obj: T) -> T:
        """See `ObjectWriter.create`."""
        kind, meta = kind_of(obj), obj.metadata
        if not (meta.name or meta.generate_name):
            raise errors.Invalid(f"{kind.name}: metadata.name: a name or generateName is required")
        if meta.resource_version:
            raise errors.Invalid(f"{kind.name}: metadata.resourceVersion: must not be set on an object to be created")
        path = _path(kind, meta.namespace or "default")
        return _object(kind, self._write("POST", path, kind.encode(obj)))

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
        if subresource not in get_args(Subresource):
            raise ValueError(f"no subresource that is written: {subresource!r}")
        conditions = _present(resourceVersion=resource_version, uid=uid)
        if conditions:
            patch = {**patch, "metadata": {**patch.get("metadata", {}), **conditions}}
        path = _path_of(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        return _object(kind, self._write("PATCH", path, msgspec.json.encode(patch), MERGE_PATCH))

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
        # Always with a policy: without one the API server orphans the pods of a Job.
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if conditions := _present(resourceVersion=resource_version, uid=uid):
            options["preconditions"] = conditions
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        self._transport.request("DELETE", _path_of(kind, namespace, name), body=msgspec.json.encode(options))

    # --- the inside ---

    def _write(self, method: str, path: str, body: bytes, content_type: str = "application/json") -> bytes:
        query = {"fieldManager": FIELD_MANAGER}
        return self._transport.request(method, path, query=query, body=body, content_type=content_type)

    def _decoder(self, kind: Kind[T]) -> Decoder[T]:
        with self._lock:
            known = self._decoders.get(kind.name)
            if known is None:
                known = self._decoders[kind.name] = WholeObjects(kind)
            return cast(Decoder[T], known)


def _object(kind: Kind[T], data: bytes) -> T:
    try:
        return kind.decode(data)
    except msgspec.ValidationError as error:
        raise errors.Invalid(f"{kind.name} cannot be read: {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # Half an answer, or none of the API server's: whether a write was done is not known.
        raise errors.Unavailable(f"{kind.name}: {len(data)} bytes that are no object") from error


def _path(kind: Kind[Any], namespace: str) -> str:
    root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
    where = f"/namespaces/{_segment(namespace)}" if kind.namespaced and namespace else ""
    return f"{root}{where}/{kind.plural}"


def _path_of(kind: Kind[Any], namespace: str, name: str) -> str:
    return f"{_path(kind, namespace or 'default')}/{_segment(name)}"


def _segment(name: str) -> str:
    """Return a name as a part of a path; an empty one would mean all objects, and dots or slashes other ones.

    Raises:
        Invalid: it cannot be the name of anything.
    """
    if name in ("", ".", "..") or "/" in name or "%" in name:
        raise errors.Invalid(f"{name!r} is no name of an object")
    return quote(name, safe="")


def _present(**values: str) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}
