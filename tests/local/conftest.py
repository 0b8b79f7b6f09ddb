"""The cluster of one machine over a real etcd, and its objects as short as they can be."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from edl_controller.api.configuration import ConfigMap
from edl_controller.api.kinds import CONFIG_MAPS
from edl_controller.api.meta import ObjectMeta
from edl_controller.cluster.local import LocalCluster
from edl_controller.cluster.port import Change
from edl_controller.errors import Unavailable


@pytest.fixture
def cluster(etcd: Any, prefix: str) -> Iterator[LocalCluster]:
    """An empty cluster in the session's etcd."""
    with LocalCluster(etcd.client_url, prefix=prefix) as cluster:
        yield cluster


@pytest.fixture
def proxied(etcd_proxy: Any, prefix: str) -> Iterator[LocalCluster]:
    """The same cluster as `cluster`, through the gRPC proxy of the test."""
    with LocalCluster(etcd_proxy.endpoint, prefix=prefix) as cluster:
        yield cluster


def config_map(name: str, **data: str) -> ConfigMap:
    """The plainest object that there is."""
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


class Watcher:
    """Follows the ConfigMaps on a thread of its own, as a reflector does: a watch that ends is taken up again."""

    def __init__(self, cluster: LocalCluster, version: str) -> None:
        self.changes: list[Change[ConfigMap]] = []
        self.error: Exception | None = None
        self._cluster, self._version = cluster, version
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="test-watcher", daemon=True)

    def __enter__(self) -> Watcher:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(5.0)
        assert not self.thread.is_alive()

    def _run(self) -> None:
        while not self.stop.is_set():
            try:
                with contextlib.suppress(Unavailable):
                    for change in self._cluster.watch(CONFIG_MAPS, "default", self._version, self.stop):
                        self._version = change.resource_version
                        if change.obj is not None:
                            self.changes.append(change)
            except Exception as error:
                self.error = error
                return

    def seen(self) -> list[tuple[str, str, dict[str, str]]]:
        """Type, name and data of each change."""
        return [(change.type, change.obj.metadata.name, change.obj.data) for change in self.changes if change.obj]
