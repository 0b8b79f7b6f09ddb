from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl_controller.cluster.local import LocalCluster
from edl_controller.machine.loops import Loops
from tests.bench.waiting import eventually
from tests.controller.light_node import LightNodes, add_node, node
from tests.runtime.memory_cluster import MemoryCluster

Start = Callable[[Callable[[threading.Event], None]], threading.Event]


@pytest.fixture
def start() -> Iterator[Start]:
    """``start(run)``: runs ``run(stop)`` in a thread until the end of the test; returns its stop."""
    running: list[tuple[threading.Event, threading.Thread]] = []

    def begin(run: Callable[[threading.Event], None]) -> threading.Event:
        stop = threading.Event()
        thread = threading.Thread(target=run, args=(stop,), name="edl-test-component")
        running.append((stop, thread))
        thread.start()
        return stop

    yield begin
    for stop, _ in running:
        stop.set()
    for _, thread in running:
        thread.join(20)
    assert not any(thread.is_alive() for _, thread in running)


@pytest.fixture
def memory() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture(params=["memory", "local"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A store of objects that nobody drives yet: one that does as it is told, and a real etcd."""
    if request.param == "memory":
        yield request.getfixturevalue("memory")
        return
    etcd, prefix = request.getfixturevalue("etcd"), request.getfixturevalue("prefix")
    with LocalCluster(etcd.client_url, prefix=prefix) as local:
        yield local


@pytest.fixture
def driven(cluster: Any, start: Start) -> tuple[Any, Loops, LightNodes]:
    """The same with its loops, one node, and what plays it."""
    return drive(cluster, start)


def drive(cluster: Any, start: Start) -> tuple[Any, Loops, LightNodes]:
    add_node(cluster, node("node-0"))
    loops, nodes = Loops(cluster), LightNodes(cluster)
    start(loops.run)
    start(nodes.run)
    eventually(lambda: loops.has_synced and nodes.informers.has_synced, 10, "the loops have seen everything")
    return cluster, loops, nodes
