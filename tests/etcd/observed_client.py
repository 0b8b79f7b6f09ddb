"""A real `EtcdClient` whose hooks, log lines and calls are noted with their times."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pytest

from edl_agent import EdlAgentError, EtcdClient
from edl_agent.etcd.peer import TRUST
from edl_agent.watch_cursor import EventType, WatchEvent
from tests.bench.etcd_versions import VERSIONS
from tests.bench.waiting import eventually

both_versions = pytest.mark.parametrize("version", VERSIONS)
"""For tests with an argument ``version``, which goes to ``etcd_factory``."""


@dataclass
class Call:
    """One public call: when it began and ended (``time.monotonic()``), and its error."""

    begun: float
    ended: float
    error: Exception | None = None

    @property
    def took(self) -> float:
        return self.ended - self.begun


class Observed:
    """A client with notes. ``events``: (hook, time, arguments), in order. A context manager: shuts down on exit."""

    def __init__(self, endpoints: str | Iterable[str], *, port: int = 7164, **settings: Any) -> None:
        self.port = port
        self.client = EtcdClient(endpoints, **{"num_pservers": 1, "host": "127.0.0.1", **settings})
        self.events: list[tuple[str, float, tuple[Any, ...]]] = []
        for name in ("registered", "suspended", "connected", "lost", "desired_changed"):
            getattr(self.client, f"on_{name}")(self._noting(name))

    def _noting(self, name: str) -> Callable[..., None]:
        def note(*arguments: Any) -> None:
            self.events.append((name, time.monotonic(), arguments))

        return note

    def register(self, timeout: float = 10.0) -> int:
        return self.client.register(self.port, timeout=timeout)

    def named(self, name: str) -> list[tuple[float, tuple[Any, ...]]]:
        return [(at, arguments) for found, at, arguments in self.events if found == name]

    def times(self, name: str) -> list[float]:
        return [at for at, _ in self.named(name)]

    def use(self, endpoint: str) -> None:
        """Bring the client onto that endpoint (it chooses freely among healthy ones)."""
        connection = self.client._connection

        def on_it() -> bool:
            with contextlib.suppress(EdlAgentError):
                self.client.get_key("/which-endpoint", timeout=2.0)
            if self.endpoint == endpoint:
                return True
            peer = connection.choice.pinned
            if peer is not None:
                connection.choice.failed(peer, "the test wants another endpoint")
            return False

        eventually(on_it, 10.0, f"use of {endpoint}")

    @property
    def endpoint(self) -> str | None:
        """URL of the endpoint in use."""
        endpoint = self.client._connection.choice.endpoint
        return str(endpoint) if endpoint is not None else None

    @property
    def connected(self) -> bool:
        """Whether it is on an endpoint, and that connection stands or is not to be looked at yet."""
        peer = self.client._connection.choice.pinned
        return peer is not None and (peer.connected or time.monotonic() - peer.heard <= TRUST)

    def assert_undisturbed(self, lease_id: int | None, index: int = 0) -> None:
        """The slot is held with that lease, and nobody was told of anything since the registration."""
        session = self.client.session
        assert session.index == index, session
        assert session.lease_id == lease_id, session
        assert [name for name, _, _ in self.events] == ["registered"], self.events

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.shutdown()


@dataclass
class Traffic:
    """Calls one after another, each with its times; begun by `traffic`."""

    calls: list[Call] = field(default_factory=list)

    @property
    def failed(self) -> list[Call]:
        return [call for call in self.calls if call.error is not None]

    @property
    def longest(self) -> float:
        return max(call.took for call in self.calls)

    def gap(self, after: float) -> float:
        """Seconds from the last success before ``after`` to the first one that began later."""
        before = max(call.ended for call in self.calls if call.error is None and call.ended <= after)
        return min(call.ended for call in self.calls if call.error is None and call.begun > after) - before

    def has_made(self, calls: int) -> bool:
        return len(self.calls) >= calls

    def succeeded_after(self, moment: float) -> bool:
        return any(call.error is None and call.begun > moment for call in list(self.calls))


@contextlib.contextmanager
def traffic(call: Callable[[int], object], pause: float = 0.005) -> Iterator[Traffic]:
    """Call ``call(number)`` over and over in a thread. Only errors of the product's tree may come out of it."""
    noted = Traffic()
    stop = threading.Event()
    foreign: list[BaseException] = []

    def run() -> None:
        number = 0
        while not stop.is_set():
            begun, error = time.monotonic(), None
            try:
                call(number)
            except EdlAgentError as caught:
                error = caught
            except BaseException as caught:
                foreign.append(caught)
                return
            noted.calls.append(Call(begun, time.monotonic(), error))
            number += 1
            stop.wait(pause)

    thread = threading.Thread(target=run, name="test-traffic", daemon=True)
    thread.start()
    try:
        yield noted
    finally:
        stop.set()
        thread.join(15.0)
    assert not foreign, f"a foreign error left the package: {foreign[0]!r}"
    assert not thread.is_alive(), "a call hangs"


class Watching:
    """A `watch_prefix` iterated in a thread: events so far, the state that they add up to, and the error at the
    end.
    """

    def __init__(self, client: EtcdClient, prefix: str = "/w/", start_revision: int | None = None) -> None:
        self.watch = client.watch_prefix(prefix, start_revision=start_revision)
        self.events: list[WatchEvent] = []
        self.seen_at: list[float] = []
        self.state = {pair.key: pair.value for pair in self.watch.snapshot}
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="test-watching", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for event in self.watch:
                self.seen_at.append(time.monotonic())
                if event.type is EventType.DELETE:
                    self.state.pop(event.key, None)
                else:
                    self.state[event.key] = event.value
                self.events.append(event)
        except BaseException as error:
            self.error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def is_empty(self) -> bool:
        return not self.state

    def wait_value(self, key: str, value: bytes, timeout: float = 10.0) -> float:
        """Wait until the state has it; returns when it was seen."""
        name = key.encode()
        eventually(lambda: self.state.get(name) == value, timeout, lambda: f"{key} = {value!r}; state {self.state}")
        return next(
            at
            for at, event in zip(reversed(self.seen_at), reversed(self.events), strict=False)
            if event.key == name and event.value == value
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.watch.cancel()
        self._thread.join(5.0)
        assert self.ended, "the watch did not end after cancel()"


def product_lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """The product's log lines from a level on, as "LEVEL text"."""
    return [
        f"{record.levelname} {record.getMessage()}"
        for record in caplog.records
        if record.name.startswith("edl_agent") and record.levelno >= level
    ]
