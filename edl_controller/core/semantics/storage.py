"""PURE: what an API server does to an object when it is created, patched or deleted.

Shared by the clusters that are no Kubernetes; they add storage and versions. Rules: API conventions of Kubernetes
("Metadata", "Spec and Status", "Concurrency control"), RFC 7386 for merge patches; measured in ``tests/contract``.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar, cast

import msgspec

from edl_controller import errors
from edl_controller.api import timestamps
from edl_controller.api.kinds import ApiObject, Kind, without_nulls
from edl_controller.api.meta import ObjectMeta
from edl_controller.api.names import is_label
from edl_controller.api.pods import Pod
from edl_controller.core.semantics import admission
from edl_controller.core.semantics.changes_allowed import check_change

T = TypeVar("T", bound=ApiObject)

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
"""Finalizers that the collector of garbage removes."""

DEFAULT_GRACE = 30
"""Seconds that a pod has between the request to end and its end (``terminationGracePeriodSeconds``)."""

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""RFC 1123 subdomain; 253 characters at most."""

_SERVER_OWNED = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def created(kind: Kind[T], obj: T, *, uid: str, suffix: str, now: float) -> T:
    """Return the object as it is stored first: named, with uid and generation 1, defaults filled, status empty.

    Args:
        kind: its kind.
        obj: as it was sent.
        uid: new and unique.
        suffix: random end of the name, where only ``generate_name`` is given.
        now: Unix seconds.

    Raises:
        Invalid: no usable name or namespace.
    """
    meta = obj.metadata
    name = meta.name or (meta.generate_name + suffix if meta.generate_name else "")
    if len(name) > 253 or not NAME.fullmatch(name):
        raise errors.Invalid(f"{kind.name} {name!r}: metadata.name: must be an RFC 1123 name of at most 253 characters")
    namespace = (meta.namespace or "default") if kind.namespaced else ""
    if namespace and not is_label(namespace):
        raise errors.Invalid(f"{kind.name} {name!r}: metadata.namespace: {namespace!r} is no name of a namespace")
    meta = msgspec.structs.replace(
        meta,
        name=name,
        namespace=namespace,
        uid=uid,
        generation=1,
        resource_version="",
        creation_timestamp=timestamps.render(now),
        deletion_timestamp=None,
        deletion_grace_period_seconds=None,
    )
    return admission.admitted(kind, with_metadata(obj, meta), now)


def with_metadata(obj: T, meta: ObjectMeta) -> T:
    """Return the object with other metadata."""
    return cast(T, msgspec.structs.replace(cast(msgspec.Struct, obj), metadata=meta))


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386): null removes, objects are merged, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def check_preconditions(kind: Kind[T], current: T, *, resource_version: str = "", uid: str = "") -> None:
    """Compare what the caller assumed with what is.

    Raises:
        Conflict: it is another version or another object.
    """
    meta = current.metadata
    if uid and uid != meta.uid:
        raise errors.Conflict(f"{kind.plural} {meta.name!r}: uid is {meta.uid}, not {uid}: another object of this name")
    if resource_version and resource_version != meta.resource_version:
        raise errors.Conflict(f"{kind.plural} {meta.name!r}: the object has been modified; read it again")


def patched(kind: Kind[T], current: T, patch: dict[str, Any], *, subresource: str, now: float) -> T:
    """Return the object after a merge patch; the very same object where the patch changes nothing.

    A patch of the status touches only ``status``; any other leaves ``status`` alone; what the server owns stays. A
    change of the spec raises the generation.

    Raises:
        Invalid: the result is no object of this kind, or a field that may not change did.
    """
    before = msgspec.to_builtins(current)
    if kind.has_status and subresource == "status":
        part = {"status": patch["status"]} if "status" in patch else {}
    else:
        part = {key: value for key, value in patch.items() if not (kind.has_status and key == "status")}
        if isinstance(part.get("metadata"), dict):
            name = part["metadata"].get("name", current.metadata.name)
            if name != current.metadata.name:
                raise errors.Invalid(f"the name of the object ({name}) is {current.metadata.name} and stays so")
            part["metadata"] = {key: value for key, value in part["metadata"].items() if key not in _SERVER_OWNED}
    try:
        after = kind.from_json(without_nulls(merge(before, part)))
    except msgspec.ValidationError as error:
        raise errors.Invalid(f"{kind.name} {current.metadata.name!r}: {error}") from error
    if after == current:
        return current
    spec_before, spec_after = before.get("spec"), msgspec.to_builtins(after).get("spec")
    if spec_before != spec_after:
        check_change(kind, current, after, resize=subresource == "resize")
        # Binding is a subresource of its own and no new generation (measured).
        if kind.has_status and not _is_binding(current, after):
            after = with_metadata(
                after, msgspec.structs.replace(after.metadata, generation=current.metadata.generation + 1)
            )
    return after


def _is_binding(before: ApiObject, after: ApiObject) -> bool:
    if not isinstance(before, Pod) or not isinstance(after, Pod) or before.spec.node_name:
        return False
    return msgspec.structs.replace(before.spec, node_name=after.spec.node_name) == after.spec


def is_removed(obj: ApiObject) -> bool:
    """Tell whether nothing holds a deleted object any longer: it has been asked to end and no finalizer is left.

    Pods also wait for their node (which deletes them once more, with no grace).
    """
    meta = obj.metadata
    return (
        meta.deletion_timestamp is not None and not meta.finalizers and meta.deletion_grace_period_seconds in (None, 0)
    )


def deleted(kind: Kind[T], current: T, *, propagation: str, grace_seconds: int | None, now: float) -> T | None:
    """Return the object after a request to delete it; None where it is gone at once.

    A pod that is bound to a node and has not ended gets a deletion time and waits for the node. Anything with
    finalizers waits for them. A second request may shorten the grace, never lengthen it.
    """
    meta = current.metadata
    finalizers = meta.finalizers
    if propagation == "Foreground" and FOREGROUND not in finalizers:
        finalizers = (*finalizers, FOREGROUND)
    if propagation == "Orphan" and ORPHAN not in finalizers:
        finalizers = (*finalizers, ORPHAN)
    grace: int | None = None
    if isinstance(current, Pod):
        grace = _pod_grace(current, grace_seconds)
        if meta.deletion_grace_period_seconds is not None:
            grace = min(grace, meta.deletion_grace_period_seconds)
    if not finalizers and not grace:
        return None
    if meta.deletion_timestamp is not None and (grace, finalizers) == (
        meta.deletion_grace_period_seconds,
        meta.finalizers,
    ):
        return current
    begun = meta.deletion_timestamp if grace == meta.deletion_grace_period_seconds else None
    meta = msgspec.structs.replace(
        meta,
        finalizers=finalizers,
        deletion_timestamp=begun or timestamps.render(now + (grace or 0)),
        deletion_grace_period_seconds=grace,
        generation=meta.generation + 1 if meta.deletion_timestamp is None else meta.generation,
    )
    return with_metadata(current, meta)


def _pod_grace(pod: Pod, wanted: int | None) -> int:
    if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
        return 0
    if wanted is not None:
        return max(0, wanted)
    own = pod.spec.termination_grace_period_seconds
    return DEFAULT_GRACE if own is None else own


def selects(labels: dict[str, str] | None, obj: ApiObject) -> bool:
    """Tell whether an object carries all these labels."""
    return not labels or all(obj.metadata.labels.get(key) == value for key, value in labels.items())
