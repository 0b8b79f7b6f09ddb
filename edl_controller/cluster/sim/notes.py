"""Writes the Events of a virtual cluster's controllers, where they are wanted."""

from __future__ import annotations

from typing import Any

from edl_controller.api.kinds import ApiObject, Kind
from edl_controller.cluster.sim.cluster import SimCluster
from edl_controller.core.semantics import happenings


class Notes:
    """Creates Events; they are kept for ever. ``wanted``: otherwise it does nothing."""

    def __init__(self, cluster: SimCluster, *, wanted: bool) -> None:
        self._cluster = cluster
        self.wanted = wanted

    def write(self, kind: Kind[Any], obj: ApiObject, reason: str, note: str, *, warning: bool = False) -> None:
        """Create an Event about an object."""
        if self.wanted:
            now = self._cluster.clock.wall()
            self._cluster.create(happenings.event(kind, obj, reason, note, now, warning=warning))
