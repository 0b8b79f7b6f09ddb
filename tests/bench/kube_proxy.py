"""A proxy before a Kubernetes API server that understands its paths: refuses, stalls, cuts and delays by kind and verb,
and records every request: what was written is the oracle of the tests of the controller.

Rules are told apart by verb and resource: ``p.fail(429, "list", "pods")``. Verbs are get, list, watch, create, patch,
update, delete; ``*`` is any. A subresource is written with its resource: ``pods/status``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.bench.certificates import KeyPair
from tests.bench.secret_watch import WATCH
from tests.bench.waiting import eventually

WRITES = ("create", "patch", "update", "delete")

_PATH = re.compile(
    r"/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/.))?/(?P<resource>[a-z]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?"
)
_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "host", "accept-encoding")


@dataclass
class Call:
    """One request. ``time`` is monotonic; ``status`` is 0 until, or unless, the server has answered."""

    verb: str
    resource: str
    namespace: str
    name: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    time: float
    status: int = 0
    delivered: bool = False

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body) if self.body else None

    @property
    def written(self) -> bool:
        """Whether the server has carried out a write."""
        return self.verb in WRITES and 200 <= self.status < 300


@dataclass
class Rule:
    """What is done to requests, ``times`` of them (None: until removed), after the first ``skip``."""

    proxy: KubeProxy
    kind: str
    verb: str
    resource: str
    do: Any
    times: int | None = 1
    skip: int = 0
    when: Callable[[Call], bool] | None = None
    fired: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def remove(self) -> None:
        """End it; what it holds goes on."""
        self.proxy._remove(self)
        self.released.set()

    def wait_fired(self, timeout: float = 10.0, times: int = 1) -> None:
        """Wait until it has been applied. Raises AssertionError."""
        eventually(lambda: self.fired >= times, timeout, f"{self.kind} of {self.verb} {self.resource}")

    def _matches(self, call: Call) -> bool:
        return (
            self.verb in ("*", call.verb)
            and self.resource in ("*", call.resource)
            and (self.when is None or self.when(call))
        )


class KubeProxy:
    """Listens on loopback (``url``) before the API server ``target``, with ``tls`` as HTTPS."""

    def __init__(self, target: str, ca: Path, *, tls: KeyPair | None = None) -> None:
        """``target``: URL; ``ca``: of its certificate; ``tls``: the proxy's own certificate."""
        self._target, self._ca = urlsplit(target), ca
        self._server_context = ssl.create_default_context(cafile=str(ca)) if self._target.scheme == "https" else None
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._calls: list[Call] = []
        self._sockets: set[socket.socket] = set()
        self._closed = False
        proxy = self

        class Handler(_Handler):
            owner = proxy

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # broken connections are what this is for

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.cert, tls.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="kube-proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections and stop listening."""
        self._closed = True
        for rule in list(self._rules):
            rule.remove()
        self.drop_connections()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    # --- what happened ---

    def calls(self, verb: str = "*", resource: str = "*") -> list[Call]:
        """The requests that came, in order."""
        with self._lock:
            return [one for one in self._calls if verb in ("*", one.verb) and resource in ("*", one.resource)]

    def writes(self, resource: str = "*") -> list[Call]:
        """Every write that the server has carried out, whether the client was told or not."""
        return [one for one in self.calls("*", resource) if one.written]

    def clear(self) -> None:
        """Forget the requests."""
        with self._lock:
            self._calls.clear()

    # --- rules ---

    def fail(
        self, status: int, verb: str = "*", resource: str = "*", *, reason: str = "", message: str = "made to fail",
        retry_after: int | None = None, after_forwarding: bool = False, body: bytes | None = None, **counting: Any,
    ) -> Rule:  # fmt: skip
        """Answer with a Status of this code (or ``body``); after_forwarding: the server has done it nevertheless."""
        answer = _status(status, reason, message) if body is None else body
        return self._add("fail", verb, resource, (status, answer, retry_after, after_forwarding), counting)

    def lose_answer(self, verb: str = "*", resource: str = "*", **counting: Any) -> Rule:
        """Pass the request on, and break the connection in place of the answer."""
        return self._add("lose", verb, resource, None, counting)

    def cut_answer(self, verb: str = "*", resource: str = "*", *, keep: float = 0.5, **counting: Any) -> Rule:
        """Send a part of the body of an answer, then break the connection."""
        return self._add("cut", verb, resource, keep, counting)

    def hold(self, verb: str = "*", resource: str = "*", **counting: Any) -> Rule:
        """Let requests wait before they are passed on, until ``remove()``."""
        return self._add("hold", verb, resource, None, {"times": None, **counting})

    def refuse(self, verb: str = "*", resource: str = "*", **counting: Any) -> Rule:
        """Break the connections of requests that come, until ``remove()``; open ones too: as if nobody was there."""
        rule = self._add("refuse", verb, resource, None, {"times": None, **counting})
        if (verb, resource) == ("*", "*"):
            self.drop_connections()
        return rule

    def rewrite(self, verb: str, resource: str, change: Callable[[bytes], bytes], **counting: Any) -> Rule:
        """Change the bodies of answers; of a watch: each line, without its end."""
        return self._add("rewrite", verb, resource, change, {"times": None, **counting})

    def inject(self, resource: str, line: bytes, *, end: bool = True, **counting: Any) -> Rule:
        """Send raw bytes on a watch, open ones too, in the name of the server; ``end``: and then its regular end."""
        return self._add("inject", "watch", resource, (line, end), counting)

    def error_event(self, resource: str, code: int, *, reason: str = "", message: str = "made to fail") -> Rule:
        """Send an ERROR event on a watch, open ones too, and end it."""
        status = _status(code, reason, message).decode()
        return self.inject(resource, f'{{"type":"ERROR","object":{status}}}\n'.encode())

    def stall(self, resource: str = "*") -> Rule:
        """Let nothing more through on watches, open ones too, and new ones, until ``remove()``: as a dead link does."""
        return self._add("stall", "watch", resource, None, {"times": None})

    def stall_open(self, resource: str = "*") -> Rule:
        """Let nothing more through on the watches that are open now; new ones are well."""
        before = time.monotonic()
        return self._add("stall", "watch", resource, None, {"times": None, "when": lambda call: call.time < before})

    def delay_events(self, resource: str, seconds: float) -> Rule:
        """Deliver each event of a kind this much later."""
        return self._add("delay", "watch", resource, seconds, {"times": None})

    def end_watches(self, resource: str = "*", times: int | None = 1) -> Rule:
        """End watches regularly, open ones too; with ``times=None`` every new one at once."""
        return self._add("inject", "watch", resource, (b"", True), {"times": times})

    def drop_connections(self) -> None:
        """Reset all connections of clients."""
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    # --- the inside ---

    def _add(self, kind: str, verb: str, resource: str, do: Any, counting: Mapping[str, Any]) -> Rule:
        rule = Rule(self, kind, verb, resource, do, **counting)
        with self._lock:
            self._rules.append(rule)
        return rule

    def _remove(self, rule: Rule) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._rules.remove(rule)

    def _take(self, kind: str, call: Call) -> Rule | None:
        """The first rule of a kind that is due for this request; it counts as fired."""
        with self._lock:
            for rule in self._rules:
                if rule.kind == kind and rule._matches(call) and (rule.times is None or rule.fired < rule.times):
                    if rule.skip > 0:
                        rule.skip -= 1
                        continue
                    rule.fired += 1
                    return rule
        return None

    def _standing(self, kind: str, call: Call) -> Rule | None:
        """A rule that holds while it is there."""
        with self._lock:
            found = next((rule for rule in self._rules if rule.kind == kind and rule._matches(call)), None)
            if found is not None:
                found.fired += 1
        return found

    def _opened(self, call: Call) -> None:
        with self._lock:
            self._calls.append(call)

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._target.hostname or "", self._target.port
        if self._server_context is not None:
            return http.client.HTTPSConnection(host, port, timeout=330, context=self._server_context)
        return http.client.HTTPConnection(host, port, timeout=330)


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, with one to the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: KubeProxy
    _link: http.client.HTTPConnection | None = None

    def setup(self) -> None:
        super().setup()
        with self.owner._lock:
            self.owner._sockets.add(self.connection)

    def finish(self) -> None:
        with self.owner._lock:
            self.owner._sockets.discard(self.connection)
        if self._link is not None:
            self._link.close()
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        call = _call(self.command, self.path, dict(self.headers), body)
        if body and ("/status" in self.path or "/events" in self.path):
            WATCH.hear(body, f"what was written: {self.command} {self.path}")
        self.owner._opened(call)
        if held := self.owner._standing("hold", call):
            held.released.wait()
        if self.owner._take("refuse", call):
            self._break()
            return
        failing = self.owner._take("fail", call)
        if failing is not None:
            status, answer, retry_after, forward = failing.do
            if forward:
                response = self._forward(call)
                call.status = response.status
                response.read()
            headers = [("Content-Type", "application/json")]
            if retry_after is not None:
                headers.append(("Retry-After", str(retry_after)))
            self._answer(status, headers, answer)
            return
        try:
            response = self._forward(call)
        except OSError as error:
            # A server that is away looks as if it were so directly.
            self.close_connection = True
            del error
            return
        call.status = response.status
        if call.verb == "watch" and response.status == 200:
            self._watch(call, response)
            return
        answer = response.read()
        if self.owner._take("lose", call):
            self._break()
            return
        if rewriting := self.owner._take("rewrite", call):
            answer = rewriting.do(answer)
        if cutting := self.owner._take("cut", call):
            self._head(response.status, response.getheaders(), len(answer))
            self.wfile.write(answer[: int(len(answer) * cutting.do)])
            self._break()
            return
        self._answer(response.status, response.getheaders(), answer)
        call.delivered = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815

    def _forward(self, call: Call) -> http.client.HTTPResponse:
        headers = {name: value for name, value in call.headers.items() if name.lower() not in _HOP}
        if call.body:
            headers["Content-Length"] = str(len(call.body))
        for again in (True, False):
            fresh = self._link is None
            if self._link is None:
                self._link = self.owner._connect()
            try:
                self._link.request(self.command, self.path, call.body or None, headers)
                return self._link.getresponse()
            except (OSError, http.client.HTTPException) as error:
                self._link.close()
                self._link = None
                # An idle connection that the server has closed meanwhile; nothing has been done.
                if fresh or not again or not isinstance(error, (http.client.RemoteDisconnected, BrokenPipeError)):
                    raise OSError(str(error)) from error
        raise AssertionError

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self._head(status, headers, len(body))
        self.wfile.write(body)

    def _head(self, status: int, headers: list[tuple[str, str]], length: int | None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _break(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _watch(self, call: Call, response: http.client.HTTPResponse) -> None:
        """Pass on line by line; a thread reads, so that rules act while the server is silent."""
        self._head(200, response.getheaders(), None)
        lines: list[tuple[float, bytes] | None] = []
        arrived = threading.Condition()
        link = self._link
        assert link is not None

        def read() -> None:
            try:
                while line := response.readline():
                    with arrived:
                        lines.append((time.monotonic(), line))
                        arrived.notify()
            except (OSError, ValueError, http.client.HTTPException, AttributeError):
                pass
            with arrived:
                lines.append(None)
                arrived.notify()

        reader = threading.Thread(target=read, name="kube-proxy-watch", daemon=True)
        reader.start()
        try:
            self._pass_on(call, lines, arrived)
        finally:
            # The connection to the server is in the middle of an answer, so it is of no further use.
            if link.sock is not None:
                with contextlib.suppress(OSError):
                    link.sock.shutdown(socket.SHUT_RDWR)
            reader.join(5)
            link.close()
            self._link = None

    def _pass_on(self, call: Call, lines: list[tuple[float, bytes] | None], arrived: threading.Condition) -> None:
        while not self.owner._closed:
            if self.owner._standing("stall", call):
                time.sleep(0.02)
                continue
            if injecting := self.owner._take("inject", call):
                raw, end = injecting.do
                if raw:
                    self._chunk(raw)
                if end:
                    self._chunk(b"")
                    return
            with arrived:
                if not lines:
                    arrived.wait(0.02)
                    continue  # a rule may be new
                first = lines[0]
            if first is None:
                self._chunk(b"")
                return
            at, line = first
            delaying = self.owner._standing("delay", call)
            if delaying is not None and time.monotonic() < at + delaying.do:
                time.sleep(0.01)
                continue
            if cutting := self.owner._take("cut", call):
                self._chunk(line[: int(len(line) * cutting.do)])
                self._break()
                return
            if rewriting := self.owner._take("rewrite", call):
                line = rewriting.do(line.rstrip(b"\n")) + b"\n"
            self._chunk(line)
            with arrived:
                lines.pop(0)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def _call(method: str, target: str, headers: dict[str, str], body: bytes) -> Call:
    parts = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    found = _PATH.fullmatch(parts.path)
    groups = found.groupdict("") if found else {"namespace": "", "resource": "", "name": "", "sub": ""}
    resource = groups["resource"] + (f"/{groups['sub']}" if groups["sub"] else "")
    reading = "watch" if query.get("watch") in ("true", "1") else "get" if groups["name"] or not found else "list"
    verb = {"GET": reading, "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
    return Call(verb, resource, groups["namespace"], groups["name"], parts.path, query, headers, body, time.monotonic())


def _status(code: int, reason: str, message: str) -> bytes:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code}
    return json.dumps({**status, "reason": reason, "message": message}).encode()


def kubeconfig_for(proxy: KubeProxy, folder: Path, token: str, ca: Path | None = None) -> Path:
    """Write a kubeconfig for a proxy; returns its path."""
    cluster: dict[str, Any] = {"server": proxy.url}
    if ca is not None:
        cluster["certificate-authority"] = str(ca)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig-proxy"
    path.write_text(json.dumps(config))
    return path
