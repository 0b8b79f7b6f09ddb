"""Fifty pods on one node, how soon they start, and what an idle node costs. The figures are printed with ``-s``."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from pathlib import Path

from edl_controller.api.kinds import PODS
from tests.bench.waiting import eventually
from tests.node.conftest import NAP, Room, condition, processes_with, shell

IDLE = f"exec sleep {NAP}"


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """Bytes that only this process has."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) * 1024


def children(pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and name != str(pid):
            try:
                if int(Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[1]) == pid:
                    found.append(int(name))
            except OSError:
                continue
    return found


def test_start_latency(node: Room) -> None:
    """From the answer to the create until the watch says Running: the median of pods that come one by one."""
    node.run("first", shell(IDLE))
    node.ready("first")
    seen: dict[str, float] = {}
    stop = threading.Event()
    version = node.get("first").metadata.resource_version

    def watch() -> None:
        for change in node.cluster.watch(PODS, "default", version, stop):
            if change.obj is not None and change.obj.status.phase == "Running":
                seen.setdefault(change.obj.metadata.name, time.monotonic())

    watcher = threading.Thread(target=watch)
    watcher.start()
    took = []
    for number in range(20):
        name = f"p{number}"
        node.run(name, shell(IDLE))
        begin = time.monotonic()
        eventually(lambda name=name: name in seen, 10, name, interval=0.002)  # type: ignore[misc]
        took.append(seen[name] - begin)
    stop.set()
    watcher.join()
    median = statistics.median(took)
    print(f"\nstart of a pod: median {median * 1000:.1f} ms, longest {max(took) * 1000:.1f} ms")
    assert median < 0.5


def test_fifty_pods_and_an_idle_node(node: Room) -> None:
    begin = time.monotonic()
    for number in range(50):
        node.run(f"p{number}", shell(IDLE), terminationGracePeriodSeconds=2)
    eventually(
        lambda: all(condition(pod, "Ready")[0] == "True" for pod in node.cluster.list(PODS).items), 60, "all ready",
        interval=0.1,
    )  # fmt: skip
    ready = time.monotonic() - begin
    assert len({pod.status.pod_ip for pod in node.cluster.list(PODS).items}) == 50
    host = node.agent.host_pid
    guards = children(host)
    assert len(guards) == 50
    threads = sum(thread.name.startswith("edl-node-") for thread in threading.enumerate())
    assert threads <= 11  # loop, watch, writer, eight workers: not one per pod
    private = statistics.median(memory(pid) for pid in guards)
    time.sleep(2.5)  # the looks at their sockets are over
    before = [cpu(pid) for pid in [host, *guards]]
    mine = time.thread_time(), time.process_time()
    time.sleep(2.0)
    used = time.process_time() - mine[1]
    assert [cpu(pid) for pid in [host, *guards]] == before  # they sleep
    print(
        f"\n50 pods ready in {ready:.2f} s; a guard has {private / 2**20:.2f} MiB of its own;"
        f" idle: {used / 2:.4f} cores"
    )
    assert used / 2 < 0.05
    begin = time.monotonic()
    for number in range(50):
        node.delete(f"p{number}")
    eventually(lambda: not node.cluster.list(PODS).items, 60, "all gone", interval=0.1)
    print(f"gone in {time.monotonic() - begin:.2f} s")
    assert not [pid for pid in guards if Path(f"/proc/{pid}").exists()]
    assert not processes_with(NAP)


def test_twenty_probed_pods(node: Room) -> None:
    """Twenty pods, each with a probe a second by TCP: ten times as often as usual."""
    server = (
        "import socket, sys, time; s = socket.create_server((sys.argv[1], 9000))\nwhile True: s.accept()[0].close()"
    )
    ip = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    probe = {"readinessProbe": {"tcpSocket": {"port": 9000}, "periodSeconds": 1}}
    for number in range(20):
        node.run(f"p{number}", {"command": [sys.executable, "-c", server, "$(POD_IP)"], "env": ip, **probe})
    eventually(
        lambda: all(condition(pod, "Ready")[0] == "True" for pod in node.cluster.list(PODS).items), 60, "all ready",
        interval=0.2,
    )  # fmt: skip
    time.sleep(0.5)
    begin = time.process_time()
    time.sleep(3.0)
    used = (time.process_time() - begin) / 3
    print(f"\n20 pods with a TCP probe a second: {used:.4f} cores for the node")
    assert used < 0.15
