"""PURE: what is collected when owners go: in the background, in the foreground, or not at all (orphaned).

Rules: "Garbage Collection" of Kubernetes' documentation, and measurements.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from edl_controller.api.kinds import ApiObject
from edl_controller.api.meta import ObjectMeta, OwnerReference
from edl_controller.core.semantics.storage import FOREGROUND, ORPHAN

T = TypeVar("T", bound=ApiObject)


def is_garbage(obj: ApiObject, live: Container[str]) -> bool:
    """Tell whether an object had owners and has none left; ``live``: the uids of everything that is there."""
    owners = obj.metadata.owner_references
    return bool(owners) and all(owner.uid not in live for owner in owners)


def waits_for_dependents(owner: ObjectMeta) -> bool:
    """Tell whether somebody has to see to what a deleted object owns before it may go."""
    return owner.deletion_timestamp is not None and (FOREGROUND in owner.finalizers or ORPHAN in owner.finalizers)


@dataclass(frozen=True)
class OwnerStep(Generic[T]):
    """What to do for an owner that waits to go, in this order.

    Attributes:
        delete: dependents to delete, each by the same uid.
        orphan: dependents from which the reference to the owner is to be taken (`without_owner`).
        release: the finalizer to take from the owner now; empty = it has to wait for its dependents.
    """

    delete: tuple[T, ...] = ()
    orphan: tuple[T, ...] = ()
    release: str = ""


def owner_step(owner: ObjectMeta, dependents: Iterable[T]) -> OwnerStep[T]:
    """Decide what comes next for a deleted owner with a finalizer of the collector (`waits_for_dependents`).

    In the foreground, dependents go first; the owner waits for those that block it (``blockOwnerDeletion``). A
    dependent with another owner only loses its reference.
    """
    own = [one for one in dependents if any(ref.uid == owner.uid for ref in one.metadata.owner_references)]
    if ORPHAN in owner.finalizers:
        return OwnerStep(orphan=tuple(own), release=ORPHAN)
    shared = tuple(one for one in own if len(one.metadata.owner_references) > 1)
    doomed = tuple(one for one in own if len(one.metadata.owner_references) == 1)
    return OwnerStep(
        delete=tuple(one for one in doomed if one.metadata.deletion_timestamp is None),
        orphan=shared,
        release="" if any(_blocks(one, owner.uid) for one in doomed) else FOREGROUND,
    )


def _blocks(dependent: ApiObject, uid: str) -> bool:
    return any(ref.uid == uid and ref.block_owner_deletion for ref in dependent.metadata.owner_references)


def with_owner(meta: ObjectMeta, owner: OwnerReference) -> ObjectMeta:
    """Return the metadata with one more owner."""
    return msgspec.structs.replace(meta, owner_references=(*meta.owner_references, owner))


def without_owner(meta: ObjectMeta, uid: str) -> ObjectMeta:
    """Return the metadata without the reference to an owner."""
    return msgspec.structs.replace(meta, owner_references=tuple(ref for ref in meta.owner_references if ref.uid != uid))


def without_finalizer(meta: ObjectMeta, finalizer: str) -> ObjectMeta:
    """Return the metadata without a finalizer."""
    return msgspec.structs.replace(meta, finalizers=tuple(name for name in meta.finalizers if name != finalizer))
