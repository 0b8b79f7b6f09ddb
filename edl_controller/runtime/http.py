"""A small HTTP server for probes and metrics: GET and HEAD, bounded threads, deadlines, nothing from the request used.

It serves plain text to whoever reaches its address, so it says nothing secret, and listens on loopback unless told
otherwise.
"""

from __future__ import annotations

import contextlib
import http.server
import importlib.metadata
import ipaddress
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from edl_controller.errors import ConfigurationError

CONNECTIONS = 16
"""At a time; more are turned away at once."""
READ_WITHIN = 5.0
"""Seconds to the next bytes of a request."""
END_WITHIN = 10.0
"""Seconds that a connection lives: slow readers and writers are cut off."""
TEXT = "text/plain; charset=utf-8"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reply:
    """What is answered."""

    status: int
    body: bytes
    content_type: str = TEXT


Page = Callable[[], Reply]


@dataclass(frozen=True)
class Address:
    """Where to listen; an empty host means all addresses, port 0 any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read ``host:port``, ``:port`` or ``[v6]:port``; the host is an address or ``localhost``.

    Raises:
        ConfigurationError: it is none of them.
    """
    host, colon, port = text.strip().rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535 or (":" in bare and bare == host):
        raise ConfigurationError(f"an address to listen on is host:port or :port, not {text!r}")
    if bare not in ("", "localhost"):
        try:
            ipaddress.ip_address(bare)
        except ValueError:
            raise ConfigurationError(f"an address to listen on has an IP address or localhost, not {bare!r}") from None
    return Address(bare, int(port))


class HttpServer:
    """Serves pages from `start` to `close`. Also a context manager.

    Args:
        address: where.
        pages: path to what makes the answer; it must not wait.
    """

    def __init__(self, address: Address, pages: Mapping[str, Page]) -> None:
        self._address, self._pages = address, dict(pages)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it is reached. Raises RuntimeError where it does not run."""
        if self._server is None:
            raise RuntimeError("the HTTP server does not run")
        host, port = self._server.server_address[:2]
        return f"http://{Address(str(host), int(port))}"

    def start(self) -> Self:
        """Listen.

        Raises:
            ConfigurationError: the address cannot be listened on.
        """
        try:
            self._server = _Server(self._address, self._pages)
        except OSError as error:
            raise ConfigurationError(f"cannot listen on {self._address}: {error.strerror or error}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.5,), name="edl-http-server", daemon=True
        )
        self._thread.start()
        return self

    def close(self) -> None:
        """End all connections and listen no more. Idempotent."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server.cut_off(float("-inf"))
        if self._thread is not None:
            self._thread.join(5.0)
        self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32
    allow_reuse_address = True

    def __init__(self, address: Address, pages: Mapping[str, Page]) -> None:
        self.pages = pages
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, float] = {}
        every = not address.host
        self.address_family = socket.AF_INET6 if ":" in address.host or (every and _dual()) else socket.AF_INET
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            only = 0 if not self.server_address[0] else 1
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        # Not HTTPServer's, which asks DNS for a name that nobody needs.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "edl-controller", self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Turn away what is too much."""
        with self._lock:
            if len(self._connections) >= CONNECTIONS:
                return False
            self._connections[request] = time.monotonic()
            return True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called a few times a second."""
        self.cut_off(time.monotonic() - END_WITHIN)

    def cut_off(self, before: float) -> None:
        """End the connections that are older; minus infinity: all."""
        with self._lock:
            late = [one for one, since in self._connections.items() if since < before or before == float("-inf")]
        for one in late:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections break; that is nobody's fault."""
        log.debug("A connection for probes or metrics has failed: %r", sys.exception())


def _dual() -> bool:
    return socket.has_ipv6 and socket.has_dualstack_ipv6()


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = READ_WITHIN
    server: _Server
    server_version = f"edl-controller/{importlib.metadata.version('edl')}"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        page = self.server.pages.get(path)
        if page is None:
            known = "\n".join(sorted(self.server.pages))
            reply = Reply(404, f"There is:\n{known}\n".encode())
        else:
            try:
                reply = page()
            except Exception:
                log.exception("The page %s could not be made", path)
                reply = Reply(500, b"The page could not be made; the log says why.\n")
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if body:
            self.wfile.write(reply.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no GET or HEAD, or no HTTP; without quoting it."""
        if code == 501:
            code = 405
        with contextlib.suppress(OSError):
            self.send_response(code)
            self.send_header("Allow", "GET, HEAD")
            self.send_header("Content-Length", "0")
            self.send_header("Connection", "close")
            self.end_headers()
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing: probes come for ever."""
