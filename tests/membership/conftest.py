"""Clients of one test, shut down at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl_agent import EtcdClient
from tests.conftest import SharedEtcd


@pytest.fixture
def client_of(etcd: SharedEtcd, prefix: str) -> Iterator[Callable[..., EtcdClient]]:
    """``client_of(endpoint=..., **options)``: a client below the test's prefix; TTL 3 s."""
    made: list[EtcdClient] = []

    def make(endpoint: str | list[str] = etcd.client_url, **options: Any) -> EtcdClient:
        settings: dict[str, Any] = {"prefix": prefix, "ttl": 3, "dial_timeout": 2.0} | options
        made.append(EtcdClient(endpoint, **settings))
        return made[-1]

    yield make
    for client in made:
        client.shutdown()
