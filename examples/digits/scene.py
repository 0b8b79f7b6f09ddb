"""The processes of one training job, and what can be seen of it from outside: in etcd, and by asking its pservers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from edl_agent import ClientClosed, EdlAgentError, EtcdClient, Membership
from edl_agent.tasks import PassSummary, Progress, TaskQueue
from edl_agent.testing import EtcdServer, spawn_bound_to_parent

from . import network
from .links import Links
from .trainer import TASK

ROOT = Path(__file__).resolve().parents[2]
TTL = 3.0
CHECKPOINT_EVERY = 1.0
LOOK_EVERY = 0.2
"""Seconds between two looks at the job."""


class Failed(Exception):
    """Something that the demo promises did not happen."""


@dataclass
class Process:
    """A pserver or trainer, and the lines that it printed."""

    name: str
    popen: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, args=(self.popen.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self.lines.append(line.rstrip())

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def said(self, pattern: str) -> re.Match[str] | None:
        """The last line in which it is."""
        found = [match for line in list(self.lines) if (match := re.search(pattern, line))]
        return found[-1] if found else None

    def kill(self) -> None:
        self.popen.kill()
        self.wait(10.0)

    def wait(self, seconds: float) -> int:
        code = self.popen.wait(seconds)
        self._reader.join(1.0)
        return code


@dataclass(frozen=True)
class Look:
    """The job at one moment: seconds since the start, images trained on so far (by the records), trainers at work."""

    seconds: float
    samples: int
    trainers: int


@dataclass(frozen=True)
class Measure:
    """Of the held-out images, with the parameters that the pservers had at this moment."""

    seconds: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Mark:
    """What happened, for the log; ``fault``: also for the picture."""

    seconds: float
    text: str
    fault: str = ""


class Job:
    """One training job under a prefix of its own. As a context manager it ends all its processes."""

    def __init__(self, server: EtcdServer, folder: Path, name: str, *, passes: int, seed: int, think: float) -> None:
        self.name, self.passes = name, passes
        self.samples = passes * len(network.load(seed)[0].digits)
        self.begin = time.monotonic()
        self.looks: list[Look] = []
        self.measures: list[Measure] = []
        self.marks: list[Mark] = []
        self.processes: dict[str, Process] = {}
        self.show: Callable[[], None] = lambda: None
        self._folder, self._seed, self._think = folder / name, seed, think
        self._common = ["--endpoints", server.client_url, "--prefix", f"/{name}", "--ttl", f"{TTL:g}"]
        self._held_out = network.load(seed)[1]
        self.client = EtcdClient(server.client_url, prefix=f"/{name}")
        self._membership = Membership(self.client)
        self._links = Links(self._membership)
        self._queue = TaskQueue(self.client, "demo")
        self._measuring = threading.Thread(target=self._measure, daemon=True)
        self._measuring.start()

    # --- processes ---

    def pserver(self, name: str) -> Process:
        arguments = ["--num-pservers", "2", "--directory", str(self._folder)]
        return self._start("pserver", name, [*arguments, "--checkpoint-every", f"{CHECKPOINT_EVERY:g}"])

    def trainer(self, name: str) -> Process:
        arguments = ["--passes", str(self.passes), "--seed", str(self._seed), "--think", f"{self._think:g}"]
        return self._start("trainer", name, arguments)

    def _start(self, role: str, name: str, arguments: list[str]) -> Process:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("EDL_", "POD_"))}
        popen = spawn_bound_to_parent(
            [sys.executable, "-m", f"examples.digits.{role}", *self._common, "--name", name, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # Several processes on few cores: each with threads for its matrices would be in the others' way.
            env={**kept, "PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        process = self.processes[name] = Process(name, popen)
        return process

    def trainers(self) -> list[Process]:
        """Those at work."""
        return [one for one in self.processes.values() if one.running and one.said(r"^trainer \d+ works")]

    # --- what is seen ---

    def say(self, text: str, fault: str = "") -> None:
        self.marks.append(Mark(time.monotonic() - self.begin, text, fault))
        self.show()

    def until(self, done: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        """Look at the job again and again until ``done()``. Raises Failed after so many seconds."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                raise Failed(f"{self.name}: within {seconds:g} s not seen: {what}{self._last_words()}")
            self.look()
            self.show()
            time.sleep(LOOK_EVERY)
        self.look()

    def look(self) -> None:
        samples = sum(one.finished for one in self._passes()) * TASK
        self.looks.append(Look(time.monotonic() - self.begin, samples, len(self.trainers())))

    def progress(self) -> Progress:
        return self._queue.progress()

    def _passes(self) -> list[PassSummary]:
        progress = self.progress()
        return [*progress.history, *([progress.current] if progress.current else [])]

    def reached(self, share: float) -> bool:
        """Whether this share of the work is recorded as finished."""
        return bool(self.looks) and self.looks[-1].samples >= share * self.samples

    def accuracy(self) -> Measure:
        """Of the parameters that the pservers hold now."""
        return self._judge(self._links.attempt(self._links.pull))

    def _judge(self, parameters: network.Parameters) -> Measure:
        return Measure(time.monotonic() - self.begin, *network.evaluate(parameters, self._held_out))

    def _measure(self) -> None:
        links = Links(self._membership)  # of its own: it waits when a pserver is away
        while True:
            try:
                self.measures.append(self._judge(links.attempt(links.pull)))
            except (ClientClosed, EdlAgentError):
                return
            time.sleep(LOOK_EVERY)

    def _last_words(self) -> str:
        return "".join(f"\n  {one.name}: {line}" for one in self.processes.values() for line in one.lines[-4:])

    # --- end ---

    def close(self) -> None:
        for process in self.processes.values():
            if process.running:
                process.popen.send_signal(signal.SIGCONT)
                process.kill()
        self._links.close()
        self.client.shutdown()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
