"""One endpoint's channel: calls and streams on it, and its end.

Each peer has a connection of its own (``use_local_subchannel_pool``): a peer whose connection hangs is retired and a
new one dialled, which a shared pool would hand the same dead connection.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, cast

import grpc

from edl_agent import errors
from edl_agent.etcd import wire
from edl_agent.etcd.endpoints import Endpoint
from edl_agent.etcd.identity import TlsFiles

Metadata = tuple[tuple[str, str], ...]

_PING_MILLISECONDS = 6_000
"""Between HTTP/2 pings while a call is open. etcd closes connections that ping more often than each 5 s."""

_PING_ANSWER_MILLISECONDS = 5_000
"""For the answer to a ping: slow networks are no dead ones."""


TRUST = 0.002
"""Seconds for which an answer vouches for the connection; after that its state is looked at before a call.

The look takes a lock of the channel, for which a hundred callers queue. No longer than the news of a lost connection
may take anyway: a write right after it can reach another cluster behind the same address (its answer tells).
"""

_started_in: int | None = None
"""Process in which the first channel was made."""


def check_fork() -> None:
    """Before gRPC is used in this process.

    gRPC that was in use before a fork crashes the child that uses it too, and with older versions the parent. Measured:
    1.66 to 1.78 parent, at once; 1.80 child, one in five; 1.85 child, one in 1,600.

    Raises:
        ForkedClient: this is a forked child, and gRPC was in use in its parent.
    """
    if _started_in not in (None, os.getpid()):
        raise errors.ForkedClient(
            "etcd was in use in the process that forked this one, and gRPC could crash here: start workers that need a "
            "client of their own by 'spawn' or 'forkserver', or fork before the first client is used"
        )


def channel_options(dial_timeout: float, server_name: str | None) -> list[tuple[str, Any]]:
    """GRPC settings, each with its reason.

    Args:
        dial_timeout: seconds for one connection attempt.
        server_name: expected TLS name, or ``None`` for the endpoint's host.
    """
    options: list[tuple[str, Any]] = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),  # etcd is inside the cluster; a proxy set for the web must not see the traffic
        ("grpc.service_config_disable_resolution", 1),  # no TXT look-ups
        ("grpc.max_receive_message_length", -1),  # as etcd's own client: the request decides the size of the answer
        ("grpc.max_send_message_length", -1),  # etcd refuses what is too large with a clear status
        ("grpc.keepalive_time_ms", _PING_MILLISECONDS),
        # Both name the wait for a ping's answer. gRPC 1.85 heeds only the second, of which the default is a minute; a
        # silent connection is to be found within two intervals (row A13 of the fault list).
        ("grpc.keepalive_timeout_ms", _PING_ANSWER_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", _PING_ANSWER_MILLISECONDS),
        ("grpc.http2.max_pings_without_data", 0),  # a quiet watch is pinged for ever, not twice
        ("grpc.min_reconnect_backoff_ms", max(1_000, int(dial_timeout * 1_000))),  # in fact the limit of one attempt
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),  # the default of 120 s outlasts every lease
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),  # names that resolve late
        ("grpc.primary_user_agent", "edl-agent"),
    ]
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    return options


class Peer:
    """A channel to one endpoint.

    Attributes:
        endpoint: where it goes.
        timeouts: calls in a row that found no answer in their time.
        heard: monotonic time of the last answer.
    """

    def __init__(self, endpoint: Endpoint, tls: TlsFiles | None, dial_timeout: float) -> None:
        global _started_in
        if _started_in is None:
            _started_in = os.getpid()
        options = channel_options(dial_timeout, tls.server_name if tls else None)
        if endpoint.tls:
            self._channel = grpc.secure_channel(endpoint.target, (tls or TlsFiles()).channel_credentials(), options)
        else:
            self._channel = grpc.insecure_channel(endpoint.target, options)
        self.endpoint = endpoint
        self.timeouts = 0
        self.heard = float("-inf")
        self._unary: dict[str, Any] = {method.path: self._channel.unary_unary(method.path) for method in wire.UNARY}
        self._lock = threading.Lock()
        self._streams: set[grpc.Call] = set()
        self._calls: set[object] = set()
        self._retired = False

    def call(self, path: str, payload: bytes, timeout: float, metadata: Metadata | None) -> bytes:
        """One request, one answer, as bytes. Raises ``grpc.RpcError``."""
        # No lock on this path: a hundred callers would queue for it whenever one loses the interpreter while it holds
        # it. Single operations on a set are atomic.
        running, me = self._calls, object()
        running.add(me)
        try:
            answer: bytes = self._unary[path](payload, timeout, metadata)
        finally:
            running.discard(me)
            if self._retired and not running:
                self._channel.close()
        if self.timeouts:
            self.timeouts = 0
        return answer

    @property
    def connected(self) -> bool:
        """Whether the connection on which this peer was found good still stands.

        gRPC makes a new one without a word when the next call comes, and behind the address may be another cluster by
        then. Its own notices (``Channel.subscribe``) cost a thread per channel that wakes five times a second.
        """
        try:
            state = cast(Any, self._channel)._channel.check_connectivity_state(False)
        except AttributeError:  # another gRPC than today's; the cluster id of each answer is looked at in any case
            return True
        except ValueError:  # closed
            return False
        return bool(state == grpc.ChannelConnectivity.READY.value[0])

    def begin(self, path: str, payload: bytes, timeout: float, metadata: Metadata) -> Any:
        """The same as a future."""
        return self._unary[path].future(payload, timeout, metadata)

    def stream(self, path: str, requests: Iterator[bytes], metadata: Metadata, timeout: float | None = None) -> Any:
        """A two-way stream; iterate over it for the answers.

        It ends with ``grpc.RpcError`` when the peer is retired.
        """
        call: Any = self._channel.stream_stream(path)(cast(Any, requests), timeout, metadata)
        with self._lock:
            retired = self._retired
            if not retired:
                self._streams.add(call)
        # False: the call has ended already and no callback will come.
        if not call.add_callback(lambda: self._forget(call)):
            self._forget(call)
        if retired:
            call.cancel()
        return call

    def retire(self) -> None:
        """End the streams now, and the channel as soon as the last call on it is through."""
        with self._lock:
            if self._retired:
                return
            self._retired = True
            streams, idle = list(self._streams), not self._calls
        for call in streams:
            call.cancel()
        if idle:
            self._channel.close()

    def close(self) -> None:
        """End everything now; calls under way fail."""
        self.retire()
        self._channel.close()

    def _forget(self, call: grpc.Call) -> None:
        with self._lock:
            self._streams.discard(call)


def describe(error: grpc.RpcError) -> tuple[str, str]:
    """Name of the code and the text of a gRPC error, without its debug data."""
    code, details = "UNKNOWN", ""
    with contextlib.suppress(AttributeError):  # a bare RpcError has neither
        code, details = error.code().name, error.details() or ""
    return code, details
