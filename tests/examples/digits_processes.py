"""Pservers and trainers of examples/digits as processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_agent import EtcdClient, Pserver
from edl_agent.testing import spawn_bound_to_parent
from examples.digits.links import Link
from examples.digits.scene import Process
from tests.bench.agent_process import ROOT
from tests.bench.waiting import eventually
from tests.cli.command import environment

TTL = 3.0


class Digits:
    """A job of its own: starts its processes, sees it from outside with `client`."""

    def __init__(self, url: str, prefix: str, folder: Path) -> None:
        self.url, self.prefix, self.folder = url, prefix, folder
        self.client = EtcdClient(url, prefix=prefix)
        self.processes: list[Process] = []

    def start(self, role: str, name: str, *arguments: str) -> Process:
        argv = [sys.executable, "-m", f"examples.digits.{role}", "--endpoints", self.url, "--prefix", self.prefix]
        popen = spawn_bound_to_parent(
            [*argv, "--ttl", f"{TTL:g}", "--name", name, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment(), "PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        process = Process(name, popen)
        self.processes.append(process)
        return process

    def pserver(self, name: str = "pserver-a", *, shards: int = 1, every: float = 60.0) -> Process:
        where = ["--num-pservers", str(shards), "--directory", str(self.folder)]
        return self.start("pserver", name, *where, "--checkpoint-every", f"{every:g}")

    def trainer(self, name: str = "trainer-a", *arguments: str) -> Process:
        return self.start("trainer", name, *arguments)

    def said(self, process: Process, pattern: str, timeout: float = 20.0) -> Any:
        return eventually(
            lambda: process.said(pattern), timeout, lambda: f"{pattern!r} in:\n" + "\n".join(process.lines)
        )

    def slot(self, index: int = 0) -> Pserver | None:
        with contextlib.suppress(StopIteration):
            found = next(iter(self.client.get_prefix(f"/ps/{index}")))
            return Pserver(index, found.value.decode(), found.mod_revision)
        return None

    def held(self, index: int = 0) -> Pserver:
        """Who holds it, once somebody does."""
        return eventually(lambda: self.slot(index), 15.0, f"index {index} is held") or pytest.fail("nobody")

    def serving(self, process: Process, index: int = 0) -> Pserver:
        """Where it serves, once it does."""
        said = self.said(process, rf"^pserver {index} epoch (\d+): ")
        slot = self.slot(index)
        assert slot is not None
        assert slot.epoch == int(said[1])
        return slot

    def close(self) -> None:
        for process in self.processes:
            if process.running:
                process.popen.send_signal(signal.SIGCONT)
                process.kill()
        self.client.shutdown()


@pytest.fixture
def digits(etcd: Any, prefix: str, tmp_path: Path) -> Iterator[Digits]:
    job = Digits(etcd.client_url, prefix, tmp_path / "checkpoints")
    yield job
    job.close()


@contextlib.contextmanager
def linked(pserver: Pserver) -> Iterator[Callable[..., bytes]]:
    """``call(method, path, body=None)`` to a pserver by index and epoch."""
    link = Link(pserver)
    try:
        yield link.call
    finally:
        link.http.close()


def seconds_to_end(process: Process, number: signal.Signals = signal.SIGTERM, *, status: int = 0) -> float:
    """Send the signal, wait for this exit status."""
    began = time.monotonic()
    process.popen.send_signal(number)
    assert process.wait(20.0) == status, process.lines
    return time.monotonic() - began


def processes_with(mark: str) -> list[int]:
    """Process ids whose environment has ``mark`` in it."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):  # ended meanwhile
                if mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found
