"""The cluster of one machine as a world: objects in a real etcd, the real loops, and light nodes."""

from __future__ import annotations

import atexit
import functools
import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from edl_agent.testing import EtcdServer
from edl_controller.api.kinds import NODES
from edl_controller.api.nodes import Taint
from edl_controller.api.pods import Pod
from edl_controller.cluster.local import LocalCluster
from edl_controller.machine.loops import Loops
from tests.bench.waiting import eventually
from tests.contract.light_node import LightNodes

_numbers = itertools.count(1)

QUIET = 0.3
"""Seconds without a write after which nothing is on its way any more."""


@functools.cache
def _etcd() -> EtcdServer:
    """One server for all worlds of this process; each world has a prefix of its own."""
    server = EtcdServer()
    server.start()
    atexit.register(server.close)
    return server


class LocalWorld:
    """One local cluster for one test."""

    name = "local"
    namespace = "contract"

    def __init__(self) -> None:
        self.cluster = LocalCluster(_etcd().endpoint, prefix=f"/contract/{next(_numbers)}")
        self._stop = threading.Event()
        self._loops = Loops(self.cluster)
        self._thread = threading.Thread(target=self._loops.run, args=(self._stop,), daemon=True)
        self._thread.start()
        self._nodes = LightNodes(self.cluster)
        eventually(lambda: self._loops.has_synced, 10.0)

    def settle(self, seconds: float = 0.0) -> None:
        if seconds:
            time.sleep(seconds)
            return
        # Quiet: no loop has anything to do, and nobody has written anything for a while.
        seen, since = "", time.monotonic()

        def quiet() -> bool:
            nonlocal seen, since
            now = self.cluster.list(NODES).resource_version
            if now != seen or not self._loops.is_idle():
                seen, since = now, time.monotonic()
            return time.monotonic() - since >= QUIET

        eventually(quiet, 10.0, "a quiet cluster", interval=0.02)

    def add_node(
        self,
        name: str,
        cpu: str = "4",
        memory: str = "8Gi",
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Taint] = (),
    ) -> None:
        self._nodes.add(name, cpu, memory, labels, taints)

    def set_ready(self, pod: Pod, ready: bool) -> None:
        self._nodes.set_ready(pod, ready)

    def finish(self, pod: Pod, exit_code: int) -> None:
        self._nodes.finish(pod, exit_code)

    def hold_terminating(self) -> None:
        self._nodes.hold_terminating()

    def let_terminate(self, exit_code: int = 143) -> None:
        self._nodes.let_terminate(exit_code)

    def old_version(self) -> str:
        self.add_node("just-a-change")
        _etcd().etcdctl("compact", self.cluster.list(NODES).resource_version)
        return "1"

    def close(self) -> None:
        self._stop.set()
        self._nodes.close()
        self._thread.join(10.0)
        self.cluster.close()
        assert not self._thread.is_alive()


def open_world(_: Path) -> LocalWorld:
    """A fresh world."""
    return LocalWorld()
