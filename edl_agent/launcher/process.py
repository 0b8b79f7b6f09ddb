"""The launcher's end of a command: starts its `guard`, tells it deadlines and signals, hears of its end."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from edl_agent.launcher import guard as guard_script
from edl_agent.launcher.policy import Ended
from edl_agent.session import Instant

_SCRIPT = str(Path(guard_script.__file__).resolve())

NEVER = Instant(float("inf"), float("inf"))
"""No deadline."""


class Started(NamedTuple):
    """The command runs."""

    pid: int


class Command:
    """One run of a command under its guard. ``news`` is called on a thread of this object, with `Started` or `Ended`.

    Args:
        argv: never a shell string.
        environment: the whole of it.
        deadline: when the guard kills the command, unless told a later one.
        news: must not block. `Ended` comes exactly once, last.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        deadline: Instant,
        news: Callable[["Command", Started | Ended], object],
    ) -> None:
        self._news = news
        self._lock = threading.Lock()
        self._open = True
        self.pid: int | None = None
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.guard = subprocess.Popen(
                [sys.executable, "-I", "-S", _SCRIPT, str(theirs.fileno()), *map(repr, deadline), "--", *argv],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # signals of the terminal come to the launcher, which forwards them
            )
        threading.Thread(target=self._listen, name="edl-launcher-command", daemon=True).start()

    def extend(self, deadline: Instant) -> None:
        """The slot is held until then. From any thread."""
        self._send(f"deadline {deadline.monotonic!r} {deadline.boottime!r}")

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group. From any thread."""
        self._send(f"signal {int(number)}")

    def kill(self, why: str) -> None:
        """SIGKILL the process group and all that left it. From any thread; returns at once."""
        self._send(f"kill {why[:500]}")

    def _send(self, message: str) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._open:
                # A guard that is stopped does not read; it will kill by its clock when it goes on.
                self._socket.send(message.encode(), socket.MSG_DONTWAIT)

    def _listen(self) -> None:
        ended, killed = None, ""
        while ended is None:
            message = ""
            with contextlib.suppress(OSError):
                message = self._socket.recv(4096).decode(errors="replace")
            match message.split(" ", 2):
                case ["started", pid]:
                    self.pid = int(pid)
                    self._news(self, Started(self.pid))
                case ["killed", *why]:
                    killed = " ".join(why)
                case ["failed", number, text]:
                    ended = Ended(126 if int(number) == 13 else 127, f"the command cannot be started: {text}")
                case ["ended", status]:
                    ended = Ended.of(os.waitstatus_to_exitcode(int(status)), killed, fenced=bool(killed))
                case _:
                    ended = Ended.of(-signal.SIGKILL, "the guard was killed")
        if not message and self.pid is not None:
            # The kernel kills the command with its guard, not what the command started. The number cannot be another
            # group's: the launcher is a subreaper and does not reap this process before `wait`.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        with self._lock:
            self._open = False
            self._socket.close()
        with contextlib.suppress(OSError):
            self.guard.wait()
        self._news(self, ended)
