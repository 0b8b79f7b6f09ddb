"""A sidecar for each test: in this process (quick), or as a process of its own."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edl_agent import EtcdClient
from edl_agent.sidecar.server import Sidecar, SidecarOptions
from tests.conftest import SharedEtcd
from tests.sidecar.sidecar_process import Caller, Program, SidecarProcess


class LocalSidecar:
    """A `Sidecar` in this process."""

    def __init__(self, url: str, folder: Path, prefix: str, **options: Any) -> None:
        def make_client(num_pservers: int | None, host: str | None) -> EtcdClient:
            return EtcdClient(
                url, num_pservers or 1, prefix=prefix, host=host or "127.0.0.1", ttl=4.0, dial_timeout=4.0
            )

        self.folder = folder
        self.path = folder / "agent.sock"
        self.target = f"unix:{self.path}"
        options.setdefault("name", "pod-0")
        self.stopped = threading.Event()
        self.running = Sidecar(make_client, SidecarOptions(str(self.path), **options), self.stopped.set)

    def file(self, name: str) -> Any:
        """One of the state files."""
        return json.loads((self.folder / name).read_text())

    def __enter__(self) -> LocalSidecar:
        self.running.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.running.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path for a socket's folder, which is not made yet."""
    with tempfile.TemporaryDirectory(prefix="edl-") as scratch:
        yield Path(scratch) / "run"


@pytest.fixture
def local_sidecar(etcd: SharedEtcd, folder: Path, prefix: str) -> Iterator[Callable[..., LocalSidecar]]:
    """``local_sidecar(**SidecarOptions)``: started, closed after the test."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(LocalSidecar(etcd.client_url, folder, prefix, **options))


@pytest.fixture
def sidecar(local_sidecar: Callable[..., LocalSidecar]) -> LocalSidecar:
    """One for the job ``prefix`` with one pserver."""
    return local_sidecar()


@pytest.fixture
def sidecar_process(etcd: SharedEtcd, folder: Path, prefix: str) -> Iterator[SidecarProcess]:
    """The same by ``edl-agent sidecar``."""
    with SidecarProcess(etcd.client_url, folder, prefix) as process:
        yield process


@pytest.fixture
def programs(request: pytest.FixtureRequest) -> Iterator[Callable[..., Program]]:
    """``programs()``: attached, closed after the test. To the process, where the test has one."""
    sidecar = _sidecar_of(request)
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Program(sidecar.target, **options))


@pytest.fixture
def program(programs: Callable[..., Program]) -> Program:
    """One attached program."""
    return programs()


@pytest.fixture
def onlooker(request: pytest.FixtureRequest) -> Iterator[Caller]:
    """A client that has not attached."""
    with Caller(_sidecar_of(request).target) as caller:
        yield caller


@pytest.fixture
def key_of(etcd: SharedEtcd, prefix: str) -> Callable[[str], str]:
    """``key_of(key)``: the value in etcd, empty where absent."""

    def read(key: str) -> str:
        found: Any = etcd.etcdctl("get", "--print-value-only", prefix + key)
        return str(found).rstrip("\n")

    return read


def _sidecar_of(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("sidecar_process" if "sidecar_process" in request.fixturenames else "sidecar")
