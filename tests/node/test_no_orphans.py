"""No process outlives its container, and no container its node, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_agent.testing import spawn_bound_to_parent
from edl_controller.cluster.local.cluster import LocalCluster
from edl_controller.machine.node.addresses import parent
from tests.bench.waiting import eventually, never
from tests.node.conftest import Room, of, processes_with, python, shell

TREE = """
import os, signal, subprocess, sys, time
mark = sys.argv[1]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)", mark]
subprocess.Popen(sleeper)                                    # in the group
subprocess.Popen(sleeper, start_new_session=True)            # out of the group
if os.fork() == 0:                                           # a daemon: double fork, own session
    os.setsid()
    if os.fork() == 0:
        os.execv(sleeper[0], sleeper)
    os._exit(0)
os.wait()
print("grown", flush=True)
if sys.argv[2] == "stay":
    time.sleep(1000)
"""
FAMILY = 4
"""Processes of a tree that stays."""


def tree(mark: str, how: str = "stay") -> dict[str, Any]:
    return python(TREE, mark, how)


def grown(mark: str, pods: int = 1) -> None:
    """Wait until the trees are whole: a process in the middle of a fork or an exec is not counted right."""
    for _ in range(3):
        eventually(lambda: len(processes_with(mark)) == FAMILY * pods, 10, lambda: f"the tree {processes_with(mark)}")
        time.sleep(0.05)


def nothing_left(mark: str, timeout: float = 5.0) -> None:
    eventually(lambda: not processes_with(mark), timeout, lambda: f"end of {processes_with(mark)}")


@pytest.fixture
def mark(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A word that only this test's processes have in their command lines."""
    return f"mark-{os.getpid()}-{abs(hash(str(tmp_path)))}"


@pytest.fixture
def program(etcd: Any, prefix: str, room: Room) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts the room's node as a program of its own."""
    made: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "tests.node.node_process", etcd.client_url, prefix, "node-p"]
        process = spawn_bound_to_parent([*argv, str(room.root / "node-p")], stdout=subprocess.PIPE, text=True)
        made.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in made:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def test_what_a_container_leaves_behind_ends_with_it(node: Room, mark: str) -> None:
    node.run("p", tree(mark, "leave"))
    assert node.log(node.phase("p", "Succeeded")) == "grown\n"
    assert not processes_with(mark)  # before its end is told


def test_a_deleted_pod_leaves_nothing(node: Room, mark: str) -> None:
    node.run("p", tree(mark), terminationGracePeriodSeconds=1)
    grown(mark)
    node.delete("p")
    eventually(lambda: node.gone("p"), 5, "end of the pod")
    assert not processes_with(mark)


def test_a_stopped_node_leaves_nothing(room: Room, mark: str) -> None:
    room.start()
    for number in range(3):
        room.run(f"p{number}", tree(mark))
    grown(mark, 3)
    host = room.agent.host_pid
    room.agent.stop(grace=0.5)
    assert not processes_with(mark)
    assert parent(host) == 0


def test_a_killed_node_leaves_nothing(program: Callable[[], Any], room: Room, cluster: LocalCluster, mark: str) -> None:
    process = program()
    create_on(room, "node-p", "a", tree(mark))
    create_on(room, "node-p", "b", tree(mark), restartPolicy="Always")
    grown(mark, 2)
    process.kill()
    process.wait(10)
    nothing_left(mark)
    process = program()  # and the next node takes over what is to run again
    grown(mark)
    eventually(lambda: room.get("a").status.phase == "Failed", 5, "the end of the pod that is not to run again")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert not processes_with(mark)


def create_on(room: Room, node: str, name: str, container: dict[str, Any], **spec: Any) -> None:
    class Elsewhere:
        pass

    elsewhere: Any = Elsewhere()
    elsewhere.name = node
    room.agent = elsewhere
    room.run(name, container, **spec)


def test_a_killed_guard_takes_everything_with_it(node: Room, mark: str) -> None:
    node.run("p", tree(mark))
    grown(mark)
    guard = next(parent(pid) for pid in processes_with(mark) if "stay" in command_line(pid))
    os.kill(guard, signal.SIGKILL)
    assert of(node.phase("p", "Failed"), "c0").state.terminated.exit_code == 137  # type: ignore[union-attr]
    nothing_left(mark)


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


def test_a_killed_host_is_replaced_and_its_containers_go_on(node: Room, mark: str) -> None:
    node.run("old", tree(mark))
    grown(mark)
    host = node.agent.host_pid
    os.kill(host, signal.SIGKILL)
    node.run("new", shell("echo fine"))
    assert node.log(node.phase("new", "Succeeded")) == "fine\n"
    assert node.agent.host_pid != host
    never(lambda: len(processes_with(mark)) < FAMILY, 0.3)
    node.delete("old", grace=0)
    nothing_left(mark)


def test_a_pod_whose_object_vanishes_is_killed(node: Room, mark: str) -> None:
    node.run("p", tree(mark))
    grown(mark)
    node.delete("p", grace=0)
    nothing_left(mark)


def test_a_frozen_container_is_killed_too(node: Room, mark: str) -> None:
    node.run("p", tree(mark), terminationGracePeriodSeconds=1)
    grown(mark)
    for pid in processes_with(mark):
        os.kill(pid, signal.SIGSTOP)
    node.delete("p")
    eventually(lambda: node.gone("p"), 5, "end of the pod")
    assert not processes_with(mark)


def test_who_forks_for_ever_is_caught(node: Room, mark: str) -> None:
    """Each generation lives a few milliseconds and leaves a child behind in a session of its own."""
    begin = "import subprocess, sys, time; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    runner = "import os, sys, time\nwhile True:\n    if os.fork(): os._exit(0)\n    os.setsid(); time.sleep(0.005)\n"
    node.run("p", python(f"{begin}; time.sleep(100)", runner, mark))
    eventually(lambda: len(processes_with(mark)) >= 2, 5)
    node.delete("p", grace=0)
    nothing_left(mark, 8)
