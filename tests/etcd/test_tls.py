"""TLS between the agent and etcd: who is refused and with which words, and how certificates are replaced."""

from __future__ import annotations

import datetime
import logging
import shutil
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edl_agent import AuthenticationFailed, ConfigurationError, EdlAgentError, EtcdClient, SessionState, TlsFiles
from edl_agent import keeper as keeper_module
from edl_agent.etcd.tls_trouble import may_be_tls
from tests.bench.certificates import Authority, CertificateFolder, KeyPair
from tests.bench.etcd_cluster import EtcdCluster, TlsSettings
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually

Factory = Callable[..., EtcdCluster]


def tls_files(folder: CertificateFolder, client: KeyPair | None = None) -> TlsFiles:
    pair = client or folder.client
    return TlsFiles(ca=str(folder.ca), cert=str(pair.cert), key=str(pair.key))


# --- who is refused (A23) ---

BAD_SERVERS = [
    pytest.param("expired", "has expired", id="expired"),
    pytest.param("wrong_name", "host name mismatch", id="wrong name"),
    pytest.param("unknown_ca", "unknown CA", id="unknown CA"),
    pytest.param("not_yet", "not valid yet", id="not valid yet"),
]


def server_pair(folder: CertificateFolder, kind: str) -> KeyPair:
    if kind == "not_yet":
        return folder.authority.issue("not-yet", starts=datetime.timedelta(days=1))
    pair: KeyPair = getattr(folder, kind)
    return pair


@pytest.mark.fault("A23")
@pytest.mark.parametrize(("kind", "words"), BAD_SERVERS)
@pytest.mark.security(1)
def test_a_bad_server_certificate_is_refused_and_the_error_names_the_reason(
    kind: str, words: str, etcd_factory: Factory, certificates: CertificateFolder
) -> None:
    cluster = etcd_factory(tls=TlsSettings(certificates, server=server_pair(certificates, kind)))
    with EtcdClient(cluster.endpoints, 1, ttl=5, dial_timeout=2, tls=TlsFiles(ca=str(certificates.ca))) as client:
        for call in (
            lambda: client.get_key("/x", timeout=3),
            lambda: client.put_key("/x", b"value", timeout=3),
            lambda: client.register(7164, host="127.0.0.1", timeout=3),
        ):
            started = time.monotonic()
            with pytest.raises(AuthenticationFailed, match=words) as refused:
                call()
            assert time.monotonic() - started < 2, "waiting does not mend a certificate"
            assert cluster.members[0].endpoint in str(refused.value), "the error says whose certificate it is"
        assert client.session.state is SessionState.NEW
    assert cluster.keys() == []


@pytest.mark.fault("A23")
def test_a_client_certificate_of_an_unknown_ca_or_none_at_all_is_refused_with_these_words(
    etcd_factory: Factory, certificates: CertificateFolder, tmp_path: Path
) -> None:
    cluster = etcd_factory(tls=TlsSettings(certificates, client_auth=True))
    stranger = Authority(tmp_path, "stranger").issue("stranger")
    for tls, words in (
        (tls_files(certificates, stranger), "expired or of a CA unknown"),
        (tls_files(certificates, certificates.expired), "expired or of a CA unknown"),
        (TlsFiles(ca=str(certificates.ca)), "client certificate is wanted, and none is configured"),
    ):
        with (
            EtcdClient(cluster.endpoints, 1, tls=tls) as client,
            pytest.raises(AuthenticationFailed, match=words),
        ):
            client.get_key("/x", timeout=3)
    with EtcdClient(cluster.endpoints, 1, tls=tls_files(certificates)) as client:
        assert client.get_key("/x", timeout=3) is None


@pytest.mark.fault("A23")
@pytest.mark.security(1)
def test_an_expired_member_beside_a_good_one_is_passed_over(
    etcd_factory: Factory, certificates: CertificateFolder
) -> None:
    good = etcd_factory(tls=certificates)
    bad = etcd_factory(tls=TlsSettings(certificates, server=certificates.expired))
    with EtcdClient([*bad.endpoints, *good.endpoints], 1, ttl=5, tls=TlsFiles(ca=str(certificates.ca))) as client:
        assert client.register(7164, host="127.0.0.1", timeout=5) == 0


class FirstBytes:
    """A server that keeps the first bytes of each connection and hangs up."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.seen: list[bytes] = []
        self._thread = threading.Thread(target=self._run, name="first-bytes", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.socket.getsockname()[1]}"

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(2)
                try:
                    self.seen.append(connection.recv(4096))
                except OSError:
                    self.seen.append(b"")

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self._thread.join(5)


@pytest.fixture
def first_bytes() -> Iterator[FirstBytes]:
    server = FirstBytes()
    yield server
    server.close()


@pytest.mark.fault("A23")
@pytest.mark.security(1)
def test_there_is_no_fallback_to_plaintext(first_bytes: FirstBytes, certificates: CertificateFolder) -> None:
    """Whatever a server answers to the TLS greeting, nothing else is ever sent: not by gRPC, not by the diagnosis."""
    tls = TlsFiles(ca=str(certificates.ca))
    endpoint = f"https://{first_bytes.endpoint}"
    with (
        EtcdClient(endpoint, user="agent", password="canary-in-clear", tls=tls) as client,
        pytest.raises(EdlAgentError),
    ):
        client.get_key("/x", timeout=2)
    handshake_record = b"\x16\x03"
    said = [data for data in first_bytes.seen if data]  # an attempt that is given up says nothing
    assert said, "nobody came"
    assert [data[:40] for data in said if not data.startswith(handshake_record)] == []
    assert b"canary" not in b"".join(first_bytes.seen)


@pytest.mark.security(1)
def test_https_to_an_http_endpoint_fails_and_says_where(etcd_factory: Factory, certificates: CertificateFolder) -> None:
    cluster = etcd_factory()
    with (
        EtcdClient(f"https://{cluster.members[0].endpoint}", tls=TlsFiles(ca=str(certificates.ca))) as client,
        pytest.raises(EdlAgentError, match=cluster.members[0].endpoint),
    ):
        client.get_key("/x", timeout=1.5)


def test_http_to_an_https_endpoint_fails_and_says_where(etcd_factory: Factory, certificates: CertificateFolder) -> None:
    cluster = etcd_factory(tls=certificates)
    with (
        EtcdClient(f"http://{cluster.members[0].endpoint}") as client,
        pytest.raises(EdlAgentError, match=cluster.members[0].endpoint),
    ):
        client.get_key("/x", timeout=1.5)


# --- minimum version ---


class OldTlsServer:
    """A real TLS server that speaks 1.0 and 1.1 only."""

    def __init__(self, pair: KeyPair) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_alpn_protocols(["h2"])
        self._context = context
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.accepted: list[str | None] = []
        self.refused: list[str] = []
        self._thread = threading.Thread(target=self._run, name="old-tls", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.socket.getsockname()[1]}"

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            connection.settimeout(2)
            try:
                with self._context.wrap_socket(connection, server_side=True) as secured:
                    self.accepted.append(secured.version())
            except OSError as error:
                self.refused.append(str(error))
            finally:
                connection.close()

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self._thread.join(5)


@pytest.fixture
def old_tls_server(certificates: CertificateFolder) -> Iterator[OldTlsServer]:
    server = OldTlsServer(certificates.server)
    yield server
    server.close()


@pytest.mark.fault("A23")
@pytest.mark.security(4)
def test_a_server_limited_to_tls_1_1_is_refused(old_tls_server: OldTlsServer, certificates: CertificateFolder) -> None:
    # The server is real: a client that allows 1.1 gets through.
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    host, port = old_tls_server.endpoint.split(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        assert secured.version() == "TLSv1.1"

    with (
        EtcdClient(f"https://{old_tls_server.endpoint}", tls=TlsFiles(ca=str(certificates.ca))) as client,
        pytest.raises(AuthenticationFailed, match=r"does not speak TLS 1\.2 or newer"),
    ):
        client.get_key("/x", timeout=3)
    assert old_tls_server.accepted == ["TLSv1.1"], "only the client that allowed it"
    assert old_tls_server.refused


# --- the files ---


@pytest.mark.parametrize("scheme", ["https://", ""])
@pytest.mark.security(2)
def test_with_client_certificate_and_name_a_slot_is_registered(
    scheme: str, etcd_factory: Factory, certificates: CertificateFolder, tmp_path: Path
) -> None:
    """A bare host:port means https where TLS settings are given; `server_name` stands for the endpoint's host."""
    pair = certificates.authority.issue("named", names=("etcd.edl.invalid",))
    cluster = etcd_factory(tls=TlsSettings(certificates, server=pair, client_auth=True))
    client_pair = certificates.client
    tls = TlsFiles(str(certificates.ca), str(client_pair.cert), str(client_pair.key), server_name="etcd.edl.invalid")
    with EtcdClient(scheme + cluster.members[0].endpoint, 1, ttl=5, tls=tls) as client:
        assert client.register(7164, host="127.0.0.1", timeout=5) == 0


@pytest.mark.security(2)
def test_a_private_key_that_others_can_read_is_warned_of_once_per_client(
    etcd_factory: Factory, certificates: CertificateFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = tmp_path / "open-key.pem"
    shutil.copy2(certificates.client.key, key)
    key.chmod(0o644)
    tls = TlsFiles(str(certificates.ca), str(certificates.client.cert), str(key))

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "readable by others" in record.getMessage()]

    with caplog.at_level(logging.WARNING), EtcdClient("https://127.0.0.1:1", tls=tls) as client:
        with pytest.raises(EdlAgentError):
            client.get_key("/x", timeout=1.2)  # several dials
        assert len(told()) == 1, "one line, not one per dial"
        assert f"{key} is readable by others than its owner (mode 644)" in told()[0]
    caplog.clear()
    key.chmod(0o600)
    with EtcdClient("https://127.0.0.1:1", tls=tls):
        assert told() == []


@pytest.mark.parametrize(
    ("broken", "words"),
    [("ca", "TLS files cannot be used"), ("cert", "TLS files cannot be used"), ("absent", "cannot read")],
)
def test_tls_files_that_are_absent_or_no_pem_give_a_typed_error(
    broken: str, words: str, etcd_factory: Factory, certificates: CertificateFolder, tmp_path: Path
) -> None:
    cluster = etcd_factory(tls=certificates)
    bad = tmp_path / "bad.pem"
    if broken != "absent":
        bad.write_text("-----BEGIN CERTIFICATE-----\nno base64\n-----END CERTIFICATE-----\n")
    pair = certificates.client
    tls = TlsFiles(str(certificates.ca), str(bad), str(pair.key)) if broken == "cert" else TlsFiles(str(bad))
    with EtcdClient(cluster.endpoints, 1, tls=tls) as client, pytest.raises(AuthenticationFailed, match=words):
        client.get_key("/x", timeout=3)


@pytest.mark.security(2)
def test_a_client_certificate_without_its_key_is_refused_at_construction() -> None:
    with pytest.raises(ConfigurationError, match="go together"):
        TlsFiles(cert="client.pem")
    with pytest.raises(ConfigurationError, match="go together"):
        TlsFiles(key="client-key.pem")


# --- rotation (A22) ---


@pytest.mark.fault("A22")
@pytest.mark.security(5)
def test_replaced_certificates_of_a_new_ca_are_used_and_the_session_is_kept(
    etcd_factory: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All certificates and the CA are replaced on disk, the members restarted one by one: same lease, same epoch."""
    folder = CertificateFolder(tmp_path / "tls")
    cluster = etcd_factory(3, tls=TlsSettings(folder, client_auth=True))
    lost: list[object] = []
    with EtcdClient(cluster.endpoints, 1, ttl=5, dial_timeout=2, tls=tls_files(folder)) as client:
        client.on_lost(lambda loss, slot: lost.append(loss))
        client.register(7164, host="127.0.0.1", timeout=10)
        before = (client.session.lease_id, client.session.epoch)
        successor = Authority(tmp_path / "next", "next-ca")
        old_ca = folder.ca.read_text()
        folder.ca.write_text(old_ca + successor.cert.read_text())  # in place: rotation is not always a rename
        folder.rotate(folder.server, successor.issue("server"))
        for member in cluster.members:  # now they trust both
            member.terminate()
            member.start()
        folder.rotate(folder.client, successor.issue("client"))
        folder.ca.write_text(successor.cert.read_text())
        for member in cluster.members:  # now they trust the new one only
            member.terminate()
            member.start()
            client.put_key(f"/after-{member.name}", b"x", timeout=5)
        assert (client.session.lease_id, client.session.epoch) == before
        assert client.session.state is SessionState.CONNECTED
    assert lost == []


@pytest.mark.fault("A22")
@pytest.mark.security(5)
def test_a_quiet_client_dials_anew_with_replaced_files_by_itself(
    etcd_factory: Factory,
    tmp_path: Path,
    tcp_proxy_factory: Callable[[str], TcpProxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing breaks and nobody calls, and still the new client certificate is in use soon (10 s, here scaled)."""
    monkeypatch.setattr(keeper_module, "_IDENTITY_CHECK", 1.0)
    folder = CertificateFolder(tmp_path / "tls")
    cluster = etcd_factory(tls=TlsSettings(folder, client_auth=True))
    proxy = tcp_proxy_factory(cluster.members[0].client_url)
    endpoint = proxy.endpoint.replace("http://", "https://")
    with EtcdClient(endpoint, 1, ttl=3, dial_timeout=2, tls=tls_files(folder)) as client:
        client.register(7164, host="127.0.0.1", timeout=5)
        lease, connections = client.session.lease_id, proxy.connections
        folder.rotate(folder.client)
        eventually(lambda: proxy.connections > connections, 4.0, "a new connection")
        eventually(lambda: proxy.open_connections == 1, 4.0, "the end of the old one")
        assert client.get_key("/x", timeout=2) is None
        assert client.session.lease_id == lease


@pytest.mark.fault("A22")
@pytest.mark.security(5)
def test_half_rotated_files_are_outlived(etcd_factory: Factory, tmp_path: Path) -> None:
    """The certificate is replaced, its key only a second later; a restart of etcd in between makes the client dial."""
    folder = CertificateFolder(tmp_path / "tls")
    cluster = etcd_factory(tls=TlsSettings(folder, client_auth=True))
    with EtcdClient(cluster.endpoints, 1, ttl=8, dial_timeout=2, tls=tls_files(folder)) as client:
        client.register(7164, host="127.0.0.1", timeout=5)
        lease = client.session.lease_id
        fresh = folder.authority.issue("fresh", common_name="client")
        shutil.copy2(fresh.cert, folder.client.cert)
        cluster.members[0].restart()
        timer = threading.Timer(1.0, shutil.copy2, (fresh.key, folder.client.key))
        timer.start()
        try:
            assert client.get_key("/x", timeout=6) is None, "a call in that second waits; it is not refused"
        finally:
            timer.join()
        assert client.session.lease_id == lease


# --- which texts of gRPC are looked into ---


@pytest.mark.parametrize(
    ("text", "suspicious"),
    [
        ("Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED: has expired", True),
        ("Ssl handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: TLSV1_ALERT_PROTOCOL_VERSION", True),
        ("Peer name 127.0.0.1 is not in peer certificate", True),
        ("empty address list: ", True),  # what 1.66 makes of files that are no PEM
        ("Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.", True),
        ("failed to connect to all addresses; last error: UNKNOWN: Connection refused", False),
        ("DNS resolution failed for etcd:2379", False),
        ("no answer within 2 s", False),
    ],
)
def test_texts_of_old_and_new_grpc_are_recognised(text: str, suspicious: bool) -> None:
    assert may_be_tls(text) is suspicious
