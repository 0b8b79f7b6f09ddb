"""A real etcd cluster of one or three members, whose members are killed, paused, wiped and cut off one by one."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from edl_agent.testing import EtcdServer, EtcdServerError, run_etcdctl
from tests.bench.certificates import CertificateFolder, KeyPair, jwt_keys
from tests.bench.etcd_versions import binaries
from tests.bench.secret_watch import WATCH
from tests.bench.tcp_proxy import Connection, Mode, TcpProxy, sniffed_header
from tests.bench.waiting import eventually

ROOT_PASSWORD = "root-secret-7c31"


@dataclass(frozen=True)
class TlsSettings:
    """TLS for the client side of the members.

    ``server`` is the members' certificate (default: the folder's good one); with ``client_auth`` clients must show
    one of the folder's CA.
    """

    folder: CertificateFolder
    server: KeyPair | None = None
    client_auth: bool = False

    def flags(self) -> list[str]:
        """The etcd flags."""
        pair = self.server or self.folder.server
        flags = [f"--cert-file={pair.cert}", f"--key-file={pair.key}"]
        if self.client_auth:
            flags += ["--client-cert-auth", f"--trusted-ca-file={self.folder.ca}"]
        return flags

    def client_context(self) -> ssl.SSLContext:
        """For the bench's own calls; verifies nothing, so that it also works with bad server certificates."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(self.folder.client.cert, self.folder.client.key)
        return context

    def etcdctl_flags(self) -> list[str]:
        """The flags for etcdctl."""
        client = self.folder.client
        return ["--insecure-skip-tls-verify=true", f"--cert={client.cert}", f"--key={client.key}"]


class Member(EtcdServer):
    """One member of a cluster. See EtcdServer for ``kill, pause, resume, restart, start, endpoint, client_url,
    pid``.
    """

    cluster: EtcdCluster
    index: int
    peer_proxy: TcpProxy | None = None

    def terminate(self) -> None:
        """SIGTERM, and wait for the end: a leader hands over before it goes."""
        self.stop()

    @property
    def member_id(self) -> int:
        """The member's id. Raises EtcdServerError where the member does not answer."""
        return int(self.status()["header"]["member_id"])

    def status(self, timeout: float = 1.0) -> dict[str, Any]:
        """The answer of Maintenance.Status as JSON (ids as decimal text). Raises EtcdServerError where there is
        none.
        """
        return self.call("maintenance/status", {}, timeout)

    def claims_leadership(self) -> bool:
        """Whether the member's metrics say that it leads (without a term, so a cut-off one may be wrong)."""
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.metrics_url}/metrics", timeout=0.5) as answer:
            return b"\netcd_server_is_leader 1\n" in answer.read()
        return False

    def call(self, path: str, body: dict[str, Any], timeout: float = 1.0) -> dict[str, Any]:
        """Call etcd's HTTP gateway on this member (``/v3/<path>``). Raises EtcdServerError."""
        host, port = self.endpoint.split(":")
        tls = self.cluster.tls
        connection: http.client.HTTPConnection
        if tls is None:
            connection = http.client.HTTPConnection(host, int(port), timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(host, int(port), timeout=timeout, context=tls.client_context())
        try:
            connection.request("POST", f"/v3/{path}", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise EtcdServerError(f"etcd {self.name} answered {answer.status}: {text[:200]!r}")
            found: dict[str, Any] = json.loads(text)
            return found
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EtcdServerError(f"etcd {self.name} did not answer {path}: {error!r}") from error
        finally:
            connection.close()

    def wipe_and_restart(self, *, new_identity: bool = False) -> None:
        """Lose all data and come back empty.

        A single member becomes a new cluster (see ``EtcdServer.wipe`` for ``new_identity``); a member of three is
        removed, added again and filled by the others, as an operator would do it.
        """
        others = [
            member for member in self.cluster.members if member is not self and member.running and not member.paused
        ]
        if not others:
            self.wipe(new_identity=new_identity)
            self.start()
            return
        identity = self.cluster.member_ids.get(self.index) or self.member_id
        self.wipe()
        through = self.cluster.members[self.cluster.leader()].client_url  # waits for one, if this was the leader
        self.cluster.etcdctl("member", "remove", f"{identity:x}", endpoints=[through])
        self.cluster.etcdctl("member", "add", self.name, f"--peer-urls={self.advertised_peer_url}", endpoints=[through])
        self.initial_cluster_state = "existing"
        self.start()
        self.cluster.learn_member_ids()

    def isolate(self) -> None:
        """Cut this member off from its peers, both ways; its clients still reach it. Needs ``peer_proxies=True``."""
        self.cluster.isolated.add(self.index)
        self.cluster.apply_isolation()

    def rejoin(self) -> None:
        """End ``isolate()``."""
        self.cluster.isolated.discard(self.index)
        self.cluster.apply_isolation()


class EtcdCluster:
    """One or three real members on loopback. A context manager: starts, and on exit kills all and removes the data."""

    def __init__(
        self,
        members: int = 1,
        *,
        tls: TlsSettings | CertificateFolder | None = None,
        quota: int | None = None,
        auth_token: tuple[str, int] | str | None = None,
        heartbeat_ms: int | None = None,
        election_ms: int | None = None,
        version: str = "default",
        peer_proxies: bool = False,
        auto_compaction: str | None = None,
        flags: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        """Describe a cluster; ``start()`` or ``with`` starts it.

        ``quota``: backend bytes. ``auth_token``: ``("simple", seconds)``, ``("jwt", seconds)`` or "jwt" (10
        minutes). ``heartbeat_ms``, ``election_ms``: default etcd's own (100, 1000), on which the smallest lease TTL
        depends. ``version``: "default" or "3.6". ``peer_proxies``: members talk to each other through TCP proxies,
        so that one can be isolated. Raises EtcdNotFoundError.
        """
        self._temporary = tempfile.TemporaryDirectory(prefix="edl-cluster-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary is not None else folder or Path()
        self.binaries = binaries(version)
        self.tls = TlsSettings(tls) if isinstance(tls, CertificateFolder) else tls
        self.isolated: set[int] = set()
        self.member_ids: dict[int, int] = {}
        self.root_credentials: tuple[str, str] | None = None
        # Without the check a member can be removed and added again as soon as its peers run, not 5 s later.
        extra = ["--strict-reconfig-check=false", *self._token_flags(auth_token), *flags]
        for flag, value in (
            ("quota-backend-bytes", quota),
            ("heartbeat-interval", heartbeat_ms),
            ("election-timeout", election_ms),
        ):
            if value is not None:
                extra.append(f"--{flag}={value}")
        self.members: list[Member] = []
        for index in range(members):
            member = Member(
                binaries=self.binaries,
                name=f"m{index}",
                folder=self.folder,
                auto_compaction=auto_compaction,
                tls_flags=self.tls.flags() if self.tls is not None else (),
                extra_flags=extra,
            )
            member.cluster, member.index = self, index
            if peer_proxies:
                member.peer_proxy = TcpProxy(member.peer_url)
                member.advertised_peer_url = member.peer_proxy.endpoint
            self.members.append(member)
        for member in self.members:
            member.initial_cluster = ",".join(f"{m.name}={m.advertised_peer_url}" for m in self.members)
            member.cluster_token = f"edl-{self.members[0].peer_url}"

    def _token_flags(self, auth_token: tuple[str, int] | str | None) -> list[str]:
        if auth_token is None:
            return []
        kind, ttl = auth_token if isinstance(auth_token, tuple) else (auth_token, 600)
        if kind == "simple":
            return ["--auth-token=simple", f"--auth-token-ttl={ttl}"]
        keys = jwt_keys(self.folder)
        return [f"--auth-token=jwt,pub-key={keys.cert},priv-key={keys.key},sign-method=RS256,ttl={ttl}s"]

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self, timeout: float = 30.0) -> Self:
        """Start all members and wait (seconds) until each is healthy. Raises EtcdServerError."""
        for member in self.members:
            if not member.running:
                member.launch()
        for member in self.members:
            member.wait_healthy(timeout)
        self.learn_member_ids()
        return self

    def close(self) -> None:
        """Kill all, remove the data. Idempotent."""
        for member in self.members:
            member.close()
            if member.peer_proxy is not None:
                member.peer_proxy.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def heal(self, timeout: float = 30.0) -> None:
        """Bring every member back: rejoined, resumed, started, healthy (for fixtures that share a cluster)."""
        self.isolated.clear()
        self.apply_isolation()
        for member in self.members:
            if member.running:
                member.resume()
            else:
                member.launch()
        for member in self.members:
            member.wait_healthy(timeout)

    def kill_all(self) -> None:
        """SIGKILL for all members."""
        for member in self.members:
            member.kill()

    def wipe_all(self, *, new_identity: bool = False) -> None:
        """All members lose their data (they are killed first). ``start()`` brings an empty cluster on the same
        ports.
        """
        for member in self.members:
            member.initial_cluster_state = "new"
            member.wipe(new_identity=new_identity)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- who and where -------------------------------------------------------------------------------------------

    @property
    def endpoints(self) -> list[str]:
        """The client URLs of all members, in the order of their index."""
        return [member.client_url for member in self.members]

    @property
    def endpoint_string(self) -> str:
        """The client URLs of all members, with commas between."""
        return ",".join(self.endpoints)

    def leader(self, timeout: float = 10.0) -> int:
        """Index of the leader in the newest term among the members that answer; waits (seconds) for one. Raises
        AssertionError.
        """
        return eventually(lambda: [i for i in [self._leader_now()] if i is not None], timeout, "a leader of etcd")[0]

    def _leader_now(self) -> int | None:
        best: tuple[int, int] | None = None
        for member in self.members:
            if not member.running or not self._in_reach(member):
                continue
            try:
                status = member.status(0.3)
            except EtcdServerError:
                if member.claims_leadership():  # auth with client certificates shuts the gateway out
                    best = max(best or (0, 0), (0, member.index))
                continue
            if status.get("leader", "0") == status["header"]["member_id"]:
                best = max(best or (0, 0), (int(status["raftTerm"]), member.index))
        return best[1] if best is not None else None

    def _in_reach(self, member: Member) -> bool:
        return not member.paused and member.index not in self.isolated

    def followers(self) -> list[int]:
        """Indexes of all members but the leader."""
        leader = self.leader()
        return [member.index for member in self.members if member.index != leader]

    def learn_member_ids(self) -> None:
        """Ask the running members for their ids (kept for ``wipe_and_restart`` and ``isolate``)."""
        for member in self.members:
            with contextlib.suppress(EtcdServerError):
                self.member_ids[member.index] = member.member_id

    # -- isolation -----------------------------------------------------------------------------------------------

    def apply_isolation(self) -> None:
        """Make the peer proxies act on ``isolated``. Raises RuntimeError where the cluster has no peer proxies."""
        for member in self.members:
            if member.peer_proxy is None:
                if self.isolated:
                    raise RuntimeError("isolating a member needs EtcdCluster(peer_proxies=True)")
                continue
            # A connection between two members carries the dialler's id in its first request, so that one proxy per
            # member is enough to cut a single pair.
            member.peer_proxy.override(self._chooser(member.index) if self.isolated else None)

    def _chooser(self, index: int) -> Any:
        isolated = frozenset(self.isolated)
        cut_ids = {f"{self.member_ids[i]:x}" for i in isolated if i in self.member_ids}

        def choose(connection: Connection) -> Mode | None:
            if index in isolated:
                return Mode.BLACK_HOLE
            return Mode.BLACK_HOLE if sniffed_header(connection, "X-Server-From") in cut_ids else None

        return choose

    # -- operator ------------------------------------------------------------------------------------------------

    def etcdctl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - named as in subprocess.run
        endpoints: Sequence[str] | None = None,
        user: tuple[str, str] | None = None,
        timeout: float = 15.0,
    ) -> str:
        """Run etcdctl (default: against the members in reach, as root once auth is on) and return what it printed.

        Raises EtcdctlError, which shows what it said, and TimeoutExpired.
        """
        where = endpoints or [member.client_url for member in self.members if member.running and self._in_reach(member)]
        flags = [f"--endpoints={','.join(where)}"]
        if self.tls is not None:
            flags += self.tls.etcdctl_flags()
        credentials = user or self.root_credentials
        if credentials is not None:
            flags.append(f"--user={':'.join(credentials)}")
        return run_etcdctl(self.binaries, [*flags, *arguments], input=input, timeout=timeout)

    def add_user(self, user: str, password: str, prefix: str = "", permission: str = "readwrite") -> None:
        """A user with a role of the same name, with a permission on a prefix (empty: on all keys)."""
        WATCH.keep(password, f"the password of {user}")
        self.etcdctl("user", "add", f"{user}:{password}")
        self.etcdctl("role", "add", user)
        self.etcdctl("role", "grant-permission", user, "--prefix=true", permission, prefix)
        self.etcdctl("user", "grant-role", user, user)

    def enable_auth(self, user: str = "agent", password: str = "agent-secret", prefix: str = "") -> None:
        """Switch auth on: a root user for the bench, and ``user`` who may read and write below ``prefix``."""
        WATCH.keep(ROOT_PASSWORD, "the password of root")
        self.etcdctl("user", "add", f"root:{ROOT_PASSWORD}")
        self.etcdctl("user", "grant-role", "root", "root")
        self.add_user(user, password, prefix)
        self.etcdctl("auth", "enable")
        self.root_credentials = ("root", ROOT_PASSWORD)

    def disable_auth(self) -> None:
        """Switch auth off (users stay)."""
        self.etcdctl("auth", "disable")
        self.root_credentials = None

    def fill_quota(self, key: str = "/filler") -> None:
        """Write until the NOSPACE alarm is on. Needs a small ``quota``."""
        value = "x" * 900_000
        deadline = time.monotonic() + 30
        while "NOSPACE" not in self.etcdctl("alarm", "list"):
            if time.monotonic() > deadline:
                raise AssertionError("the quota was not reached within 30 s; is EtcdCluster(quota=...) small?")
            with contextlib.suppress(Exception):
                self.etcdctl("put", key, input=value)

    def free_quota(self, key: str = "/filler") -> None:
        """Delete the filler, compact, defragment and disarm the alarm."""
        revision = int(json.loads(self.etcdctl("get", key, "-w", "json"))["header"]["revision"])
        self.etcdctl("del", key)
        self.etcdctl("compact", str(revision + 1))
        self.etcdctl("defrag")
        self.etcdctl("alarm", "disarm")

    def leases(self) -> list[str]:
        """The ids (hexadecimal) of all leases."""
        return re.findall(r"^[0-9a-f]{8,16}$", self.etcdctl("lease", "list"), re.MULTILINE)

    def keys(self, prefix: str = "") -> list[str]:
        """All keys below a prefix."""
        return self.etcdctl("get", prefix, "--prefix=true", "--keys-only").split()


def host_and_port(url: str) -> tuple[str, int]:
    """``("127.0.0.1", 2379)`` of a client URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0
