"""PURE: the API's times: RFC 3339 text in UTC, and Unix seconds to calculate with."""

from __future__ import annotations

from datetime import UTC, datetime


def render(seconds: float) -> str:
    """Write Unix seconds as the API does: ``2026-11-30T12:00:00Z`` (whole seconds, cut)."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def render_micro(seconds: float) -> str:
    """Write Unix seconds with microseconds (``MicroTime``: events and leases)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse(text: str) -> float:
    """Read RFC 3339 text into Unix seconds.

    Raises:
        ValueError: it is no time.
    """
    return datetime.fromisoformat(text).timestamp()


def age(text: str | None, now: float) -> float:
    """Return the seconds since ``text``; 0 where there is no time."""
    return now - parse(text) if text else 0.0
