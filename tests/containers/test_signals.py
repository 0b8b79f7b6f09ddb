"""SIGTERM to each role's container, as a kubelet sends it: an end in order, long before the grace of 30 s is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.bench.kubelet_node import KubeletNodes
from tests.bench.waiting import eventually
from tests.containers.pods import Pods, restricted

SOON = 20.0
"""Seconds; it takes 1-3 s, and these machines are busy."""

# The launcher writes its few files below the folder for temporary ones, and the root is read-only.
FOLDER = [{"name": "folder", "mountPath": "/folder"}, {"name": "folder", "mountPath": "/tmp", "subPath": "tmp"}]
PSERVER = ["python", "-m", "examples.digits.pserver", "--num-pservers", "1", "--directory", "/folder", "--ttl", "3"]
TRAINER = ["python", "-m", "examples.digits.trainer", "--ttl", "3", "--think", "0.2"]
LAUNCHER = ["edl-agent", "run", "--role", "pserver", "--port", "7164", "--num-pservers", "1", "--"]

ROLES: dict[str, tuple[str, list[str]]] = {
    "pserver": ("edl-digits", PSERVER),
    "trainer": ("edl-digits", TRAINER),
    "launcher": ("edl-digits", [*LAUNCHER, "python", "-m", "http.server", "7164"]),
    "sidecar": ("edl-agent", ["edl-agent", "sidecar", "--socket", "/folder/agent/agent.sock"]),
}
BEGUN = {"pserver": "pserver 0 epoch", "trainer": "works", "launcher": "Serving HTTP", "sidecar": "listening"}
"""What each says when it does its work."""


def start(pods: Pods, image: Callable[[str], str], etcd: str, role: str, name: str) -> None:
    """A pod of a role on the job /signals."""
    program, command = ROLES[role]
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    settings = {"EDL_ETCD_ENDPOINTS": etcd, "EDL_PREFIX": f"/signals/{name}", "EDL_TTL": "3"}
    env: list[dict[str, Any]] = [address, *({"name": key, "value": value} for key, value in settings.items())]
    container = restricted("program", image(program), command=command, env=env, volumeMounts=FOLDER)
    volumes = [{"name": "folder", "emptyDir": {}}]
    pods.create(f"{name}-ps" if role == "pserver" else name, pods.spec(container, volumes=volumes))


@pytest.mark.parametrize("role", list(ROLES))
def test_sigterm_ends_it_in_order(
    pods: Pods, nodes: KubeletNodes, image: Callable[[str], str], pods_etcd: str, role: str
) -> None:
    name = "it-ps" if role == "pserver" else "it"
    if role == "trainer":
        start(pods, image, pods_etcd, "pserver", "it")
    start(pods, image, pods_etcd, role, "it")
    eventually(lambda: BEGUN[role] in pods.log(name), 60, lambda: f"{role} works: {pods.log(name)}", interval=0.2)
    pod = pods.read(name)
    assert pod is not None

    began = time.monotonic()
    nodes.nodes[pod["spec"]["nodeName"]].kill_container(name, "program", "SIGTERM")
    ended = pods.wait_ended(name)
    took = time.monotonic() - began

    state = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    print(f"{role}: {state['exitCode']} after {took:.1f} s")
    assert state["exitCode"] in (0, 143), (state, pods.log(name))
    assert took < SOON
