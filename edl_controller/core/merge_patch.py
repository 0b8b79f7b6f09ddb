"""PURE: the JSON merge patch (RFC 7386) that turns one object into another."""

from __future__ import annotations

from typing import Any


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the smallest merge patch from ``old`` to ``new``; empty where they are equal.

    Lists are replaced whole. Null cannot be a value of ``new``: in a patch it means *remove*.
    """
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := difference(before, value):
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch
