"""PURE: Event (``events.k8s.io/v1``): what happened to an object, for people to read."""

from __future__ import annotations

from edl_controller.api.meta import ObjectMeta, ObjectReference, Record


class EventSeries(Record, frozen=True, kw_only=True):
    """How often the same thing happened again."""

    count: int
    last_observed_time: str


class Event(Record, frozen=True, kw_only=True):
    """One happening. ``type`` is Normal or Warning; ``note`` has at most 1024 bytes; times have microseconds."""

    metadata: ObjectMeta = ObjectMeta()
    event_time: str | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    action: str = ""
    reason: str = ""
    regarding: ObjectReference = ObjectReference()
    related: ObjectReference | None = None
    note: str = ""
    type: str = ""
    series: EventSeries | None = None

    @property
    def last_seen(self) -> str:
        """When it happened last (RFC 3339); empty where that is not known."""
        return (self.series.last_observed_time if self.series else self.event_time) or ""
