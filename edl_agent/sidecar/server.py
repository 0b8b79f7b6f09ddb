"""`Sidecar`: the gRPC server with its limits, the front door, the state files, and what they serve."""

import contextlib
import functools
import logging
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

from edl_agent import errors
from edl_agent.drain import Drain
from edl_agent.membership import Membership
from edl_agent.reporting import INTERVAL
from edl_agent.sidecar import wire
from edl_agent.sidecar.calls import WORKERS, Places, handlers
from edl_agent.sidecar.feed import Feed
from edl_agent.sidecar.files import StateFiles, pservers_file, session_file
from edl_agent.sidecar.front import Front
from edl_agent.sidecar.health import Health
from edl_agent.sidecar.life import Life, MakeClient
from edl_agent.sidecar.listening import TcpListener, UnixListener, is_loopback
from edl_agent.sidecar.service import AgentService

_log = logging.getLogger(__name__)

MESSAGE = 4 * 2**20
"""Bytes of a message, either way."""

METADATA = 8 * 2**10
"""Bytes of a call's metadata."""

STREAMS = 100
"""Calls of one connection at once."""

HANG = 30.0
"""Seconds without an answer to a ping after which a program counts as dead."""

_GRACE = 1.0
"""Seconds for calls under way when the sidecar ends."""


@dataclass(frozen=True, slots=True)
class TcpTls:
    """Certificate files for TCP beyond the loopback. Programs must show a certificate of this CA.

    Attributes:
        cert: of the sidecar (PEM).
        key: its private key.
        client_ca: whose certificates programs must show: without that everybody who reaches the port had the slot.
    """

    cert: str
    key: str
    client_ca: str

    def credentials(self) -> grpc.ServerCredentials:
        """Read the files. Raises ConfigurationError."""
        try:
            cert, key, client_ca = (_read(path) for path in (self.cert, self.key, self.client_ca))
        except OSError as error:
            raise errors.ConfigurationError(f"cannot read {error.filename}: {error.strerror}") from error
        return grpc.ssl_server_credentials([(key, cert)], client_ca, require_client_auth=True)


@dataclass(frozen=True, slots=True)
class SidecarOptions:
    """How the sidecar listens.

    Attributes:
        socket: path of the Unix socket; its folder holds the state files.
        name: for reports and drain requests; ``None`` = ``POD_NAME``, else hostname-pid.
        peer_uids: users other than ours who may connect.
        tcp: ``(host, port)`` to listen on as well; ``None`` = no TCP.
        tls: needed for TCP beyond the loopback.
        hang: seconds, see `HANG`.
        report_interval: seconds between reports.
    """

    socket: str
    name: str | None = None
    peer_uids: tuple[int, ...] = ()
    tcp: tuple[str, int] | None = None
    tls: TcpTls | None = None
    hang: float = HANG
    report_interval: float = INTERVAL


def limits(hang: float = HANG) -> list[tuple[str, int]]:
    """The options of gRPC: every limit is set here, none is left to a default.

    Args:
        hang: seconds, see `HANG`.
    """
    return [
        ("grpc.max_receive_message_length", MESSAGE),
        ("grpc.max_send_message_length", MESSAGE),
        ("grpc.max_metadata_size", METADATA),
        ("grpc.absolute_max_metadata_size", METADATA),  # equal: in between gRPC refuses by chance
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.keepalive_time_ms", int(hang * 1000 / 3)),
        ("grpc.keepalive_timeout_ms", int(hang * 2000 / 3)),
        ("grpc.http2.ping_timeout_ms", int(hang * 2000 / 3)),  # this one ends a connection whose peer is silent
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 600_000),
        ("grpc.so_reuseport", 0),
        ("grpc.enable_channelz", 0),
    ]


class Sidecar:
    """Serves one program until `close`.

    Args:
        make_client: makes the client of each program's session, and the sidecar's own.
        options: how to listen.
        on_stop: called when the program asks the sidecar to end.

    Attributes:
        drain: of this pod.
        life: who is attached.
        port: of TCP, ``None`` without.

    Raises:
        ConfigurationError: the socket or port cannot be had, or a setting is wrong.
    """

    def __init__(
        self, make_client: MakeClient, options: SidecarOptions, on_stop: Callable[[], None] = lambda: None
    ) -> None:
        if options.tcp is not None and not is_loopback(options.tcp[0]) and options.tls is None:
            raise errors.ConfigurationError(
                f"{options.tcp[0]} is not the loopback: TCP needs a certificate, a key and a client CA there"
            )
        self.port: int | None = None
        self._cleanup = contextlib.ExitStack()
        self._closed = threading.Event()
        with self._cleanup:  # what was made before an error is given back
            self._build(make_client, options, on_stop)
            self._cleanup = self._cleanup.pop_all()

    def _build(self, make_client: MakeClient, options: SidecarOptions, on_stop: Callable[[], None]) -> None:
        closing = self._cleanup.callback
        credentials = options.tls.credentials() if options.tls is not None else None
        listener = UnixListener(options.socket, options.peer_uids)
        closing(listener.close)
        self._client = make_client(None, None)
        closing(self._client.shutdown)
        self._news = Feed()
        self._membership = Membership(self._client)
        self.drain = Drain(self._client, options.name)
        self.life = Life(make_client, self.drain, self._news, options.report_interval)
        closing(self.life.close)
        clock, membership = self._client._clock, self._membership
        self._files = StateFiles(
            listener.folder,
            0o644 if listener.shared else 0o600,
            self._news,
            lambda closed: session_file(self.life.program, self.drain, clock, closed),
            lambda: pservers_file(membership._now(), clock),
        )
        closing(self._files.close)
        places = Places()
        self._health = Health()
        service = AgentService(self._client, self.life, membership, self.drain, self._news, places, on_stop)
        self._pool = ThreadPoolExecutor(WORKERS, "edl-sidecar")
        closing(functools.partial(self._pool.shutdown, wait=False, cancel_futures=True))
        self._server = grpc.server(self._pool, options=limits(options.hang), maximum_concurrent_rpcs=WORKERS)
        self._server.add_generic_rpc_handlers(
            (handlers(wire.AGENT, service, places), handlers(wire.HEALTH, self._health, places))
        )
        # Where only this user comes: the front door is the one way in.
        inner = _inner_folder(listener)
        closing(functools.partial(shutil.rmtree, inner, ignore_errors=True))
        self._server.add_insecure_port(f"unix:{inner}/clear")
        fronts = [Front(listener, f"{inner}/clear")]
        if options.tcp is not None:
            tcp = TcpListener(*options.tcp)
            closing(tcp.close)
            self.port = tcp.port
            if credentials is not None:
                self._server.add_secure_port(f"unix:{inner}/tls", credentials)
            fronts.append(
                Front(tcp, f"{inner}/{'clear' if credentials is None else 'tls'}", expects_preface=credentials is None)
            )
        for front in fronts:
            closing(front.close)
        closing(self._stop_server)
        self._fronts = fronts
        self._membership.on_change(self._news.tell)
        self.drain.on_request(self._news.tell)
        self.drain.on_withdrawn(self._news.tell)
        self._client._drain_listeners.append(self._drain_changed)

    def start(self) -> None:
        """Listen."""
        self._files.start()
        self._server.start()
        for front in self._fronts:
            front.start()

    def close(self) -> None:
        """Release the slot, end all calls, remove the socket. Bounded; idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._health.end()
        self.life.close()
        self._cleanup.close()

    def __enter__(self) -> "Sidecar":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_detached(self, seconds: float) -> bool:
        """Wait until no program is attached. Returns whether that is so."""
        clock = self._client._clock
        end = clock.monotonic() + seconds
        while self.life.program is not None and (left := end - clock.monotonic()) > 0:
            self._news.wait(self._news.version, min(left, 0.2))
        return self.life.program is None

    def _drain_changed(self) -> None:
        self.life.drain_changed()
        self._news.tell()

    def _stop_server(self) -> None:
        done: Any = self._server.stop(_GRACE)
        self._news.tell()
        done.wait(_GRACE + 2.0)


def _inner_folder(listener: UnixListener) -> str:
    """A folder that only we can enter, beside the socket: a read-only root file system has no other place.

    Named through the opened folder, so that its path is short and free of characters that mean something to gRPC. What
    a killed sidecar left is removed: the folder is locked, so nobody uses it.
    """
    path = f"/proc/self/fd/{listener.folder}/.inner"
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path, 0o700)
    return path


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
