"""A TCP proxy whose way of failing is switched while connections are open.

Each proxy is one thread with its own event loop. What happens to bytes depends on the mode at the moment they are
delivered, so a change acts on open connections too. A connection that has lost bytes is reset when the mode goes
back to ``pass``: a stream with a hole would be garbage to both ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from edl_agent.testing import PortReservation

T = TypeVar("T")
_CHUNK = 64 * 1024
_LINGER_RESET = struct.pack("ii", 1, 0)
_numbers = itertools.count(1)


class Mode(enum.Enum):
    """What the proxy does with bytes."""

    PASS = "pass"
    REFUSE = "refuse"
    RESET = "reset"
    BLACK_HOLE = "black_hole"
    HALF_OPEN = "half_open"
    HOLD = "hold"
    HOLD_ANSWERS = "hold_answers"
    DROP_ANSWER = "drop_answer"


@dataclass(eq=False)
class Connection:
    """One client of the proxy. ``head`` is the start of what the client sent (up to 4 KiB)."""

    client: socket.socket
    server: socket.socket | None = None
    opened: float = field(default_factory=time.monotonic)
    last_byte: float = field(default_factory=time.monotonic)
    head: bytes = b""
    lost_bytes: bool = False
    forgotten: bool = False
    asked: bool = False
    answer_bytes: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def reset(self) -> None:
        """Close both sides with RST."""
        for end in (self.client, self.server):
            if end is not None and end.fileno() >= 0:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
                    end.close()
        for task in self.tasks:
            task.cancel()


class TcpProxy:
    """Stands before ``target`` ("host:port" or a URL). Its methods may be called from any thread.

    As a context manager it closes on exit. Counters: ``connections`` (ever accepted), ``open_connections``,
    ``bytes_to_server``, ``bytes_to_client`` (delivered bytes only).
    """

    def __init__(self, target: str, *, scheme: str = "http", host: str = "127.0.0.1") -> None:
        """Listen on a free port of ``host`` and pass everything to ``target``."""
        self._target = _split(target)
        self._scheme = target.split("://")[0] if "://" in target else scheme
        self._port = PortReservation(host)
        self._mode = Mode.PASS
        self._delay = 0.0
        self._cut_after: int | None = None
        self._answers_to_drop = 0
        self._forget_idle: float | None = None
        self._override: Callable[[Connection], Mode | None] | None = None
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        self.connections = 0
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"bench-tcp-proxy-{next(_numbers)}", daemon=True)
        self._thread.start()
        self._call(self._listen)

    # -- where it is ---------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """``host:port`` of the proxy."""
        return self._port.address

    @property
    def endpoint(self) -> str:
        """URL of the proxy, with the scheme of its target."""
        return f"{self._scheme}://{self.address}"

    @property
    def mode(self) -> Mode:
        """The mode now."""
        return self._mode

    @property
    def open_connections(self) -> int:
        """Client connections that are open now."""
        return len(self._connections)

    # -- modes ---------------------------------------------------------------------------------------------------

    def pass_all(self) -> None:
        """Everything passes again: no delay, no cut. Connections that lost bytes are reset; held bytes are
        delivered.
        """

        def change() -> None:
            self._delay, self._cut_after, self._answers_to_drop, self._forget_idle = 0.0, None, 0, None
            self._set(Mode.PASS)

        self._call(change)

    def refuse(self) -> None:
        """Close the listener (connecting fails at once) and reset the open connections."""
        self._call(lambda: self._set(Mode.REFUSE))

    def reset(self) -> None:
        """Reset the open connections, and each new one as soon as it is accepted."""
        self._call(lambda: self._set(Mode.RESET))

    def black_hole(self) -> None:
        """Accept, swallow both ways; no end of a connection passes either."""
        self._call(lambda: self._set(Mode.BLACK_HOLE))

    def half_open(self) -> None:
        """Requests pass, bytes from the server are swallowed."""
        self._call(lambda: self._set(Mode.HALF_OPEN))

    def hold(self) -> None:
        """Keep all bytes back, both ways; ``pass_all()`` delivers them late, as the real network does after a cut."""
        self._call(lambda: self._set(Mode.HOLD))

    def hold_answers(self) -> None:
        """Requests pass, bytes from the server are kept back until ``pass_all()``."""
        self._call(lambda: self._set(Mode.HOLD_ANSWERS))

    def drop_answer(self, times: int = 1) -> None:
        """The next ``times`` connections that send a request from now on get a reset in place of the answer; then
        pass.
        """

        def change() -> None:
            self._answers_to_drop = times
            for connection in self._connections:
                connection.asked = False
            self._set(Mode.DROP_ANSWER)

        self._call(change)

    def delay(self, seconds: float) -> None:
        """Deliver each piece of an answer ``seconds`` after it came (pieces under way at the same time do not add
        up). 0 ends it.
        """
        self._call(lambda: setattr(self, "_delay", seconds))

    def cut_after(self, answer_bytes: int | None) -> None:
        """Reset a connection after that many more bytes of answers on it (counted from now, for each). None ends it."""

        def change() -> None:
            self._cut_after = answer_bytes
            for connection in self._connections:
                connection.answer_bytes = 0

        self._call(change)

    def forget_idle(self, seconds: float | None) -> None:
        """Like an address translator: a connection without bytes for longer than ``seconds`` is a black hole for
        good. None ends it.
        """
        self._call(lambda: setattr(self, "_forget_idle", seconds))

    def retarget(self, target: str, *, keep_open: bool = False) -> None:
        """New connections go to ``target``; the open ones are reset unless ``keep_open``."""

        def change() -> None:
            self._target = _split(target)
            if not keep_open:
                self._reset_all()

        self._call(change)

    def drop_connections(self) -> None:
        """Reset the open connections once; the mode stays."""
        self._call(self._reset_all)

    def override(self, choose: Callable[[Connection], Mode | None] | None) -> None:
        """Let a function choose the mode for each connection (None: the proxy's mode). Call again to have it asked
        anew.
        """

        def change() -> None:
            self._override = choose
            self._wake()

        self._call(change)

    def close(self) -> None:
        """Reset everything and end the thread. Idempotent."""
        if self._loop.is_closed():
            return
        self._call(self._shut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        self._port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            self._loop.close()

    def _call(self, function: Callable[[], T]) -> T:
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return answer.result(10.0)

    def _set(self, mode: Mode) -> None:
        self._mode = mode
        if mode is Mode.REFUSE:
            self._close_listener()
        elif self._listener is None:
            self._listen()
        if mode in (Mode.REFUSE, Mode.RESET):
            self._reset_all()
        self._wake()

    def _wake(self) -> None:
        for connection in list(self._connections):
            mode = self._mode_of(connection)
            if mode is Mode.RESET or (connection.lost_bytes and mode is Mode.PASS and not connection.forgotten):
                connection.reset()
        self._changed.set()
        self._changed = asyncio.Event()

    def _listen(self) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((self._port.host, self._port.port))
        listener.listen(1024)
        self._listener = listener
        self._loop.add_reader(listener, self._accept, listener)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _shut(self) -> None:
        self._close_listener()
        self._reset_all()

    def _reset_all(self) -> None:
        for connection in list(self._connections):
            connection.reset()

    def _accept(self, listener: socket.socket) -> None:
        # Not sock_accept(): a connection accepted in the moment in which the waiting task is cancelled would be lost.
        try:
            client, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections += 1
        connection = Connection(client)
        if self._mode is Mode.RESET:
            connection.reset()
            return
        self._connections.add(connection)
        task = self._loop.create_task(self._serve(connection))
        task.add_done_callback(
            lambda _: self._over(connection)
        )  # runs also when the task was cancelled before it began
        connection.tasks.append(task)

    def _over(self, connection: Connection) -> None:
        self._connections.discard(connection)
        for task in connection.tasks:
            task.cancel()
        for end in (connection.client, connection.server):
            if end is not None:
                end.close()

    async def _serve(self, connection: Connection) -> None:
        try:
            server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            connection.server = server
            server.setblocking(False)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while self._mode in (Mode.BLACK_HOLE, Mode.HOLD):  # not even the connect reaches the server
                await self._changed.wait()
            await self._loop.sock_connect(server, self._target)
            pumps = [
                self._loop.create_task(self._pump(connection, connection.client, server, to_server=True)),
                self._loop.create_task(self._pump(connection, server, connection.client, to_server=False)),
            ]
            connection.tasks += pumps
            await asyncio.gather(*pumps)
        except OSError:
            connection.reset()

    def _mode_of(self, connection: Connection) -> Mode:
        if connection.forgotten:
            return Mode.BLACK_HOLE
        chosen = self._override(connection) if self._override is not None else None
        return chosen or self._mode

    async def _pump(
        self, connection: Connection, source: socket.socket, sink: socket.socket, *, to_server: bool
    ) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)
        reader = self._loop.create_task(self._read(connection, source, queue, to_server))
        connection.tasks.append(reader)
        while True:
            came, data = await queue.get()
            if not to_server and self._delay:
                await asyncio.sleep(max(0.0, came + self._delay - time.monotonic()))
            mode = self._mode_of(connection)
            while mode is Mode.HOLD or (mode is Mode.HOLD_ANSWERS and not to_server):
                await self._changed.wait()
                mode = self._mode_of(connection)
            if mode is Mode.BLACK_HOLE or (mode is Mode.HALF_OPEN and not to_server):
                connection.lost_bytes = True
                if not data:
                    await self._wait_for_pass(connection)  # an end is not told either
                    return
                continue
            if mode is Mode.RESET:
                connection.reset()
                return
            if not data:
                with contextlib.suppress(OSError):
                    sink.shutdown(socket.SHUT_WR)
                return
            if mode is Mode.DROP_ANSWER:
                if to_server:
                    connection.asked = True
                elif connection.asked:
                    self._answers_to_drop -= 1
                    if self._answers_to_drop <= 0:
                        self._mode = Mode.PASS
                    connection.reset()
                    return
            if not to_server and self._cut_after is not None:
                data = data[: max(0, self._cut_after - connection.answer_bytes)]
            await self._loop.sock_sendall(sink, data)
            if to_server:
                self.bytes_to_server += len(data)
            else:
                self.bytes_to_client += len(data)
                connection.answer_bytes += len(data)
                if self._cut_after is not None and connection.answer_bytes >= self._cut_after:
                    await asyncio.sleep(0.01)  # let the last bytes leave before the reset discards them
                    connection.reset()
                    return

    async def _wait_for_pass(self, connection: Connection) -> None:
        while self._mode_of(connection) is not Mode.PASS:
            await self._changed.wait()

    async def _read(
        self, connection: Connection, source: socket.socket, queue: asyncio.Queue[tuple[float, bytes]], to_server: bool
    ) -> None:
        while True:
            try:
                data = await self._loop.sock_recv(source, _CHUNK)
            except OSError:
                if self._mode_of(connection) in (Mode.BLACK_HOLE, Mode.HOLD, Mode.HALF_OPEN, Mode.HOLD_ANSWERS):
                    await queue.put((time.monotonic(), b""))  # a reset does not pass a cut network
                else:
                    connection.reset()
                return
            now = time.monotonic()
            if self._forget_idle is not None and now - connection.last_byte > self._forget_idle:
                connection.forgotten = True
            connection.last_byte = now
            if to_server and len(connection.head) < 4096:
                connection.head += data[:4096]
            await queue.put((now, data))
            if not data:
                return


def _split(target: str) -> tuple[str, int]:
    host, _, port = target.split("://")[-1].rpartition(":")
    return host.strip("[]"), int(port)


def sniffed_header(connection: Connection, header: str) -> str | None:
    """Value of an HTTP/1 header in the first bytes of a connection, None where it is not there (yet)."""
    for line in connection.head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == header.lower().encode():
            return value.strip().decode()
    return None
