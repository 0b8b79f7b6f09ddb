"""The processes of one PaddlePaddle job, each below `edl-agent run`, and what they say."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edl_agent import EtcdClient
from edl_agent.testing import EtcdServer, PortReservation, spawn_bound_to_parent

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "digits" / "digits.csv.gz"
TTL = 3.0
PATIENCE = 90.0
"""Seconds for each thing that has to happen; PaddlePaddle's own way of noticing a dead pserver takes 300."""

LINE_EVERY = 2.0
_MARK = "PADDLE_EXAMPLE_RUN"
"""A variable of all processes of a run, by which one that was left behind is found."""


class Failed(Exception):
    """Something that the demo promises did not happen."""


def demand(holds: object, what: str) -> None:
    """Raise Failed, unless it holds."""
    if not holds:
        raise Failed(what)


@dataclass(frozen=True)
class Said:
    """One line that a program printed: an event and its facts. ``time``: of the machine's monotonic clock."""

    event: str
    time: float
    pid: int
    facts: dict[str, Any]


@dataclass
class Member:
    """A launcher and the program below it, which may have been started several times."""

    name: str
    role: str
    port: int
    launcher: subprocess.Popen[str]
    said: list[Said] = field(default_factory=list)
    log: list[tuple[float, str]] = field(default_factory=list)
    noise: deque[str] = field(default_factory=lambda: deque(maxlen=200))
    stopped: bool = False

    @property
    def running(self) -> bool:
        return self.launcher.poll() is None

    @property
    def pid(self) -> int:
        """Of the program now."""
        return self.said[-1].pid

    def last(self, event: str, since: float = 0.0) -> Said | None:
        """The newest one after that time."""
        return next((one for one in reversed(self.said) if one.event == event and one.time > since), None)

    def all(self, event: str, since: float = 0.0) -> list[Said]:
        return [one for one in self.said if one.event == event and one.time > since]

    def logged(self, text: str, since: float = 0.0) -> float | None:
        """When the launcher first wrote a line with this text after that time."""
        return next((at for at, line in list(self.log) if at > since and text in line), None)


class Job:
    """One job. As a context manager it ends all its processes.

    Args:
        server: etcd.
        folder: for checkpoints and sockets.
        python: that has PaddlePaddle.
        pause: seconds that a trainer rests after each step, so that the job lasts longer than the demo.
    """

    def __init__(self, server: EtcdServer, folder: Path, python: Path, *, pause: float = 0.02) -> None:
        self.begin = time.monotonic()
        self.members: dict[str, Member] = {}
        self.client = EtcdClient(server.client_url)
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir()
        self._folder, self._python, self._pause = folder, python, pause
        self._endpoints = server.client_url
        self._news: queue.SimpleQueue[tuple[Member, Said]] = queue.SimpleQueue()
        self._next_line = 0.0
        self._run = secrets.token_hex(8)

    # --- processes ---

    def pserver(self, name: str, *options: str) -> Member:
        with contextlib.closing(PortReservation()) as reserved:
            port = int(reserved.address.rpartition(":")[2])
        options = ("--port", str(port), "--num-pservers", "2", "--wait-pservers", *options)
        return self._start("pserver", name, port, options, ["pserver.py"])

    def trainer(self, name: str, *options: str) -> Member:
        ready = self._folder / f"{name}.ready"
        options = ("--num-trainers", "1", "--trainer-zero-first", "--ready-file", str(ready), *options)
        program = ["trainer.py", "--data", str(DATA), "--checkpoints", str(self.checkpoints), "--ready", str(ready)]
        return self._start("trainer", name, 0, options, [*program, "--pause", f"{self._pause:g}"])

    def _start(self, role: str, name: str, port: int, options: Sequence[str], program: list[str]) -> Member:
        launcher = [sys.executable, "-m", "edl_agent", "run", "--role", role, "--name", name, *options]
        launcher += ["--endpoints", self._endpoints, "--host", "127.0.0.1", "--ttl", f"{TTL:g}"]
        launcher += ["--control", str(self._folder / f"{name}.sock")]
        foreign = ("EDL_", "PADDLE", "POD_", "PYTHON", "TRAIN")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        popen = spawn_bound_to_parent(
            [*launcher, "--", str(self._python), *program],
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Several processes on few cores: each with threads for its matrices would be in the others' way.
            env={**kept, "CPU_NUM": "1", "OMP_NUM_THREADS": "1", _MARK: self._run},
        )
        member = self.members[name] = Member(name, role, port, popen)
        for read, stream in ((self._read, popen.stdout), (self._read_log, popen.stderr)):
            threading.Thread(target=read, args=(member, stream), daemon=True).start()
        return member

    def _read(self, member: Member, stream: Any) -> None:
        with stream:
            for line in stream:
                if line.startswith('{"event"'):  # else it is PaddlePaddle that talks
                    facts = json.loads(line)
                    said = Said(facts.pop("event"), facts.pop("time"), facts.pop("pid"), facts)
                    self._news.put((member, said))

    def _read_log(self, member: Member, stream: Any) -> None:
        with stream:
            for line in stream:
                if re.match(r"\d{4}-", line):
                    member.log.append((time.monotonic(), line.rstrip()))
                else:  # PaddlePaddle talks
                    member.noise.append(line.rstrip())

    def stop(self, member: Member) -> tuple[float, int]:
        """SIGTERM to the launcher, as Kubernetes does. Returns the seconds until it ended, and its exit code."""
        member.stopped = True
        begin = time.monotonic()
        member.launcher.terminate()
        code = member.launcher.wait(30.0)
        return time.monotonic() - begin, code

    # --- what is seen ---

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.begin:6.2f} s  {text}", flush=True)

    def until(self, done: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Take in what the programs say until ``done()``. Raises Failed after so many seconds."""
        end = time.monotonic() + seconds
        while not done():
            now = time.monotonic()
            demand(now < end, f"within {seconds:g} s not seen: {what}")
            for member in self.members.values():
                demand(member.stopped or member.running, f"{member.name} ended with {member.launcher.returncode}")
            with contextlib.suppress(queue.Empty):
                while True:
                    member, said = self._news.get(timeout=0.05)
                    member.said.append(said)
                    self._tell(member, said)
                    if self._news.empty():
                        break
            if now >= self._next_line:
                self._next_line = now + LINE_EVERY
                self._line(now)

    def _tell(self, member: Member, said: Said) -> None:
        if said.event == "start":
            begun = f"from {said.facts['restored']}" if said.facts["restored"] else "from the parameters as they are"
            index, loss, right = said.facts["index"], said.facts["loss"], said.facts["right"]
            self.say(f"{member.name} trains as trainer {index} {begun}: loss {loss:.3f}, held out {right:.1%}")

    def _line(self, now: float) -> None:
        recent = [one for member in self.trainers() for one in member.all("step", now - LINE_EVERY)]
        steps = len(recent) / LINE_EVERY
        busy = len({one.pid for one in recent})
        loss = f"{sum(one.facts['loss'] for one in recent) / len(recent):.3f}" if recent else "    -"
        pservers = len(self.client.get_prefix("/ps/"))
        self.say(f"  | pservers {pservers} | trainers {busy} | {steps:5.1f} steps/s | training loss {loss} |")

    def trainers(self) -> list[Member]:
        return [one for one in self.members.values() if one.role == "trainer" and one.running]

    def checkpoint(self, since: float = 0.0) -> Said | None:
        """The newest one that was written after that time."""
        found = [one for member in self.members.values() if (one := member.last("saved", since))]
        return max(found, key=lambda one: one.time, default=None)

    def saved_checkpoint(self, since: float) -> Said:
        self.until(lambda: self.checkpoint(since), "a checkpoint")
        found = self.checkpoint(since)
        assert found is not None
        return found

    def at_work(self, trainers: Sequence[Member], since: float) -> None:
        """Wait until each of them has made ten steps after that time."""
        self.until(
            lambda: all(len(one.all("step", since)) >= 10 for one in trainers),
            f"{', '.join(one.name for one in trainers)} at work",
        )

    def block(self, pserver: Member) -> None:
        """Stop a pserver's program, and wait until every trainer waits in a call to it."""
        os.kill(pserver.pid, signal.SIGSTOP)
        stopped = time.monotonic()

        def quiet() -> bool:
            now = time.monotonic()
            return now > stopped + 1.0 and not any(one.all("step", now - 1.0) for one in self.trainers())

        self.until(quiet, f"all trainers wait for {pserver.name}")

    # --- end ---

    def left(self) -> list[int]:
        """Processes of this run that live."""
        mark, found = f"{_MARK}={self._run}".encode(), []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (folder / "environ").read_bytes().split(b"\0"):
                        found.append(int(folder.name))
        return found

    def gone(self, seconds: float = 5.0) -> bool:
        """Wait until no process of this run lives. ``False`` if some still do after so many seconds."""
        end = time.monotonic() + seconds
        while self.left():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def last_words(self) -> str:
        lines = []
        for member in self.members.values():
            said = [line for _, line in member.log[-8:]] + list(member.noise)[-6:]
            lines += [f"  {member.name}: {line}" for line in said]
        return "\n".join(lines)

    def close(self) -> None:
        for member in self.members.values():
            if member.running:
                member.launcher.kill()  # its guard kills the program
            member.launcher.wait()
        self.gone()
        self.client.shutdown()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
