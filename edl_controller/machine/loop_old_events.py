"""The loop that removes old Events, as an API server does by itself: they are for people, and nothing may need one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from edl_controller.api import timestamps
from edl_controller.api.events import Event
from edl_controller.api.kinds import EVENTS
from edl_controller.cluster.port import Cluster, Stop
from edl_controller.errors import ClusterError, NotFound

KEPT = 3600.0
"""Seconds after an Event was seen last (Kubernetes: ``--event-ttl``, one hour)."""
INTERVAL = 300.0
"""Seconds between two looks."""

_log = logging.getLogger(__name__)


class OldEventsLoop:
    """Removes what is older than `KEPT`.

    Args:
        cluster: to act on.
        now: Unix seconds.
    """

    def __init__(self, cluster: Cluster, now: Callable[[], float]) -> None:
        self._cluster, self._now = cluster, now

    def run(self, stop: Stop) -> None:
        """Look again and again until ``stop`` is set."""
        while not stop.is_set():
            try:
                self.look(stop)
            except ClusterError as error:
                _log.debug("Old events are looked at later: %s", error)
            stop.wait(INTERVAL)

    def look(self, stop: Stop) -> None:
        """Look once.

        Raises:
            ClusterError: the cluster does not answer.
        """
        now = self._now()
        for event in self._cluster.list(EVENTS).items:
            if stop.is_set():
                return
            if is_old(event, now):
                meta = event.metadata
                with contextlib.suppress(NotFound):
                    self._cluster.delete(EVENTS, meta.namespace, meta.name, uid=meta.uid)


def is_old(event: Event, now: float) -> bool:
    """Tell whether its time is over; one whose time cannot be read goes by when it was created."""
    for text in (event.last_seen, event.metadata.creation_timestamp):
        with contextlib.suppress(ValueError):
            if text:
                return timestamps.age(text, now) > KEPT
    return False
