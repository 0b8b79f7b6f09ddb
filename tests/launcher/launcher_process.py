"""``edl-agent run`` as a process of its own, and the programs that it runs in the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edl_agent.testing import spawn_bound_to_parent
from tests.bench.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, os, signal, sys, time
out, *how = sys.argv[1:]
def say(event, **more):
    with open(out, "a") as file:
        file.write(json.dumps({"event": event, "pid": os.getpid(), "at": time.monotonic(), **more}) + "\\n")
def on_signal(number, frame):
    say("signal", number=number)
    if number == signal.SIGTERM and "stubborn" not in how:
        sys.exit(0 if "polite" in how else 7)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
    signal.signal(number, on_signal)
say("start", env=dict(os.environ))
if "exit" in how:
    sys.exit(int(how[how.index("exit") + 1]))
if "ready" in how:
    open(how[how.index("ready") + 1], "w").close()
while True:
    time.sleep(0.05)
    if "beat" in how:
        say("beat")
"""
"""Writes JSON lines to its first argument. ``polite``: exits with 0 on SIGTERM, else 7; ``stubborn``: goes on."""


def program(out: Path, *how: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-S", "-c", PROGRAM, str(out), *how]


class Lines:
    """What a program wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self, event: str | None = None) -> list[dict[str, Any]]:
        """The events so far."""
        if not self.path.exists():
            return []
        found = [json.loads(line) for line in self.path.read_text().splitlines() if line.endswith("}")]
        return [one for one in found if event in (None, one["event"])]

    def wait(self, event: str, nth: int = 1, timeout: float = 15.0) -> dict[str, Any]:
        """The ``nth`` of that name."""
        eventually(lambda: len(self.all(event)) >= nth, timeout, f"{event} ({nth}.)")
        return self.all(event)[nth - 1]


class LauncherProcess:
    """One ``edl-agent run``; killed with all that it started at the end of ``with``."""

    def __init__(
        self,
        endpoints: str,
        role: str,
        command: Sequence[str],
        *,
        prefix: str = "",
        port: int | None = None,
        ttl: float = 3.0,
        num_pservers: int | None = None,
        folder: Path,
        name: str = "launcher",
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        self.control = folder / "run" / f"{name}.sock"
        self.log_path = folder / f"{name}.log"
        self.termination_log = folder / f"{name}.termination"
        self.name = name
        self.argv = [*wrapper, sys.executable, "-m", "edl_agent", "run", "--role", role, "--endpoints", endpoints]
        self.argv += ["--prefix", prefix, "--ttl", f"{ttl:g}", "--host", "127.0.0.1", "--name", name]
        self.argv += ["--termination-log", str(self.termination_log)]
        self.argv += ["--port", str(port)] if port is not None else []
        self.argv += ["--num-pservers", str(num_pservers)] if num_pservers is not None else []
        self.argv += [*options, "--", *command]
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "EDL_RUN_DIR": str(folder / "run")}
        for variable in ("POD_NAME", "POD_IP", "EDL_SOCKET", "TERMINATION_LOG"):
            self.environment.pop(variable, None)
        self.environment |= environment or {}

    def start(self) -> Self:
        """Start it."""
        with open(self.log_path, "ab") as log:
            self.process = spawn_bound_to_parent(self.argv, stdin=subprocess.DEVNULL, stderr=log, env=self.environment)
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()  # its guard kills the command
        self.process.wait(10.0)
        # Shown where the test has failed.
        print(f"--- {self.name} ---\n{self.log}", file=sys.stderr)

    @property
    def log(self) -> str:
        """Its stderr."""
        return self.log_path.read_text()

    @property
    def reason(self) -> str:
        """What it wrote to the termination log."""
        return self.termination_log.read_text().strip()

    def send(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout: float = 15.0) -> int:
        """Its exit status."""
        return self.process.wait(timeout)

    def terminate(self, number: int = signal.SIGTERM, timeout: float = 15.0) -> tuple[int, float]:
        """Signal it; exit status and seconds until its end."""
        begin = time.monotonic()
        self.send(number)
        status = self.wait(timeout)
        return status, time.monotonic() - begin

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``edl-agent ready`` and the like, in the same environment."""
        return subprocess.run(
            [sys.executable, "-m", "edl_agent", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=30.0,
            check=False,
        )


def alive(pid: int) -> bool:
    """Whether the process runs: it exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
