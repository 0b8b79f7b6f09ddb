"""The launcher's ears: ``/ready`` and ``/alive`` for probes (TCP on request, and the Unix socket), ``/drain`` (socket).

A drain can only be asked over the socket, in a folder of this user's: over TCP everybody on the network could.
"""

import contextlib
import http.server
import json
import logging
import math
import os
import socket
import socketserver
import threading
import urllib.parse
from pathlib import Path
from typing import Any, Protocol

from edl_agent.errors import ConfigurationError
from edl_agent.launcher.asking import listens, make_private

_log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 16
"""At once; further ones are closed. Probes come one by one."""

_SECONDS = 3.0
"""For each step of an exchange."""


class Asked(Protocol):
    """What is asked. From threads of the server; must not block."""

    def not_ready(self) -> str:
        """Why the program is not ready, empty when it is."""

    def not_alive(self) -> str:
        """Why it makes no progress, empty when it does."""

    def state(self) -> dict[str, object]:
        """For people and ``edl-agent drain``."""

    def drain(self, why: str, seconds: float | None) -> None:
        """Begin a drain."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server_version = "edl-agent"
    sys_version = ""
    timeout = _SECONDS
    server: "_Limits"

    def do_GET(self) -> None:
        asked = self.server.asked
        match urllib.parse.urlsplit(self.path).path:
            case "/ready":
                self._verdict(asked.not_ready())
            case "/alive":
                self._verdict(asked.not_alive())
            case "/state" if self.server.local:
                self._answer(200, json.dumps(asked.state()))
            case _:
                self._answer(404, "only /ready and /alive")

    def do_POST(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        if parts.path != "/drain" or not self.server.local:
            self._answer(404, "not here")
            return
        query = urllib.parse.parse_qs(parts.query)
        seconds = None
        with contextlib.suppress(ValueError):
            seconds = float(query["seconds"][0]) if "seconds" in query else None
        if seconds is not None and not 0 <= seconds < math.inf:
            self._answer(400, "seconds must be 0 or more")
            return
        self.server.asked.drain(query.get("why", ["asked on this machine"])[0][:200], seconds)
        self._answer(202, "draining")

    def _verdict(self, trouble: str) -> None:
        self._answer(503 if trouble else 200, trouble or "ok")

    def _answer(self, status: int, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "local" if self.server.local else str(self.client_address[0])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        _log.debug("Probe: " + format, *args)


class _Limits(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A thread per connection, a few at once."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16
    allow_reuse_address = True
    local = False

    def __init__(self, address: Any, asked: Asked) -> None:
        self.asked = asked
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("A probe's connection failed", exc_info=True)


class _Local(_Limits):
    address_family = socket.AF_UNIX
    allow_reuse_address = False
    local = True


class Control:
    """The servers, until `close`.

    Args:
        asked: who answers.
        path: of the Unix socket; empty = none.
        required: whether a socket that cannot be made is an error, or only a line in the log.
        host: of the TCP port.
        port: ``None`` = no TCP; 0 = any, see `port`.

    Raises:
        ConfigurationError: a port is taken; a socket cannot be made though ``required``, or another launcher has it.
    """

    def __init__(
        self, asked: Asked, *, path: str = "", required: bool = False, host: str = "127.0.0.1", port: int | None = None
    ) -> None:
        self._servers: list[_Limits] = []
        self.path = ""
        self.port: int | None = None
        if path:
            try:
                self._add(_made(path, asked))
                self.path = path
            except (OSError, ConfigurationError) as error:
                if required:
                    raise ConfigurationError(f"the control socket {path} cannot be made: {error}") from error
                _log.warning("No control socket (`edl-agent ready`, `alive`, `drain` will not find us): %s", error)
        if port is not None:
            server_class = _V6 if ":" in host else _Limits
            try:
                server = server_class((host, port), asked)
            except OSError as error:
                self.close()
                raise ConfigurationError(f"the probe port {host}:{port} cannot be opened: {error}") from error
            self._add(server)
            self.port = int(server.server_address[1])
            _log.info("Probes: http://%s:%d/ready and /alive", host, self.port)

    def _add(self, server: _Limits) -> None:
        self._servers.append(server)
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="edl-launcher-control", daemon=True
        ).start()

    def close(self) -> None:
        """Stop listening. Idempotent."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers = []
        if self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            self.path = ""


class _V6(_Limits):
    address_family = socket.AF_INET6


def _made(path: str, asked: Asked) -> _Local:
    make_private(Path(path).parent)
    if os.path.lexists(path):
        if listens(path):
            raise ConfigurationError("another launcher listens there; give each its own --control or --name")
        os.unlink(path)
    before = os.umask(0o177)
    try:
        return _Local(path, asked)
    finally:
        os.umask(before)
