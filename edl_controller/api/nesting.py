"""PURE: JSON that is nested deeper than readers go, which call themselves for each level.

API servers store what is ten thousand levels deep where a schema leaves a field open, so a user can write it; Python
and msgspec give up at about a thousand (`RecursionError`). Nothing here calls itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

DEPTH_LIMIT = 50
"""Levels of maps and lists that a document or a spec may have."""
READ_LIMIT = 100
"""Levels that `shallow` leaves, of a list of objects; none of Kubernetes' own kinds comes near."""
TOO_DEEP = b'"nested too deep to be read"'
"""What stands in place of what was cut out."""

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z|\\)|[\[\]{}]', re.DOTALL)
"""A text, closed or not, or a bracket."""


def shallow(data: bytes, limit: int = READ_LIMIT) -> bytes:
    """Return JSON with `TOO_DEEP` in place of each map and list below ``limit`` levels. Takes linear time.

    Raises:
        msgspec.DecodeError: the brackets do not match where it is deep.
    """
    parts: list[bytes] = []
    begin = 0
    for before, after, start, end in _steps(data):
        if before == limit and after > limit:
            parts.append(data[begin:start])
            begin = -1
        elif before == limit + 1 and after == limit:
            parts.append(TOO_DEEP)
            begin = end
    if begin < 0:
        raise msgspec.DecodeError("JSON is malformed: it is deep, and ends within")
    return b"".join([*parts, data[begin:]]) if parts else data


def depth(data: bytes) -> int:
    """Return the levels of maps and lists of JSON; 0 for a plain value."""
    # Counting is faster by far, and enough for nearly all.
    most = data.count(b"[") + data.count(b"{")
    return most if most <= DEPTH_LIMIT else max((after for _, after, _, _ in _steps(data)), default=0)


def _steps(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each bracket the level before and after it, and where it begins and ends."""
    level = 0
    for found in _TOKEN.finditer(data):
        bracket = found[0]
        if bracket in (b"[", b"{"):
            yield level, level + 1, *found.span()
            level += 1
        elif bracket in (b"]", b"}"):
            yield level, level - 1, *found.span()
            level -= 1
