"""A gRPC-level proxy before etcd: records every call, and loses, delays, holds or changes the ones that a test names.

Methods are named by their last part ("Txn", "LeaseKeepAlive"), by service ("Lease/*") or in full; "*" is all.
``nth`` and ``times`` count from the moment the rule is added, over what the rule matches: calls for unary methods,
request messages (``hold``, ``delay``), answers (``swallow_answers``, ``rewrite_answer``) or openings (``fail``) for
streams. Everything may be called from any thread.

All proxies share one thread with one event loop, since grpc's asyncio side wants a single loop in a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from tests.bench import protobuf_wire as pb
from tests.bench.waiting import eventually

T = TypeVar("T")
Metadata = tuple[tuple[str, str | bytes], ...]
STREAMS = ("/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive", "/etcdserverpb.Maintenance/Snapshot")
_UNLIMITED = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),
]
_SERVER_OPTIONS = [
    *_UNLIMITED,
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]
_CHANNEL_OPTIONS = [
    *_UNLIMITED,
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 250),
    ("grpc.use_local_subchannel_pool", 1),
]


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    threading.Thread(target=run, name="bench-etcd-proxies", daemon=True).start()
    return loop


def _await(coroutine: Coroutine[Any, Any, T], timeout: float = 15.0) -> T:
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result(timeout)


def _in_loop(function: Callable[[], T]) -> T:
    async def run() -> T:
        return function()

    return _await(run())


@dataclass(frozen=True)
class Message:
    """One message: when it passed the proxy (``time.monotonic()``) and its bytes."""

    time: float
    data: bytes


@dataclass(eq=False)
class Call:
    """One call that reached the proxy. ``status`` is what the client was told; None while open, CANCELLED where it
    went away.
    """

    method: str
    time: float
    peer: str
    metadata: dict[str, str | bytes]
    requests: list[Message] = field(default_factory=list)
    answers: list[Message] = field(default_factory=list)
    status: grpc.StatusCode | None = None
    details: str = ""
    finished: float | None = None
    forwarded: bool = False
    watch_ids: set[int] = field(default_factory=set)
    cancelled_watch_ids: set[int] = field(default_factory=set)
    last_header: bytes = b""
    inject: asyncio.Queue[bytes | BaseException] = field(default_factory=asyncio.Queue)

    @property
    def request(self) -> bytes:
        """Bytes of the first request."""
        return self.requests[0].data

    @property
    def name(self) -> str:
        """Last part of the method."""
        return self.method.rsplit("/", 1)[-1]

    def end(self, status: grpc.StatusCode, details: str = "") -> None:
        """Note how it ended; the first note stands."""
        if self.status is None:
            self.status, self.details, self.finished = status, details, time.monotonic()


class Abort(Exception):
    """The client is told this status in place of what etcd said."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(code, details)
        self.code, self.details = code, details


Filter = Callable[[bytes, dict[str, str | bytes]], bool]


class Rule:
    """Something the proxy does to calls of a method; ends by itself after ``times``, or by ``remove()``."""

    def __init__(
        self,
        proxy: EtcdProxy,
        kind: str,
        method: str,
        *,
        nth: int = 1,
        times: int | None = 1,
        every: int = 1,
        when: Filter | None,
    ) -> None:
        self.kind, self.method = kind, method
        self._proxy = proxy
        self._nth, self._times, self._every, self._when = nth, times, every, when
        self.seen = 0
        self.fired = 0
        self._condition = threading.Condition()

    def remove(self) -> None:
        """Take the rule away."""
        self._proxy.remove_rule(self)

    def wait_fired(self, timeout: float = 10.0, times: int = 1) -> None:
        """Wait (seconds) until the rule has acted ``times`` times. Raises AssertionError."""
        with self._condition:
            if not self._condition.wait_for(lambda: self.fired >= times, timeout):
                raise AssertionError(
                    f"{self.kind} on {self.method} acted {self.fired} times in {timeout} s, seen {self.seen}"
                )

    def applies(self, kind: str, call: Call, data: bytes) -> bool:
        """Count a message of a call and say whether the rule acts on it."""
        if kind != self.kind or not _matches(self.method, call.method):
            return False
        if self._when is not None and not self._when(data, call.metadata):
            return False
        with self._condition:
            self.seen += 1
            place = self.seen - self._nth
            if place < 0 or place % self._every or (self._times is not None and self.fired >= self._times):
                return False
            self.fired += 1
            self._condition.notify_all()
            return True


@dataclass
class Delivery:
    """What became of a held request: ``code`` and ``answer`` of etcd, once it was delivered."""

    request: bytes
    held_at: float
    delivered_at: float | None = None
    code: grpc.StatusCode | None = None
    details: str = ""
    answer: bytes = b""


class Hold(Rule):
    """Requests kept back by ``EtcdProxy.hold``."""

    def __init__(self, proxy: EtcdProxy, method: str, **counting: Any) -> None:
        super().__init__(proxy, "hold", method, **counting)
        self.deliveries: list[Delivery] = []
        self.released = asyncio.Event()
        self.dropped = False

    def wait_held(self, timeout: float = 10.0, times: int = 1) -> Delivery:
        """Wait (seconds) until a request is held, and return the first. Raises AssertionError."""
        self.wait_fired(timeout, times)
        # The rule counts a moment before the proxy's thread writes the delivery down.
        eventually(lambda: len(self.deliveries) >= times, timeout, f"{times} held {self.method}")
        return self.deliveries[0]

    def release(self) -> None:
        """Deliver what is held to etcd now, whether or not the client still waits; later requests pass."""
        self.remove()
        _in_loop(self.released.set)

    def drop(self) -> None:
        """Throw away what is held; a client that still waits is told UNAVAILABLE."""
        self.dropped = True
        self.release()

    def wait_delivered(self, timeout: float = 10.0) -> Delivery:
        """After ``release()``: wait (seconds) for etcd's answer to the first held request. Raises AssertionError."""
        with self._condition:
            done = self._condition.wait_for(
                lambda: bool(self.deliveries) and self.deliveries[0].code is not None, timeout
            )
        assert done, f"the held {self.method} was not answered within {timeout} s"
        return self.deliveries[0]

    def note(self, delivery: Delivery, code: grpc.StatusCode, details: str, answer: bytes) -> None:
        """Note etcd's answer."""
        with self._condition:
            delivery.code, delivery.details, delivery.answer = code, details, answer
            self._condition.notify_all()


def _matches(pattern: str, method: str) -> bool:
    short = method.lstrip("/").split(".", 1)[-1]
    return any(fnmatch.fnmatchcase(name, pattern) for name in (method, short, method.rsplit("/", 1)[-1]))


class EtcdProxy:
    """Stands before one etcd member. ``target``: "host:port" or http URL. A context manager; closes on exit.

    ``address`` is its ``host:port``, ``endpoint`` its URL.
    """

    def __init__(self, target: str) -> None:
        self._target = target.split("://")[-1]
        self.address = ""
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._calls: list[Call] = []
        self._open: dict[Call, asyncio.Task[Any] | None] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._server: grpc.aio.Server | None = None
        self._channel: Any = None
        _await(self._start())

    # -- where it is ---------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """URL of the proxy."""
        return f"http://{self.address}"

    def retarget(self, target: str) -> None:
        """Calls from now on go to another etcd; the open streams are ended with UNAVAILABLE."""

        async def change() -> None:
            old, self._target = self._channel, target.split("://")[-1]
            self._channel = grpc.aio.insecure_channel(self._target, options=_CHANNEL_OPTIONS)
            self._break("*", Abort(grpc.StatusCode.UNAVAILABLE, "proxy: another target"))
            if old is not None:
                await old.close(0.1)

        _await(change())

    def close(self) -> None:
        """End everything, also held requests. Idempotent."""
        if not self._closed:
            self._closed = True
            _await(self._stop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the record ----------------------------------------------------------------------------------------------

    def calls(self, method: str = "*") -> list[Call]:
        """The calls so far, oldest first (streams are one call with many ``requests``)."""
        with self._lock:
            return [call for call in self._calls if _matches(method, call.method)]

    def requests(self, method: str = "*") -> list[Message]:
        """The request messages so far, of all calls, in the order of time."""
        with self._lock:
            found = [m for call in self._calls if _matches(method, call.method) for m in call.requests]
        return sorted(found, key=lambda message: message.time)

    def count(self, method: str = "*") -> int:
        """How many calls so far."""
        return len(self.calls(method))

    def count_messages(self, method: str) -> int:
        """How many request messages so far (for streams: keepalives, watch requests)."""
        return len(self.requests(method))

    def open_streams(self, method: str = "*") -> int:
        """How many calls are open now."""
        with self._lock:
            return sum(_matches(method, call.method) for call in self._open)

    def clear(self) -> None:
        """Forget the record (open calls stay in it) and remove all rules; held requests are dropped."""
        with self._lock:
            self._calls = list(self._open)
            rules = list(self._rules)
        for rule in rules:
            rule.drop() if isinstance(rule, Hold) else rule.remove()

    # -- rules ---------------------------------------------------------------------------------------------------

    def fail(
        self,
        method: str,
        code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
        details: str = "etcdserver: injected failure",
        *,
        after_forwarding: bool = False,
        times: int | None = 1,
        nth: int = 1,
        every: int = 1,
        when: Filter | None = None,
        break_open: bool = False,
    ) -> Rule:
        """Answer with a status in place of etcd's answer; ``after_forwarding``: etcd has executed the call.

        ``times=None``: until removed; ``every=2``: each second match; ``break_open``: also end the matching open
        streams now.
        """
        rule = Rule(
            self, "fail_after" if after_forwarding else "fail", method, nth=nth, times=times, every=every, when=when
        )
        return self._add(rule, abort=Abort(code, details), break_open=break_open)

    def lose_answer(
        self,
        method: str,
        nth: int = 1,
        *,
        times: int | None = 1,
        every: int = 1,
        silent: bool = False,
        when: Filter | None = None,
    ) -> Rule:
        """etcd executes the call, the client is told UNAVAILABLE, or (``silent``) nothing until its own deadline."""
        if not silent:
            return self.fail(
                method,
                details="proxy: answer lost",
                after_forwarding=True,
                nth=nth,
                times=times,
                every=every,
                when=when,
            )
        return self._add(Rule(self, "silence_after", method, nth=nth, times=times, every=every, when=when))

    def ignore(self, method: str, *, nth: int = 1, times: int | None = None, when: Filter | None = None) -> Rule:
        """Never forward, never answer (default: until removed). For streams: request messages are thrown away."""
        return self._add(Rule(self, "ignore", method, nth=nth, times=times, when=when))

    def hold(self, method: str, nth: int = 1, *, times: int | None = 1, when: Filter | None = None) -> Hold:
        """Keep a request back until ``release()``; it reaches etcd then, even if its client has given up: a late
        write.
        """
        rule = Hold(self, method, nth=nth, times=times, when=when)
        self._add(rule)
        return rule

    def delay(
        self,
        method: str,
        seconds: float,
        *,
        answer: bool = False,
        nth: int = 1,
        times: int | None = None,
        when: Filter | None = None,
    ) -> Rule:
        """Forward a request (or, with ``answer``, a unary answer) ``seconds`` later. Until removed."""
        rule = Rule(self, "delay_answer" if answer else "delay", method, nth=nth, times=times, when=when)
        return self._add(rule, seconds=seconds)

    def swallow_answers(
        self, method: str = "LeaseKeepAlive", nth: int = 1, *, times: int | None = 1, when: Filter | None = None
    ) -> Rule:
        """Throw away answers on streams, from the ``nth`` on, ``times`` of them (None: all until removed)."""
        return self._add(Rule(self, "swallow", method, nth=nth, times=times, when=when))

    def rewrite_answer(
        self,
        method: str,
        change: Callable[[bytes], bytes],
        *,
        nth: int = 1,
        times: int | None = 1,
        when: Filter | None = None,
    ) -> Rule:
        """Pass answers through ``change`` (bytes to bytes)."""
        return self._add(Rule(self, "rewrite", method, nth=nth, times=times, when=when), change=change)

    def break_streams(
        self,
        method: str = "*",
        code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
        details: str = "proxy: stream broken",
    ) -> int:
        """End the matching open calls now with a status; returns how many."""
        return _in_loop(lambda: self._break(method, Abort(code, details)))

    def cancel_watch(self, reason: str = "", *, compact_revision: int = 0) -> int:
        """Tell every open watch that etcd has cancelled it (with ``compact_revision``: by compaction); returns how
        many.

        The watch is silent from then on, as one that etcd cancelled.
        """

        def inject() -> int:
            told = 0
            for call in list(self._open):
                for watch_id in sorted(call.watch_ids - call.cancelled_watch_ids):
                    call.cancelled_watch_ids.add(watch_id)
                    call.inject.put_nowait(
                        pb.watch_cancelled(call.last_header, watch_id, reason=reason, compact_revision=compact_revision)
                    )
                    told += 1
            return told

        return _in_loop(inject)

    def remove_rule(self, rule: Rule) -> None:
        """Take a rule away (``Rule.remove``)."""
        with self._lock, contextlib.suppress(ValueError):
            self._rules.remove(rule)

    def _add(self, rule: Rule, *, break_open: bool = False, **action: Any) -> Rule:
        rule.__dict__.update(action)
        with self._lock:
            self._rules.append(rule)
        if break_open:
            abort: Abort = action["abort"]
            _in_loop(lambda: self._break(rule.method, abort))
        return rule

    def _find(self, kind: str, call: Call, data: bytes) -> Any:
        with self._lock:
            rules = list(self._rules)
        return next((rule for rule in rules if rule.applies(kind, call, data)), None)

    # -- inside the loop -----------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._target, options=_CHANNEL_OPTIONS)
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((_Handler(self),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def _stop(self) -> None:
        for task in [*self._background, *(task for task in self._open.values() if task is not None)]:
            task.cancel()
        if self._server is not None:
            await self._server.stop(0.2)
        if self._channel is not None:
            await self._channel.close(0.2)

    def _break(self, method: str, abort: Abort) -> int:
        broken = [call for call in self._open if _matches(method, call.method)]
        for call in broken:
            call.inject.put_nowait(abort)
        return len(broken)

    def _opened(self, method: str, context: Any) -> Call:
        metadata = dict(context.invocation_metadata() or ())
        call = Call(method, time.monotonic(), context.peer(), metadata)
        with self._lock:
            self._calls.append(call)
            self._open[call] = None
        return call

    def _ended(self, call: Call) -> None:
        with self._lock:
            self._open.pop(call, None)
        call.end(grpc.StatusCode.CANCELLED, "the client went away")

    def _spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = _loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def unary(self, method: str, request: bytes, context: Any) -> bytes:
        """Serve one unary call."""
        call = self._opened(method, context)
        call.requests.append(Message(call.time, request))
        work = asyncio.ensure_future(self._unary_answer(call, request, context))
        broken = asyncio.ensure_future(call.inject.get())
        try:
            await asyncio.wait({work, broken}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                failure = broken.result()
                assert isinstance(failure, Abort)
                raise failure
            answer = await work
            call.answers.append(Message(time.monotonic(), answer))
            call.end(grpc.StatusCode.OK)
            return answer
        except Abort as abort:
            call.end(abort.code, abort.details)
            await context.abort(abort.code, abort.details)
            raise
        finally:
            work.cancel()
            broken.cancel()
            self._ended(call)

    async def _unary_answer(self, call: Call, request: bytes, context: Any) -> bytes:
        if (rule := self._find("delay", call, request)) is not None:
            await asyncio.sleep(rule.seconds)
        if (rule := self._find("fail", call, request)) is not None:
            raise rule.abort
        if self._find("ignore", call, request) is not None:
            await asyncio.Event().wait()
        metadata = _forwarded(context)
        if (hold := self._find("hold", call, request)) is not None:
            # In a task of its own, so that it goes on when the client has gone.
            answer = await asyncio.shield(self._spawn(self._deliver_late(call, hold, request, metadata)))
        else:
            call.forwarded = True
            answer = await self._forward(call.method, request, metadata, context.time_remaining(), context)
        if (rule := self._find("fail_after", call, request)) is not None:
            raise rule.abort
        if self._find("silence_after", call, request) is not None:
            await asyncio.Event().wait()
        if (rule := self._find("delay_answer", call, request)) is not None:
            await asyncio.sleep(rule.seconds)
        if (rule := self._find("rewrite", call, answer)) is not None:
            answer = rule.change(answer)
        return answer

    async def _forward(
        self, method: str, request: bytes, metadata: Metadata, timeout: float | None, context: Any = None
    ) -> bytes:
        assert self._channel is not None
        outgoing: Any = self._channel.unary_unary(method)(request, timeout=timeout, metadata=metadata)
        try:
            answer: bytes = await outgoing
            if context is not None:
                context.set_trailing_metadata(tuple(await outgoing.trailing_metadata() or ()))
            return answer
        except grpc.aio.AioRpcError as error:
            if context is not None:
                context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
            raise Abort(error.code(), error.details() or "") from error

    async def _deliver_late(self, call: Call, hold: Hold, request: bytes, metadata: Metadata) -> bytes:
        delivery = Delivery(request, time.monotonic())
        hold.deliveries.append(delivery)
        await hold.released.wait()
        if hold.dropped:
            raise Abort(grpc.StatusCode.UNAVAILABLE, "proxy: held request dropped")
        call.forwarded = True
        delivery.delivered_at = time.monotonic()
        try:
            answer = await self._forward(call.method, request, metadata, 30.0)
        except Abort as abort:
            hold.note(delivery, abort.code, abort.details, b"")
            raise
        hold.note(delivery, grpc.StatusCode.OK, "", answer)
        return answer

    async def stream(self, method: str, incoming: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Serve one stream."""
        call = self._opened(method, context)
        outgoing: Any = None
        tasks: list[asyncio.Task[Any]] = []
        late: list[asyncio.Task[Any]] = []
        try:
            if (rule := self._find("fail", call, b"")) is not None:
                raise rule.abort
            assert self._channel is not None
            call.forwarded = True
            outgoing = self._channel.stream_stream(method)(metadata=_forwarded(context))
            answers: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
            tasks.append(_loop().create_task(self._requests_of_stream(call, incoming, outgoing, late)))
            tasks.append(_loop().create_task(self._answers_of_stream(call, outgoing, answers)))
            tasks.append(_loop().create_task(_move(call.inject, answers)))
            while (answer := await answers.get()) is not None:
                if isinstance(answer, BaseException):
                    raise answer
                call.answers.append(Message(time.monotonic(), answer))
                yield answer
            context.set_trailing_metadata(tuple(await outgoing.trailing_metadata() or ()))
            call.end(grpc.StatusCode.OK)
        except Abort as abort:
            call.end(abort.code, abort.details)
            await context.abort(abort.code, abort.details)
        finally:
            for task in tasks[2:] if late else tasks:
                task.cancel()
            self._ended(call)
            if outgoing is not None:
                if late:  # a held message still has to reach etcd
                    self._spawn(self._finish_late(outgoing, late, tasks))
                else:
                    outgoing.cancel()

    async def _finish_late(self, outgoing: Any, late: list[asyncio.Task[Any]], tasks: list[asyncio.Task[Any]]) -> None:
        try:
            await asyncio.wait(late)
            await asyncio.sleep(1.0)  # time for etcd to act and answer
        finally:
            for task in tasks:
                task.cancel()
            outgoing.cancel()

    async def _requests_of_stream(
        self, call: Call, incoming: AsyncIterator[bytes], outgoing: Any, late: list[asyncio.Task[Any]]
    ) -> None:
        try:
            async for request in incoming:
                call.requests.append(Message(time.monotonic(), request))
                if (rule := self._find("delay", call, request)) is not None:
                    await asyncio.sleep(rule.seconds)
                if self._find("ignore", call, request) is not None:
                    continue
                if (hold := self._find("hold", call, request)) is not None:
                    task = self._spawn(self._write_late(hold, request, outgoing))
                    late.append(task)
                    task.add_done_callback(late.remove)
                    continue  # later messages overtake it, as on another connection
                await outgoing.write(request)
            while late:
                await asyncio.sleep(0.05)
            await outgoing.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return  # the stream is over; the reader of answers reports how

    async def _write_late(self, hold: Hold, request: bytes, outgoing: Any) -> None:
        delivery = Delivery(request, time.monotonic())
        hold.deliveries.append(delivery)
        await hold.released.wait()
        if hold.dropped:
            return
        delivery.delivered_at = time.monotonic()
        try:
            await outgoing.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            hold.note(delivery, grpc.StatusCode.UNAVAILABLE, repr(error), b"")
            return
        hold.note(delivery, grpc.StatusCode.OK, "", b"")

    async def _answers_of_stream(self, call: Call, outgoing: Any, answers: asyncio.Queue[Any]) -> None:
        try:
            async for answer in outgoing:
                if call.name == "Watch":
                    watch_id = _note_watch(call, answer)
                    if watch_id in call.cancelled_watch_ids:
                        continue
                if self._find("swallow", call, answer) is not None:
                    continue
                if (rule := self._find("rewrite", call, answer)) is not None:
                    answer = rule.change(answer)
                answers.put_nowait(answer)
            answers.put_nowait(None)
        except grpc.aio.AioRpcError as error:
            answers.put_nowait(Abort(error.code(), error.details() or ""))
        except asyncio.CancelledError:
            if outgoing.done():
                answers.put_nowait(Abort(grpc.StatusCode.UNAVAILABLE, "proxy: stream to etcd cancelled"))
            raise


def _note_watch(call: Call, answer: bytes) -> int:
    fields = pb.fields(answer)
    call.last_header = next((bytes(v) for n, v in fields if n == 1 and isinstance(v, bytes)), call.last_header)
    watch_id = next((v for n, v in fields if n == 2 and isinstance(v, int)), 0)
    if any(n == 3 and v for n, v in fields):
        call.watch_ids.add(watch_id)
        call.cancelled_watch_ids.discard(watch_id)
    if any(n == 4 and v for n, v in fields):
        call.watch_ids.discard(watch_id)
    return watch_id


async def _move(source: asyncio.Queue[Any], sink: asyncio.Queue[Any]) -> None:
    while True:
        sink.put_nowait(await source.get())


def _forwarded(context: Any) -> Metadata:
    reserved = ("user-agent", "te", "content-type")
    return tuple(
        (key, value)
        for key, value in context.invocation_metadata() or ()
        if key not in reserved and not key.startswith((":", "grpc-"))
    )


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, proxy: EtcdProxy) -> None:
        self._proxy = proxy

    def service(self, details: Any) -> Any:
        method: str = details.method
        if method in STREAMS:

            async def stream(incoming: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
                async for answer in self._proxy.stream(method, incoming, context):
                    yield answer

            return grpc.stream_stream_rpc_method_handler(stream)

        async def unary(request: bytes, context: Any) -> bytes:
            return await self._proxy.unary(method, request, context)

        return grpc.unary_unary_rpc_method_handler(unary)
