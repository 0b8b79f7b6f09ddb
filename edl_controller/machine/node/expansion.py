"""PURE: ``$(NAME)`` in commands, arguments and variables, as Kubernetes expands it (``third_party/forked/golang``)."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return ``text`` with each ``$(NAME)`` replaced by its value.

    A name without a value stays as it is written; ``$$`` is a dollar sign, so ``$$(NAME)`` is no reference. Values are
    not expanded again.
    """
    return _REFERENCE.sub(
        lambda found: "$" if found[1] == "$" else values.get(found[2], found[0]),
        text,
    )
