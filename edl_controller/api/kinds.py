"""PURE: the kinds of objects that are known: where they live in the API, and their bytes on the wire."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from edl_controller.api import nesting
from edl_controller.api.aliases import ROLE_ALIASES, SPEC_ALIASES, with_classic_names
from edl_controller.api.configuration import ConfigMap, Secret
from edl_controller.api.events import Event
from edl_controller.api.leases import Lease
from edl_controller.api.meta import ObjectMeta, ObjectReference
from edl_controller.api.nodes import Node
from edl_controller.api.pods import Pod
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job, ReplicaSet


class ApiObject(Protocol):
    """Anything with metadata: what clusters store."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its identity."""
        ...


T = TypeVar("T", bound=ApiObject)

UNREADABLE = "paddlepaddle.org/unreadable"
"""Annotation, never stored: why the rest of an object could not be read (`Kind.decode_marked`)."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """One kind of object. Two kinds are equal when all their fields are."""

    type: type[T]
    name: str
    """``Job``"""
    api_version: str
    """``batch/v1``"""
    plural: str
    """``jobs``"""
    namespaced: bool = True
    has_status: bool = True
    """Status is a subresource: a change of the object leaves it alone, and the other way round."""
    translate: Callable[[Any], Any] | None = None
    """Turns JSON values with other names of fields into those of the type."""
    other_names: tuple[bytes, ...] = ()
    """Text that shows that there may be something to translate (most objects have nothing, and are read faster)."""

    @property
    def group(self) -> str:
        """Return the API group; empty for the core."""
        return self.api_version.rpartition("/")[0]

    def encode(self, obj: T) -> bytes:
        """Return the object's JSON, with ``apiVersion`` and ``kind``."""
        return msgspec.json.encode(self.to_json(obj))

    def to_json(self, obj: T) -> dict[str, Any]:
        """Return the object as JSON values, with ``apiVersion`` and ``kind``."""
        return {"apiVersion": self.api_version, "kind": self.name, **msgspec.to_builtins(obj)}

    def decode(self, data: bytes) -> T:
        """Read the object from JSON; null where a list, map or object is expected counts as absent.

        Raises:
            msgspec.ValidationError: a field has another type; the message names its path. Or it is nested too deep.
            msgspec.DecodeError: it is no JSON.
        """
        try:
            if not any(name in data for name in self.other_names):
                with contextlib.suppress(msgspec.ValidationError):
                    return msgspec.json.decode(data, type=self.type)
            return self.from_json(msgspec.json.decode(data))
        except RecursionError:
            raise msgspec.ValidationError("it is nested too deep to be read") from None

    def decode_marked(self, data: bytes) -> T:
        """Read the object; one that `decode` refuses comes as its metadata alone, marked by `UNREADABLE`.

        So one bad object, stored before rules existed or nested a thousand levels deep, is one bad object and not the
        end of a list.

        Raises:
            msgspec.MsgspecError: not even the metadata can be read.
        """
        try:
            if nesting.TOO_DEEP in data:  # cut out of the list that the object came in
                raise msgspec.ValidationError("it is nested too deep to be read")
            return self.decode(data)
        except msgspec.ValidationError as error:
            value = without_nulls(msgspec.json.decode(nesting.shallow(data)))
            if not isinstance(value, dict):
                raise
            meta = msgspec.convert(value.get("metadata", {}), type=ObjectMeta)
            annotations = {**meta.annotations, UNREADABLE: str(error)}
            return self.from_json({"metadata": msgspec.to_builtins(meta) | {"annotations": annotations}})

    def from_json(self, value: Any) -> T:
        """Read the object from JSON values, as `decode` does.

        Raises:
            msgspec.ValidationError: a field has another type; the message names its path.
        """
        value = without_nulls(value)
        return msgspec.convert(self.translate(value) if self.translate else value, type=self.type)

    def reference(self, obj: T) -> ObjectReference:
        """Return what points to this object."""
        meta = obj.metadata
        return ObjectReference(
            api_version=self.api_version, kind=self.name, namespace=meta.namespace, name=meta.name, uid=meta.uid
        )


def without_nulls(value: Any) -> Any:
    """Return JSON values without the members of maps that are null: servers written in Go send null for empty lists.

    A number such as ``3.0`` becomes ``3``: API servers accept and store it where a schema wants a whole number.
    """
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [without_nulls(member) for member in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


TRAINING_JOBS = Kind(
    TrainingJob,
    "TrainingJob",
    "paddlepaddle.org/v1",
    "trainingjobs",
    translate=lambda value: with_classic_names(value)[0],
    other_names=tuple(f'"{name}"'.encode() for name in (*SPEC_ALIASES, *ROLE_ALIASES)),
)
PODS = Kind(Pod, "Pod", "v1", "pods")
JOBS = Kind(Job, "Job", "batch/v1", "jobs")
REPLICA_SETS = Kind(ReplicaSet, "ReplicaSet", "apps/v1", "replicasets")
NODES = Kind(Node, "Node", "v1", "nodes", namespaced=False)
EVENTS = Kind(Event, "Event", "events.k8s.io/v1", "events", has_status=False)
SECRETS = Kind(Secret, "Secret", "v1", "secrets", has_status=False)
CONFIG_MAPS = Kind(ConfigMap, "ConfigMap", "v1", "configmaps", has_status=False)
LEASES = Kind(Lease, "Lease", "coordination.k8s.io/v1", "leases", has_status=False)

ALL: tuple[Kind[Any], ...] = (TRAINING_JOBS, PODS, JOBS, REPLICA_SETS, NODES, EVENTS, SECRETS, CONFIG_MAPS, LEASES)
_BY_TYPE: dict[type, Kind[Any]] = {kind.type: kind for kind in ALL}


def kind_of(obj: T) -> Kind[T]:
    """Return the kind of an object.

    Raises:
        TypeError: objects of this type are no API objects.
    """
    kind: Kind[T] | None = _BY_TYPE.get(type(obj))
    if kind is None:
        raise TypeError(f"{type(obj).__name__} is not a kind of object that a cluster stores")
    return kind


def find_kind(word: str) -> Kind[Any] | None:
    """Return the kind called ``word``: its name, plural, or ``tj`` as users write it; None where there is none."""
    wanted = word.lower()
    if wanted == "tj":
        return TRAINING_JOBS
    return next((kind for kind in ALL if wanted in (kind.name.lower(), kind.plural)), None)
