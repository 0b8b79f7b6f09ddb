"""The room of trainers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import SharedEtcd
from tests.tasks.trainers import Trainers


@pytest.fixture
def trainers(etcd: SharedEtcd, prefix: str, etcd_proxy_factory: object) -> Iterator[Trainers]:
    """``trainers.add()``: a trainer on the session's etcd, shut down after the test, while its proxies still live."""
    with Trainers(etcd.client_url, prefix) as room:
        yield room
