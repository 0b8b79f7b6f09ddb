"""Text that users or servers gave, made fit to be shown: nothing in it steers a terminal or breaks a line of a log."""

from __future__ import annotations

import unicodedata

_UNSAFE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode categories: controls, formats (which turn the direction of writing), surrogates, unassigned, separators."""


def printable(text: str, limit: int | None = None) -> str:
    """Return the text with everything unprintable escaped; cut to ``limit`` bytes of UTF-8, with ``...`` at the end."""
    if not text.isprintable():
        text = "".join(_escaped(char) for char in text)
    if limit is None or len(text.encode()) <= limit:
        return text
    return text.encode()[: limit - 3].decode(errors="ignore") + "..."


def _escaped(char: str) -> str:
    if unicodedata.category(char) not in _UNSAFE:
        return char
    return char.encode("unicode_escape").decode()
