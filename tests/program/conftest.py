"""Programs on an etcd as a cluster of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.bench.controller_process import ControllerProcess
from tests.conftest import SharedEtcd

Run = Callable[..., ControllerProcess]


@pytest.fixture
def run(etcd: SharedEtcd, prefix: str) -> Iterator[Run]:
    """``run(*arguments, environment=) -> ControllerProcess``, started on the test's own part of the shared etcd."""
    made: list[ControllerProcess] = []

    def start(*arguments: str, endpoint: str = "", environment: dict[str, str] | None = None) -> ControllerProcess:
        place = ("--cluster", "local", "--local-endpoints", endpoint or etcd.client_url, "--local-prefix", prefix)
        made.append(ControllerProcess(*place, *arguments, environment=environment))
        return made[-1].start()

    yield start
    for one in made:
        one.kill()
