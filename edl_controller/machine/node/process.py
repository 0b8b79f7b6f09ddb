"""The node's end of its containers: asks the host for a process, signals it, hears of its end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from edl_agent.launcher import guard
from edl_controller.machine.node.event_loop import EventLoop

_SCRIPT = str(Path(__file__).resolve().with_name("container_host.py"))
_GUARD = str(Path(guard.__file__).resolve())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """What is to run.

    Attributes:
        argv: the command line, never a shell string.
        program: path of what is executed.
        environment: the whole of it.
        folder: where it runs, unless ``working_dir`` (as the container sees it) is given.
        output: file that standard output and error are appended to.
        mounts: (source, target, read only) in a mount namespace of its own; needs root.
        nice: added to the priority number.
    """

    argv: list[str]
    program: str
    environment: dict[str, str]
    folder: str
    output: str
    working_dir: str = ""
    mounts: tuple[tuple[str, str, bool], ...] = ()
    nice: int = 0


class Started(NamedTuple):
    """The program runs."""

    pid: int


class NotStarted(NamedTuple):
    """The program could not be started; nothing of it is left. ``again``: for no reason of its own, try once more."""

    why: str
    again: bool = False


class Ended(NamedTuple):
    """The program ended, and everything that it started. A signal gives ``exit_code`` 128 + its number."""

    exit_code: int
    signal: int


News = Started | NotStarted | Ended


class Process:
    """One run of a program. `NotStarted` or `Ended` is the last news."""

    def __init__(
        self,
        loop: EventLoop,
        connection: socket.socket,
        news: Callable[[News], object],
        forget: Callable[[Process], object],
    ) -> None:
        self._loop = loop
        self._socket = connection
        self._news = news
        self._forget = forget
        self.pid = 0
        loop.watch(connection, self._read)

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group. SIGKILL: also to whatever left the group."""
        if number == signal.SIGKILL:
            self._send("kill the node ends it")
        else:
            self._send(f"signal {int(number)}")

    def _send(self, message: str) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(message.encode(), socket.MSG_DONTWAIT)

    def _read(self) -> None:
        message = ""
        with contextlib.suppress(OSError):
            message = self._socket.recv(4096).decode(errors="replace")
        match message.split(" ", 2):
            case ["started", pid]:
                self.pid = int(pid)
                self._news(Started(self.pid))
            case ["failed", _, text]:
                self._end(NotStarted(text))
            case ["ended", status]:
                code = os.waitstatus_to_exitcode(int(status))
                self._end(Ended(128 - code, -code) if code < 0 else Ended(code, 0))
            case ["killed", *_]:
                pass
            case _ if not self.pid:
                self._end(NotStarted("the process that starts containers was killed", again=True))
            case _:
                # The guard was killed; the kernel has killed the command with it, the host kills the rest.
                self._end(Ended(128 + signal.SIGKILL, signal.SIGKILL))

    def _end(self, last: NotStarted | Ended) -> None:
        self._loop.unwatch(self._socket)
        self.abandon()
        self._news(last)

    def abandon(self) -> None:
        """Let the guard go: it kills everything, and no news come any more."""
        self._socket.close()
        self._forget(self)


class ProcessHost:
    """Starts processes, each under a guard (`container_host`). All calls on the loop's thread, but `close`."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._host: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._processes: set[Process] = set()

    @property
    def pid(self) -> int:
        """Return the process id of the host; 0 before the first start."""
        return self._host.pid if self._host else 0

    def start(self, order: Order, news: Callable[[News], object]) -> Process:
        """Start a program; what becomes of it comes as news, on the loop's thread.

        Raises:
            OSError: the machine has no room for another process, descriptor or memory.
        """
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, os.fdopen(os.memfd_create("edl-order"), "w+b") as memory:
            # Python's own JSON keeps bytes that are no UTF-8.
            memory.write(json.dumps(dataclasses.asdict(order)).encode())
            memory.flush()
            memory.seek(0)
            descriptors = [theirs.fileno(), memory.fileno()]
            try:
                socket.send_fds(self._connected(), [b"start"], descriptors)
            except (BrokenPipeError, ConnectionResetError):  # the host was killed
                self._disconnect()
                socket.send_fds(self._connected(), [b"start"], descriptors)
        process = Process(self._loop, mine, news, self._processes.discard)
        self._processes.add(process)
        return process

    def close(self) -> None:
        """Kill what still runs, and end the host. After the end of the loop."""
        for process in list(self._processes):
            process.abandon()
        self._disconnect()

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._host = subprocess.Popen(
                    [sys.executable, "-I", "-S", _SCRIPT, str(theirs.fileno()), _GUARD],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        return self._socket

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._host is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._host.wait(10.0)
            self._host = None
