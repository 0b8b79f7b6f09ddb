"""PURE: whether all that says a version says the same one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_TAG = re.compile(r"v?\d+(\.\d+)+\S*")
_HEADING = re.compile(r"^## \[([^\]]+)\] - (\S+)$", re.MULTILINE)


def version_faults(version: str, said: Mapping[str, str], changelog: str, tags: Sequence[str]) -> list[str]:
    """Return what disagrees with the version in pyproject.toml; empty: nothing.

    Args:
        version: what pyproject.toml says.
        said: what the commands print for ``--version``, by their names: ``NAME VERSION``.
        changelog: the text of CHANGELOG.md; its first entry must be this version's, with a date where HEAD is tagged.
        tags: of HEAD; those that are no version are ignored.
    """
    faults = [
        f"{name} --version prints {text.strip()!r}, not {name} {version}"
        for name, text in said.items()
        if text.strip() != f"{name} {version}"
    ]
    tagged = [tag for tag in tags if _TAG.fullmatch(tag)]
    faults += [f"HEAD has the tag {tag}, not v{version}" for tag in tagged if tag != f"v{version}"]
    entry = _HEADING.search(changelog)
    if entry is None or entry[1] != version:
        faults.append(f"CHANGELOG.md begins with {entry[1] if entry else 'no version'}, not with {version}")
    elif tagged and not re.fullmatch(r"\d{4}-\d\d-\d\d", entry[2]):
        faults.append(f"HEAD is tagged {tagged[0]}, but CHANGELOG.md says that {version} is {entry[2]}, no date")
    return faults
