"""PURE: compares JSON values with a type: unknown fields and wrong types, each with its path, all at once."""

from __future__ import annotations

import difflib
import math
from functools import cache
from typing import Any

from msgspec import inspect

from edl_controller.api.rules.found import shown
from edl_controller.errors import Fault

INT64 = 2**63 - 1
_NAMES = {dict: "a map", list: "a list", str: "text", bool: "true or false", int: "a whole number", float: "a number"}
_EXPECTED = {
    inspect.StrType: "text",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.VarTupleType: "a list",
    inspect.DictType: "a map",
    inspect.StructType: "a map",
    inspect.AnyType: "anything",
}
_FAULTS_LIMIT = 100
"""More than so many are not listed: the rest follows."""


def check(value: Any, kind: type, path: str = "", known: frozenset[str] = frozenset()) -> list[Fault]:
    """Return what in ``value`` does not fit to the type. Null is an absent field.

    Args:
        value: JSON values.
        kind: a `msgspec.Struct`.
        path: of the value, for the faults.
        known: further fields of the outermost map that are welcome, and not looked into.
    """
    faults: list[Fault] = []
    _walk(value, _type(kind), path, known, faults)
    return faults[:_FAULTS_LIMIT]


@cache
def _type(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


@cache
def _fields(kind: type) -> dict[str, inspect.Field]:
    info = _type(kind)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field for field in info.fields}


def _walk(value: Any, kind: inspect.Type, path: str, known: frozenset[str], faults: list[Fault]) -> None:
    choices = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    fitting = next((choice for choice in choices if _fits(value, choice)), None)
    if fitting is None:
        wanted = " or ".join(_EXPECTED[type(choice)] for choice in choices if type(choice) in _EXPECTED)
        faults.append(Fault(path, "TypeInvalid", f"it must be {wanted}, not {_describe(value)}"))
    elif isinstance(fitting, inspect.StructType):
        _walk_struct(value, fitting.cls, path, known, faults)
    elif isinstance(fitting, inspect.VarTupleType):
        for index, item in enumerate(value):
            _walk(item, fitting.item_type, f"{path}[{index}]", frozenset(), faults)
    elif isinstance(fitting, inspect.DictType):
        for key, item in value.items():
            _walk_plain(key, path, faults)
            _walk(item, fitting.value_type, f"{path}[{key}]", frozenset(), faults)
    else:
        _walk_plain(value, path, faults)


def _walk_struct(value: dict[str, Any], cls: type, path: str, known: frozenset[str], faults: list[Fault]) -> None:
    fields = _fields(cls)
    for key, item in value.items():
        here = f"{path}.{key}" if path else key
        if key in fields:
            if item is not None:
                _walk(item, fields[key].type, here, frozenset(), faults)
        elif key not in known:
            close = difflib.get_close_matches(key[:64], fields, n=1)
            hint = f": did you mean {close[0]}?" if close else ""
            faults.append(Fault(here[:300], "Unknown", f"there is no field {shown(key)}{hint}"))
    for key, field in fields.items():
        if field.required and value.get(key) is None:
            faults.append(Fault(f"{path}.{key}" if path else key, "Required", "it is missing"))


def _walk_plain(value: Any, path: str, faults: list[Fault]) -> None:
    """Check that it is JSON all the way down: whatever YAML can say besides cannot be stored."""
    match value:
        case bool() | None:
            pass
        case int():
            if abs(value) > INT64:
                faults.append(Fault(path, "Invalid", "it does not fit into 64 bits"))
        case float():
            if not math.isfinite(value):
                faults.append(Fault(path, "Invalid", f"{value} is no number"))
        case str():
            if not _is_unicode(value):
                faults.append(Fault(path, "Invalid", "it is no text in Unicode"))
        case list():
            for index, item in enumerate(value):
                _walk_plain(item, f"{path}[{index}]", faults)
        case dict():
            for key, item in value.items():
                _walk_plain(key, path, faults)
                _walk_plain(item, f"{path}.{key}", faults)
        case _:
            faults.append(Fault(path, "TypeInvalid", f"it must be text or a number, not {_describe(value)}"))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fits(value: Any, kind: inspect.Type) -> bool:
    match kind:
        case inspect.AnyType():
            return True
        case inspect.NoneType():
            return value is None
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool)
        case inspect.FloatType():
            return isinstance(value, float)
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.VarTupleType():
            return isinstance(value, list)
        case inspect.DictType() | inspect.StructType():
            return isinstance(value, dict)
    return False


def _describe(value: Any) -> str:
    if value is None:
        return "null"
    if type(value) not in _NAMES:  # YAML reads 2026-12-01 as a date
        return f"a {type(value).__name__} (put it into quotes if it is text)"
    if isinstance(value, (dict, list)):
        return _NAMES[type(value)]
    return f"{_NAMES[type(value)]} ({shown(value) if isinstance(value, str) else value})"
