"""PURE: Kubernetes expands ``$(NAME)`` in arguments and variables; what users write stays as it is."""

from __future__ import annotations

import re

_DOLLARS = re.compile(r"\$\$+|\$(?=\()")


def literal(text: str) -> str:
    """Return what Kubernetes' expansion turns into ``text``: ``$(NAME)`` becomes ``$$(NAME)``.

    ``$$`` is how a dollar is written, and ``$(`` opens a reference; single dollars elsewhere are left alone.
    """
    return _DOLLARS.sub(lambda found: found[0] * 2, text)
