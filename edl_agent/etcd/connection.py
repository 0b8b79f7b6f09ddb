"""The connection to etcd: calls and streams, with which token, until when, and what may be repeated.

`EndpointChoice` finds the endpoint; here a request is sent to it once, and what its failure means (`status`) decides
whether another endpoint, a new token or patience may help and whether it may be sent again.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd import status, wire
from edl_agent.etcd.endpoint_choice import PATIENCE, REQUIRE_LEADER, EndpointChoice
from edl_agent.etcd.endpoints import Endpoint
from edl_agent.etcd.identity import Login, TlsFiles
from edl_agent.etcd.peer import TRUST, Metadata, Peer, check_fork, describe


class _Again(Exception):
    """Internal: the request was surely not applied (or is a read); send it again while time remains."""

    def __init__(self, error: errors.EdlAgentError) -> None:
        super().__init__(str(error))
        self.error = error


def _nothing() -> None:
    """Default of `Connection.before_closed`."""


class Connection:
    """Calls and streams to one etcd cluster. Thread-safe. Nothing is dialled before the first call.

    Args:
        endpoints: the members.
        tls: TLS files for https endpoints.
        login: user and password.
        dial_timeout: seconds to find a member that answers.
        clock: for deadlines.

    Attributes:
        before_closed: called, on the caller's thread and outside of all locks, before it is told `ClientClosed`.
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
        self.before_closed: Callable[[], None] = _nothing
        self.dial_timeout = dial_timeout
        self.choice = EndpointChoice(endpoints, tls=tls, dial_timeout=dial_timeout, clock=clock)
        self._login = login
        self._tls = tls
        self._clock = clock
        self._monotonic = clock.monotonic
        self._several = len(endpoints) > 1
        self._auth_lock = threading.Lock()
        self._wants_token = login is not None
        self._metadata: Metadata = REQUIRE_LEADER
        # A member that has answered just now does not yet know that it has no leader: it is not asked for one.
        self._quick_metadata: Metadata | None = None

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
        return method.parse(self.send(method, request.SerializeToString(), deadline))

    def send(self, method: wire.Method, payload: bytes, deadline: float) -> bytes:
        """`call` with bytes for a request, and the answer's bytes back."""
        try:
            return self._attempt(method, payload, deadline)
        except errors.ClientClosed:
            self.before_closed()
            raise
        except _Again:
            import tenacity  # 9 ms of import time that only a failure needs

            # Not applied, or harmless to repeat: go on until the deadline, which `_attempt` itself enforces.
            retrying = tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(_Again),
                wait=tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
                sleep=lambda seconds: self.choice.pause(min(seconds, deadline - self._clock.monotonic())),
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
        peer = self._peer(deadline)
        try:
            return peer, peer.stream(path, requests, self._metadata, timeout)
        except ValueError as error:  # the channel was closed by another thread in between
            raise self._given_up() from error

    def stream_failed(self, peer: Peer, error: grpc.RpcError, deadline: float) -> errors.EdlAgentError:
        """Do what helps after a failed stream (other endpoint, new token), and say what it was.

        Opening it again is the caller's choice.
        """
        found, _ = self._remedy(
            peer, error, deadline=deadline, attempt=float("inf"), repeatable=True, sent_with=self._metadata
        )
        if isinstance(found, errors.ClientClosed):
            self.before_closed()
        return found

    def close(self) -> None:
        """End all calls and streams; they raise `ClientClosed`. Idempotent."""
        self.choice.close()

    # --- one attempt ---

    def _attempt(self, method: wire.Method, payload: bytes, deadline: float) -> bytes:
        # Straight and flat: what runs right after a wait finds cold caches, and each function costs its microsecond.
        choice, now = self.choice, self._monotonic()
        peer, metadata = choice.pinned, self._quick_metadata
        if peer is None or now - peer.heard > TRUST or self._wants_token:
            try:
                peer = self._peer(deadline)
            except errors.Unavailable as error:
                raise _Again(error) from error
            now, metadata = self._monotonic(), self._metadata
        attempt = left = deadline - now
        if left <= 0:
            raise errors.DeadlineExceeded(choice.with_reason("the deadline passed before the request could be sent"))
        if self._several and method.repeatable:
            attempt = min(left, max(PATIENCE, left / len(self.endpoints)))
        try:
            data = peer.call(method.path, payload, attempt, metadata)
            if not data.startswith(choice.cluster_mark, 2):
                choice.check_cluster(peer, method.parse(data).header.cluster_id)
            peer.heard = self._monotonic()
            if choice.reason and choice.pinned is peer:
                choice.reason = ""  # over: later errors have other reasons
            return data
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
        except BaseException:
            choice.abandon(peer)
            raise

    def _remedy(
        self,
        peer: Peer,
        error: grpc.RpcError,
        *,
        deadline: float,
        attempt: float,
        repeatable: bool,
        sent_with: Metadata | None,
    ) -> tuple[errors.EdlAgentError, bool]:
        """Do what helps after a failed call or stream. Returns the error, and whether the request may be sent again."""
        code, details = describe(error)
        verdict = status.judge(code, details)
        text = f"{peer.endpoint}: {details or code}"
        if self.choice.closed.is_set():
            return errors.ClientClosed("the client was shut down during the call"), False
        if verdict.remedy is status.Remedy.FAIL_OVER:
            self.choice.blame(peer, code, details, attempt)
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
            again = verdict.remedy is not status.Remedy.NONE
            if again:  # a refusal for good says nothing about later requests
                self.choice.reason = text  # told where the deadline ends the repetition
            return verdict.error(text), again
        if repeatable:
            self.choice.reason = text
            return errors.Unavailable(text), True
        if self._clock.monotonic() >= deadline:
            return errors.WriteDeadlineExceeded(
                f"no answer in time; the write may have been applied or not ({text})"
            ), False
        return errors.UnknownOutcome(f"the answer was lost; the write may have been applied or not ({text})"), False

    # --- token ---

    def _peer(self, deadline: float) -> Peer:
        peer = self.choice.peer(deadline)
        if self._wants_token:
            self._authenticate(peer, deadline, self._metadata)
        return peer

    def _authenticate(self, peer: Peer, deadline: float, refused: Metadata | None) -> None:
        """Get a token, once for all threads that found the old one refused (``refused``: what they had sent)."""
        assert self._login is not None
        with self._auth_lock:
            if not self._wants_token and refused not in (self._metadata, self._quick_metadata):
                return
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise errors.DeadlineExceeded("the deadline passed before a token could be asked for")
            request = wire.AuthenticateRequest(name=self._login.user, password=self._login.password())
            try:
                answer = wire.AUTHENTICATE.parse(
                    peer.call(wire.AUTHENTICATE.path, request.SerializeToString(), left, REQUIRE_LEADER)
                )
            except grpc.RpcError as error:
                code, details = describe(error)
                if "authentication is not enabled" in details:
                    self._metadata, self._quick_metadata, self._wants_token = REQUIRE_LEADER, None, False
                    return
                if status.judge(code, details).remedy is status.Remedy.FAIL_OVER:
                    self.choice.blame(peer, code, details, left)
                    raise errors.Unavailable(f"{peer.endpoint}: {details or code}") from error
                raise errors.AuthenticationFailed(
                    f"{peer.endpoint}: user {self._login.user!r}: {details or code}"
                ) from None
            except ValueError as error:
                raise self._given_up() from error
            self._quick_metadata = (("token", answer.token),)
            self._metadata = REQUIRE_LEADER + self._quick_metadata
            self._wants_token = False

    @property
    def anonymous(self) -> bool:
        """Whether etcd is told no name at all: neither a user nor a client certificate."""
        return self._login is None and (self._tls is None or self._tls.cert is None)

    def renew_token(self) -> bool:
        """Ask for a new token before the next stream. Returns ``False`` where there are no credentials to do so."""
        if not self._login:
            return False
        with self._auth_lock:
            self._wants_token = True
        return True

    # --- small things ---

    def _given_up(self) -> errors.EdlAgentError:
        if self.choice.closed.is_set():
            return errors.ClientClosed("the client was shut down during the call")
        return errors.Unavailable("the connection was just given up")
