"""What the pods of a node share: its loop, its starter of processes, and who is told what happens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from edl_controller.api.meta import ObjectReference
from edl_controller.api.pods import Quantities
from edl_controller.machine.node.environment import Source
from edl_controller.machine.node.event_loop import EventLoop
from edl_controller.machine.node.images import Images
from edl_controller.machine.node.process import ProcessHost
from edl_controller.machine.node.restart import BackOff
from edl_controller.machine.node.volumes import Links

_log = logging.getLogger(__name__)

T = TypeVar("T")
EventType = Literal["Normal", "Warning"]


class Report(Protocol):
    """Takes an event; called from any thread, must not wait."""

    def __call__(self, regarding: ObjectReference, type: EventType, reason: str, note: str) -> None:  # noqa: A002
        """Hear that something happened to an object."""
        ...


Fetch = Callable[[str, Source], Mapping[str, str] | None]
"""Namespace and source to its values as text; None = it is not there. May wait, and raise `ClusterError`."""


@dataclass
class Services:
    """See the module.

    Attributes:
        loop: everything about a pod happens on its thread.
        host: starts processes.
        workers: threads for what may wait.
        images: what images stand for.
        back_off: between runs of a container.
        report: takes events.
        fetch: reads Secrets and ConfigMaps.
        root: folder of the node: ``pods/<uid>/``, ``logs/``.
        node_name: the node.
        host_ip: its address.
        allocatable: what it has.
        links: symbolic links at mount paths; None = the node mounts.
        nice: added to the priority number of every container.
    """

    loop: EventLoop
    host: ProcessHost
    workers: ThreadPoolExecutor
    images: Images
    back_off: BackOff
    report: Report
    fetch: Fetch
    root: Path
    node_name: str
    host_ip: str
    allocatable: Quantities
    links: Links | None
    nice: int
    images_told: set[str] = field(default_factory=set)

    def in_background(self, work: Callable[[], T], done: Callable[[T | Exception], object]) -> None:
        """Do ``work`` on a thread that may wait, then call ``done`` with what came of it on the loop's thread."""

        def finished(future: Future[T]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                result = future.result()
                self.loop.post(lambda: done(result))
            elif isinstance(error, Exception):
                self.loop.post(lambda: done(error))

        try:
            self.workers.submit(work).add_done_callback(finished)
        except RuntimeError:
            _log.debug("the node %s is stopping: nothing new is begun", self.node_name)
