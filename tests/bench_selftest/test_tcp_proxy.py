"""Each mode of the TCP proxy, seen from raw sockets before an echo server."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, resource_counts


class Echo:
    """Answers what it gets; ``received`` is all it ever got."""

    def __init__(self, answer: bytes | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.received = b""
        self._answer = answer
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(65536):
                self.received += data
                connection.sendall(self._answer or data)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxied(echo: Echo, tcp_proxy_factory: Callable[[str], TcpProxy]) -> TcpProxy:
    return tcp_proxy_factory(echo.address)


@contextlib.contextmanager
def connected(proxy: TcpProxy, timeout: float = 3.0) -> Iterator[socket.socket]:
    host, port = proxy.address.split(":")
    with socket.create_connection((host, int(port)), timeout) as connection:
        yield connection


def exchange(connection: socket.socket, data: bytes = b"ping", timeout: float = 3.0) -> bytes:
    connection.settimeout(timeout)
    connection.sendall(data)
    return connection.recv(65536)


def is_silent(connection: socket.socket, data: bytes = b"ping") -> bool:
    try:
        return exchange(connection, data, 0.3) == b"never"
    except TimeoutError:
        return True


def test_pass_and_counters(proxied: TcpProxy) -> None:
    with connected(proxied) as connection:
        assert exchange(connection) == b"ping"
        assert (proxied.connections, proxied.open_connections) == (1, 1)
        eventually(lambda: (proxied.bytes_to_server, proxied.bytes_to_client) == (4, 4))  # counted after they are sent
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(10) == b""  # the end passes too
    eventually(lambda: proxied.open_connections == 0)


def test_refuse_and_back(proxied: TcpProxy) -> None:
    with connected(proxied) as connection:
        exchange(connection)
        proxied.refuse()
        with pytest.raises(ConnectionResetError):
            exchange(connection)
    with pytest.raises(ConnectionRefusedError), connected(proxied):
        pass
    proxied.pass_all()
    with connected(proxied) as connection:
        assert exchange(connection) == b"ping"


def test_reset(proxied: TcpProxy) -> None:
    with connected(proxied) as connection:
        exchange(connection)
        proxied.reset()
        with pytest.raises(ConnectionResetError):
            exchange(connection)
    with pytest.raises(ConnectionResetError), connected(proxied) as connection:
        exchange(connection)


def test_black_hole_swallows_and_resets_afterwards(proxied: TcpProxy, echo: Echo) -> None:
    with connected(proxied) as connection:
        exchange(connection)
        proxied.black_hole()
        assert is_silent(connection, b"lost")
        with connected(proxied) as late:
            assert is_silent(late, b"new")
        proxied.pass_all()
        with pytest.raises(ConnectionResetError):
            exchange(connection)
    assert b"lost" not in echo.received


def test_half_open_lets_requests_pass(proxied: TcpProxy, echo: Echo) -> None:
    with connected(proxied) as connection:
        exchange(connection)
        proxied.half_open()
        assert is_silent(connection, b"asked")
        eventually(lambda: echo.received == b"pingasked")


def test_hold_delivers_late_even_when_the_client_has_gone(proxied: TcpProxy, echo: Echo) -> None:
    with connected(proxied) as connection:
        exchange(connection)
        proxied.hold()
        assert is_silent(connection, b"late")
    time.sleep(0.1)
    assert b"late" not in echo.received
    proxied.pass_all()
    eventually(lambda: echo.received == b"pinglate")


def test_hold_answers(proxied: TcpProxy, echo: Echo) -> None:
    with connected(proxied) as connection:
        proxied.hold_answers()
        assert is_silent(connection, b"asked")
        assert echo.received == b"asked"
        proxied.pass_all()
        assert connection.recv(10) == b"asked"


def test_drop_answer_is_for_one_answer(proxied: TcpProxy, echo: Echo) -> None:
    with connected(proxied) as connection:
        exchange(connection)
        proxied.drop_answer()
        with pytest.raises(ConnectionResetError):
            exchange(connection, b"lost")
    assert echo.received == b"pinglost"
    with connected(proxied) as connection:
        assert exchange(connection) == b"ping"


def test_delay_does_not_add_up(proxied: TcpProxy) -> None:
    proxied.delay(0.3)
    with connected(proxied) as connection:
        start = time.monotonic()
        for _ in range(5):
            connection.sendall(b"x")
            time.sleep(0.02)
        got = b""
        while len(got) < 5:
            got += connection.recv(10)
        assert 0.3 <= time.monotonic() - start < 1.0


def test_cut_after_some_bytes(proxied: TcpProxy) -> None:
    with connected(proxied) as connection:
        proxied.cut_after(6)
        assert exchange(connection) == b"ping"
        assert exchange(connection) == b"pi"
        with pytest.raises(ConnectionResetError):
            connection.recv(10)


def test_forget_idle(proxied: TcpProxy) -> None:
    proxied.forget_idle(0.3)
    with connected(proxied) as connection:
        exchange(connection)
        time.sleep(0.1)
        assert exchange(connection) == b"ping"
        time.sleep(0.4)
        assert is_silent(connection)
    with connected(proxied) as connection:
        assert exchange(connection) == b"ping"


def test_retarget(proxied: TcpProxy) -> None:
    other = Echo(b"other")
    try:
        with connected(proxied) as connection:
            exchange(connection)
            proxied.retarget(other.address)
            with pytest.raises(ConnectionResetError):
                exchange(connection)
        with connected(proxied) as connection:
            assert exchange(connection) == b"other"
    finally:
        other.close()


def test_nothing_leaks(echo: Echo) -> None:
    before = resource_counts()
    for _ in range(5):
        with TcpProxy(echo.address) as proxy, connected(proxy) as connection:
            exchange(connection)
            proxy.black_hole()
    eventually(lambda: resource_counts().fds <= before.fds and resource_counts().threads <= before.threads, 5)
