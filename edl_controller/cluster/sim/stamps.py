"""The API's text for the virtual moment, written once a second and not once an event."""

from __future__ import annotations

from edl_controller.api import timestamps
from edl_controller.cluster.sim.timetable import VirtualClock


class Stamps:
    """Gives the present moment as the API writes it."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._second = -1
        self._text = ""

    def now(self) -> str:
        """Return the present moment as RFC 3339 text."""
        second = int(self._clock.wall())
        if second != self._second:
            self._second, self._text = second, timestamps.render(second)
        return self._text
