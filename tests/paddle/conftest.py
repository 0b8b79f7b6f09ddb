"""One PaddlePaddle job for each test: a real etcd, pservers and trainers below `edl-agent run`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_agent.testing import EtcdServer
from examples.paddle.make_environment import python_with_paddle
from examples.paddle.scene import Failed, Job


@pytest.fixture(scope="session")
def paddle_python() -> Path:
    """Whoever runs these tests wants PaddlePaddle: where it cannot be had, that is an error and not a skip."""
    return python_with_paddle()


@pytest.fixture
def job(paddle_python: Path, tmp_path: Path) -> Iterator[Job]:
    with EtcdServer() as server, Job(server, tmp_path, paddle_python) as job:
        try:
            yield job
        except Failed:
            print(job.last_words())
            raise
        finally:
            job.close()
        assert job.gone(), job.left()
