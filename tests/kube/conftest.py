"""The adapter on the real control plane, with a proxy in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_controller.cluster.kube import KubeCluster, kubeconfig
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_proxy import KubeProxy, kubeconfig_for
from tests.bench.waiting import eventually

_numbers = itertools.count(1)


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
