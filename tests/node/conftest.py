"""Real nodes over a real etcd: pods bound by hand, as no scheduler is at work."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edl_controller.api.kinds import PODS
from edl_controller.api.meta import ObjectReference
from edl_controller.api.pods import ContainerStatus, Pod
from edl_controller.cluster.local.cluster import LocalCluster
from edl_controller.errors import NotFound
from edl_controller.machine.node.node_agent import NodeAgent
from edl_controller.machine.node.restart import BackOff
from tests.bench.waiting import eventually

NAP = f"1000.{os.getpid()}"
"""Seconds to sleep that no other test process sleeps: how its processes are found again."""

QUICK = BackOff(first=0.2, longest=0.8, forgiven=60.0)


class Happening(NamedTuple):
    about: ObjectReference
    type: str
    reason: str
    note: str


class Room:
    """One node and its cluster, with short words for what tests do."""

    def __init__(self, cluster: LocalCluster, root: Path) -> None:
        self.cluster, self.root = cluster, root
        self.events: list[Happening] = []
        self.agent: NodeAgent = None  # type: ignore[assignment]
        self.agents: list[NodeAgent] = []

    def start(self, name: str = "node-a", **options: Any) -> NodeAgent:
        options = {"back_off": QUICK, "report": self._report, **options}
        capacity: dict[str, str | int | float] = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        self.agent = NodeAgent(self.cluster, name, capacity, self.root / name, **options)
        self.agents.append(self.agent)
        return self.agent.start()

    def _report(self, regarding: ObjectReference, type: str, reason: str, note: str) -> None:  # noqa: A002
        self.events.append(Happening(regarding, type, reason, note))

    def reasons(self, pod: str = "") -> list[str]:
        return [one.reason for one in self.events if not pod or one.about.name == pod]

    def notes(self, reason: str) -> list[str]:
        return [one.note for one in self.events if one.reason == reason]

    def run(self, name: str, *containers: Mapping[str, Any], **spec: Any) -> Pod:
        """Create a pod of this node; containers in the API's own words."""
        labels, annotations = spec.pop("labels", {}), spec.pop("annotations", {})
        full = {
            "nodeName": self.agent.name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [{"name": f"c{number}", **one} for number, one in enumerate(containers)],
            **spec,
        }
        metadata = {"name": name, "namespace": "default", "labels": labels, "annotations": annotations}
        return self.cluster.create(PODS.from_json({"metadata": metadata, "spec": full}))

    def get(self, name: str) -> Pod:
        return self.cluster.get(PODS, "default", name)

    def gone(self, name: str) -> bool:
        try:
            self.get(name)
        except NotFound:
            return True
        return False

    def until(self, name: str, condition: Callable[[Pod], Any], timeout: float = 10.0) -> Pod:
        """Wait until a pod is so, and return it."""

        def holds() -> Pod | None:
            pod = self.get(name)
            return pod if condition(pod) else None

        found = eventually(holds, timeout, lambda: f"{name}: {self.get(name).status}, events {self.events[-5:]}")
        assert found is not None
        return found

    def phase(self, name: str, phase: str, timeout: float = 10.0) -> Pod:
        return self.until(name, lambda pod: pod.status.phase == phase, timeout)

    def ready(self, name: str, status: str = "True", timeout: float = 10.0) -> Pod:
        return self.until(name, lambda pod: condition(pod, "Ready")[0] == status, timeout)

    def up(self, name: str) -> Pod:
        """Wait until a pod is ready and its script has said ``up``: its signal handlers are set."""
        pod = self.ready(name)
        eventually(lambda: "up\n" in self.log(pod), 10, f"{name} to be up")
        return pod

    def delete(self, name: str, grace: int | None = None) -> None:
        self.cluster.delete(PODS, "default", name, grace_seconds=grace)

    def log(self, pod: Pod, container: str = "c0", run: int = 0) -> str:
        meta = pod.metadata
        folder = self.agent.root / "logs" / f"{meta.namespace}_{meta.name}_{meta.uid}"
        return (folder / container / f"{run}.log").read_text()


def condition(pod: Pod, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition; empty where it is not there."""
    found = next((one for one in pod.status.conditions if one.type == kind), None)
    return (found.status, found.reason, found.message) if found else ("", "", "")


def of(pod: Pod, name: str) -> ContainerStatus:
    """The status of a container, init containers too; an empty one before the node wrote any."""
    every = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return next((one for one in every if one.name == name), ContainerStatus(name=name))


def python(script: str, *arguments: str) -> dict[str, Any]:
    """A container that runs a Python script."""
    return {"command": [sys.executable, "-u", "-c", script, *arguments]}


def shell(script: str) -> dict[str, Any]:
    """A container that runs a script of the tests' own."""
    return {"command": ["sh", "-c", script]}


def processes_with(text: str) -> list[int]:
    """Living processes whose command line has this text, without this one."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                if text.encode() in line:
                    found.append(int(name))
    return found


@pytest.fixture
def cluster(etcd: Any, prefix: str) -> Iterator[LocalCluster]:
    """An empty cluster in the session's etcd."""
    with LocalCluster(etcd.client_url, prefix=prefix) as cluster:
        yield cluster


@pytest.fixture
def room(cluster: LocalCluster, tmp_path: Path) -> Iterator[Room]:
    """A cluster without a node yet: ``room.start()``."""
    room = Room(cluster, tmp_path)
    yield room
    for agent in room.agents:
        agent.stop(grace=0.0)


@pytest.fixture
def node(room: Room) -> Room:
    """A room with one node."""
    room.start()
    return room
