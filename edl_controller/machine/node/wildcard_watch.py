"""Tells who listens on all addresses of the machine at once, where each pod should keep to its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from edl_controller.machine.node.addresses import descendants, parent, socket_inodes, wildcard_listeners
from edl_controller.machine.node.pod_runner import PodRunner
from edl_controller.machine.node.services import Services

_LOOKS = (0.5, 2.0, 10.0, 60.0)
"""Seconds after the start of a container at which its sockets are looked at."""

_TOGETHER = 0.5
"""Seconds in which looks fall together."""

_BETWEEN = 300.0
"""Seconds between looks at a node where nothing is started."""


class _Suspect(NamedTuple):
    runner: PodRunner
    container: str
    guard: int


class WildcardWatch:
    """Looks at a node's listening sockets, soon after each start and then seldom. On the loop's thread.

    Args:
        services: of the node.
        runners: returns the pods that run.
    """

    def __init__(self, services: Services, runners: Callable[[], list[PodRunner]]) -> None:
        self._services, self._runners = services, runners
        self._told: set[tuple[str, str, int]] = set()
        self._known: frozenset[int] = frozenset()
        self._looking = False
        self._due: set[float] = set()
        self._services.loop.call_later(_BETWEEN, self._look_again)

    def started(self) -> None:
        """Hear that a container was started."""
        now = self._services.loop.time()
        for delay in _LOOKS:
            # Those of containers that start together fall together.
            due = math.ceil((now + delay) / _TOGETHER) * _TOGETHER
            if due not in self._due:
                self._due.add(due)
                self._services.loop.call_at(due, lambda due=due: self._look_at(due))  # type: ignore[misc]

    def _look_at(self, due: float) -> None:
        self._due.discard(due)
        self._look()

    def _look_again(self) -> None:
        self._look()
        self._services.loop.call_later(_BETWEEN, self._look_again)

    def _look(self) -> None:
        suspects = [
            _Suspect(runner, run.container.name, parent(run.pid))
            for runner in self._runners()
            if not runner.pod.spec.host_network
            for run in runner.runs
            if run.pid
        ]
        if suspects and not self._looking:
            self._looking = True
            self._services.in_background(lambda: self._find(suspects), self._tell)

    def _find(self, suspects: list[_Suspect]) -> list[tuple[_Suspect, int]]:
        listeners = wildcard_listeners()
        known, self._known = self._known, frozenset(listeners)
        if not self._known - known:
            return []
        return [
            (suspect, listeners[inode])
            for suspect in suspects
            for pid in descendants(suspect.guard)
            for inode in socket_inodes(pid) & listeners.keys()
        ]

    def _tell(self, found: list[tuple[_Suspect, int]] | Exception) -> None:
        self._looking = False
        if isinstance(found, Exception):
            return
        for suspect, port in found:
            key = (suspect.runner.pod.metadata.uid, suspect.container, port)
            if key not in self._told:
                self._told.add(key)
                suspect.runner.report(
                    "Warning",
                    "WildcardBind",
                    f"container {suspect.container} listens on port {port} of all addresses of this machine, which all"
                    f" pods share: bind the pod's own address, {suspect.runner.pod_ip} (POD_IP)",
                )
