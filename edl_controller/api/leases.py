"""PURE: Lease (``coordination.k8s.io/v1``): who of several may act, and when it was last heard of."""

from __future__ import annotations

from edl_controller.api.meta import ObjectMeta, Record


class LeaseSpec(Record, frozen=True, kw_only=True):
    """The record of an election. Times have microseconds (`edl_controller.api.timestamps.render_micro`)."""

    holder_identity: str = ""
    """Empty: nobody holds it."""
    lease_duration_seconds: int = 0
    """Seconds without a change after which others may take it."""
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0
    """How often the holder has changed."""


class Lease(Record, frozen=True, kw_only=True):
    """A record that replicas of one program compete for."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()
