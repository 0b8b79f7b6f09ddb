"""One cluster of this machine for all tests of a worker, and folders for tests that hurt one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.waiting import eventually
from tests.edl_cli.command import NODES, Machine


@contextlib.contextmanager
def swept(root: Path) -> Iterator[Machine]:
    """A machine that is taken down at the end; nothing may be left of it."""
    machine = Machine(root)
    try:
        yield machine
    finally:
        machine.close()
        machine.edl("local", "down", "--purge")
        eventually(lambda: not machine.processes(), 10.0, lambda: f"end of {machine.processes()}")


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A cluster that is up. Name jobs so that no other test has them."""
    with swept(tmp_path_factory.mktemp("cluster") / "root") as found:
        found.edl("local", "up", *NODES)
        yield found


@pytest.fixture
def own_machine(tmp_path: Path) -> Iterator[Machine]:
    """A folder in which no cluster is up yet, to hurt."""
    with swept(tmp_path / "root") as found:
        yield found
