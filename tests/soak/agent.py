"""The agent of the random test: a process with one `EtcdClient` that holds a slot, writes under it, and records.

SIGTERM stops it: it records the release, shuts the client down, and exits 0. Everything else that ends it is a fault.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from tests.soak.careless import arguments_of_agents
from tests.soak.history import WRITE_PREFIX, GuardedValue, WriteAttempted, WriteCommitted, WriteRefused, WriteUnknown
from tests.soak.recording import Belief, Recorder

logger = logging.getLogger(__name__)

WRITE_EVERY = 0.25
"""Seconds between guarded writes."""
WRITE_TIMEOUT = 1.0
"""Seconds that a guarded write may take."""


class CountedChannel:
    """A gRPC channel that counts what is started on it: requests, and messages on streams.

    It stands outside of the product on purpose: what counts for I6 is what leaves for the network, whoever began it.
    """

    started = itertools.count(1)
    total = 0

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    @classmethod
    def count(cls) -> None:
        # next() on itertools.count is one step of the interpreter: no lock is needed.
        cls.total = next(cls.started)

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return CountedCallable(self._channel.unary_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        inner: Any = self._channel.stream_stream(*args, **kwargs)

        def counted(requests: Iterator[Any]) -> Iterator[Any]:
            for request in requests:
                self.count()
                yield request

        return lambda requests, *args, **kwargs: inner(counted(requests), *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class CountedCallable:
    """A request of a `CountedChannel`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        CountedChannel.count()
        return self._inner(*args, **kwargs)

    def future(self, *args: Any, **kwargs: Any) -> Any:
        CountedChannel.count()
        return self._inner.future(*args, **kwargs)

    def with_call(self, *args: Any, **kwargs: Any) -> Any:
        CountedChannel.count()
        return self._inner.with_call(*args, **kwargs)


def count_calls() -> None:
    """Make every channel of this process a counted one. Before the product is imported."""
    for name in ("insecure_channel", "secure_channel"):
        make = getattr(grpc, name)
        setattr(grpc, name, lambda *args, make=make, **kwargs: CountedChannel(make(*args, **kwargs)))


class SoakAgent:
    """Registers, writes, records; until it is told to stop."""

    def __init__(self, arguments: argparse.Namespace, stop: threading.Event) -> None:
        from edl_agent import EtcdClient

        self.arguments = arguments
        self.stop = stop
        self.client = EtcdClient(
            arguments.endpoints, num_pservers=arguments.num_pservers, dial_timeout=2.0, ttl=arguments.ttl
        )
        self.recorder = Recorder(arguments.history, arguments.name, self.belief, lambda: CountedChannel.total)
        self.seq = 0
        self.failed: BaseException | None = None

    def belief(self) -> Belief | None:
        """Read the session at one moment."""
        from edl_agent import SessionState

        view = self.client.session.view()
        if view.slot is None or view.lease is None:
            return None
        suspended = view.state is SessionState.SUSPENDED
        return Belief(view.slot.index, view.slot.epoch, view.lease.lease_id, view.lease.deadline, suspended)

    def register(self) -> None:
        """Claim a slot; on a thread of its own, since it may wait for ever."""
        from edl_agent import ClientClosed

        try:
            self.client.register(self.arguments.port, host=self.arguments.host)
        except ClientClosed:
            if not self.stop.is_set():
                self.failed = RuntimeError("the client says that it is closed, and nobody closed it")
        except BaseException as error:
            logger.exception("register() failed")
            self.failed = error

    def run(self) -> int:
        """Live until SIGTERM; returns the exit code."""
        for hook in (self.client.on_registered, self.client.on_lost, self.client.on_suspended):
            hook(lambda *_: self.recorder.observe())
        self.recorder.start()
        threading.Thread(target=self.register, name="soak-register", daemon=True).start()
        while not self.stop.wait(WRITE_EVERY) and self.failed is None:
            belief = self.recorder.observe()
            if belief is not None:
                self.write(belief)
        self.recorder.leave()
        self.client.shutdown()
        return 1 if self.failed is not None else 0

    def write(self, belief: Belief) -> None:
        """One guarded write, and what the product said about it."""
        from edl_agent import ClientClosed, EdlAgentError, LeaseLost, UnknownOutcome

        self.seq += 1
        name, writer, key = self.arguments.name, self.recorder.writer, f"{WRITE_PREFIX}{belief.index}"
        value = GuardedValue(name, self.seq, belief.index, belief.epoch).text().encode()
        writer.write(WriteAttempted(time.monotonic(), name, self.seq, key, belief.index, belief.epoch))
        try:
            self.client.guarded_put(key, value, timeout=WRITE_TIMEOUT, epoch=belief.epoch)
        except LeaseLost as error:
            writer.write(WriteRefused(time.monotonic(), name, self.seq, repr(error)))
        except UnknownOutcome as error:
            writer.write(WriteUnknown(time.monotonic(), name, self.seq, repr(error)))
        except (ClientClosed, EdlAgentError) as error:
            # All other errors promise that nothing was applied; the checker takes the product at its word.
            writer.write(WriteRefused(time.monotonic(), name, self.seq, repr(error)))
        else:
            writer.write(WriteCommitted(time.monotonic(), name, self.seq))


def main() -> int:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(stream=sys.stderr, level=logging.DEBUG, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    arguments = arguments_of_agents().parse_args()
    stop = threading.Event()
    # Before the history file is there: the runner sends no SIGTERM to a process that has none yet.
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    count_calls()
    return SoakAgent(arguments, stop).run()


if __name__ == "__main__":
    raise SystemExit(main())
