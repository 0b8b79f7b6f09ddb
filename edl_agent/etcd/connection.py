"""The connection to etcd: which endpoint, with which token, until when, and what may be repeated.

One endpoint is *pinned* and used by all calls until it fails. Then all endpoints are asked for their status (the one
that failed last comes last), and the first that answers, knows a leader and belongs to the same cluster is pinned.
Calls wait for that until their own deadline. Rejected: gRPC's own balancing over all addresses, which neither sees a
member without a leader nor one that answers TCP and fails lease calls (Patroni 3335).
"""

import logging
import queue
import random
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd import status, tls_trouble, wire
from edl_agent.etcd.endpoints import Endpoint
from edl_agent.etcd.identity import Login, TlsFiles
from edl_agent.etcd.peer import Metadata, Peer, check_fork, describe

_log = logging.getLogger(__name__)

_REQUIRE_LEADER = ("hasleader", "true")
"""A member without a leader then refuses calls instead of serving old data (etcd's WithRequireLeader)."""

_HEAD_START = 0.1
"""Seconds that the preferred endpoint is given before the others are tried too (RFC 8305 suggests 0.1 to 0.25)."""

_PATIENCE = 1.0
"""Seconds without an answer that speak against an endpoint.

Shorter limits are the caller's own haste, unless three in a row.
"""

_DIAGNOSIS = 1.0
"""Seconds to find out what is wrong with TLS, over all endpoints."""

_ROTATION = 5.0
"""Seconds after a change of the TLS files in which a refusal may be due to half of them: tried again, not reported."""


class _Again(Exception):
    """Internal: the request was surely not applied (or is a read); send it again while time remains."""

    def __init__(self, error: errors.EdlAgentError) -> None:
        super().__init__(str(error))
        self.error = error


class Connection:
    """Calls and streams to one etcd cluster. Thread-safe. Nothing is dialled before the first call.

    Args:
        endpoints: the members.
        tls: TLS files for https endpoints.
        login: user and password.
        dial_timeout: seconds to find a member that answers.
        clock: for deadlines.
    """

    def __init__(
        self,
        endpoints: tuple[Endpoint, ...],
        *,
        tls: TlsFiles | None,
        login: Login | None,
        dial_timeout: float,
        clock: Clock,
    ) -> None:
        check_fork()
        self.endpoints = endpoints
        self.dial_timeout = dial_timeout
        self._tls = tls
        self._login = login
        self._clock = clock
        self._random = random.Random()
        self._condition = threading.Condition()
        self._closed = threading.Event()
        self._pinned: Peer | None = None
        self._peers: dict[Endpoint, Peer] = {}
        self._failed_at: dict[Endpoint, float] = {}
        self._selecting = False
        self._rounds = 0
        self._next_round = 0.0
        self._reason = ""
        self._fingerprint: object = tls.fingerprint() if tls else None
        self._rotated_at = float("-inf")
        if tls is not None:
            tls.warn_of_open_key()
        self._cluster_id: int | None = None
        self._held = False
        self._auth_lock = threading.Lock()
        self._token: str | None = None
        self._metadata: Metadata = (_REQUIRE_LEADER,)

    # --- calls ---

    def call(self, method: wire.Method, request: Any, deadline: float) -> Any:
        """Send one request.

        Args:
            method: the RPC.
            request: its message.
            deadline: on the clock's monotonic time, in seconds.

        Returns:
            The answer, an instance of ``method.answer``.

        Raises:
            EdlAgentError: see the tree in `edl_agent.errors`; a write whose answer is lost is an `UnknownOutcome`.
        """
        payload = request.SerializeToString()
        try:
            return self._attempt(method, payload, deadline)
        except _Again:
            import tenacity  # 9 ms of import time that only a failure needs

            # Not applied, or harmless to repeat: go on until the deadline, which `_attempt` itself enforces.
            retrying = tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(_Again),
                wait=tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
                sleep=lambda seconds: self._pause(min(seconds, deadline - self._clock.monotonic())),
                stop=tenacity.stop_never,
            )
            return retrying(self._attempt, method, payload, deadline)

    def stream(
        self, path: str, requests: Iterator[bytes], deadline: float, timeout: float | None = None
    ) -> tuple[Peer, Any]:
        """Open a two-way stream on the pinned endpoint.

        Args:
            path: the RPC.
            requests: messages to send; the stream is half-closed when they end.
            deadline: until when to look for an endpoint.
            timeout: seconds that the whole stream may take.

        Returns:
            The peer (for `failed`) and the call, which yields answers as bytes and raises ``grpc.RpcError``.
        """
        peer = self._good_peer(deadline)
        if self._login is not None and self._token is None:
            self._authenticate(peer, deadline)
        try:
            return peer, peer.stream(path, requests, self._metadata, timeout)
        except ValueError as error:  # the channel was closed by another thread in between
            raise self._given_up() from error

    def failed(self, peer: Peer, reason: str) -> None:
        """Count ``peer`` as failed: its streams end, other endpoints are tried first."""
        with self._condition:
            if self._peers.get(peer.endpoint) is peer:
                self._failed_at[peer.endpoint] = self._clock.monotonic()
                del self._peers[peer.endpoint]
            if self._pinned is peer:
                self._pinned = None
                self._reason = f"{peer.endpoint}: {reason}"
                _log.debug("Endpoint %s failed: %s", peer.endpoint, reason)
        peer.retire()

    def stream_failed(self, peer: Peer, error: grpc.RpcError, deadline: float) -> errors.EdlAgentError:
        """Do what helps after a failed stream (other endpoint, new token), and say what it was.

        Opening it again is the caller's choice.
        """
        return self._remedy(peer, error, deadline=deadline, attempt=float("inf"), repeatable=True)[0]

    # --- who answers ---

    def hold_cluster(self, held: bool) -> None:
        """Say whether a lease is held. While none is, a new cluster is joined once all endpoints agree on its id."""
        self._held = held

    def check_cluster(self, peer: Peer, cluster_id: int) -> None:
        """Look at the cluster id that came with an answer (0 = unknown, from etcd's grpc-proxy).

        gRPC connects an idle channel again without a word, and behind the same address may be another cluster by then.

        Raises:
            ClusterMismatch: it is not this client's cluster; the peer was counted as failed.
        """
        if cluster_id in (0, self._cluster_id):
            return
        if self._cluster_id is None:
            self._cluster_id = cluster_id
            return
        text = f"belongs to cluster {cluster_id:x}, this client to {self._cluster_id:x}"
        self.failed(peer, text)
        raise errors.ClusterMismatch(f"{peer.endpoint}: {text}")

    @property
    def cluster_id(self) -> int | None:
        """Id of the cluster that answered first; ``None`` before."""
        return self._cluster_id

    @property
    def endpoint(self) -> Endpoint | None:
        """The endpoint in use, ``None`` while there is none."""
        peer = self._pinned
        return peer.endpoint if peer is not None else None

    @property
    def trouble(self) -> str:
        """Why etcd is not reached at the moment; empty when it is."""
        return "" if self._pinned is not None else self._reason

    def refresh_identity(self) -> bool:
        """Dial anew with the present TLS files, if they were replaced. Returns whether they were."""
        if self._tls is None:
            return False
        with self._condition:
            fingerprint = self._tls.fingerprint()
            if fingerprint == self._fingerprint:
                return False
            self._fingerprint, self._rotated_at = fingerprint, self._clock.monotonic()
            old, self._peers, self._pinned = list(self._peers.values()), {}, None
        _log.info("TLS files changed; connecting with the new ones")
        self._tls.warn_of_open_key()
        for peer in old:
            peer.retire()
        return True

    def close(self) -> None:
        """End all calls and streams; they raise `ClientClosed`. Idempotent."""
        self._closed.set()
        with self._condition:
            peers, self._peers, self._pinned = list(self._peers.values()), {}, None
            self._condition.notify_all()
        for peer in peers:
            peer.close()

    # --- one attempt ---

    def _attempt(self, method: wire.Method, payload: bytes, deadline: float) -> Any:
        try:
            peer = self._good_peer(deadline)
        except errors.Unavailable as error:
            raise _Again(error) from error
        left = deadline - self._clock.monotonic()
        if left <= 0:
            raise errors.DeadlineExceeded(self._with_reason("the deadline passed before the request could be sent"))
        attempt = left
        if method.repeatable and len(self.endpoints) > 1:
            attempt = min(left, max(_PATIENCE, left / len(self.endpoints)))
        metadata = self._metadata
        try:
            answer = method.answer.FromString(peer.call(method.path, payload, attempt, metadata))
            if answer.header.cluster_id != self._cluster_id:
                self.check_cluster(peer, answer.header.cluster_id)
            return answer
        except errors.ClusterMismatch as error:
            # A write of this client was surely not applied to its own cluster, but it is not for us to say it again.
            raise (_Again(error) if method.repeatable else error) from None
        except grpc.RpcError as error:
            outcome, again = self._remedy(
                peer, error, deadline=deadline, attempt=attempt, repeatable=method.repeatable, sent_with=metadata
            )
            raise (_Again(outcome) if again else outcome) from error
        except (
            ValueError
        ) as error:  # "Cannot invoke RPC on closed channel!": retired or closed in between, nothing was sent
            gone = self._given_up()
            raise (_Again(gone) if isinstance(gone, errors.Unavailable) else gone) from error

    def _remedy(
        self,
        peer: Peer,
        error: grpc.RpcError,
        *,
        deadline: float,
        attempt: float,
        repeatable: bool,
        sent_with: Metadata | None = None,
    ) -> tuple[errors.EdlAgentError, bool]:
        """Do what helps after a failed call or stream. Returns the error, and whether the request may be sent again."""
        code, details = describe(error)
        verdict = status.judge(code, details)
        text = f"{peer.endpoint}: {details or code}"
        if self._closed.is_set():
            return errors.ClientClosed("the client was shut down during the call"), False
        if verdict.remedy is status.Remedy.FAIL_OVER:
            self._blame(peer, code, details, attempt)
        elif verdict.remedy is status.Remedy.AUTHENTICATE:
            if self._login is None:
                return errors.AuthenticationFailed(
                    f"etcd wants user and password, and none are configured ({text})"
                ), False
            try:
                self._authenticate(peer, deadline, sent_with)
            except errors.EdlAgentError as refused:
                return refused, isinstance(refused, errors.Unavailable)
        if verdict.error is not errors.UnknownOutcome:
            self._reason = text  # told where the deadline ends the repetition
            return verdict.error(text), verdict.remedy is not status.Remedy.NONE
        if repeatable:
            self._reason = text
            return errors.Unavailable(text), True
        if self._clock.monotonic() >= deadline:
            return errors.WriteDeadlineExceeded(
                f"no answer in time; the write may have been applied or not ({text})"
            ), False
        return errors.UnknownOutcome(f"the answer was lost; the write may have been applied or not ({text})"), False

    def _blame(self, peer: Peer, code: str, details: str, attempt: float) -> None:
        # Where there is no other endpoint, a new connection is no faster than a slow one, and it ends the renewal of
        # the lease that is under way (fault row A10). Dead connections are found by the pings and by the keepalive.
        alone = len(self.endpoints) == 1
        if code == "DEADLINE_EXCEEDED" and attempt < (self.dial_timeout if alone else _PATIENCE):
            peer.timeouts += 1
            if alone or peer.timeouts < 3:
                return
        if code == "CANCELLED" and self._peers.get(peer.endpoint) is not peer:
            return  # ended by ourselves
        self.failed(peer, details or code)

    def _good_peer(self, deadline: float) -> Peer:
        """The pinned peer on the connection on which it was found good, or another one."""
        peer = self._pinned
        if peer is None:
            return self._peer(deadline)
        if peer.connected:
            return peer
        self.failed(peer, "the connection was lost")
        return self._peer(deadline)

    def _peer(self, deadline: float) -> Peer:
        """The pinned peer; finds one if need be, waiting until the deadline."""
        while True:
            with self._condition:
                while self._pinned is None and self._selecting and not self._closed.is_set():
                    left = deadline - self._clock.monotonic()
                    if left <= 0 or not self._condition.wait(left):
                        raise errors.DeadlineExceeded(self._with_reason("etcd was not reached in time"))
                if self._closed.is_set():
                    raise errors.ClientClosed("the client was shut down")
                if self._pinned is not None:
                    peer = self._pinned
                    break
                self._selecting = True
            try:
                self._select(deadline)
            finally:
                with self._condition:
                    self._selecting = False
                    self._condition.notify_all()
        if self._login is not None and self._token is None:
            self._authenticate(peer, deadline)
        return peer

    def _select(self, deadline: float) -> None:
        """One round over all endpoints; pins the first good one, or pauses so that rounds stay rare."""
        # The pause belongs to the connection: a caller with little time must not begin a round early.
        self._pause(min(self._next_round, deadline) - self._clock.monotonic())
        began = self._clock.monotonic()
        if began >= deadline:
            raise errors.DeadlineExceeded(self._with_reason("etcd was not reached in time"))
        self.refresh_identity()
        limit = min(self.dial_timeout, deadline - self._clock.monotonic())
        chosen, reasons = self._ask_all(limit)
        if chosen is not None:
            with self._condition:
                self._pinned, self._rounds = chosen, 0
            return
        distrusted = self._diagnose(reasons)
        self._reason = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in reasons.items())
        if distrusted and self._clock.monotonic() - self._rotated_at > _ROTATION and not self.refresh_identity():
            raise errors.AuthenticationFailed(self._reason)
        # At most about four probes a second over all endpoints (invariant I6), growing to one round a second.
        self._rounds += 1
        gap = max(0.3 * len(self.endpoints), min(1.0, 0.25 * self._rounds)) * self._random.uniform(1.0, 1.3)
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
                if left <= 0 or self._closed.is_set():
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
                    if limit >= _PATIENCE:
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
                peer = self._peers[endpoint] = Peer(endpoint, self._tls, self.dial_timeout)
        future = peer.begin(wire.STATUS.path, b"", limit, self._metadata)
        future.add_done_callback(lambda done: answers.put((peer, done)))
        return peer, future

    def _examine(self, peer: Peer, future: Any, strangers: dict[int, list[Peer]]) -> str | None:
        """Why this endpoint cannot be used; ``None`` = it can."""
        try:
            answer = wire.STATUS.answer.FromString(future.result())
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
        if self._cluster_id is None:
            self._cluster_id = cluster_id
        if cluster_id == self._cluster_id:
            return None
        strangers.setdefault(cluster_id, []).append(peer)
        return f"belongs to cluster {cluster_id:x}, this client to {self._cluster_id:x}"

    def _adopt(self, strangers: dict[int, list[Peer]]) -> Peer | None:
        """All endpoints agree on a new cluster and nothing is held in the old one: join it."""
        if self._held or len(strangers) != 1:
            return None
        ((cluster_id, peers),) = strangers.items()
        if len(peers) < len(self.endpoints):
            return None
        _log.warning("All endpoints belong to a new cluster %x now; joining it", cluster_id)
        self._cluster_id, self._token = cluster_id, None
        return peers[0]

    # --- token ---

    def _authenticate(self, peer: Peer, deadline: float, refused: Metadata | None = None) -> None:
        """Get a token, once for all threads that found the old one refused (``refused``: what they had sent)."""
        assert self._login is not None
        refused = refused if refused is not None else self._metadata
        with self._auth_lock:
            if self._token is not None and self._metadata != refused:
                return
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise errors.DeadlineExceeded("the deadline passed before a token could be asked for")
            request = wire.AuthenticateRequest(name=self._login.user, password=self._login.password())
            try:
                answer = wire.AUTHENTICATE.answer.FromString(
                    peer.call(wire.AUTHENTICATE.path, request.SerializeToString(), left, (_REQUIRE_LEADER,))
                )
            except grpc.RpcError as error:
                code, details = describe(error)
                if "authentication is not enabled" in details:
                    self._token, self._metadata = "", (_REQUIRE_LEADER,)
                    return
                if status.judge(code, details).remedy is status.Remedy.FAIL_OVER:
                    self._blame(peer, code, details, left)
                    raise errors.Unavailable(f"{peer.endpoint}: {details or code}") from error
                raise errors.AuthenticationFailed(
                    f"{peer.endpoint}: user {self._login.user!r}: {details or code}"
                ) from None
            except ValueError as error:
                raise self._given_up() from error
            self._token = answer.token
            self._metadata = (_REQUIRE_LEADER, ("token", answer.token))

    def renew_token(self) -> bool:
        """Ask for a new token before the next stream. Returns ``False`` where there are no credentials to do so."""
        if not self._login:
            return False
        with self._auth_lock:
            self._token = None
        return True

    # --- small things ---

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            self._closed.wait(seconds)

    def _given_up(self) -> errors.EdlAgentError:
        if self._closed.is_set():
            return errors.ClientClosed("the client was shut down during the call")
        return errors.Unavailable("the connection was just given up")

    def _with_reason(self, text: str) -> str:
        return f"{text} ({self._reason})" if self._reason else text
