"""The cluster in virtual time as a world: `SimWorld` has all the strings already."""

from __future__ import annotations

from pathlib import Path

from edl_controller.cluster.sim import PodCourse, SimWorld

COURSE = PodCourse(start=0.2, end=0.05)


class SimContractWorld(SimWorld):
    """One virtual cluster for one test."""

    name = "sim"
    namespace = "contract"

    def __init__(self) -> None:
        super().__init__(courses=lambda _: COURSE, events=True)

    def settle(self, seconds: float = 0.0) -> None:
        if seconds:
            self.advance(seconds)
        else:
            super().settle()

    def old_version(self) -> str:
        self.add_node("just-a-change")
        self.cluster.compact()
        return "1"

    def close(self) -> None:
        """Nothing is held."""


def open_world(_: Path) -> SimContractWorld:
    """A fresh world."""
    return SimContractWorld()
