"""Starts agents quickly: everything is imported once, each agent is a fork that runs ``edl-agent register``.

gRPC is loaded but has not started anything when the forks are made, so each child begins as a fresh process would,
30 times sooner. Used where many processes are started and killed; it is not how anybody else should start agents.

As a program: reads ``{"argv": [...], "stdout": PATH, "stderr": PATH}`` lines, answers ``{"pid": N}``, and tells
``{"pid": N, "status": S, "at": monotonic}`` when a child has ended (S as ``subprocess`` has it).
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from edl_agent.testing import spawn_bound_to_parent

ROOT = Path(__file__).resolve().parents[2]


class QuickAgent:
    """One agent made by a `Zygote`."""

    def __init__(self, pid: int, address: str, stdout: Path, stderr: Path) -> None:
        self.pid = pid
        self.address = address
        self._stdout = stdout
        self._stderr = stderr
        self.ended = threading.Event()
        self.status: int | None = None
        self.ended_at = 0.0

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it printed."""
        return [json.loads(line) for line in self._stdout.read_text().splitlines()]

    @property
    def index(self) -> int | None:
        """The index it holds by its own account."""
        events = self.events
        return events[-1]["index"] if events and events[-1]["event"] not in ("lost", "released") else None

    @property
    def stderr(self) -> str:
        """What it wrote to stderr."""
        return self._stderr.read_text()

    def send_signal(self, number: int) -> None:
        """Signal it; nothing happens where it has ended."""
        if not self.ended.is_set():
            os.kill(self.pid, number)

    def wait(self, timeout: float = 10.0) -> int:
        """Exit status, negative for a signal."""
        if not self.ended.wait(timeout):
            os.kill(self.pid, signal.SIGUSR1)  # where is it?
            self.ended.wait(0.5)
            raise AssertionError(f"agent {self.address} runs after {timeout} s:\n{self.events}\n{self.stderr}")
        assert self.status is not None
        return self.status


class Zygote:
    """The parent of quick agents; ``with`` ends it and all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._agents: dict[int, QuickAgent] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] = spawn_bound_to_parent(
            [sys.executable, "-m", "tests.etcd.agent_zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self._started: list[int] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, name="zygote-reader", daemon=True)
        self._reader.start()

    def start(self, endpoints: str, port: int, *arguments: str, prefix: str = "", ttl: float = 5.0) -> QuickAgent:
        """Fork one; its address is ``127.0.0.1:<port>``."""
        where = [self._folder / f"agent-{port}-{kind}" for kind in ("out", "err")]
        argv = ["register", "--endpoints", endpoints, "--port", str(port), "--host", "127.0.0.1", "--ttl", f"{ttl:g}"]
        argv += ["-o", "json", *(["--prefix", prefix] if prefix else []), *arguments]
        for path in where:
            path.touch()
        with self._lock:
            count = len(self._started)
            assert self._process.stdin is not None
            self._process.stdin.write(
                json.dumps({"argv": argv, "stdout": str(where[0]), "stderr": str(where[1])}) + "\n"
            )
            self._process.stdin.flush()
            with self._news:
                assert self._news.wait_for(lambda: len(self._started) > count, 10), "the zygote does not answer"
                pid = self._started[count]
                agent = self._agents.setdefault(pid, QuickAgent(pid, f"127.0.0.1:{port}", *where))
                if agent.address == "":  # ended before it was handed out
                    agent.address, agent._stdout, agent._stderr = f"127.0.0.1:{port}", where[0], where[1]
        return agent

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            news = json.loads(line)
            with self._news:
                if "status" in news:
                    agent = self._agents.setdefault(news["pid"], QuickAgent(news["pid"], "", Path(), Path()))
                    agent.status, agent.ended_at = news["status"], news["at"]
                    agent.ended.set()
                else:
                    self._started.append(news["pid"])
                self._news.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()  # the kernel kills the children
        self._process.wait(10)
        self._reader.join(5)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _child(order: dict[str, Any]) -> NoReturn:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    for path, number in ((order["stdout"], 1), (order["stderr"], 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    faulthandler.register(signal.SIGUSR1)
    from edl_agent.cli import main

    # sys.exit, not os._exit: the end of the interpreter is part of what is tested.
    sys.exit(main(order["argv"]))


def _serve() -> None:
    import edl_agent.cli.register  # noqa: F401 - what a child would import
    from edl_agent.etcd import wire

    wire.message("RangeRequest")  # protobuf is loaded when it is first used
    gc.freeze()  # what was made here is not looked through again at each child's end
    print("ready", flush=True)
    ends: dict[int, int] = {}
    pending = b""
    while True:
        readable, _, _ = select.select([0, *ends], [], [])
        for fd in readable:
            if fd == 0:
                data = os.read(0, 65536)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    pid = os.fork()
                    if pid == 0:
                        for one in ends:
                            os.close(one)
                        _child(json.loads(line))
                    ends[os.pidfd_open(pid)] = pid
                    print(json.dumps({"pid": pid}), flush=True)
            else:
                pid = ends.pop(fd)
                at = time.monotonic()
                _, status = os.waitpid(pid, 0)
                os.close(fd)
                code = os.waitstatus_to_exitcode(status)
                print(json.dumps({"pid": pid, "status": code, "at": at}), flush=True)


if __name__ == "__main__":
    _serve()
