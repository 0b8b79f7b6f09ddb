"""``edl-controller run`` as a process of its own: its log is read line by line, its pages are asked for."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from edl_agent.testing import spawn_bound_to_parent
from tests.bench.secret_watch import WATCH
from tests.bench.waiting import eventually

PROGRAM = Path(sys.executable).parent / "edl-controller"


class Page(NamedTuple):
    """An answer."""

    status: int
    text: str
    headers: Mapping[str, str]


class ControllerProcess:
    """One process. ``with`` starts it; the end of ``with`` kills it. Arguments are those of ``run``.

    ``lines`` are what it logged, each with ``seen`` (``time.monotonic()``); ``output`` is all it wrote, stdout too.
    """

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Describe it; ``environment`` is added to one without ``EDL_*`` and ``KUBECONFIG``."""
        self.argv = [str(PROGRAM), "run", "--log-format", "json", "--http-bind", "127.0.0.1:0", *arguments]
        own = {name: value for name, value in os.environ.items() if not name.startswith(("EDL_", "KUBE", "POD_"))}
        self.environment = {**own, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self.lines: list[dict[str, Any]] = []
        self.output = ""
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> Self:
        """Start it."""
        self._process = spawn_bound_to_parent(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), name="controller-log", daemon=True)
        self._reader.start()
        return self

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.output += line
            WATCH.hear(line, "what the controller said")
            try:
                self.lines.append({**json.loads(line), "seen": time.monotonic()})
            except ValueError:
                self.lines.append({"msg": line.rstrip(), "level": "raw", "seen": time.monotonic()})

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            print(f"--- {' '.join(self.argv)}\n{self.output[-6000:]}", file=sys.stderr)

    # --- its life ---

    @property
    def process(self) -> subprocess.Popen[str]:
        """It."""
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self, timeout: float = 45.0) -> int:
        """Wait for the end; returns the exit status. Raises subprocess.TimeoutExpired."""
        status = self.process.wait(timeout)
        if self._reader is not None:
            self._reader.join(5)
        return status

    def terminate(self, timeout: float = 45.0) -> int:
        """SIGTERM, and wait for the end."""
        self.send(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGCONT)
                self._process.kill()
            self.wait(10)
            if self._process.stdout is not None:
                self._process.stdout.close()

    # --- what it says ---

    def logged(self, pattern: str, *, level: str = "") -> list[dict[str, Any]]:
        """The lines whose message has this pattern."""
        return [
            line
            for line in list(self.lines)
            if re.search(pattern, str(line.get("msg"))) and level in ("", line.get("level"))
        ]

    def wait_logged(self, pattern: str, timeout: float = 40.0) -> dict[str, Any]:
        """Wait for such a line. Raises AssertionError."""
        self._until(lambda: bool(self.logged(pattern)), timeout, f"a line with {pattern!r}")
        return self.logged(pattern)[0]

    @property
    def urls(self) -> list[str]:
        """Where it listens, once it does."""
        self.wait_logged("^Listening$")
        return [str(line["url"]) for line in self.logged("^Listening$")]

    def get(self, path: str, *, method: str = "GET", url: str = "") -> Page:
        """Ask for a page."""
        where = urlsplit(url or self.urls[0])
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return Page(answer.status, answer.read().decode(), dict(answer.headers))
        finally:
            connection.close()

    def wait_ready(self, timeout: float = 40.0) -> Self:
        """Wait until `/readyz` says so. Raises AssertionError with what it says instead."""
        page = self.get("/readyz")
        self._until(lambda: self.get("/readyz").status == 200, timeout, f"ready, not {page.text!r}")
        return self

    @property
    def leads(self) -> bool:
        """Whether it says to lead."""
        return self.metric("edl_leader") == 1.0

    def wait_leading(self, timeout: float = 40.0) -> Self:
        """Wait until it leads. Raises AssertionError."""
        self._until(lambda: self.leads, timeout, "it leads")
        return self

    def metric(self, name: str, **labels: str) -> float | None:
        """A sample of `/metrics`; None: there is none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in self.get("/metrics").text.splitlines():
            head, _, value = line.rpartition(" ")
            if re.match(rf"{name}(\{{|$)", head) and all(one in head for one in wanted):
                return float(value)
        return None

    def _until(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        def met() -> bool:
            if not self.running:
                raise RuntimeError(f"it has ended with {self.process.returncode}:\n{self.output[-3000:]}")
            return condition()

        eventually(met, timeout, what)
