"""PURE: what every Kubernetes object carries: its identity, its owners, its conditions."""

from __future__ import annotations

from typing import Any

import msgspec

Json = dict[str, Any]
"""A part of an object that is kept and handed on, never read."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of all API types: immutable; JSON names in camel case; a field at its default is not written.

    Unknown fields are dropped when read (`edl_controller.api.strictness` refuses them on submit).
    """


class OwnerReference(Record, frozen=True, kw_only=True):
    """Who an object belongs to; it is collected once all its owners are gone."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Record, frozen=True, kw_only=True):
    """Identity of an object. Times are RFC 3339 text in UTC (`edl_controller.api.timestamps`)."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    def controller(self) -> OwnerReference | None:
        """Return the one owner that manages this object, or None."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Condition(Record, frozen=True, kw_only=True):
    """One observed fact about an object (`metav1.Condition`; pods, nodes and Jobs know more fields)."""

    type: str
    status: str
    """``True``, ``False`` or ``Unknown``."""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_probe_time: str | None = None
    last_heartbeat_time: str | None = None
    observed_generation: int = 0


def find_condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """Return the condition of this type, or None."""
    return next((condition for condition in conditions if condition.type == kind), None)


def is_true(conditions: tuple[Condition, ...], kind: str) -> bool:
    """Tell whether the condition of this type is there and ``True``."""
    found = find_condition(conditions, kind)
    return found is not None and found.status == "True"


class ObjectReference(Record, frozen=True, kw_only=True):
    """Points to an object, for events."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class LocalObjectReference(Record, frozen=True, kw_only=True):
    """Points to an object of the same namespace by its name."""

    name: str = ""


class LabelSelector(Record, frozen=True, kw_only=True):
    """Which labels an object must carry. Expressions: ``{key, operator: In|NotIn|Exists|DoesNotExist, values}``."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Json, ...] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        """Tell whether an object with these labels is selected; an empty selector selects everything."""
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(_expression_holds(expression, labels) for expression in self.match_expressions)


def _expression_holds(expression: Json, labels: dict[str, str]) -> bool:
    key, operator = expression.get("key", ""), expression.get("operator", "")
    values = expression.get("values") or ()
    match operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False
