"""``edl-agent register`` as a process of its own: its JSON events are collected while it is stopped, killed and
started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edl_agent.testing import spawn_bound_to_parent
from tests.bench.secret_watch import WATCH

ROOT = Path(__file__).resolve().parents[2]
Event = dict[str, Any]


class AgentProcess:
    """One agent process. ``start()`` or ``with`` starts it; the end of ``with`` kills it.

    ``events`` are the printed JSON objects in order, each with a ``seen`` key added (``time.monotonic()`` when it
    was read here).
    """

    def __init__(
        self,
        endpoints: str | Iterable[str],
        port: int,
        *,
        num_pservers: int | None = 1,
        ttl: float = 5.0,
        host: str | None = "127.0.0.1",
        prefix: str | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        """Describe it. ``arguments`` are appended; ``wrapper`` is put before the command (``ip netns exec NAME``,
        ``unshare ...``).
        """
        where = endpoints if isinstance(endpoints, str) else ",".join(endpoints)
        self.argv = [*wrapper, sys.executable, "-m", "edl_agent", "register", "--endpoints", where, "--port", str(port)]
        if num_pservers is not None:
            self.argv += ["--num-pservers", str(num_pservers)]
        self.argv += ["--ttl", f"{ttl:g}"]
        if host is not None:
            self.argv += ["--host", host]
        if prefix is not None:
            self.argv += ["--prefix", prefix]
        self.argv += ["-o", "json", *arguments]
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self.environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        )
        self.port = port
        self.address = f"{host}:{port}"
        self.events: list[Event] = []
        self.noise: list[str] = []
        self._stderr: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._condition = threading.Condition()

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it; ``start()`` again after its end continues the same list of events."""
        assert self._process is None or self._process.poll() is not None, "the agent runs already"
        self._close_pipes()
        self._process = spawn_bound_to_parent(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        self._readers = [
            threading.Thread(
                target=self._read_events, args=(self._process,), name=f"agent-{self.port}-stdout", daemon=True
            ),
            threading.Thread(
                target=self._read_stderr, args=(self._process,), name=f"agent-{self.port}-stderr", daemon=True
            ),
        ]
        for reader in self._readers:
            reader.start()
        return self

    def _read_events(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            WATCH.hear(line, "what an agent said")
            event: Event | None = None
            with contextlib.suppress(ValueError):
                decoded = json.loads(line)
                event = decoded if isinstance(decoded, dict) else None
            with self._condition:
                if event is not None:
                    self.events.append({**event, "seen": time.monotonic()})
                else:
                    self.noise.append(line)
                self._condition.notify_all()
        with self._condition:
            self._condition.notify_all()

    def _read_stderr(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._stderr.append(line)
            WATCH.hear(line, "what an agent said")

    @property
    def process(self) -> subprocess.Popen[str]:
        """The process. Raises AssertionError before the start."""
        assert self._process is not None, "the agent has not been started"
        return self._process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it exists, stopped or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self.process.poll()

    @property
    def stderr(self) -> str:
        """What it wrote to stderr so far."""
        return "".join(self._stderr)

    def sigstop(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def sigcont(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def send_signal(self, number: signal.Signals) -> None:
        """Any signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self.running:
            self.process.kill()
        self.wait(10.0)

    def terminate(self, timeout: float | None = 15.0) -> int | None:
        """SIGTERM, wait (seconds; None: do not wait) for the end, return the exit status. Raises TimeoutExpired."""
        self.process.terminate()
        return self.wait(timeout) if timeout is not None else None

    def wait(self, timeout: float = 15.0) -> int:
        """Wait (seconds) for the end and for the last of its output. Raises TimeoutExpired."""
        code = self.process.wait(timeout)
        for reader in self._readers:
            reader.join(5.0)
        return code

    def close(self) -> None:
        """Kill it where it runs, close the pipes."""
        if self._process is not None:
            self.kill()
            self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr) if self._process is not None else ():
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- events --------------------------------------------------------------------------------------------------

    def named(self, name: str) -> list[Event]:
        """The events of one name so far."""
        with self._condition:
            return [event for event in self.events if event.get("event") == name]

    def wait_event(self, name: str, timeout: float = 15.0, *, nth: int = 1, after: Event | None = None) -> Event:
        """Wait (seconds) for the ``nth`` event of that name (``after``: counted from behind that event), and return it.

        Raises AssertionError with everything that was seen, at once when the process has ended without it.
        """

        def find() -> Event | None:
            start = next(i for i, e in enumerate(self.events) if e is after) + 1 if after is not None else 0
            found = [event for event in self.events[start:] if event.get("event") == name]
            return found[nth - 1] if len(found) >= nth else None

        deadline = time.monotonic() + timeout
        with self._condition:
            while (event := find()) is None:
                left = deadline - time.monotonic()
                over = not self.running and not any(reader.is_alive() for reader in self._readers)
                if left <= 0 or over:
                    state = f"ended with {self.returncode}" if not self.running else "runs"
                    raise AssertionError(
                        f"no {name!r} ({nth}.) from the agent at {self.address} within {timeout} s (it {state}); "
                        f"events: {self.events}; other output: {self.noise[-5:]}; stderr:\n{self.stderr[-2000:]}"
                    )
                self._condition.wait(min(left, 0.1))
            return event

    @property
    def last(self) -> Event | None:
        """The newest event."""
        with self._condition:
            return self.events[-1] if self.events else None

    @property
    def index(self) -> int | None:
        """The index it holds by its own account: that of the newest event, None after ``lost`` or ``released``."""
        last = self.last
        return None if last is None or last.get("event") in ("lost", "released") else last.get("index")
