"""The HTTP server for probes and metrics: small, bounded, and deaf to everything but GET and HEAD."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from edl_controller.errors import ConfigurationError
from edl_controller.runtime import http as served
from edl_controller.runtime.http import Address, HttpServer, Reply, parse_address
from tests.bench.waiting import eventually


def _fails() -> Reply:
    raise RuntimeError("canary-3")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer(Address("127.0.0.1", 0), {"/ok": lambda: Reply(200, b"fine\n"), "/bad": _fails}) as running:
        yield running


def _ask(server: HttpServer, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes, dict[str, str]]:
    where = urlsplit(server.url)
    with contextlib.closing(http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)) as connection:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.headers)


def _open(server: HttpServer) -> socket.socket:
    where = urlsplit(server.url)
    return socket.create_connection((where.hostname or "", where.port or 0), timeout=30)


def test_pages(server: HttpServer) -> None:
    status, body, headers = _ask(server, "GET", "/ok?x=1")
    assert (status, body, headers["Content-Length"]) == (200, b"fine\n", "5")
    assert "Python" not in headers["Server"]
    status, body, headers = _ask(server, "HEAD", "/ok")
    assert (status, body, headers["Content-Length"]) == (200, b"", "5")
    status, body, _ = _ask(server, "GET", "/<script>canary-4")
    assert status == 404
    assert b"canary-4" not in body
    status, body, _ = _ask(server, "GET", "/bad")
    assert status == 500
    assert b"canary-3" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_nothing_else_is_served(server: HttpServer, method: str) -> None:
    status, body, headers = _ask(server, method, "/ok")
    assert (status, body, headers["Allow"]) == (405, b"", "GET, HEAD")


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b"GET /%b HTTP/1.1\r\n\r\n" % (b"a" * 70_000)],
)
def test_what_is_no_http_is_refused_and_harms_nobody(server: HttpServer, request_bytes: bytes) -> None:
    with _open(server) as connection, contextlib.suppress(OSError):
        connection.sendall(request_bytes)
        connection.recv(4096)
    assert _ask(server, "GET", "/ok")[0] == 200


def test_slow_clients_do_not_keep_others_out_for_long(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "END_WITHIN", 1.0)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(_open(server)) for _ in range(served.CONNECTIONS)]
        stop = threading.Event()
        stack.callback(stop.set)

        def trickle() -> None:
            while not stop.wait(0.1):
                for one in slow:
                    with contextlib.suppress(OSError):
                        one.send(b"G")

        threading.Thread(target=trickle, daemon=True).start()

        def served_now() -> bool:
            try:
                return _ask(server, "GET", "/ok")[0] == 200
            except (OSError, http.client.HTTPException):
                return False

        eventually(served_now, 30, "an answer")


def test_many_at_once_take_no_more_threads_than_allowed(server: HttpServer) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        for _ in range(3 * served.CONNECTIONS):
            stack.enter_context(_open(server))
        time.sleep(0.3)
        assert threading.active_count() - before <= served.CONNECTIONS


def test_the_end_cuts_off_who_is_connected() -> None:
    running = HttpServer(Address("127.0.0.1", 0), {}).start()
    with _open(running) as connection:
        eventually(lambda: any("process_request" in one.name for one in threading.enumerate()), 10)
        running.close()
        assert connection.recv(1) == b""
    running.close()


def test_an_address_that_is_taken_is_a_mistake_in_the_settings(server: HttpServer) -> None:
    port = urlsplit(server.url).port or 0
    with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        HttpServer(Address("127.0.0.1", port), {}).start()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":8080", Address("", 8080)),
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:8080", Address("::1", 8080)),
        ("localhost:1", Address("localhost", 1)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "8080", "::1:80", "x:80", "127.0.0.1:99999", "127.0.0.1:-1", "1.2.3:80", ":²"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(ConfigurationError, match="address to listen on"):
        parse_address(text)


def test_all_addresses_of_both_families() -> None:
    with HttpServer(parse_address(":0"), {"/ok": lambda: Reply(200, b"")}) as running:
        port = urlsplit(running.url).port or 0
        for host in ("127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])):
            with contextlib.closing(http.client.HTTPConnection(host, port, timeout=10)) as connection:
                connection.request("GET", "/ok")
                assert connection.getresponse().status == 200
