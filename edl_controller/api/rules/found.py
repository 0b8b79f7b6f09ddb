"""PURE: collects faults, so that each rule says only what it looks at."""

from __future__ import annotations

from collections.abc import Iterable

from edl_controller.errors import Fault


class Found(list[Fault]):
    """The faults found so far."""

    def required(self, path: str, message: str) -> None:
        """Something is missing."""
        self.append(Fault(path, "Required", message))

    def invalid(self, path: str, message: str) -> None:
        """A value breaks a rule."""
        self.append(Fault(path, "Invalid", message))

    def forbidden(self, path: str, message: str) -> None:
        """A legal value that this installation does not allow."""
        self.append(Fault(path, "Forbidden", message))

    def too_long(self, path: str, message: str) -> None:
        """There is too much of it."""
        self.append(Fault(path, "TooLong", message))

    def choice(self, path: str, value: str, choices: Iterable[str]) -> None:
        """Check that ``value`` is empty or one of the choices."""
        known = tuple(choices)
        if value and value not in known:
            self.append(Fault(path, "NotSupported", f"{shown(value)} is none of {', '.join(known)}"))

    def range(self, path: str, value: int | None, low: int, high: int) -> None:
        """Check that ``value`` is absent or within both bounds."""
        if value is not None and not low <= value <= high:
            self.append(Fault(path, "Invalid", f"{value} is not within {low}..{high}"))

    def unique(self, path: str, field: str, values: Iterable[str]) -> None:
        """Check that no two entries of the list at ``path`` have the same value in ``field``."""
        seen: set[str] = set()
        for index, value in enumerate(values):
            if value in seen:
                self.append(Fault(f"{path}[{index}].{field}", "Duplicate", f"{shown(value)} is there before"))
            seen.add(value)

    def plain(self, path: str, value: str, limit: int) -> None:
        """Check that a text can be handed to a process: no NUL, and not too long."""
        if "\x00" in value:
            self.invalid(path, "it has a NUL character")
        if len(value) > limit:
            self.too_long(path, f"it has {len(value)} characters, at most {limit} are allowed")


def shown(text: str) -> str:
    """Quote user text for a message: one line, cut."""
    quoted = ascii(text)
    return quoted if len(quoted) <= 70 else quoted[:64] + "...'"
