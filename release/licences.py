"""Whether all that is installed with the wheel may be used and passed on together with it, which is Apache-2.0.

Judged is what each distribution says of itself: its licence expression (SPDX), else its classifiers, else the name in
its ``License`` field. What says nothing usable is looked up by a person and noted in `REVIEWED`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

_PERMISSIVE = "permissive: asks for its notice to be kept"
ALLOWED = {
    "0BSD": "permissive, asks for nothing",
    "Apache-2.0": "the project's own",
    "BSD-2-Clause": _PERMISSIVE,
    "BSD-3-Clause": _PERMISSIVE,
    "BSD": "permissive, two or three clauses: asks for its notice to be kept",
    "CC0-1.0": "public domain",
    "HPND": _PERMISSIVE,
    "ISC": _PERMISSIVE,
    "MIT": _PERMISSIVE,
    "MIT-0": "permissive, asks for nothing",
    "MIT-CMU": _PERMISSIVE,
    "MPL-2.0": "copyleft for its own files only, which are installed unchanged and in source form",
    "PSF-2.0": _PERMISSIVE,
    "Python-2.0": _PERMISSIVE,
    "Unlicense": "public domain",
    "Zlib": _PERMISSIVE,
}
"""SPDX identifiers of what may be distributed with software under Apache-2.0, and why."""

REVIEWED: dict[str, tuple[str, str]] = {}
"""Distribution: its licence, and where a person read that; for those whose metadata do not say it."""

_NAMES = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache software license 2.0": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "bsd license": "BSD",
    "historical permission notice and disclaimer (hpnd)": "HPND",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "psf": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
    "zlib/libpng license": "Zlib",
}
"""What the classifiers and the licence field call some of them, in lower case."""


@dataclass(frozen=True)
class Licensed:
    """One distribution: the licence that it names (empty: none), and whether that is allowed."""

    name: str
    version: str
    licence: str
    allowed: bool

    def __str__(self) -> str:
        return f"{self.name} {self.version}: {self.licence or 'names no licence'}"


def allows(expression: str) -> bool:
    """Whether an SPDX expression can be kept by `ALLOWED` licences; one that cannot be read is not.

    Of ``OR`` one side is enough, of ``AND`` both are needed; ``WITH`` an exception only ever allows more.
    """
    words = re.findall(r"\(|\)|[^\s()]+", expression)

    def either() -> bool:
        allowed = both()
        while words and words[0].upper() == "OR":
            words.pop(0)
            allowed |= both()
        return allowed

    def both() -> bool:
        allowed = one()
        while words and words[0].upper() == "AND":
            words.pop(0)
            allowed &= one()
        return allowed

    def one() -> bool:
        word = words.pop(0) if words else ")"
        if word == "(":
            allowed = either()
            return bool(words) and words.pop(0) == ")" and allowed
        if len(words) > 1 and words[0].upper() == "WITH":
            del words[:2]
        return word in ALLOWED

    allowed = either()
    return allowed and not words


def licence_of(distribution: Distribution) -> str:
    """Return the SPDX expression of what a distribution says of itself, or its own words; empty: nothing."""
    metadata = distribution.metadata
    if expression := metadata.get_all("License-Expression"):
        return str(expression[0])
    classified = [
        text.rpartition(" :: ")[2]
        for text in metadata.get_all("Classifier") or []
        if text.startswith("License :: ") and text != "License :: OSI Approved"
    ]
    if classified:
        # Of several nothing says whether one of them is enough.
        return " AND ".join(_NAMES.get(text.lower(), text) for text in classified)
    field = " ".join(metadata.get_all("License") or []).strip()
    first = next(iter(field.splitlines()), "")
    return _NAMES.get(first.lower(), first) if first.upper() != "UNKNOWN" else ""


def judge(found: Iterable[Distribution]) -> list[Licensed]:
    """Return each distribution with its licence, by name."""
    judged = []
    for one in found:
        name = one.metadata["Name"]
        licence = REVIEWED[name.lower()][0] if name.lower() in REVIEWED else licence_of(one)
        judged.append(Licensed(name, one.version, licence, allows(licence)))
    return sorted(judged, key=lambda licensed: licensed.name.lower())


def installed(environment: Path) -> list[Distribution]:
    """Return what is installed in a virtual environment."""
    return list(distributions(path=[str(path) for path in environment.glob("lib/python3*/site-packages")]))


def as_text(judged: Iterable[Licensed]) -> str:
    """Return the list that is published: a line for each distribution, then each licence with the reason."""
    lines = [str(one) for one in judged]
    used = {word for one in judged for word in re.findall(r"[^\s()]+", one.licence)}
    lines += ["", *(f"{licence}: {reason}" for licence, reason in ALLOWED.items() if licence in used)]
    lines += [f"{name}: {licence} by {where}" for name, (licence, where) in REVIEWED.items()]
    return "\n".join(lines) + "\n"
