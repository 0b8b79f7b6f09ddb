"""Fixtures of the test bench; the guide is ``tests/README.md``."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from xprocess import ProcessStarter, XProcess

from edl_agent.testing import EtcdBinaries, EtcdServer, bound_to_parent, find_etcd
from tests.bench.agent_process import AgentProcess
from tests.bench.certificates import CertificateFolder
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.secret_watch import pytest_runtest_makereport, pytest_sessionstart
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually

__all__ = ["pytest_runtest_makereport", "pytest_sessionstart"]  # hooks: no test may tell a secret

if TYPE_CHECKING:
    from tests.bench.kube_control_plane import KubeControlPlane
    from tests.bench.kube_test_node import KubeTestNodes

_prefixes = itertools.count(1)


@pytest.fixture(scope="session")
def etcd_binaries() -> EtcdBinaries:
    """The default etcd of this machine."""
    return find_etcd()


class SharedEtcd:
    """The session's etcd, started by pytest-xprocess. It belongs to all tests; take ``etcd_factory`` for one to
    hurt.
    """

    def __init__(self, server: EtcdServer) -> None:
        self._server = server
        self.client_url = server.client_url
        self.endpoint = server.endpoint
        self.metrics_url = server.metrics_url

    @property
    def endpoints(self) -> list[str]:
        """Its client URL, as a list."""
        return [self.client_url]

    def etcdctl(self, *arguments: str, input: str | None = None, timeout: float = 15.0) -> str:  # noqa: A002
        """Run etcdctl and return what it printed. Raises EtcdctlError."""
        return self._server.etcdctl(*arguments, input=input, timeout=timeout)


@pytest.fixture(scope="session")
def etcd(
    xprocess: XProcess, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[SharedEtcd]:
    """One default etcd for the whole session. Keep apart from other tests by ``prefix``."""
    # Only describes the command line, the ports and the health check; xprocess owns the process.
    server = EtcdServer(folder=tmp_path_factory.mktemp("etcd"))

    environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}

    class Starter(ProcessStarter):
        args = bound_to_parent(server.argv())
        env = environment
        terminate_on_interrupt = True
        timeout = 30

        def startup_check(self) -> bool:
            return server.healthy()

    # The name carries the process id: xprocess finds processes again by name, and two runs at once must not share one.
    name = f"etcd-{os.getpid()}"
    xprocess.ensure(name, Starter, persist_logs=False)
    try:
        yield SharedEtcd(server)
    finally:
        info = xprocess.getinfo(name)
        info.terminate(timeout=10)
        # xprocess would read the log once more for the report of this teardown, after it was closed.
        pytestconfig.__dict__.get("_extlogfiles", {}).pop(name, None)
        for resource in xprocess.resources:
            resource.release()
        server.close()
        shutil.rmtree(str(info.controldir), ignore_errors=True)


@pytest.fixture
def etcdctl(etcd: SharedEtcd) -> Callable[..., str]:
    """``etcdctl(*arguments, input=None) -> str`` against the session's etcd."""
    return etcd.etcdctl


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A key prefix that no other test has, such as ``/t7-test-claim``. It ends without a slash."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:40].strip("-")
    return f"/t{next(_prefixes)}-{name}"


@pytest.fixture
def etcd_factory() -> Iterator[Callable[..., EtcdCluster]]:
    """``etcd_factory(members=1, **EtcdCluster options)``: a started cluster of this test's own."""
    made: list[EtcdCluster] = []

    def make(members: int = 1, **options: Any) -> EtcdCluster:
        cluster = EtcdCluster(members, **options)
        made.append(cluster)
        return cluster.start()

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture(scope="module")
def _cluster3_of_module() -> Iterator[EtcdCluster]:
    with EtcdCluster(3, peer_proxies=True) as cluster:
        yield cluster


@pytest.fixture
def cluster3(_cluster3_of_module: EtcdCluster) -> Iterator[EtcdCluster]:
    """Three members behind peer proxies, shared by the module's tests: hurt them as you like, they are healed
    afterwards.

    Data stays (use ``prefix``). Do not enable auth or wipe all members here; take ``etcd_factory(3)``.
    """
    _cluster3_of_module.heal()
    yield _cluster3_of_module
    _cluster3_of_module.heal()


@pytest.fixture
def tcp_proxy_factory() -> Iterator[Callable[[str], TcpProxy]]:
    """``tcp_proxy_factory(target)``: a TCP proxy (B2), closed after the test."""
    made: list[TcpProxy] = []

    def make(target: str) -> TcpProxy:
        made.append(TcpProxy(target))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def proxy(etcd: SharedEtcd, tcp_proxy_factory: Callable[[str], TcpProxy]) -> TcpProxy:
    """A TCP proxy (B2) before the session's etcd."""
    return tcp_proxy_factory(etcd.client_url)


@pytest.fixture
def etcd_proxy_factory() -> Iterator[Callable[[str], EtcdProxy]]:
    """``etcd_proxy_factory(target)``: a gRPC-level proxy (B4), closed after the test."""
    made: list[EtcdProxy] = []

    def make(target: str) -> EtcdProxy:
        made.append(EtcdProxy(target))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def etcd_proxy(etcd: SharedEtcd, etcd_proxy_factory: Callable[[str], EtcdProxy]) -> EtcdProxy:
    """A gRPC-level proxy (B4) before the session's etcd."""
    return etcd_proxy_factory(etcd.client_url)


@pytest.fixture
def agent_factory() -> Iterator[Callable[..., AgentProcess]]:
    """``agent_factory(endpoints, port, **AgentProcess options)``: a started agent process, killed after the test."""
    made: list[AgentProcess] = []

    def make(*arguments: Any, **options: Any) -> AgentProcess:
        agent = AgentProcess(*arguments, **options)
        made.append(agent)
        return agent.start()

    yield make
    for agent in made:
        agent.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    """Certificates of every kind; do not ``rotate`` these, make a ``CertificateFolder(tmp_path)`` for that."""
    return CertificateFolder(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeControlPlane]:
    """A real Kubernetes control plane for the whole session; take ``KubeControlPlane(tmp_path)`` for one to hurt."""
    # Not everything that runs tests has urllib3: the oldest allowed dependencies are those of the agent.
    from tests.bench.kube_control_plane import KubeControlPlane, control_plane_missing

    if (reason := control_plane_missing()) is not None:
        pytest.skip(reason)
    with KubeControlPlane(tmp_path_factory.mktemp("kube")) as control_plane:
        yield control_plane


@pytest.fixture(scope="session")
def light_nodes(control_plane: KubeControlPlane) -> Iterator[KubeTestNodes]:
    """What serves the nodes of all tests on the session's control plane; each test adds and removes its own."""
    from tests.bench.kube_test_node import KubeTestNodes

    with KubeTestNodes(control_plane.client) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def _no_agent_thread_is_left() -> Iterator[None]:
    """Fail a test that leaves a thread of the product behind (its threads are named ``edl-...``)."""
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        return [t.name for t in threading.enumerate() if t not in before and t.name.startswith("edl-")]

    if left():
        eventually(lambda: not left(), 2.0, lambda: f"end of the product's threads {left()}")
