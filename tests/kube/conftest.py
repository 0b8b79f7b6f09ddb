"""The adapter on the real control plane, with a proxy in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_controller.api import crd
from edl_controller.cluster.kube import KubeCluster, kubeconfig
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_proxy import KubeProxy, kubeconfig_for
from tests.bench.kube_test_node import KubeTestNodes
from tests.bench.waiting import eventually
from tests.conftest import SharedEtcd
from tests.kube.controller_bench import ControllerBench

_numbers = itertools.count(1)

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def kube_proxy(control_plane: KubeControlPlane) -> Iterator[KubeProxy]:
    """Before the session's API server."""
    with KubeProxy(control_plane.url, control_plane.ca) as proxy:
        yield proxy


@pytest.fixture
def connect(kube_proxy: KubeProxy, control_plane: KubeControlPlane, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``connect(**options) -> KubeCluster`` through the proxy, closed after the test."""
    made: list[KubeCluster] = []

    def make(**options: Any) -> KubeCluster:
        made.append(KubeCluster(kubeconfig(kubeconfig_for(kube_proxy, tmp_path, control_plane.token)), **options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def cluster(connect: Callable[..., KubeCluster]) -> KubeCluster:
    """One through the proxy."""
    return connect()


@pytest.fixture
def namespace(control_plane: KubeControlPlane) -> Iterator[str]:
    """A namespace of the test's own, with its service account."""
    name = f"adapter-{next(_numbers)}"
    client = control_plane.client
    client.post("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    eventually(lambda: client.call("GET", account).status == 200, 20, "the namespace's service account")
    yield name
    client.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def definition(control_plane: KubeControlPlane) -> None:
    """The resource TrainingJob is served, in its newest form."""
    client, manifest = control_plane.client, crd.manifest()
    name = manifest["metadata"]["name"]
    new = client.call("POST", DEFINITIONS, manifest).status == 201
    if not new:
        client.patch(f"{DEFINITIONS}/{name}", {"spec": manifest["spec"]})
    served = "/apis/paddlepaddle.org/v1/trainingjobs"
    eventually(lambda: client.call("GET", served).status == 200, 30, "the resource is served")
    if new:
        # Its garbage collector looks for new resources every 30 s only, and at its start.
        control_plane.controller_manager.kill()
        control_plane.controller_manager.start()


@pytest.fixture
def bench(
    control_plane: KubeControlPlane,
    light_nodes: KubeTestNodes,
    kube_proxy: KubeProxy,
    namespace: str,
    definition: None,
    etcd: SharedEtcd,
    tmp_path: Path,
) -> Iterator[ControllerBench]:
    """A node of the test's own, its namespace, and controllers through its proxy; see the class."""
    name = f"{namespace}-node"
    light_nodes.add(name, cpu="64", memory="256Gi", pods=2000)
    node = f"/api/v1/nodes/{name}"
    eventually(lambda: not control_plane.client.get(node)["spec"].get("taints"), 30, "a node without taints")
    made = ControllerBench(control_plane, light_nodes, kube_proxy, namespace, etcd.client_url, tmp_path)
    try:
        yield made
    finally:
        made.close()
        light_nodes.remove(name)
