"""Users, passwords, tokens and roles: what the agent does when etcd refuses them, and that it never tells them.

Every test here runs with log level DEBUG under `secrets`, which fails it where a password, token or private key shows
up in a log line, on stdout or stderr, or in an error that was raised.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import shlex
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from edl_agent import (
    AuthenticationFailed,
    ConfigurationError,
    EdlAgentError,
    EtcdClient,
    PermissionDenied,
    SessionState,
    SlotTakenOver,
    TlsFiles,
)
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.identity import Login
from tests.bench.agent_process import AgentProcess
from tests.bench.certificates import CertificateFolder
from tests.bench.etcd_cluster import ROOT_PASSWORD, EtcdCluster, TlsSettings
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.etcd_versions import known_versions
from tests.bench.waiting import eventually, never
from tests.etcd.observed_client import Observed, both_versions

Factory = Callable[..., EtcdCluster]
ProxyFactory = Callable[[str], EtcdProxy]

USER, PASSWORD, OTHER_PASSWORD = "agent", "canary-password-7f3a91", "canary-password-b2c804"
VALUE = b"canary-value-55d0"
LEVEL_CHECK = "this line shows that the level is DEBUG"
CHEAP = ["--bcrypt-cost=4"]
"""Passwords are checked in a millisecond, so that tests do not measure bcrypt."""


class Secrets:
    """What must not be told, and the errors that were raised."""

    def __init__(self) -> None:
        self.values: set[str] = {PASSWORD, OTHER_PASSWORD}
        self.told: list[str] = []

    @contextlib.contextmanager
    def refused(self, kind: type[EdlAgentError], match: str | None = None) -> Iterator[None]:
        """As `pytest.raises`, and the error with all its causes is kept for inspection."""
        with pytest.raises(kind, match=match) as caught:
            yield
        self.told += traceback.format_exception(caught.value)
        error: BaseException | None = caught.value
        while error is not None:
            self.told += [repr(error), repr(vars(error)), repr(error.args)]
            error = error.__cause__ or error.__context__


@pytest.fixture(autouse=True)
def secrets(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Secrets]:
    caplog.set_level(logging.DEBUG)
    found = Secrets()
    authenticate = Connection._authenticate

    def noting(self: Connection, *arguments: Any, **keywords: Any) -> None:
        try:
            authenticate(self, *arguments, **keywords)
        finally:
            found.values.update(text for name, text in self._metadata if name == "token")

    monkeypatch.setattr(Connection, "_authenticate", noting)
    logging.getLogger("edl_agent.etcd").debug(LEVEL_CHECK)
    yield found
    formatter = logging.Formatter("%(message)s")
    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    assert any(record.getMessage() == LEVEL_CHECK for record in records), "lines of level DEBUG are not seen here"
    output = capfd.readouterr()
    told = [*(formatter.format(record) for record in records), output.out, output.err, *found.told]
    for secret in found.values:
        for text in told:
            assert secret not in text, f"a secret was told: {text!r}"


def login(**more: Any) -> dict[str, Any]:
    return {"user": USER, "password": PASSWORD, "unsafe_plaintext_password": True, **more}


def change_password(cluster: EtcdCluster, password: str = PASSWORD) -> None:
    """Also without a change all tokens of the user are void afterwards."""
    cluster.etcdctl("user", "passwd", USER, "--interactive=false", input=f"{password}\n")


def with_auth(etcd_factory: Factory, version: str = "default", token: tuple[str, int] | str = ("simple", 300)) -> Any:
    cluster = etcd_factory(version=version, auth_token=token, flags=CHEAP)
    cluster.enable_auth(USER, PASSWORD)
    return cluster


# --- before anything is sent ---


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:2379", "127.0.0.1:2379"])
@pytest.mark.security(3)
def test_a_password_without_tls_is_refused_unless_a_setting_named_unsafe_says_so(
    endpoint: str, secrets: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    with secrets.refused(ConfigurationError, "unencrypted"):
        EtcdClient(endpoint, 1, user=USER, password=PASSWORD)
    with EtcdClient(endpoint, 1, **login()) as client:
        secrets.told.append(repr(client))
    with EtcdClient("https://127.0.0.1:2379", 1, user=USER, password=PASSWORD) as client:
        secrets.told += [repr(client), repr(client._settings), str(client._settings), repr(vars(client))]
    logging.getLogger("edl_agent").debug("%r %s", client._settings, Login(USER, PASSWORD))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"user": USER}, "either as text or as a file"),
        ({"user": USER, "password": PASSWORD, "password_file": "/secret"}, "one of the two"),
        ({"password": PASSWORD}, "without a user"),
        ({"password_file": "/secret"}, "without a user"),
        ({"user": "", "password": PASSWORD}, "user is empty"),
    ],
)
def test_half_of_a_login_is_refused_at_construction(
    settings: dict[str, Any], words: str, secrets: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    with secrets.refused(ConfigurationError, words):
        EtcdClient("https://127.0.0.1:2379", 1, **settings)


def test_a_password_inside_an_endpoint_is_never_echoed(secrets: Secrets) -> None:
    with secrets.refused(ConfigurationError, "user information"):
        EtcdClient(f"https://agent:{PASSWORD}@127.0.0.1:2379", 1)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00canary", b""], ids=["absent", "not UTF-8", "empty"])
def test_an_unusable_password_file_gives_a_typed_error_without_its_content(
    content: bytes | None, etcd_factory: Factory, tmp_path: Path, secrets: Secrets
) -> None:
    cluster = with_auth(etcd_factory)
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    secrets.values.add("canary")
    with EtcdClient(cluster.endpoints, 1, user=USER, password_file=str(file), unsafe_plaintext_password=True) as client:
        with secrets.refused(AuthenticationFailed):
            client.get_key("/x", timeout=2)
        file.write_text(PASSWORD + "\n")
        assert client.get_key("/x", timeout=2) is None


# --- right and wrong credentials ---


def test_wrong_and_missing_credentials_are_refused_at_once_with_what_to_do(
    etcd_factory: Factory, secrets: Secrets
) -> None:
    cluster = with_auth(etcd_factory)
    for settings, words in (
        (login(password=OTHER_PASSWORD), "agent.*authentication failed"),
        (login(user="nobody"), "nobody.*authentication failed"),
        ({}, "none are configured"),
    ):
        with EtcdClient(cluster.endpoints, 1, ttl=5, **settings) as client:
            for name, arguments in (
                ("get_key", {"key": "/x"}),
                ("put_key", {"key": "/x", "value": b"v"}),
                ("register", {"port": 7164, "host": "127.0.0.1"}),
            ):
                started = time.monotonic()
                with secrets.refused(AuthenticationFailed, words):
                    getattr(client, name)(**arguments, timeout=5)
                assert time.monotonic() - started < 2
            with secrets.refused(AuthenticationFailed, words):  # a watch without a read before it
                next(iter(client.watch_prefix("/x", start_revision=1)))


@pytest.mark.report("M13")
def test_the_token_travels_with_every_call_and_watch_also_without_tls(
    etcd_factory: Factory, etcd_proxy_factory: ProxyFactory
) -> None:
    """Also F11 and F12: as metadata, since gRPC's call credentials need TLS; on keepalives though old etcd asks not."""
    cluster = with_auth(etcd_factory)
    proxy = etcd_proxy_factory(cluster.members[0].client_url)
    with EtcdClient(proxy.endpoint, 1, ttl=2, **login()) as client:
        client.register(7164, host="127.0.0.1", timeout=5)
        with client.watch_prefix("/data/") as watch:
            client.put_key("/data/a", b"1", with_lease=True)
            event = next(iter(watch))
            assert (event.key, event.value) == (b"/data/a", b"1")
        eventually(lambda: proxy.count("LeaseKeepAlive") >= 2, 5.0, "two keepalives")
        client.delete_key("/data/a")
        token = dict(client._connection._metadata)["token"]
    calls = [call for call in proxy.calls("*") if not call.method.endswith(("Authenticate", "Status"))]
    assert {call.method.rpartition("/")[2] for call in calls} >= {
        "Range", "Put", "Txn", "DeleteRange", "Watch", "LeaseGrant", "LeaseRevoke", "LeaseKeepAlive",
    }  # fmt: skip
    assert [call.method for call in calls if call.metadata.get("token") != token] == []
    assert proxy.count("Authenticate") == 1


def test_the_name_in_a_client_certificate_does_not_stand_in_for_the_user(
    etcd_factory: Factory, certificates: CertificateFolder
) -> None:
    """Without a token etcd takes it for the user, so every call carries a token, the first one and concurrent ones."""
    cluster = etcd_factory(tls=TlsSettings(certificates, client_auth=True), flags=CHEAP)
    cluster.enable_auth(USER, PASSWORD)
    pair = certificates.client
    tls = TlsFiles(str(certificates.ca), str(pair.cert), str(pair.key))
    with EtcdClient(cluster.endpoints, 1, user=USER, password=PASSWORD, tls=tls) as client:
        client.put_key("/x", b"1", timeout=3)
    with EtcdClient(cluster.endpoints, 1, user=USER, password=PASSWORD, tls=tls) as client:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda _: client.get_key("/x", timeout=5), range(16))) == [b"1"] * 16
        client._connection.renew_token()  # as a refused watch does
        assert client.get_key("/x", timeout=3) == b"1"


# --- tokens that end (A19, A20) ---


def public_calls(client: EtcdClient) -> dict[str, Callable[[], object]]:
    def watch() -> object:
        with client.watch_prefix("/data/", timeout=3) as opened:
            client.put_key("/data/b", b"2", timeout=3)
            return next(iter(opened))

    return {
        "put_key": lambda: client.put_key("/data/a", b"1", timeout=3),
        "put_key with lease": lambda: client.put_key("/data/leased", b"1", timeout=3, with_lease=True),
        "get_key": lambda: client.get_key("/data/a", timeout=3),
        "get_prefix": lambda: client.get_prefix("/data/", timeout=3),
        "compare_and_set": lambda: client.compare_and_set("/data/c", b"3", timeout=3),
        "guarded_put": lambda: client.guarded_put("/data/d", b"4", timeout=3),
        "watch_prefix": watch,
        "delete_key": lambda: client.delete_key("/data/a", timeout=3),
        "register": lambda: client.register(7164, host="127.0.0.1", timeout=3),
    }


@pytest.mark.fault("A19")
@both_versions
def test_every_public_call_gets_over_an_expired_token(
    version: str, etcd_factory: Factory, etcd_proxy_factory: ProxyFactory
) -> None:
    """The tokens of the user are made void before each call, which is what an expired one looks like to etcd."""
    cluster = with_auth(etcd_factory, version)
    proxy = etcd_proxy_factory(cluster.members[0].client_url)
    with Observed(proxy.endpoint, ttl=6, **login()) as observed:
        observed.register()
        lease = observed.client.session.lease_id
        for name, call in public_calls(observed.client).items():
            change_password(cluster)
            proxy.clear()
            call()
            assert proxy.count("Put") <= 2, f"{name}: refused once, sent once more"
            assert proxy.count("Authenticate") <= 2, f"{name}: at most the call and a keepalive that met it, too"
        observed.assert_undisturbed(lease)


@pytest.mark.fault("A19")
def test_after_idling_longer_than_the_token_lives_one_authentication_is_enough(
    etcd_factory: Factory, etcd_proxy_factory: ProxyFactory
) -> None:
    """The real expiry. 16 threads then meet it at the same moment, and still one new token is asked for."""
    cluster = with_auth(etcd_factory, token=("simple", 2))
    proxy = etcd_proxy_factory(cluster.members[0].client_url)
    with EtcdClient(proxy.endpoint, 1, **login()) as client:
        client.put_key("/x", b"1", timeout=2)
        time.sleep(4.2)  # etcd looks for expired tokens once a second
        proxy.clear()
        assert client.get_key("/x", timeout=2) == b"1"
        assert (proxy.count("Authenticate"), proxy.count("Range")) == (1, 2)

        change_password(cluster)
        proxy.clear()
        failed: list[BaseException] = []
        barrier = threading.Barrier(16)

        def read() -> None:
            barrier.wait(5)
            try:
                assert client.get_key("/x", timeout=5) == b"1"
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=read, name=f"reader-{number}") for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert failed == []
        assert proxy.count("Authenticate") == 1
        assert proxy.count("Range") <= 32


@pytest.mark.fault("A19")
@pytest.mark.report("M13")
def test_a_watch_is_rebuilt_after_its_token_ended_and_nothing_is_lost_or_doubled(
    etcd_factory: Factory, etcd_proxy_factory: ProxyFactory
) -> None:
    cluster = with_auth(etcd_factory)
    proxy = etcd_proxy_factory(cluster.members[0].client_url)
    seen: list[bytes] = []
    with EtcdClient(proxy.endpoint, 1, **login()) as client:
        watch = client.watch_prefix("/data/", timeout=3)

        def follow() -> None:
            for event in watch:
                seen.append(event.value)

        follower = threading.Thread(target=follow, name="follower")
        follower.start()
        try:
            for number in range(6):
                cluster.etcdctl("put", "/data/k", str(number))
                if number % 2:
                    change_password(cluster)
                    proxy.break_streams("Watch")
            wanted = [str(number).encode() for number in range(6)]
            eventually(lambda: len(seen) >= 6, 10.0, lambda: f"six events, got {seen}")
            assert seen == wanted
        finally:
            watch.cancel()
            follower.join(5)


@pytest.mark.fault("A20")
@pytest.mark.report("M24")
@both_versions
def test_adding_a_user_costs_no_jwt_holder_its_slot(version: str, etcd_factory: Factory) -> None:
    """Every change of users makes all JWTs old ("revision of auth store is old"); five agents run on."""
    cluster = with_auth(etcd_factory, version, "jwt")
    with contextlib.ExitStack() as stack:
        agents = [
            stack.enter_context(Observed(cluster.endpoints, port=7164 + number, num_pservers=5, ttl=2, **login()))
            for number in range(5)
        ]
        indexes = [agent.register() for agent in agents]
        leases = [agent.client.session.lease_id for agent in agents]
        assert sorted(indexes) == [0, 1, 2, 3, 4]
        for number in range(3):
            cluster.add_user(f"other-{number}", "whatever")
            for agent in agents:
                agent.client.guarded_put("/data/x", b"1", timeout=3)
                assert agent.client.get_key("/data/x", timeout=3) == b"1"
        never(lambda: [a for a in agents if a.client.session.index is None], 2.5, "a lost slot")
        for agent, index, lease in zip(agents, indexes, leases, strict=True):
            agent.assert_undisturbed(lease, index)


# --- authentication switched on, passwords changed (A21) ---


@pytest.mark.fault("A21")
@pytest.mark.report("M25")
def test_switching_authentication_on_and_off_under_agents_with_credentials_is_not_noticed(
    etcd_factory: Factory,
) -> None:
    cluster = etcd_factory(flags=CHEAP)
    with Observed(cluster.endpoints, ttl=2, **login()) as observed:
        observed.register()
        lease = observed.client.session.lease_id
        with observed.client.watch_prefix("/data/") as watch:
            events = iter(watch)
            cluster.enable_auth(USER, PASSWORD)
            observed.client.put_key("/data/a", b"on", timeout=3)
            assert next(events).value == b"on"
            never(lambda: observed.client.session.index is None, 2.5, "a lost slot")
            cluster.disable_auth()
            observed.client.put_key("/data/a", b"off", timeout=3)
            assert next(events).value == b"off"
        never(lambda: observed.client.session.index is None, 1.0, "a lost slot")
        observed.assert_undisturbed(lease)


@pytest.mark.fault("A21")
@pytest.mark.report("M25")
@both_versions
def test_switching_authentication_on_under_an_agent_without_credentials_gives_a_clear_state_and_no_crash(
    version: str, etcd_factory: Factory, secrets: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    """New servers refuse keepalives without a token: lost after T, says why. Old ones keep the slot (F12)."""
    cluster = etcd_factory(version=version, flags=CHEAP)
    with Observed(cluster.endpoints, ttl=2) as observed:
        observed.register()
        client = observed.client
        cluster.enable_auth(USER, PASSWORD)
        with secrets.refused(AuthenticationFailed, "none are configured"):
            client.get_key("/x", timeout=2)
        if version == "3.6":
            eventually(lambda: client.session.state is SessionState.LOST, 3.0, "the loss")
            eventually(lambda: "none are configured" in client.waiting_for, 3.0, "the reason")
            assert len(observed.named("lost")) == 1
        else:
            never(lambda: client.session.index is None, 3.0, "a lost slot")
        assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) <= 6, "told, not shouted"
        assert [r for r in caplog.records if r.exc_info] == []
        cluster.disable_auth()
        eventually(lambda: client.session.index == 0, 10.0, "the slot again")
        assert client.get_key("/x", timeout=2) is None


@pytest.mark.fault("A21")
@both_versions
@pytest.mark.security(5)
def test_a_changed_password_is_taken_from_the_secret_file(
    version: str,
    etcd_factory: Factory,
    etcd_proxy_factory: ProxyFactory,
    tmp_path: Path,
    secrets: Secrets,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = with_auth(etcd_factory, version)
    proxy = etcd_proxy_factory(cluster.members[0].client_url)
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    settings: dict[str, Any] = {"user": USER, "password_file": str(file), "unsafe_plaintext_password": True}
    with Observed(proxy.endpoint, ttl=2, **settings) as observed:
        client = observed.client
        observed.register()
        epoch = client.session.epoch
        assert epoch is not None
        proxy.clear()
        changed = time.monotonic()
        change_password(cluster, OTHER_PASSWORD)
        with secrets.refused(AuthenticationFailed, "authentication failed"):
            client.get_key("/x", timeout=2)
        if version == "3.6":
            eventually(lambda: client.session.state is SessionState.LOST, 3.0, "the loss after the lease time")
            eventually(lambda: "authentication failed" in client.waiting_for, 3.0, "the reason")
        else:  # keepalives need no token there (F12)
            never(lambda: client.session.index is None, 3.0, "a lost slot")
        time.sleep(max(0.0, changed + 5 - time.monotonic()))
        assert proxy.count("Authenticate") <= 5 * 5, "at most 5 calls/s (I6)"
        file.write_text(OTHER_PASSWORD + "\n")
        assert client.get_key("/x", timeout=5) is None
        eventually(lambda: client.session.index == 0, 10.0, "the slot again")
        if version == "3.6":
            assert len(observed.named("lost")) == 1
            assert (client.session.epoch or 0) > epoch
        warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(warnings) <= 6, warnings


@pytest.mark.soak
@pytest.mark.fault("A21")
def test_the_attempts_with_a_wrong_password_become_rare_but_never_rarer_than_30_seconds(
    etcd_factory: Factory, etcd_proxy_factory: ProxyFactory
) -> None:
    cluster = with_auth(etcd_factory, "3.6")
    proxy = etcd_proxy_factory(cluster.members[0].client_url)
    with Observed(proxy.endpoint, ttl=2, **login()) as observed:
        observed.register()
        change_password(cluster, OTHER_PASSWORD)
        eventually(lambda: observed.client.session.state is SessionState.LOST, 5.0, "the loss")
        time.sleep(180)
        times = [call.time for call in proxy.calls("Authenticate")]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert max(gaps) <= 31
        assert len([gap for gap in gaps[-6:] if gap > 5]) >= 2, gaps


# --- the token ends while the agent is stopped (M23) ---


@pytest.mark.report("M23")
@pytest.mark.parametrize("version", known_versions()[-1:])  # old servers grant leases without a token (F12)
def test_an_agent_that_slept_through_lease_and_token_registers_again(
    version: str,
    etcd_factory: Factory,
    certificates: CertificateFolder,
    tmp_path: Path,
    agent_factory: Callable[..., AgentProcess],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stopped for three lease times with tokens of 2 s: both are gone, the grant itself must authenticate."""
    cluster = etcd_factory(version=version, tls=certificates, auth_token=("simple", 2), flags=CHEAP)
    cluster.enable_auth(USER, PASSWORD)
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    environment = {
        "EDL_ETCD_USER": USER, "EDL_ETCD_PASSWORD_FILE": str(file), "EDL_ETCD_CA": str(certificates.ca),
    }  # fmt: skip
    agent = agent_factory(cluster.endpoints, 7164, ttl=2, environment=environment, arguments=["-vv"])
    first = agent.wait_event("registered")
    agent.sigstop()
    time.sleep(6)
    assert cluster.keys("/ps/") == []
    agent.sigcont()
    lost = agent.wait_event("lost", 2.0)
    again = agent.wait_event("registered", 2.0 + 1.0, after=lost)
    assert again["epoch"] > first["epoch"]
    assert Path(f"/proc/{agent.pid}/cmdline").read_bytes().find(PASSWORD.encode()) == -1
    assert agent.terminate() == 0
    assert PASSWORD not in agent.stderr + repr(agent.events) + repr(agent.noise)
    logging.getLogger("edl_agent").debug(agent.stderr)


# --- secrets in files (security 21) ---


@pytest.mark.security(21)
def test_neither_keys_nor_passwords_nor_tokens_are_told_on_any_path(
    etcd_factory: Factory, tmp_path: Path, secrets: Secrets
) -> None:
    """One client through everything that logs: good and bad login, rotation, loss of etcd, refused calls, shutdown."""
    folder = CertificateFolder(tmp_path / "tls")
    secrets.values |= {line for line in folder.client.key.read_text().splitlines() if not line.startswith("-")}
    cluster = etcd_factory(tls=TlsSettings(folder, client_auth=True), auth_token=("simple", 300), flags=CHEAP)
    cluster.enable_auth(USER, PASSWORD, prefix="/mine")
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    tls = TlsFiles(str(folder.ca), str(folder.client.cert), str(folder.client.key))
    with Observed(
        cluster.endpoints, ttl=3, dial_timeout=1, prefix="/mine", user=USER, password_file=str(file), tls=tls
    ) as observed:
        client = observed.client
        observed.register()
        secrets.told += [repr(client), repr(client.session), repr(tls), repr(client._settings)]
        secrets.values.add(VALUE.decode())
        client.put_key("/v", VALUE, timeout=3)
        client.guarded_put("/v", VALUE, timeout=3)
        change_password(cluster, OTHER_PASSWORD)
        with secrets.refused(AuthenticationFailed):
            client.get_key("/v", timeout=2)
        file.write_text(OTHER_PASSWORD)
        with EtcdClient(cluster.endpoints, 1, user=USER, password=OTHER_PASSWORD, tls=tls) as outside:
            with secrets.refused(PermissionDenied):
                outside.put_key("/other", VALUE, timeout=3)
            with secrets.refused(EdlAgentError):
                outside.put_key("/mine/v", VALUE * 200_000, timeout=3)
        folder.rotate(folder.client)
        secrets.values |= {line for line in folder.client.key.read_text().splitlines() if not line.startswith("-")}
        cluster.members[0].kill()
        with secrets.refused(EdlAgentError):
            client.put_key("/v", VALUE, timeout=1)
        cluster.members[0].start()
        eventually(lambda: client.get_key("/v", timeout=3) == VALUE, 8.0, "etcd again")


# --- roles (security 6) ---


def commands_in_docs(block: str) -> list[list[str]]:
    """The commands of one ```sh block of docs/etcd-roles.md, as words."""
    page = (Path(__file__).parents[2] / "docs" / "etcd-roles.md").read_text()
    (text,) = re.findall(rf"^```sh {block}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    # The passwords come through a pipe, `printf ... | etcdctl user add ...`; the test gives its own.
    return [
        shlex.split(line, comments=True) for line in (line.rpartition(" | ")[2] for line in text.splitlines()) if line
    ]


def run_block(cluster: EtcdCluster, block: str, job: str, user: str) -> None:
    for program, *words in commands_in_docs(block):
        assert program == "etcdctl"
        filled = [word.replace("$JOB", job).replace("$EDL_USER", user) for word in words]
        cluster.etcdctl(*filled, input=f"{PASSWORD}\n" if "--interactive=false" in filled else None)


@pytest.mark.security(6)
def test_an_agent_needs_no_more_than_its_role_and_its_role_allows_no_more(
    etcd_factory: Factory, secrets: Secrets
) -> None:
    """The commands of docs/etcd-roles.md, a whole life under the role, and refusals outside of it."""
    cluster = etcd_factory(flags=CHEAP)
    job = "/edl/jobs/default/mnist/0f3c"
    run_block(cluster, "agent", job, USER)
    run_block(cluster, "agent", "/edl/jobs/default/other/77aa", "other")
    run_block(cluster, "controller", job, USER)
    run_block(cluster, "job", job, USER)
    cluster.etcdctl("user", "add", f"root:{ROOT_PASSWORD}")
    cluster.etcdctl("user", "grant-role", "root", "root")
    cluster.etcdctl("auth", "enable")
    cluster.root_credentials = ("root", ROOT_PASSWORD)

    settings = login(prefix=job)
    with Observed(cluster.endpoints, port=7164, num_pservers=2, ttl=2, **settings) as first:
        with Observed(cluster.endpoints, port=7165, num_pservers=2, ttl=2, **settings) as second:
            assert sorted([first.register(), second.register()]) == [0, 1]
            for call in public_calls(first.client).values():
                call()
            never(lambda: first.client.session.index is None, 2.5, "a lost slot")
            # A newer process with the same address takes over, which also revokes the older one's lease.
            with Observed(cluster.endpoints, port=7165, num_pservers=2, ttl=2, **settings) as twin:
                assert twin.register() == second.named("registered")[0][1][0].index
                eventually(lambda: isinstance(second.client.session.loss, SlotTakenOver), 3.0, "the takeover")
                cluster.etcdctl("del", f"{job}/ps/{twin.client.session.index}")
                eventually(lambda: len(twin.named("registered")) == 2, 3.0, "the slot claimed again")
        eventually(lambda: len(cluster.keys(f"{job}/ps/")) == 1, 3.0, "the release by shutdown")

    for outside in ("/ps/0", f"{job}2/ps/0", "/edl/jobs/default/other/77aa/ps/0", "/", "/edl/jobs"):
        with EtcdClient(cluster.endpoints, 1, **login()) as client:
            with secrets.refused(PermissionDenied):
                client.put_key(outside, b"127.0.0.1:1", timeout=3)
            with secrets.refused(PermissionDenied):
                client.get_key(outside, timeout=3)
            with secrets.refused(PermissionDenied):
                client.delete_key(outside, timeout=3)
            with secrets.refused(PermissionDenied):
                client.compare_and_set(outside, b"", expected=None, guarded=False, timeout=3)
            with client.watch_prefix(outside, start_revision=1, timeout=3) as watch, secrets.refused(PermissionDenied):
                next(iter(watch))
    elsewhere = login(prefix="/edl/jobs/default/other/77aa")
    with Observed(cluster.endpoints, ttl=2, **elsewhere) as foreign, secrets.refused(PermissionDenied):
        foreign.register()

    controller = login(user="edl-controller")
    with EtcdClient(cluster.endpoints, 1, **controller) as client:
        assert client.get_prefix("/edl/jobs/", timeout=3)
        client.put_key(f"{job}/ps_desired", b"3", timeout=3)
        client.put_key(f"{job}/edl/drain/trainer-1", b"{}", timeout=3)
        with secrets.refused(PermissionDenied):
            client.put_key(f"{job}/ps/0", b"127.0.0.1:1", timeout=3)
        run_block(cluster, "sweep", job, USER)
        assert client.delete_key(f"{job}/ps_desired", timeout=3)
        assert client.delete_key(f"{job}/data/b", timeout=3)
        run_block(cluster, "swept", job, USER)
        with secrets.refused(PermissionDenied):
            client.put_key(f"{job}/edl/drain/trainer-1", b"{}", timeout=3)
