"""The bench's etcd processes do what their names say; judged by etcdctl."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_agent.testing import EtcdctlError, EtcdNotFoundError, EtcdServer, PortReservation, find_etcd
from tests.bench.certificates import CertificateFolder
from tests.bench.etcd_cluster import EtcdCluster, TlsSettings
from tests.bench.etcd_versions import known_versions
from tests.bench.waiting import eventually, never

Factory = Callable[..., EtcdCluster]


def test_finding_etcd_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_etcd().etcd.exists()
    monkeypatch.setenv("EDL_ETCD_BIN", str(tmp_path))
    with pytest.raises(EtcdNotFoundError, match="EDL_ETCD_BIN"):
        find_etcd()
    monkeypatch.delenv("EDL_ETCD_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("edl_agent.testing._wheel_folder", lambda: None)
    with pytest.raises(EtcdNotFoundError, match=r"pip install edl\[local\]"):
        find_etcd()


def test_importing_the_public_help_needs_neither_pytest_nor_grpc() -> None:
    code = "import sys, edl_agent.testing; print([m for m in ('pytest', 'grpc') if m in sys.modules])"
    # The module alone, without the package around it, which needs grpc.
    package = "import types, sys; p = types.ModuleType('edl_agent'); p.__path__ = ['edl_agent']; "
    package += "sys.modules['edl_agent'] = p; "
    answer = subprocess.run([sys.executable, "-c", package + code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_one_server_through_its_life(tmp_path: Path) -> None:
    with EtcdServer(folder=tmp_path) as server:
        server.etcdctl("put", "k", "v")
        server.pause()
        assert server.paused
        assert not server.healthy(0.3)
        server.resume()
        eventually(server.healthy)
        server.kill()
        assert server.returncode == -signal.SIGKILL
        assert not server.healthy()
        server.start()
        assert server.etcdctl("get", "k").split() == ["k", "v"]
        first = server.pid
        server.restart()
        assert server.pid != first
        assert server.etcdctl("get", "k").split() == ["k", "v"]
        server.wipe()
        server.start()
        assert server.etcdctl("get", "k") == ""
    assert not server.running


def cluster_id(cluster: EtcdCluster) -> str:
    return str(cluster.members[0].status()["header"]["cluster_id"])


def test_wiped_data_keeps_the_identity_unless_another_is_asked_for(etcd_factory: Factory) -> None:
    cluster = etcd_factory()
    before = cluster_id(cluster)
    cluster.members[0].wipe_and_restart()
    assert cluster_id(cluster) == before
    cluster.members[0].wipe_and_restart(new_identity=True)
    assert cluster_id(cluster) != before


def test_a_server_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import sys, threading; from pathlib import Path; from edl_agent.testing import EtcdServer\n"
        "s = EtcdServer(folder=Path(sys.argv[1]))\n"
        "t = threading.Thread(target=s.start); t.start(); t.join()\n"  # its end must not take the server along
        "print(s.pid, s.healthy(), flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        pid, healthy = parent.stdout.readline().split()
        never(lambda: not Path(f"/proc/{pid}").exists(), 0.3, "the server ends with the thread that started it")
        parent.kill()
        parent.wait()
    assert healthy == "True"

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"  # no init may be there to reap it
        except OSError:
            return True

    eventually(gone, 5.0, "end of the orphaned etcd")


def test_a_reserved_port_goes_to_nobody_else() -> None:
    reserved = [PortReservation() for _ in range(200)]
    assert len({port.port for port in reserved}) == 200
    for port in reserved:
        port.close()


@pytest.mark.parametrize("version", known_versions())
def test_three_members_through_faults(etcd_factory: Factory, version: str) -> None:
    cluster = etcd_factory(3, version=version, peer_proxies=True)
    cluster.etcdctl("put", "k", "1")
    old = cluster.leader()

    cluster.members[old].isolate()
    eventually(lambda: cluster.leader(0.5) != old, 10, "another leader after the isolation")
    cluster.etcdctl("put", "k", "2")
    with pytest.raises((EtcdctlError, subprocess.TimeoutExpired)):
        cluster.etcdctl("put", "k", "3", "--command-timeout=1s", endpoints=[cluster.endpoints[old]])
    cluster.members[old].rejoin()

    def caught_up() -> bool:
        return cluster.etcdctl("get", "k", "--consistency=s", endpoints=[cluster.endpoints[old]]).split() == ["k", "2"]

    eventually(caught_up, 10, "the rejoined member catches up")

    second = cluster.leader()
    cluster.members[second].pause()
    assert eventually(lambda: cluster.leader(0.5) != second, 10, "another leader after the pause")
    cluster.members[second].resume()

    third = cluster.leader()
    cluster.members[third].kill()
    assert cluster.leader() != third
    cluster.members[third].wipe_and_restart()
    eventually(
        lambda: cluster.etcdctl("get", "k", endpoints=[cluster.endpoints[third]]).split() == ["k", "2"],
        10,
        "data refilled",
    )
    cluster.kill_all()
    cluster.start()
    assert cluster.etcdctl("get", "k").split() == ["k", "2"]
    cluster.members[cluster.leader()].terminate()
    cluster.heal()
    assert all(member.healthy() for member in cluster.members)


@pytest.mark.parametrize("token", [("simple", 4), "jwt"])
def test_auth_with_tls_and_quota(
    etcd_factory: Factory, certificates: CertificateFolder, token: tuple[str, int] | str
) -> None:
    cluster = etcd_factory(tls=TlsSettings(certificates, client_auth=True), auth_token=token, quota=16 * 2**20)
    cluster.enable_auth("agent", "agent-secret", prefix="/x")
    cluster.etcdctl("put", "/x/a", "1", user=("agent", "agent-secret"))
    with pytest.raises(EtcdctlError, match="permission denied"):
        cluster.etcdctl("put", "/y", "1", user=("agent", "agent-secret"))
    with pytest.raises(EtcdctlError, match="authentication failed"):
        cluster.etcdctl("get", "/x/a", user=("agent", "wrong"))
    assert cluster.leader() == 0
    assert cluster.keys("/x") == ["/x/a"]
    cluster.fill_quota()
    with pytest.raises(EtcdctlError, match="database space exceeded"):
        cluster.etcdctl("put", "/x/a", "2")
    cluster.free_quota()
    cluster.etcdctl("put", "/x/a", "2")
    cluster.disable_auth()
    assert cluster.etcdctl("get", "/x/a").split() == ["/x/a", "2"]


def test_the_shared_server_and_prefixes(etcdctl: Callable[..., str], prefix: str, cluster3: EtcdCluster) -> None:
    etcdctl("put", f"{prefix}/a", input="from stdin")
    assert etcdctl("get", f"{prefix}/a", "--print-value-only") == "from stdin\n"
    assert "the-shared-server" in prefix
    assert not prefix.endswith("/")
    cluster3.members[cluster3.leader()].kill()
    assert cluster3.leader() in (0, 1, 2)
