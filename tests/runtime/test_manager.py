"""The manager: order, supervision, and an end in time."""

from __future__ import annotations

import threading
import time

import pytest

from edl_controller.cluster.port import Stop
from edl_controller.runtime.manager import Component, ComponentDied, Manager
from tests.bench.waiting import eventually


class Parts:
    """Components that note what happens to them."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.ready = threading.Event()

    def component(self, name: str, *, waits: bool = False) -> Component:
        def run(stop: Stop) -> None:
            self.events.append(f"{name} starts")
            stop.wait()
            self.events.append(f"{name} ends")

        return Component(name, run, ready=self.ready.is_set if waits else lambda: True)


def running(manager: Manager, stop: threading.Event) -> threading.Thread:
    thread = threading.Thread(target=manager.run, args=(stop,), name="edl-test-manager")
    thread.start()
    return thread


def test_parts_start_in_order_each_when_the_one_before_is_ready_and_end_in_reverse() -> None:
    parts, stop = Parts(), threading.Event()
    manager = Manager([parts.component("a"), parts.component("b", waits=True), parts.component("c")])
    thread = running(manager, stop)
    eventually(lambda: parts.events == ["a starts", "b starts"])
    assert not manager.ready
    parts.ready.set()
    eventually(lambda: manager.ready and len(parts.events) == 3)
    stop.set()
    thread.join(5)
    assert parts.events == ["a starts", "b starts", "c starts", "c ends", "b ends", "a ends"]


def test_a_stop_while_a_part_is_not_ready_yet() -> None:
    parts, stop = Parts(), threading.Event()
    thread = running(Manager([parts.component("a"), parts.component("b", waits=True), parts.component("c")]), stop)
    eventually(lambda: len(parts.events) == 2)
    stop.set()
    thread.join(5)
    assert parts.events == ["a starts", "b starts", "b ends", "a ends"]


@pytest.mark.parametrize("raises", [True, False], ids=["by an exception", "by returning"])
def test_a_part_that_ends_by_itself_stops_the_program(raises: bool) -> None:
    parts = Parts()

    def die(stop: Stop) -> None:
        if raises:
            raise RuntimeError("broken")

    with pytest.raises(ComponentDied, match="dying has ended by itself") as caught:
        Manager([parts.component("a"), Component("dying", die)]).run(threading.Event())
    assert isinstance(caught.value.__cause__, RuntimeError) == raises
    assert parts.events == ["a starts", "a ends"]


def test_a_part_may_be_started_again(caplog: pytest.LogCaptureFixture) -> None:
    starts: list[float] = []

    def die_once(stop: Stop) -> None:
        starts.append(time.monotonic())
        if len(starts) == 1:
            raise RuntimeError("broken")
        stop.wait()

    stop = threading.Event()
    thread = running(Manager([Component("shaky", die_once, restart=True)]), stop)
    eventually(lambda: len(starts) == 2, 10)
    stop.set()
    thread.join(5)
    assert starts[1] - starts[0] >= 0.8
    assert "shaky has ended by itself" in caplog.text


def test_a_part_that_does_not_end_is_left_behind_and_named(caplog: pytest.LogCaptureFixture) -> None:
    free, stop = threading.Event(), threading.Event()
    parts = Parts()

    def stay(stop: Stop) -> None:
        free.wait(20)

    manager = Manager([parts.component("a"), Component("stuck", stay)], stop_within=0.3)
    thread = running(manager, stop)
    eventually(lambda: manager.ready)
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
    assert "Did not end within 0.3 s: stuck" in caplog.text
    free.set()
