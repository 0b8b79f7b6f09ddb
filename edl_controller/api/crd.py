"""PURE: the CustomResourceDefinition of TrainingJob, made from its types, so that both say the same.

``crd.yaml`` beside this file is the same as text, for ``kubectl apply``; `render` writes it, and a test compares both.
"""

from __future__ import annotations

from typing import Any

import yaml
from msgspec import inspect

from edl_controller.api import v1
from edl_controller.api.crd_limits import BOUNDS, IGNORED, RULES, Schema

_QUANTITY: Schema = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
    "maxLength": 128,
    "pattern": r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$",
    "minimum": 0,
}
_ANY_OBJECT: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_PRIMITIVES: dict[type, Schema] = {
    inspect.StrType: {"type": "string"},
    inspect.IntType: {"type": "integer", "format": "int64"},
    inspect.BoolType: {"type": "boolean"},
}


def manifest() -> dict[str, Any]:
    """Return the CustomResourceDefinition (``apiextensions.k8s.io/v1``)."""
    version = {
        "name": v1.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            _column("State", "string", ".status.phase"),
            _column("Trainers", "integer", ".status.trainers", "Trainers that are ready."),
            _column("Desired", "integer", ".status.desiredTrainers", "Trainers that there should be now."),
            _column("PServers", "integer", ".status.pservers", "Parameter servers that are ready."),
            _column("Reason", "string", ".status.reason", priority=1),
            _column("Age", "date", ".metadata.creationTimestamp"),
        ],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.trainer.min-instance",
                "statusReplicasPath": ".status.trainers",
                "labelSelectorPath": ".status.trainerSelector",
            },
        },
        "schema": {"openAPIV3Schema": schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"trainingjobs.{v1.GROUP}"},
        "spec": {
            "group": v1.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": "TrainingJob",
                "listKind": "TrainingJobList",
                "plural": "trainingjobs",
                "singular": "trainingjob",
                "shortNames": ["tj"],
            },
            "versions": [version],
        },
    }


def schema() -> Schema:
    """Return the structural schema of one TrainingJob."""
    return {
        "type": "object",
        "description": "An elastic training job.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _schema(inspect.type_info(v1.TrainingJobSpec)),
            "status": _schema(inspect.type_info(v1.TrainingJobStatus)),
        },
    }


def render() -> str:
    """Return the definition as YAML."""
    head = (
        "# The resource TrainingJob, for `kubectl apply`. Written from the types in edl_controller/api; do not edit.\n"
    )
    return head + yaml.dump(manifest(), Dumper=_PlainDumper, sort_keys=False, width=120)


class _PlainDumper(yaml.SafeDumper):
    """Writes repeated parts in full: some readers know no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _column(name: str, kind: str, path: str, description: str = "", priority: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if description:
        found["description"] = description
    return found | ({"priority": priority} if priority else {})


def _schema(kind: inspect.Type) -> Schema:
    if isinstance(kind, inspect.UnionType):
        return _union(kind)
    if isinstance(kind, inspect.StructType):
        return _struct(kind)
    if isinstance(kind, inspect.VarTupleType):
        return {"type": "array", "items": _schema(kind.item_type)}
    if isinstance(kind, inspect.DictType):
        if isinstance(kind.value_type, inspect.AnyType):
            return dict(_ANY_OBJECT)
        return {"type": "object", "additionalProperties": _schema(kind.value_type)}
    return dict(_PRIMITIVES[type(kind)])


def _union(kind: inspect.UnionType) -> Schema:
    types = [one for one in kind.types if not isinstance(one, inspect.NoneType)]  # null is an absent field
    if len(types) == 1:
        return _schema(types[0])
    if inspect.FloatType in {type(one) for one in types}:
        return dict(_QUANTITY)
    return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def _struct(kind: inspect.StructType) -> Schema:
    properties: dict[str, Schema] = {}
    for field in kind.fields:
        found = _schema(field.type)
        for owner in kind.cls.__mro__:
            found |= BOUNDS.get((owner, field.name), {})
        properties[field.encode_name] = found
    properties |= IGNORED.get(kind.cls, {})
    result: Schema = {"type": "object"}
    if kind.cls.__doc__:
        result["description"] = kind.cls.__doc__.splitlines()[0].replace("``", "")
    required = [field.encode_name for field in kind.fields if field.required]
    if required:
        result["required"] = required
    result["properties"] = properties
    rules = RULES.get(kind.cls, ())
    if rules:
        result["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in rules]
    return result
