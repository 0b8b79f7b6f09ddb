"""PURE: ``$(NAME)`` in commands, arguments and variables, as Kubernetes expands it (``third_party/forked/golang``)."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)(\)?))")
"""Matches from ``$(`` to the end where nothing closes it, so that a text of many ``$(`` is not read once for each."""


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return ``text`` with each ``$(NAME)`` replaced by its value.

    A name without a value stays as it is written; ``$$`` is a dollar sign, so ``$$(NAME)`` is no reference. Values are
    not expanded again.
    """

    def replaced(found: re.Match[str]) -> str:
        if found[1] is None:
            return "$"
        return values.get(found[1], found[0]) if found[2] else found[0].replace("$$", "$")

    return _REFERENCE.sub(replaced, text)
