"""Starts the containers of a node, each under a guard of its own, which is their nearest parent to the end.

Run as a script, by `process`, with the standard library only: ``python -I -S container_host.py FD GUARD``; GUARD is the
file of `edl_agent.launcher.guard`. Each message on FD (a Unix socket) carries two descriptors: the guard's socket, on
which that module's messages go, and a file in memory with the `Order`. The host forks a guard; the guard starts the
command. Because the host has one thread and has loaded everything, a start costs a fork and an exec, and no memory of
its own.

No process outlives its container, and no container its node: a guard kills everything below it when the command ends
and when the node does, whichever way (its socket is closed by the kernel). If a guard is killed, the kernel kills the
command, and what else the guard had comes to the host (`PR_SET_CHILD_SUBREAPER`), which kills whatever is no guard. If
the host is killed, guards go on, and the node starts another host.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edl_agent.launcher import guard
else:
    _spec = importlib.util.spec_from_file_location("guard", sys.argv[2])
    guard = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(guard)

_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18

LIBRARY = ctypes.CDLL(None, use_errno=True)


class ContainerGuard(guard.Guard):
    """A guard whose command sees its own variables, folder, output and mounts.

    ``order`` is an `edl_controller.machine.node.process.Order`, as JSON.
    """

    def __init__(self, node: socket.socket, order: dict[str, Any]) -> None:
        super().__init__(node, float("inf"), float("inf"))
        self._order = order
        self._points = MountPoints()

    def run(self, argv: list[str]) -> None:
        """As the guard's; mount points that had to be made are removed at the end."""
        try:
            self._points.make(self._order["mounts"])
        except OSError as error:
            self._points.remove()
            self._tell(f"failed {error.errno} no place to mount: {error.strerror}: {error.filename}")
            return
        try:
            super().run(argv)
        finally:
            self._points.remove()

    def become(self, argv: list[str]) -> None:
        """In the child: make it the container, then the command."""
        order = self._order
        null = os.open(os.devnull, os.O_RDONLY)
        output = os.open(order["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for number, descriptor in enumerate((null, output, output)):
            os.dup2(descriptor, number)
        os.chdir(order["folder"])
        if order["mounts"]:
            self._mount(order["mounts"], order["folder"])
        if order["working_dir"]:
            try:
                os.chdir(order["working_dir"])
            except OSError as error:
                raise OSError(error.errno, f"working directory {order['working_dir']}: {error.strerror}") from error
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError):
            os.nice(order["nice"])
        os.execve(order["program"], argv, order["environment"])

    @staticmethod
    def _mount(mounts: list[tuple[str, str, bool]], folder: str) -> None:
        _check(LIBRARY.unshare(_CLONE_NEWNS), "unshare")
        _check(LIBRARY.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "/")
        # All are opened first: a mount may hide the others' sources. By the new namespace, not the one left behind.
        opened = [(os.open(source, os.O_PATH), target, read_only) for source, target, read_only in mounts]
        here = os.open(folder, os.O_PATH)
        for descriptor, target, read_only in opened:
            where = os.fsencode(target)
            if not os.path.lexists(target):  # a place in a volume that has just been mounted
                _make_inside(target, folder=stat.S_ISDIR(os.fstat(descriptor).st_mode))
            _check(LIBRARY.mount(b"/proc/self/fd/%d" % descriptor, where, None, _MS_BIND | _MS_REC, None), target)
            if read_only:
                _check(LIBRARY.mount(None, where, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY, None), target)
        os.fchdir(here)


def _make_inside(target: str, *, folder: bool) -> None:
    os.makedirs(target if folder else os.path.dirname(target), exist_ok=True)
    if not folder:
        os.close(os.open(target, os.O_RDONLY | os.O_CREAT, 0o644))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {what}: {os.strerror(number)}")


class MountPoints:
    """Folders and files that are made so that something can be mounted there, marked, and removed with their last user.

    Each user holds a shared lock: removing a folder that is a mount point elsewhere would undo that mount.
    """

    def __init__(self) -> None:
        self._held: list[tuple[str, int]] = []

    def make(self, mounts: list[tuple[str, str, bool]]) -> None:
        """Use the targets of ``mounts``, made where they are missing; not those in another target. Raises OSError."""
        if not mounts:
            return
        targets = [target for _, target, _ in mounts]
        with _alone():
            for source, target, _ in mounts:
                if not any(target.startswith(other.rstrip("/") + "/") for other in targets):
                    self._make(target, folder=os.path.isdir(source))

    def _make(self, path: str, *, folder: bool) -> None:
        parts = [path]
        while parts[-1] != os.path.dirname(parts[-1]):
            parts.append(os.path.dirname(parts[-1]))
        for part in reversed(parts):
            self._use(part, folder=folder or part != path, always=part == path)

    def _use(self, path: str, *, folder: bool, always: bool) -> None:
        made = True
        try:
            if folder:
                os.mkdir(path)
            else:
                os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except OSError:
            if not os.path.exists(path):
                raise
            made = False
        if not (made or always or _is_marked(path)):
            return
        descriptor = os.open(path, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if made:
            with contextlib.suppress(OSError):
                os.setxattr(path, _MARK, b"1")
        self._held.append((path, descriptor))

    def remove(self) -> None:
        """Give all back; those that were made, that nobody else uses and that are empty are removed."""
        if not self._held:
            return
        with _alone():
            for path, descriptor in reversed(self._held):
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if _is_marked(path):
                        if os.path.isdir(path):
                            os.rmdir(path)
                        else:
                            os.unlink(path)
                os.close(descriptor)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """No other guard of the machine makes or removes mount points meanwhile."""
    descriptor = os.open(_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_LOCK = "/run/edl-mount-points.lock"
_MARK = "trusted.edl.mount-point"


def _is_marked(path: str) -> bool:
    try:
        return bool(os.getxattr(path, _MARK))
    except OSError:
        return False


class Host:
    """Forks guards, and kills what is left of those that were killed."""

    def __init__(self, node: socket.socket) -> None:
        self._node = node
        self._guards: set[int] = set()
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)

    def serve(self) -> None:
        """Until the node is gone; then until the last guard is."""
        listening = True
        while listening or self._guards:
            watched: list[Any] = [self._read, self._node] if listening else [self._read]
            ready, _, _ = select.select(watched, [], [])
            if self._read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read, 4096)
                self._reap()
            if self._node in ready:
                listening = self._hear()
        self._sweep()

    def _hear(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._node, 64, 2)
        except OSError:
            return False
        if not message:
            return False
        pid = os.fork()
        if pid == 0:
            try:
                self._node.close()
                os.close(self._read)
                signal.set_wakeup_fd(-1)
                os.close(self._write)
                self._become_guard(*descriptors)
            finally:
                os._exit(0)
        self._guards.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    @staticmethod
    def _become_guard(connection: int, memory: int) -> None:
        os.setsid()
        guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 1)
        node = socket.socket(fileno=connection)
        node.set_inheritable(False)
        with open(memory, "rb") as file:
            order = json.loads(file.read())
        order["environment"] = {os.fsencode(name): os.fsencode(value) for name, value in order["environment"].items()}
        ContainerGuard(node, order).run([os.fsencode(word) for word in order["argv"]])  # type: ignore[misc]

    def _reap(self) -> None:
        killed = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._guards:
                self._guards.discard(pid)
                killed = killed or os.WIFSIGNALED(status)
        if killed:
            self._sweep()

    def _sweep(self) -> None:
        """Kill orphans of guards that were killed, generation by generation."""
        for _ in range(1000):
            orphans = [pid for pid in guard.children() if pid not in self._guards]
            if not orphans:
                return
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def main(arguments: list[str]) -> None:
    """See the module."""
    node = socket.socket(fileno=int(arguments[0]))
    node.set_inheritable(False)
    guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 1)
    Host(node).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
