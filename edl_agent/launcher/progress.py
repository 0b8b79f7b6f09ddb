"""Whether the program makes progress, by a file that it writes now and then."""

import contextlib
import json
import os
from typing import Any

from edl_agent.reporting import Reporter

_LARGEST = 4096
"""Bytes of a progress file that are read."""

_NUMBERS = ("step", "samples", "busy", "queue", "checkpoint_age")


class Progress:
    """Looks at the file from the launcher's loop. Any change counts, also a `touch`; the wall clock plays no part.

    A JSON object in it goes into the report: ``{"step": 10, "samples": 640, "busy": 0.9, "queue": 2, "checkpoint_age":
    3.5}``, each of them optional. Anything else is fine too.

    Args:
        path: of the file; empty = none is written, so there is always progress.
        timeout: seconds without a change after which the program is stuck.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._seen: tuple[int, int, int] | None = None
        self._changed = float("-inf")

    def look(self, now: float, reporter: Reporter | None) -> None:
        """Note a change, pass its numbers on. Cheap; called each second."""
        if not self._path:
            return
        try:
            found = os.stat(self._path)
        except OSError:
            return
        seen = (found.st_mtime_ns, found.st_size, found.st_ino)
        if seen == self._seen:
            return
        self._seen, self._changed = seen, now
        if reporter is not None:
            with contextlib.suppress(OSError, ValueError):
                with open(self._path, "rb") as file:
                    told: Any = json.loads(file.read(_LARGEST))
                if isinstance(told, dict):
                    numbers = {name: told[name] for name in _NUMBERS if isinstance(told.get(name), int | float)}
                    reporter.update(**numbers)

    def stuck(self, now: float, began: float | None) -> str:
        """Why the program, running since ``began``, is taken to be stuck; empty when it is not."""
        if not self._path or began is None:
            return ""
        seconds = now - max(self._changed, began)
        return f"{self._path} has not changed for {seconds:.0f} s" if seconds > self._timeout else ""
