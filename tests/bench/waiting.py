"""Wait for a condition with a deadline, and count what this process holds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


def eventually(
    condition: Callable[[], T], timeout: float = 10.0, what: str | Callable[[], str] = "", *, interval: float = 0.02
) -> T:
    """Call ``condition`` every ``interval`` seconds until it returns something true, and return that.

    An AssertionError or LookupError inside counts as "not yet". After ``timeout`` seconds raises AssertionError,
    which says ``what`` was awaited, the last value and the last error.
    """
    deadline = time.monotonic() + timeout
    while True:
        error: Exception | None = None
        value: T | None = None
        try:
            value = condition()
            if value:
                return value
        except (AssertionError, LookupError) as caught:
            error = caught
        if time.monotonic() >= deadline:
            text = what() if callable(what) else what or getattr(condition, "__name__", "the condition")
            raise AssertionError(
                f"not within {timeout} s: {text}; last value {value!r}, last error {error!r}"
            ) from error
        time.sleep(interval)


def never(condition: Callable[[], object], duration: float, what: str = "", *, interval: float = 0.02) -> None:
    """Raise AssertionError as soon as ``condition`` returns something true within ``duration`` seconds."""
    deadline = time.monotonic() + duration
    while time.monotonic() < deadline:
        value = condition()
        assert not value, f"must not happen: {what or condition}: {value!r}"
        time.sleep(interval)


@dataclass(frozen=True)
class ResourceCounts:
    """What a process holds: threads, file descriptors, resident memory in bytes."""

    threads: int
    fds: int
    rss: int
    python_threads: tuple[str, ...] = ()


def resource_counts(pid: int | None = None) -> ResourceCounts:
    """Count for the process ``pid``, default this one (then with the names of its Python threads)."""
    process = f"/proc/{pid or os.getpid()}"
    with open(f"{process}/statm") as file:
        pages = int(file.read().split()[1])
    names = tuple(sorted(t.name for t in threading.enumerate())) if pid in (None, os.getpid()) else ()
    return ResourceCounts(
        threads=len(os.listdir(f"{process}/task")),
        fds=len(os.listdir(f"{process}/fd")),
        rss=pages * os.sysconf("SC_PAGE_SIZE"),
        python_threads=names,
    )
