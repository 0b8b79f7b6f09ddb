"""What the benchmarks stand on: progress on stderr, raw calls beside the product's, child processes."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import grpc

from edl_agent import EtcdClient
from edl_agent.etcd import wire
from edl_agent.etcd.connection import Connection
from edl_agent.testing import EtcdServer, spawn_bound_to_parent

ROOT = Path(__file__).resolve().parents[1]


def say(text: str) -> None:
    """Progress, for people who wait."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def etcd_in_memory() -> Iterator[EtcdServer]:
    """One etcd that does not wait for the disk, so that the client side is what differs."""
    with EtcdServer() as server:
        yield server


RawCall = Callable[[bytes], bytes]


def raw_calls(connection: Connection, method: wire.Method, timeout: float = 10.0) -> RawCall:
    """Ready bytes through the very channel that the connection uses: what a call costs at least. With a deadline,
    as any call that is meant seriously has one."""
    peer = connection.choice.pinned
    assert peer is not None, "make a call first"
    return raw_on_channel(peer._channel, method, timeout)


def raw_on_channel(channel: grpc.Channel, method: wire.Method, timeout: float = 10.0) -> RawCall:
    """The same on a channel of the benchmark's own."""
    call: Any = channel.unary_unary(method.path)
    return lambda payload: cast(bytes, call(payload, timeout))


def connection_of(client: EtcdClient) -> Connection:
    """The client's connection; the benchmarks look behind the door on purpose."""
    return client._connection


def at_once(works: Sequence[Callable[[], None]]) -> float:
    """Run each on a thread of its own, all released together once all threads exist; returns the wall seconds.

    Raises the first error of a thread.
    """
    release = threading.Event()
    errors: list[BaseException] = []
    left = threading.Semaphore(0)

    def run(work: Callable[[], None]) -> None:
        left.release()
        release.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for _ in threads:
        left.acquire()
    start = time.perf_counter()
    release.set()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    if errors:
        raise errors[0]
    return seconds


class Child:
    """``python -m benchmarks.child MODE ...``: says a line when it is ready, goes on at each line that it is sent, and
    ends when its standard input does."""

    def __init__(self, *arguments: str) -> None:
        self.process = spawn_bound_to_parent(
            [sys.executable, "-m", "benchmarks.child", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    @property
    def pid(self) -> int:
        """Of the process itself: what binds it to this one execs it."""
        return self.process.pid

    def hear(self) -> str:
        """The next line. Raises RuntimeError when the child has ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the child ended with {self.process.wait()}")
        return cast(str, line.strip())

    def tell(self, line: str = "go") -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def close(self, timeout: float = 20.0) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextlib.contextmanager
def children(*made: Child) -> Iterator[None]:
    """Close them at the end."""
    try:
        yield
    finally:
        for child in made:
            with contextlib.suppress(OSError):
                if child.process.stdin is not None:
                    child.process.stdin.close()
        for child in made:
            child.close()
