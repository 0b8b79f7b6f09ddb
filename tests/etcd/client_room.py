"""Clients of one test: made with the test's endpoint and prefix, shut down at its end, their news written down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from edl_agent import EtcdClient, LeaseLost, Slot

HOST = "127.0.0.1"


@dataclass
class Pserver:
    """A client that wants a slot, and what it was told, each with ``time.monotonic()``."""

    client: EtcdClient
    port: int
    registered: list[tuple[float, Slot]] = field(default_factory=list)
    losses: list[tuple[float, LeaseLost, Slot | None]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    result: int | BaseException | None = None
    thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self.client.on_registered(lambda slot: self.registered.append((time.monotonic(), slot)))
        self.client.on_lost(lambda loss, slot: self.losses.append((time.monotonic(), loss, slot)))
        self.client.on_desired_changed(self.counts.append)

    @property
    def address(self) -> str:
        """As registered."""
        return f"{HOST}:{self.port}"

    @property
    def index(self) -> int | None:
        """The index held now."""
        return self.client.session.index

    def register(self, timeout: float | None = 10.0, **options: Any) -> int:
        """Register and wait for the index."""
        return self.client.register(self.port, host=HOST, timeout=timeout, **options)

    def begin(self, timeout: float | None = None) -> Self:
        """Register on a thread; ``result`` is the index or the error."""

        def run() -> None:
            try:
                self.result = self.register(timeout)
            except Exception as error:
                self.result = error

        self.thread = threading.Thread(target=run, name=f"register-{self.port}")
        self.thread.start()
        return self

    def join(self, timeout: float = 10.0) -> int | BaseException | None:
        """Wait for ``begin``'s end and return its result."""
        assert self.thread is not None
        self.thread.join(timeout)
        assert not self.thread.is_alive(), f"register of {self.address} still runs"
        return self.result


class Room:
    """Makes the clients of one test."""

    def __init__(self, endpoints: str | list[str], prefix: str) -> None:
        self._endpoints = endpoints
        self._prefix = prefix
        self.all: list[Pserver] = []

    def pserver(self, port: int, *, endpoints: str | list[str] | None = None, **options: Any) -> Pserver:
        """A client for ``port``, not registered yet. Default: no count of its own, TTL 3 s, dial timeout 3 s."""
        options = {"num_pservers": None, "ttl": 3, "dial_timeout": 3.0, "prefix": self._prefix} | options
        one = Pserver(EtcdClient(endpoints or self._endpoints, **options), port)
        self.all.append(one)
        return one

    def held(self) -> Mapping[str, int | None]:
        """A live view: address -> index that the client reports, of all clients that are not shut down."""
        return _Held(self.all)

    def close(self) -> None:
        """Shut all down, side by side."""
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda one: one.client.shutdown(), self.all))
        for one in self.all:
            if one.thread is not None:
                one.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Held(Mapping[str, int | None]):
    def __init__(self, pservers: list[Pserver]) -> None:
        self._pservers = pservers

    def _live(self) -> dict[str, Pserver]:
        return {one.address: one for one in self._pservers if one.client.session.state.value != "closed"}

    def __getitem__(self, address: str) -> int | None:
        return self._live()[address].index

    def __iter__(self) -> Iterator[str]:
        return iter(self._live())

    def __len__(self) -> int:
        return len(self._live())


def side_by_side(work: list[Callable[[], Any]], timeout: float = 30.0) -> list[Any]:
    """Call all at the same moment, each on a thread of its own; returns the results, an exception where it raised."""
    barrier = threading.Barrier(len(work))
    results: list[Any] = [None] * len(work)

    def run(place: int) -> None:
        barrier.wait(timeout)
        try:
            results[place] = work[place]()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,), name=f"side-{place}") for place in range(len(work))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), f"not done within {timeout} s"
    return results
