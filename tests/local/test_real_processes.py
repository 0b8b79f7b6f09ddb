"""The whole cluster of one machine: loops, a real node, real processes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_controller.api.kinds import JOBS, PODS
from edl_controller.api.meta import is_true
from edl_controller.api.workloads import Job
from edl_controller.cluster.local import LocalCluster
from edl_controller.machine.loops import Loops
from edl_controller.machine.node.node_agent import NodeAgent
from tests.bench.waiting import eventually

WORK = """
import pathlib, sys, time
done = pathlib.Path(sys.argv[1])
while not done.exists():
    time.sleep(0.02)
"""


@pytest.fixture
def machine(cluster: LocalCluster, tmp_path: Path) -> Iterator[LocalCluster]:
    """Loops and one node with room for two pods."""
    stop = threading.Event()
    loops = threading.Thread(target=Loops(cluster).run, args=(stop,), daemon=True)
    loops.start()
    try:
        with NodeAgent(cluster, "n1", {"cpu": "2", "memory": "1Gi", "pods": "10"}, tmp_path / "n1"):
            yield cluster
    finally:
        stop.set()
        loops.join(10.0)
        assert not loops.is_alive()


def test_a_job_runs_as_processes_to_its_end(machine: LocalCluster, tmp_path: Path) -> None:
    done = tmp_path / "done"
    container = {
        "name": "main",
        "command": [sys.executable, "-c", WORK, str(done)],
        "resources": {"requests": {"cpu": "800m"}},
    }
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    document = {"metadata": {"name": "a"}, "spec": {"parallelism": 3, "template": template}}
    machine.create(JOBS.from_json(document))

    def job() -> Job:
        return machine.get(JOBS, "default", "a")

    eventually(lambda: (job().status.active, job().status.ready) == (3, 2), 15, lambda: str(job().status))
    phases = sorted(pod.status.phase for pod in machine.list(PODS, labels={"app": "a"}).items)
    assert phases == ["Pending", "Running", "Running"]

    done.touch()

    eventually(lambda: is_true(job().status.conditions, "Complete"), 15, lambda: str(job().status))
    assert job().status.succeeded == 3
    machine.delete(JOBS, "default", "a")
    eventually(lambda: not machine.list(PODS).items, 10, "the end of the pods")
