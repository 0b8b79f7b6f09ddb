"""The controller from its image and its manifests, on real nodes: its replicas, rights, updates, end."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator

import pytest

from edl_agent.testing import EtcdServer
from edl_controller.api import timestamps
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_http import Json
from tests.bench.kubectl import Kubectl, kubectl_missing
from tests.bench.kubelet_node import KubeletNodes
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually
from tests.containers.conftest import NODES
from tests.containers.installed_controller import LEASES, PODS, ROOT, Installation, page, write_overlay
from tests.containers.jobs import Jobs
from tests.containers.pods import Pods
from tests.containers.watched import Watched
from tests.kube.controlplane.build import find_kubectl

STOPS_WITHIN = 30.0
"""Seconds, of ``--stop-within``."""


@pytest.fixture(scope="module")
def installed(
    control_plane: KubeControlPlane,
    nodes: KubeletNodes,
    api_address: str,
    image: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installation]:
    """Installed, with both replicas ready; removed afterwards, so that no other test has two controllers."""
    if (reason := kubectl_missing()) is not None:
        pytest.skip(reason)
    program = find_kubectl()
    assert program is not None
    folder = tmp_path_factory.mktemp("controller")
    with (
        EtcdServer(folder=folder) as etcd,
        TcpProxy(etcd.client_url, host=nodes.network.gateway) as proxy,
    ):
        images = {"edl-controller": image("edl-controller")}
        write_overlay(folder, "cluster", images=images, etcd=proxy.endpoint, api=api_address)
        made = Installation(Kubectl(program, control_plane.kubeconfig, ROOT), control_plane.client, folder)
        made.apply()
        try:
            made.rolled_out()
            eventually(made.leader, 60, "one leads", interval=0.2)
            yield made
        finally:
            made.remove()


@pytest.fixture
def jobs(installed: Installation, pods: Pods, image: Callable[[str], str]) -> Iterator[Jobs]:
    """No jobs yet; those that there are in the end are deleted before their pods are: their controller lives on."""
    made = Jobs(pods, image("edl-digits"))
    yield made
    made.remove()


def test_both_replicas_are_ready_and_one_leads(installed: Installation) -> None:
    both = installed.pods()
    assert {pod["spec"]["nodeName"] for pod in both} == set(NODES)
    for pod in both:
        (status,) = pod["status"]["containerStatuses"]
        assert status["ready"]
        assert status["restartCount"] == 0
        assert page(pod, "/healthz")
        assert page(pod, "/readyz")
    leads = {pod["metadata"]["name"]: re.search(r"^edl_leader 1\.0$", page(pod, "/metrics"), re.M) for pod in both}
    assert [name for name, found in leads.items() if found] == [installed.leader()]


def test_a_job_runs_to_its_end_under_the_rights_of_the_manifests(installed: Installation, jobs: Jobs) -> None:
    """With a read-only root, too: the launcher's socket has a folder of its own."""
    jobs.submit("one", seconds=3)
    jobs.wait("one", "succeeded", 150)

    assert "EDL_RUN_DIR" not in "".join(jobs.pods.log(pod["metadata"]["name"]) for pod in jobs.pods.all())
    said = installed.logs()
    assert "Created Job" in said
    assert not re.search(r"no permission|[Ff]orbidden|Traceback", said), said


def check_leaders(states: list[Json]) -> list[str]:
    """Nobody takes the Lease from one who may still lead. Returns the holders in their order."""
    holders: list[str] = []
    records = [one["spec"] for one in states]
    for before, after in itertools.pairwise(records):
        holder, next_one = before.get("holderIdentity") or "", after.get("holderIdentity") or ""
        if holder and next_one and next_one != holder:
            ends = timestamps.parse(before["renewTime"]) + before["leaseDurationSeconds"]
            assert timestamps.parse(after["renewTime"]) >= ends, (before, after)
    for record in records:
        holder = record.get("holderIdentity") or ""
        if holder and holder not in holders:
            holders.append(holder)
    return holders


def test_an_update_loses_nothing_and_never_has_two_leaders(
    installed: Installation, jobs: Jobs, control_plane: KubeControlPlane
) -> None:
    jobs.submit("before", seconds=60)
    jobs.wait("before", "running", 120)
    running = jobs.running("before")
    assert len(running) == 3
    old = {pod["metadata"]["name"] for pod in installed.pods()}
    led = installed.leader()
    assert led in old

    with Watched(control_plane.client, LEASES) as leases, Watched(control_plane.client, PODS) as replicas:
        began = time.monotonic()
        installed.kubectl("set", "env", "deployment/edl-controller", "EDL_LOG_LEVEL=debug")
        jobs.submit("during", seconds=1)
        installed.rolled_out()
        eventually(lambda: installed.leader() not in ("", *old), 60, lambda: f"a new leader: {installed.lease()}")
        print(f"updated in {time.monotonic() - began:.0f} s")
        assert {pod["metadata"]["name"] for pod in installed.pods()}.isdisjoint(old)
        # What ran goes on as if nothing had happened.
        now = jobs.running("before")
        assert all(now.get(name) == uid for name, uid in running.items() if "pserver" in name), (running, now)
        jobs.wait("during", "succeeded", 150)
        jobs.wait("before", "succeeded", 150)

    holders = check_leaders(leases.states)
    assert holders[0].startswith(f"{led}_")
    assert len(holders) >= 2
    for name in old:
        ends = [
            status["state"]["terminated"]["exitCode"]
            for state in replicas.of(name)
            for status in state["status"].get("containerStatuses", ())
            if "terminated" in status["state"]
        ]
        assert set(ends) == {0}, f"{name} ended with {ends}"
    ended = jobs.pods.client.get(f"/apis/batch/v1/namespaces/{jobs.pods.namespace}/jobs")["items"]
    assert [job["status"].get("failed", 0) for job in ended] == [0, 0]


def test_sigterm_ends_the_leading_container_in_order_and_the_other_leads(
    installed: Installation, nodes: KubeletNodes, control_plane: KubeControlPlane
) -> None:
    leader = installed.leader()
    pod = next(pod for pod in installed.pods() if pod["metadata"]["name"] == leader)

    def ended() -> Json | None:
        (status,) = control_plane.client.get(f"{PODS}/{leader}")["status"]["containerStatuses"]
        found: Json | None = status["state"].get("terminated") or status["lastState"].get("terminated")
        return found

    with Watched(control_plane.client, LEASES) as leases:
        began = time.monotonic()
        nodes.nodes[pod["spec"]["nodeName"]].kill_container(leader, "controller", "SIGTERM")
        eventually(lambda: ended() is not None, STOPS_WITHIN + 15, "the container ends", interval=0.1)
        took = time.monotonic() - began
        eventually(lambda: installed.leader() not in ("", leader), 30, lambda: f"the other: {installed.lease()}")

    state = ended()
    assert state is not None
    print(f"ended with {state['exitCode']} after {took:.1f} s")
    assert state["exitCode"] == 0, installed.logs()
    # The kubelet looks once a second.
    assert took < STOPS_WITHIN + 2
    assert len(check_leaders(leases.states)) == 2
    assert any(not one["spec"].get("holderIdentity") for one in leases.states), "it was released, and did not run out"
