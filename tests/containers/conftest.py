"""Two real nodes for the session, with the images of ``make images``."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_agent.testing import EtcdServer
from edl_controller.api import crd
from tests.bench.cluster_dns import ClusterDns
from tests.bench.container_images import PAUSE, write_pause
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kubelet_leftovers import FOLDER, remove_leftovers
from tests.bench.kubelet_node import API_SERVER_FLAGS, KubeletNodes, PodNetwork, nodes_missing
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually
from tests.containers.pods import Pods

ROOT = Path(__file__).resolve().parents[2]
NODES = ("real-1", "real-2")
_numbers = itertools.count(1)


def pytest_configure() -> None:
    """SIGTERM, as from timeout(1), ends a run in order: containers and mounts outlive the process that made them."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them are marked: they take minutes, and `make test` has none of their images."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.containers)
            # The first one waits for both nodes and the import of all images: a minute, or three on a busy machine.
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def archives() -> list[Path]:
    """The images as docker archives: ``EDL_IMAGES``, or dist/images."""
    folder = Path(os.environ.get("EDL_IMAGES") or ROOT / "dist" / "images")
    found = [folder / f"{name}.tar" for name in ("edl-agent", "edl-controller", "edl-digits")]
    if missing := [path.name for path in found if not path.is_file()]:
        pytest.skip(f"no {', '.join(missing)} in {folder}: make test-containers builds them")
    return found


@pytest.fixture(scope="session")
def image() -> Callable[[str], str]:
    """``image("edl-agent")``: its full name, with the version."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return lambda name: f"localhost/{name}:{version}"


@pytest.fixture(scope="session")
def cluster(archives: list[Path]) -> Iterator[tuple[KubeControlPlane, KubeletNodes]]:
    """A control plane of its own and two nodes that are Ready."""
    if (reason := nodes_missing()) is not None:
        pytest.skip(reason)
    if PAUSE.cached() is None and (reason := PAUSE.missing_go()) is not None:
        pytest.skip(reason)
    # Not pytest's folder: the paths of sockets may have 107 bytes.
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=FOLDER.format(run=os.getpid())))
    try:
        write_pause(folder / "pause.tar")
        with (
            PodNetwork() as network,
            KubeControlPlane(folder / "brain", flags=API_SERVER_FLAGS, names=[network.gateway]) as control_plane,
            ClusterDns(control_plane.client, network.gateway),
            KubeletNodes(folder, control_plane, network, NODES) as nodes,
        ):
            nodes.start([folder / "pause.tar", *archives])
            yield control_plane, nodes
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def control_plane(cluster: tuple[KubeControlPlane, KubeletNodes]) -> KubeControlPlane:
    """The brain of the real nodes."""
    return cluster[0]


@pytest.fixture(scope="session")
def nodes(cluster: tuple[KubeControlPlane, KubeletNodes]) -> KubeletNodes:
    """Both nodes."""
    return cluster[1]


@pytest.fixture(scope="session")
def api_address(cluster: tuple[KubeControlPlane, KubeletNodes]) -> Iterator[str]:
    """``host:port`` by which pods reach the API server, which itself listens on loopback only."""
    control_plane, nodes = cluster
    with TcpProxy(control_plane.url, host=nodes.network.gateway) as proxy:
        yield proxy.address


@pytest.fixture
def pods(control_plane: KubeControlPlane) -> Iterator[Pods]:
    """A namespace in which only pods of the level `restricted` are admitted."""
    name = f"containers-{next(_numbers)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    client = control_plane.client
    client.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    eventually(lambda: client.call("GET", account).status == 200, 20, "the namespace's service account")
    made = Pods(client, name)
    yield made
    made.remove_all()


@pytest.fixture
def pods_etcd(nodes: KubeletNodes, tmp_path: Path) -> Iterator[str]:
    """The URL of an etcd outside, which is reached from pods and from here."""
    with EtcdServer(folder=tmp_path) as server, TcpProxy(server.client_url, host=nodes.network.gateway) as proxy:
        yield proxy.endpoint


@pytest.fixture
def definition(control_plane: KubeControlPlane) -> None:
    """The resource TrainingJob is served."""
    client = control_plane.client
    manifest: dict[str, Any] = crd.manifest()
    client.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", manifest)
    served = "/apis/paddlepaddle.org/v1/trainingjobs"
    eventually(lambda: client.call("GET", served).status == 200, 30, "the resource is served")
