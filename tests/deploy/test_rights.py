"""The whole life of jobs under the rights of the manifests: what is used is granted, what is granted is used.

What makes a verb necessary is often a rare path (a lost answer, a conflict), so these are brought about on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_controller.cluster.kube import KubeCluster, kubeconfig
from edl_controller.core.job_settings import JobSettings
from edl_controller.runtime.leader import Leader
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_proxy import Call, KubeProxy
from tests.bench.kube_test_node import KubeTestNodes
from tests.bench.kubectl import Kubectl
from tests.bench.waiting import eventually
from tests.conftest import SharedEtcd
from tests.deploy.test_manifests import granted_rights, rules_of
from tests.kube.controller_bench import DEADLINE, RESOURCES, ControllerBench

pytestmark = pytest.mark.usefixtures("definition")

BY_ADMISSION = ("paddlepaddle.org", "trainingjobs/finalizers", "update")
"""Used inside the API server, where an owner reference blocks deletion; see the test of its own."""


def _token(control_plane: KubeControlPlane, namespace: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/edl-controller/token"
    return str(control_plane.client.post(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"])


def _used(calls: list[Call]) -> set[tuple[str, str, str]]:
    """Group, resource and verb of each request."""
    return {(_group(call), call.resource, call.verb) for call in calls}


def _group(call: Call) -> str:
    parts = call.path.split("/")
    return parts[2] if parts[1] == "apis" else ""


@pytest.fixture(params=["cluster", "namespaced"])
def installed(request: pytest.FixtureRequest, kubectl: Kubectl, control_plane: KubeControlPlane) -> Iterator[str]:
    """The manifests of one way, but for the program itself, applied for real; the namespace of the account."""
    way = str(request.param)
    namespace = "edl-system" if way == "cluster" else "training"
    control_plane.client.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    kubectl("apply", "--server-side", "--force-conflicts", "-k", f"deploy/{way}")
    kubectl("-n", namespace, "delete", "deployment", "edl-controller", "--wait=false")
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/edl-controller"
    eventually(lambda: control_plane.client.call("GET", account).status == 200, 30, "the account")
    yield namespace
    for kind in ("clusterrole", "clusterrolebinding"):
        kubectl("delete", kind, "edl-controller", "--ignore-not-found")


@pytest.fixture
def restricted(control_plane: KubeControlPlane, installed: str) -> Iterator[str]:
    """A namespace for jobs in which only pods of the level `restricted` are admitted."""
    client = control_plane.client
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    name = "training" if installed == "training" else "restricted"
    client.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    client.patch(f"/api/v1/namespaces/{name}", labels)
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    eventually(lambda: client.call("GET", account).status == 200, 30, "the namespace's service account")
    yield name
    # A namespace that is going cannot be used again in this session: what is in it is deleted, it stays.
    for path in ("/apis/paddlepaddle.org/v1", "/apis/batch/v1", "/apis/apps/v1"):
        kinds = {"/apis/paddlepaddle.org/v1": "trainingjobs", "/apis/batch/v1": "jobs", "/apis/apps/v1": "replicasets"}
        client.delete(f"{path}/namespaces/{name}/{kinds[path]}", {"propagationPolicy": "Background"})


@pytest.fixture
def ruled(
    control_plane: KubeControlPlane,
    light_nodes: KubeTestNodes,
    kube_proxy: KubeProxy,
    installed: str,
    restricted: str,
    etcd: SharedEtcd,
    tmp_path: Path,
) -> Iterator[ControllerBench]:
    """Controllers with the token of the manifests' account."""
    node = f"{restricted}-node"
    light_nodes.add(node, cpu="64", memory="256Gi", pods=500)
    path = f"/api/v1/nodes/{node}"
    eventually(lambda: not control_plane.client.get(path)["spec"].get("taints"), 30, "a node without taints")
    token = _token(control_plane, installed)
    bench = ControllerBench(control_plane, light_nodes, kube_proxy, restricted, etcd.client_url, tmp_path, token)
    try:
        yield bench
    finally:
        bench.close()
        light_nodes.remove(node)


def _live(bench: ControllerBench, proxy: KubeProxy, **options: Any) -> None:
    """Have the controller do all that it ever does."""
    settings = JobSettings(etcd_endpoints=(bench.etcd,), foreign_retry=0.5)
    # Rare paths: a create whose answer is lost, and writes that meet a change.
    for resource in ("jobs", "replicasets"):
        proxy.lose_answer("create", resource, times=1)
    for resource in ("pods/status", "trainingjobs/status"):
        proxy.fail(409, "patch", resource, reason="Conflict", times=1)
    bench.client.post(bench.jobs_path, _foreign("taken-trainer"))
    bench.start(settings=settings, **options)
    bench.create("taken")
    bench.create("whole", trainers=1, most=3, cleanPodPolicy="All", agent={"mode": "Launcher"})
    bench.wait_phase("whole", "running")
    for _ in range(2):  # what happens twice is one Event with a series
        bench.edit("whole", {"suspend": True})
        eventually(lambda: not bench.pods("whole"), DEADLINE, "the pods of a suspended job are gone")
        bench.edit("whole", {"suspend": False})
        bench.wait_phase("whole", "running")
    eventually(lambda: any(one.get("series") for one in bench.events("whole")), DEADLINE, "an Event that is repeated")
    bench.finish("whole")
    bench.wait_phase("whole", "succeeded")
    eventually(lambda: not [c for c in bench.children() if "whole" in c["metadata"]["name"]], DEADLINE, "no children")
    bench.edit("whole", {"ttlSecondsAfterFinished": 0})
    bench.wait_gone("whole")


def _foreign(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "example.com/c:1", "resources": RESOURCES}
    pod = {"restartPolicy": "Never", "containers": [container]}
    return {"metadata": {"name": name}, "spec": {"suspend": True, "template": {"spec": pod}}}


@pytest.mark.security(7)
def test_all_that_is_used_is_granted_and_all_that_is_granted_is_used(
    ruled: ControllerBench, kube_proxy: KubeProxy, offline_kubectl: Kubectl, installed: str
) -> None:
    way = "namespaced" if installed == "training" else "cluster"
    namespaced: dict[str, Any] = {"namespaces": [ruled.namespace], "autoscale": False}
    _live(ruled, kube_proxy, **(namespaced if way == "namespaced" else {"namespaces": ()}))
    lease_holder = KubeCluster(kubeconfig(ruled.source))
    with lease_holder, Leader(lease_holder, installed, "edl-controller") as leader:
        eventually(leader.is_leader, DEADLINE, "the lead")

    documents = offline_kubectl.documents("kustomize", f"deploy/{way}")
    granted = granted_rights(rules_of(documents, "edl-controller", "edl-controller-election"))
    refused = [call for call in kube_proxy.calls() if call.status in (401, 403)]
    assert not refused, [(call.verb, call.path) for call in refused]
    used = _used(kube_proxy.calls())
    assert used - granted == set(), "used and not granted"
    assert granted - used - {BY_ADMISSION} == set(), "granted and not used"
    if way == "namespaced":
        elsewhere = {call.path for call in kube_proxy.calls() if call.namespace not in (ruled.namespace, installed)}
        assert elsewhere == set(), "a call to the cluster as a whole"


def test_no_right_to_the_finalizers_no_children(
    ruled: ControllerBench, kubectl: Kubectl, installed: str, kube_proxy: KubeProxy
) -> None:
    """What `trainingjobs/finalizers` is for: the tests' API server enforces it, as OpenShift's does."""
    kind = "clusterrole" if installed == "edl-system" else "role"
    where = () if kind == "clusterrole" else ("-n", installed)
    rules = kubectl(*where, "get", kind, "edl-controller", "-o", "jsonpath={.rules[*].resources}")
    position = rules.split().index('["trainingjobs/finalizers"]')
    kubectl(
        *where, "patch", kind, "edl-controller", "--type=json", "-p",
        f'[{{"op": "remove", "path": "/rules/{position}"}}]',
    )  # fmt: skip
    # Authorisation is by a cache of the API server.
    time.sleep(1.0)
    options: dict[str, Any] = {"namespaces": [ruled.namespace], "autoscale": False} if where else {"namespaces": ()}
    ruled.start(**options)
    ruled.create("barred")

    eventually(lambda: ruled.condition("barred", "Synced")[0] == "False", DEADLINE, "the refusal is shown")
    assert "finalizers" in next(
        one["message"] for one in ruled.job("barred")["status"]["conditions"] if one["type"] == "Synced"
    )
    assert not [one for one in ruled.children() if "barred" in one["metadata"]["name"]]
    assert len(kube_proxy.calls("create", "replicasets")) <= 2, "no hot loop"
