"""A controller that dies before or after any single write of a job's whole life costs nothing but time (row K17)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edl_controller.controller import Controller
from edl_controller.core.job_settings import JobSettings
from edl_controller.machine.loops import Loops
from tests.bench.waiting import eventually
from tests.controller.crash_points import SIDES, Cut, CutCluster, Side, State, live
from tests.controller.light_node import LightNodes, add_node, node
from tests.runtime.memory_cluster import MemoryCluster


class MemoryWorld:
    """A cluster in memory with its loops and a node."""

    namespace = "default"

    def __init__(self) -> None:
        self.user: Any = MemoryCluster()
        add_node(self.user, node("node-0"))
        self._nodes = LightNodes(self.user)

    def finish(self, pod: Any) -> None:
        self._nodes.finish(pod, "Succeeded")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        loops = Loops(self.user)
        with _thread(loops.run), _thread(self._nodes.run):
            eventually(lambda: loops.has_synced and self._nodes.informers.has_synced, 20)
            yield

    @contextlib.contextmanager
    def controller(self, cut: Cut) -> Iterator[object]:
        cluster: Any = CutCluster(self.user, cut)
        controller = Controller(cluster, settings=JobSettings(), workers=1)
        with _thread(controller.run):
            yield controller


@contextlib.contextmanager
def _thread(run: Callable[[threading.Event], None]) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,), name="edl-test-part", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def disturbed(where: tuple[int, Side], expected: dict[str, State]) -> str:
    """Live with a cut; returns what went wrong."""
    number, side = where
    with (world := MemoryWorld()).running():
        try:
            live(world, Cut(number, side), expected)
        except AssertionError as error:
            return f"cut {side} write {number}: {error}"
    return ""


def die_at(sides: tuple[Side, ...]) -> None:
    cut = Cut()
    with (world := MemoryWorld()).running():
        expected = live(world, cut)
    assert expected["deleted"] == {}
    assert cut.count > 20
    cuts: list[tuple[int, Side]] = [(0, "before")]
    cuts += [(number, side) for number in range(cut.count + 1) for side in sides]
    with ThreadPoolExecutor(8) as pool:
        faults = list(pool.map(lambda one: disturbed(one, expected), cuts))
    assert not [fault for fault in faults if fault]


@pytest.mark.fault("K17")
def test_dead_after_any_write_of_a_life_the_next_controller_ends_the_same() -> None:
    die_at(("after",))  # dead before a write is dead after the one before it, as far as the cluster can tell


@pytest.mark.soak
@pytest.mark.fault("K17")
def test_dead_before_or_after_any_write_of_a_life_the_next_controller_ends_the_same() -> None:
    die_at(SIDES)
