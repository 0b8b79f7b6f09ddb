"""The command's parent: a small process that kills the command when its slot's deadline passes.

Run as a script, by `process`, with the standard library only: ``python -I -S guard.py FD MONOTONIC BOOTTIME --
COMMAND``. It is a process of its own because a launcher that is stopped, swapped out or waits for a lock cannot kill
anything, while the slot is taken by somebody else. It holds a socket to the launcher:

* from the launcher, one message each: ``deadline M B`` (on the two clocks of `edl_agent.session.Instant`),
  ``signal N`` (to the command's process group), ``kill WHY``;
* to the launcher: ``started PID``, ``failed ERRNO TEXT``, ``killed WHY``, ``ended STATUS`` (a wait status, always
  last).

What holds: the command's whole process group, and whatever left it (`setsid`), is killed with SIGKILL at the deadline;
when the launcher ends in whatever way; and when the command itself ends. Orphans of the command come to the guard
(`PR_SET_CHILD_SUBREAPER`), so they can be found. If the guard itself is killed, the kernel kills the command
(`PR_SET_PDEATHSIG`) and the launcher its process group. What does not hold: when guard and command are frozen together
(a container's freezer, a suspended machine), the command may run for a moment after the thaw, before the guard kills
it; a pserver's calls and writes carry the epoch for that case.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

_LONGEST_NAP = 0.5
"""Seconds: a deadline by CLOCK_BOOTTIME is noticed this soon after a suspended machine goes on."""

_NEVER = (float("inf"), float("inf"))

_CLEANING = 5.0
"""Seconds in which whatever the command left behind is killed, before the end is told all the same."""


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process by Linux's system call; elsewhere nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def boottime() -> float:
    """Seconds that go on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Guard:
    """One command and its end."""

    def __init__(self, launcher: socket.socket, monotonic: float, boot: float) -> None:
        self._launcher: socket.socket | None = launcher
        self._deadline = (monotonic, boot)
        self._pid = 0
        self._killed = False
        self._read, write = os.pipe()
        for end in (self._read, write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        # A handler, so that the wake-up works and so that no child is reaped by itself.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)  # `kill -TERM -1` is for the command, not for who guards it

    def run(self, argv: list[str]) -> None:
        """Start the command, and stay until it and all that it started are gone."""
        if self._left() <= 0:
            self._kill("the slot's deadline had passed before the command was started")
            self._tell(f"ended {signal.SIGKILL.value}")
            return
        if not self._start(argv):
            return
        while not self._ended():
            watched = [self._read] + ([self._launcher] if self._launcher is not None else [])
            ready, _, _ = select.select(watched, [], [], self._nap())
            if self._read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read, 4096)
            # All of them before the clock is asked: after a pause of this process alone they tell of renewals.
            while self._launcher is not None and select.select([self._launcher], [], [], 0)[0]:
                self._hear(self._launcher)
            if self._left() <= 0:
                self._kill("the slot's deadline passed")
        self._finish()

    def _nap(self) -> float | None:
        if self._deadline == _NEVER and not self._killed:
            return None
        return max(0.0, min(self._left(), _LONGEST_NAP))

    def _left(self) -> float:
        if self._killed:
            return _LONGEST_NAP
        return min(self._deadline[0] - time.monotonic(), self._deadline[1] - boottime())

    def _start(self, argv: list[str]) -> bool:
        failed_read, failed_write = os.pipe()
        me = os.getpid()
        # The library is loaded before the fork: between fork and exec as little as possible is done.
        library = ctypes.CDLL(None, use_errno=True)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(failed_read)
                os.setpgid(0, 0)
                library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != me:
                    os._exit(127)
                for number in range(1, signal.NSIG):
                    with contextlib.suppress(OSError, ValueError):
                        signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                self.become(argv)
            except OSError as error:
                os.write(failed_write, f"{error.errno} {error.strerror}".encode())
            finally:
                os._exit(127)
        os.close(failed_write)
        with contextlib.suppress(OSError):  # the child may have done it, or be gone
            os.setpgid(self._pid, self._pid)
        trouble = os.read(failed_read, 1000).decode()
        os.close(failed_read)
        if trouble:
            os.waitpid(self._pid, 0)
            self._tell(f"failed {trouble}")
            return False
        self._tell(f"started {self._pid}")
        return True

    def become(self, argv: list[str]) -> None:
        """In the child: turn into the command. Raises OSError where it cannot be started."""
        os.execvp(argv[0], argv)

    def _hear(self, launcher: socket.socket) -> None:
        try:
            message = launcher.recv(4096).decode()
        except OSError:
            message = ""
        match message.split(" ", 2):
            case ["deadline", monotonic, boot]:
                if not self._killed:
                    self._deadline = (float(monotonic), float(boot))
            case ["signal", number]:
                self._signal_group(int(number))
            case ["kill", *why]:
                self._kill(" ".join(why))
            case _:
                self._launcher = None
                self._kill("the launcher is gone")

    def _signal_group(self, number: int) -> None:
        # The command is not reaped before `_finish`, so its group's number is its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)
            if number in (signal.SIGTERM, signal.SIGINT):
                os.killpg(self._pid, signal.SIGCONT)  # a stopped command cannot end

    def _kill(self, why: str) -> None:
        if not self._killed:
            self._killed = True
            if self._pid:
                self._signal_group(signal.SIGKILL)
            self._tell(f"killed {why}")
        elif self._pid:
            self._signal_group(signal.SIGKILL)

    def _ended(self) -> bool:
        """Whether the command has ended; it stays a zombie. Orphans are reaped."""
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == self._pid:
                return True
            os.waitpid(ended.si_pid, 0)
        return False

    def _finish(self) -> None:
        """Kill what the command left behind, generation by generation, then tell the command's end."""
        self._signal_group(signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        end = time.monotonic() + _CLEANING
        while (left := children()) and time.monotonic() < end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            select.select([self._read], [], [], 0.01)
        self._tell(f"ended {status}")

    def _tell(self, message: str) -> None:
        if self._launcher is not None:
            with contextlib.suppress(OSError):
                self._launcher.send(message.encode(), socket.MSG_DONTWAIT)


def children() -> list[int]:
    """The ids of this process's children, zombies too; adopted orphans are among them."""
    me, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == me:
                    found.append(int(name))
    return found


def main(arguments: list[str]) -> None:
    """See the module."""
    descriptor, monotonic, boot, _, *argv = arguments
    launcher = socket.socket(fileno=int(descriptor))
    launcher.set_inheritable(False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    Guard(launcher, float(monotonic), float(boot)).run(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
