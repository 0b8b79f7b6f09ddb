"""Which endpoint is used: one is *pinned* for all calls until it fails, then all are asked.

All endpoints are asked for their status (the one that failed last comes last), and the first that answers, knows a
leader and belongs to the same cluster is pinned. Who needs an endpoint waits for that until its own deadline. Rejected:
gRPC's own balancing over all addresses, which neither sees a member without a leader nor one that answers TCP and fails
lease calls (Patroni 3335).
"""

import contextlib
import logging
import queue
import random
import threading
from typing import Any

import grpc

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd import status, tls_trouble, wire
from edl_agent.etcd.endpoints import Endpoint
from edl_agent.etcd.identity import TlsFiles
from edl_agent.etcd.peer import Metadata, Peer, describe

_log = logging.getLogger(__name__)

REQUIRE_LEADER: Metadata = (("hasleader", "true"),)
"""A member without a leader then refuses calls instead of serving old data (etcd's WithRequireLeader)."""

PATIENCE = 1.0
"""Seconds without an answer that speak against an endpoint.

Shorter limits are the caller's own haste, unless three in a row.
"""

_HEAD_START = 0.1
"""Seconds that the preferred endpoint is given before the others are tried too (RFC 8305 suggests 0.1 to 0.25)."""

_DIAGNOSIS = 1.0
"""Seconds to find out what is wrong with TLS, over all endpoints."""

_ROTATION = 5.0
"""Seconds after a change of the TLS files in which a refusal may be due to half of them: tried again, not reported."""


class EndpointChoice:
    """The pinned endpoint of a client, and the search for another one. Thread-safe.

    Args:
        endpoints: the members.
        tls: TLS files for https endpoints.
        dial_timeout: seconds for one round over all endpoints.
        clock: for deadlines.

    Attributes:
        pinned: the peer in use, ``None`` while there is none.
        reason: why etcd is not reached or a request is repeated, for people; empty after a call that succeeded.
        cluster_id: of the cluster that answered first; ``None`` before.
        cluster_mark: how an answer of that cluster begins, after two bytes (tag and length of the header): the header's
            first field is the id. An answer that begins otherwise is to be looked at by `check_cluster`.
        closed: set by `close`.
    """

    def __init__(
        self, endpoints: tuple[Endpoint, ...], *, tls: TlsFiles | None, dial_timeout: float, clock: Clock
    ) -> None:
        self.endpoints = endpoints
        self.pinned: Peer | None = None
        self.reason = ""
        self.cluster_id: int | None = None
        self.cluster_mark = b"?"
        self.closed = threading.Event()
        self._tls = tls
        self._dial_timeout = dial_timeout
        self._clock = clock
        self._random = random.Random()
        self._condition = threading.Condition()
        self._peers: dict[Endpoint, Peer] = {}
        self._failed_at: dict[Endpoint, float] = {}
        self._selecting = False
        self._rounds = 0
        self._next_round = 0.0
        self._fingerprint: object = tls.fingerprint() if tls else None
        self._rotated_at = float("-inf")
        self._held = False
        if tls is not None:
            tls.warn_of_open_key()

    def peer(self, deadline: float) -> Peer:
        """The pinned peer on the connection on which it was found good, or another one."""
        peer = self.pinned
        if peer is None:
            return self._search(deadline)
        if peer.connected:
            return peer
        self.failed(peer, "the connection was lost")
        return self._search(deadline)

    def failed(self, peer: Peer, reason: str) -> None:
        """Count ``peer`` as failed: its streams end, other endpoints are tried first."""
        with self._condition:
            if self._peers.get(peer.endpoint) is peer:
                self._failed_at[peer.endpoint] = self._clock.monotonic()
                del self._peers[peer.endpoint]
            if self.pinned is peer:
                self.pinned = None
                self.reason = f"{peer.endpoint}: {reason}"
                _log.debug("Endpoint %s failed: %s", peer.endpoint, reason)
        peer.retire()

    def abandon(self, peer: Peer) -> None:
        """A call on ``peer`` was left by an exception that is not gRPC's own, such as one out of a signal handler.

        gRPC may then hold its channel's lock for ever (grpcio enters it by a Python function, behind whose last step a
        handler may run), and every renewal of the lease would wait for it. So the channel is given up and a new one
        made for the next call. Ending the old one may wait for that lock too: on a thread that nobody waits for.
        """
        with self._condition:
            if self._peers.get(peer.endpoint) is peer:
                del self._peers[peer.endpoint]
            if self.pinned is peer:
                self.pinned = None
        with contextlib.suppress(RuntimeError):  # no more threads: what is left of it ends with the process
            threading.Thread(target=peer.retire, name="edl-abandoned", daemon=True).start()

    def blame(self, peer: Peer, code: str, details: str, attempt: float) -> None:
        """Judge an endpoint by a failed call on it, for which ``attempt`` seconds were allowed."""
        # Where there is no other endpoint, a new connection is no faster than a slow one, and it ends the renewal of
        # the lease that is under way (fault row A10). Dead connections are found by the pings and by the keepalive.
        alone = len(self.endpoints) == 1
        if code == "DEADLINE_EXCEEDED" and attempt < (self._dial_timeout if alone else PATIENCE):
            peer.timeouts += 1
            if alone or peer.timeouts < 3:
                return
        if code == "CANCELLED" and self._peers.get(peer.endpoint) is not peer:
            return  # ended by ourselves
        self.failed(peer, details or code)

    def hold_cluster(self, held: bool) -> None:
        """Say whether a lease is held. While none is, a new cluster is joined once all endpoints agree on its id."""
        self._held = held

    def check_cluster(self, peer: Peer, cluster_id: int) -> None:
        """Look at the cluster id that came with an answer (0 = unknown, from etcd's grpc-proxy).

        gRPC connects an idle channel again without a word, and behind the same address may be another cluster by then.

        Raises:
            ClusterMismatch: it is not this client's cluster; the peer was counted as failed.
        """
        if cluster_id in (0, self.cluster_id):
            return
        if self.cluster_id is None:
            self._belong_to(cluster_id)
            return
        text = f"belongs to cluster {cluster_id:x}, this client to {self.cluster_id:x}"
        self.failed(peer, text)
        raise errors.ClusterMismatch(f"{peer.endpoint}: {text}")

    @property
    def endpoint(self) -> Endpoint | None:
        """The endpoint in use, ``None`` while there is none."""
        peer = self.pinned
        return peer.endpoint if peer is not None else None

    @property
    def trouble(self) -> str:
        """Why etcd is not reached at the moment; empty when it is."""
        return "" if self.pinned is not None else self.reason

    def refresh_identity(self) -> bool:
        """Dial anew with the present TLS files, if they were replaced. Returns whether they were."""
        if self._tls is None:
            return False
        with self._condition:
            fingerprint = self._tls.fingerprint()
            if fingerprint == self._fingerprint:
                return False
            self._fingerprint, self._rotated_at = fingerprint, self._clock.monotonic()
            old, self._peers, self.pinned = list(self._peers.values()), {}, None
        _log.info("TLS files changed; connecting with the new ones")
        self._tls.warn_of_open_key()
        for peer in old:
            peer.retire()
        return True

    def close(self) -> None:
        """End all calls and streams. Idempotent."""
        self.closed.set()
        with self._condition:
            peers, self._peers, self.pinned = list(self._peers.values()), {}, None
            self._condition.notify_all()
        for peer in peers:
            peer.close()

    def pause(self, seconds: float) -> None:
        """Sleep, until `close` at most."""
        if seconds > 0:
            self.closed.wait(seconds)

    def with_reason(self, text: str) -> str:
        """``text`` with the last thing that went wrong."""
        return f"{text} ({self.reason})" if self.reason else text

    def _search(self, deadline: float) -> Peer:
        """The pinned peer; finds one if need be, waiting until the deadline."""
        while True:
            with self._condition:
                while self.pinned is None and self._selecting and not self.closed.is_set():
                    left = deadline - self._clock.monotonic()
                    if left <= 0 or not self._condition.wait(left):
                        raise errors.DeadlineExceeded(self.with_reason("etcd was not reached in time"))
                if self.closed.is_set():
                    raise errors.ClientClosed("the client was shut down")
                if self.pinned is not None:
                    return self.pinned
                self._selecting = True
            try:
                self._select(deadline)
            finally:
                with self._condition:
                    self._selecting = False
                    self._condition.notify_all()

    def _select(self, deadline: float) -> None:
        """One round over all endpoints; pins the first good one, or pauses so that rounds stay rare."""
        # The pause belongs to the connection: a caller with little time must not begin a round early.
        self.pause(min(self._next_round, deadline) - self._clock.monotonic())
        began = self._clock.monotonic()
        if began >= deadline:
            raise errors.DeadlineExceeded(self.with_reason("etcd was not reached in time"))
        self.refresh_identity()
        limit = min(self._dial_timeout, deadline - self._clock.monotonic())
        chosen, reasons = self._ask_all(limit)
        if chosen is not None:
            with self._condition:
                self.pinned, self._rounds = chosen, 0
            return
        distrusted = self._diagnose(reasons)
        self.reason = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in reasons.items())
        if distrusted and self._clock.monotonic() - self._rotated_at > _ROTATION and not self.refresh_identity():
            raise errors.AuthenticationFailed(self.reason)
        # At most 2.5 probes a second over all endpoints (invariant I6), growing to one round a second.
        self._rounds += 1
        gap = max(0.4 * len(self.endpoints), min(1.0, 0.25 * self._rounds)) * self._random.uniform(1.0, 1.3)
        self._next_round = began + gap

    def _diagnose(self, reasons: dict[Endpoint, str]) -> bool:
        """Put better words for TLS faults into ``reasons``. Returns whether every endpoint has one."""
        if not self.endpoints[0].tls:
            return False
        found = 0
        for endpoint, text in reasons.items():
            if tls_trouble.may_be_tls(text):
                reason = tls_trouble.diagnose(endpoint, self._tls or TlsFiles(), _DIAGNOSIS / len(reasons))
                if reason is not None:
                    reasons[endpoint] = f"TLS: {reason}"
                    found += 1
        return found == len(self.endpoints)

    def _ask_all(self, limit: float) -> tuple[Peer | None, dict[Endpoint, str]]:
        """Ask every endpoint for its status, the preferred one a little before the rest; the first good answer wins."""
        waiting = sorted(
            self.endpoints, key=lambda endpoint: (self._failed_at.get(endpoint, 0.0), self._random.random())
        )
        answers: queue.SimpleQueue[tuple[Peer, Any]] = queue.SimpleQueue()
        asked: dict[Peer, Any] = {}
        reasons: dict[Endpoint, str] = {}
        strangers: dict[int, list[Peer]] = {}
        end = self._clock.monotonic() + limit
        try:
            while len(reasons) < len(self.endpoints):
                left = end - self._clock.monotonic()
                if left <= 0 or self.closed.is_set():
                    break
                if waiting:
                    peer, future = self._ask(waiting.pop(0), left, answers)
                    asked[peer] = future
                try:
                    peer, future = answers.get(timeout=min(left, _HEAD_START) if waiting else left)
                except queue.Empty:
                    continue
                reason = self._examine(peer, future, strangers)
                if reason is None:
                    return peer, reasons
                reasons[peer.endpoint] = reason
            for peer in asked:
                if peer.endpoint not in reasons:
                    reasons[peer.endpoint] = f"no answer within {limit:.3g} s"
                    if limit >= PATIENCE:
                        self.failed(peer, "no answer")  # a connection that hangs is not tried twice
        finally:
            for future in asked.values():
                future.cancel()
        return self._adopt(strangers), reasons

    def _ask(
        self, endpoint: Endpoint, limit: float, answers: "queue.SimpleQueue[tuple[Peer, Any]]"
    ) -> tuple[Peer, Any]:
        with self._condition:
            peer = self._peers.get(endpoint)
            if peer is None:
                peer = self._peers[endpoint] = Peer(endpoint, self._tls, self._dial_timeout)
        future = peer.begin(wire.STATUS.path, b"", limit, REQUIRE_LEADER)
        future.add_done_callback(lambda done: answers.put((peer, done)))
        return peer, future

    def _examine(self, peer: Peer, future: Any, strangers: dict[int, list[Peer]]) -> str | None:
        """Why this endpoint cannot be used; ``None`` = it can."""
        try:
            answer = wire.STATUS.parse(future.result())
        except grpc.FutureCancelledError:
            return "cancelled"
        except grpc.RpcError as error:
            code, details = describe(error)
            if code != "UNAVAILABLE" and status.judge(code, details).error in (
                errors.AuthenticationFailed,
                errors.PermissionDenied,
            ):
                return None  # it answers; the token is dealt with by the call itself
            return details or code
        if not answer.leader:
            return "the member knows no leader"
        cluster_id = answer.header.cluster_id
        if self.cluster_id is None:
            self._belong_to(cluster_id)
        if cluster_id == self.cluster_id:
            return None
        strangers.setdefault(cluster_id, []).append(peer)
        return f"belongs to cluster {cluster_id:x}, this client to {self.cluster_id:x}"

    def _adopt(self, strangers: dict[int, list[Peer]]) -> Peer | None:
        """All endpoints agree on a new cluster and nothing is held in the old one: join it."""
        if self._held or len(strangers) != 1:
            return None
        ((cluster_id, peers),) = strangers.items()
        if len(peers) < len(self.endpoints):
            return None
        _log.warning("All endpoints belong to a new cluster %x now; joining it", cluster_id)
        self._belong_to(cluster_id)
        return peers[0]

    def _belong_to(self, cluster_id: int) -> None:
        self.cluster_id = cluster_id
        self.cluster_mark = wire.ResponseHeader(cluster_id=cluster_id).SerializeToString() or b"?"
