"""Jobs while they run: a live table on a terminal (with rich), plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from edl_controller.api.events import Event
from edl_controller.api.kinds import EVENTS, NODES, PODS, TRAINING_JOBS
from edl_controller.api.nodes import Node
from edl_controller.api.pods import Pod
from edl_controller.api.v1 import TrainingJob
from edl_controller.cli import rows
from edl_controller.core import placement
from edl_controller.runtime.plain_text import printable

if TYPE_CHECKING:
    from edl_controller.cluster.port import ObjectReader

_LINE_EVERY = 5.0
"""Seconds between plain lines while nothing happens."""

_EVENTS_SHOWN = 12


@dataclass(frozen=True)
class Overview:
    """What a cluster looks like at one moment. ``seconds`` since the table began."""

    seconds: float
    jobs: tuple[TrainingJob, ...]
    pods: tuple[Pod, ...]
    nodes: tuple[Node, ...]
    events: tuple[Event, ...]

    @property
    def load(self) -> tuple[int, int]:
        """CPU asked for by pods on nodes, and CPU of all nodes, in milli-cores."""
        asked = sum(placement.pod_requests(pod.spec).get(placement.CPU, 0) for pod in self.pods if _counts(pod))
        return asked, sum(placement.amounts(node.status.allocatable).get(placement.CPU, 0) for node in self.nodes)


def _counts(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and pod.status.phase not in ("Succeeded", "Failed")


def look(cluster: ObjectReader, begin: float) -> Overview:
    """Read the cluster now. ``begin``: monotonic seconds."""
    return Overview(
        time.monotonic() - begin,
        cluster.list(TRAINING_JOBS).items,
        cluster.list(PODS).items,
        cluster.list(NODES).items,
        cluster.list(EVENTS).items,
    )


class Screen(Protocol):
    """Shows overviews, and lines about what happened."""

    def show(self, overview: Overview) -> None:
        """Show this one now."""
        ...

    def say(self, text: str) -> None:
        """Add a line."""
        ...

    def close(self) -> None:
        """End; what was shown stays."""
        ...


def job_line(job: TrainingJob) -> str:
    """Return one job as a plain line."""
    status = job.status
    rate = f"  {status.agents.rate} samples/s" if status.agents and status.agents.rate else ""
    return f"{counts(job)}{rate}"


def counts(job: TrainingJob) -> str:
    """Return what is told at once when it changes: phase, why it waits, trainers, pservers."""
    status = job.status
    waits = status.reason.partition(": ")[2] if status.phase in ("creating", "running") else ""
    return (
        f"{job.metadata.name}: {status.phase or 'new'}"
        + (f" ({printable(waits)})" if waits else "")
        + f"  trainers {status.trainers}/{status.desired_trainers}"
        f"  pservers {status.pservers}/{job.spec.pserver.min_instance or 0}"
    )


_TOLD_BY_THE_LINE = frozenset(
    {
        *("MasterStarting", "PserversStarting", "TrainersStarting", "ChildrenCreated", "EnoughReady", "WaitingForPods"),
        *("Fresh", "Applied", "Valid", "Ended", "Settled"),
    }
)
"""Reasons of events that say no more than the job's own line does."""

_STARTING = 3
"""A probe that failed less often is a program that still starts."""


def worth_showing(event: Event) -> bool:
    """Tell whether an event says something about training that the job's line does not, or warns.

    Each start of a pod does neither, nor do the first failed probes of one that starts.
    """
    if event.reason == "Unhealthy":
        return event.series is not None and event.series.count >= _STARTING
    if event.regarding.kind == TRAINING_JOBS.name:
        return event.reason not in _TOLD_BY_THE_LINE
    return event.type == "Warning"


def event_line(event: Event) -> str:
    """Return one event as a plain line."""
    of_job = event.regarding.kind == TRAINING_JOBS.name
    whose = event.regarding.name if of_job else f"{event.regarding.kind.lower()} {event.regarding.name}"
    return printable(f"{whose}: {event.reason}: {event.note}")


@dataclass
class PlainScreen:
    """Lines, when something changed and every few seconds."""

    _next_line: float = 0.0
    _seen: set[str] = field(default_factory=set)
    _last: dict[str, str] = field(default_factory=dict)
    _seconds: float = 0.0

    def show(self, overview: Overview) -> None:
        """See `Screen`."""
        self._seconds = overview.seconds
        for event in overview.events:
            if event.metadata.uid not in self._seen and worth_showing(event):
                self._seen.add(event.metadata.uid)
                self.say(event_line(event))
        asked, room = overview.load
        now = {job.metadata.uid: counts(job) for job in overview.jobs}
        all_of_them = overview.seconds >= self._next_line
        for job in overview.jobs:
            if all_of_them or now[job.metadata.uid] != self._last.get(job.metadata.uid):
                self.say(f"{job_line(job)}  cluster {asked / max(room, 1):.0%}")
        self._last = now
        if all_of_them:
            self._next_line = overview.seconds + _LINE_EVERY

    def say(self, text: str) -> None:
        """See `Screen`."""
        print(f"{self._seconds:6.1f} s  {text}", flush=True)

    def close(self) -> None:
        """See `Screen`."""


class LiveScreen:
    """Drawn anew at each look."""

    def __init__(self) -> None:
        from rich.live import Live

        self._log: list[str] = []
        self._seen: set[str] = set()
        self._seconds = 0.0
        self._overview: Overview | None = None
        self._live = Live(refresh_per_second=8)
        self._live.start()

    def show(self, overview: Overview) -> None:
        """See `Screen`."""
        self._seconds, self._overview = overview.seconds, overview
        for event in overview.events:
            if event.metadata.uid not in self._seen and worth_showing(event):
                self._seen.add(event.metadata.uid)
                self._log.append(f"{overview.seconds:6.1f} s  {event_line(event)}")
        self._live.update(self._draw(overview))

    def say(self, text: str) -> None:
        """See `Screen`."""
        self._log.append(f"{self._seconds:6.1f} s  {text}")
        if self._overview is not None:
            self._live.update(self._draw(self._overview))

    def _draw(self, overview: Overview) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        jobs = Table(box=None, pad_edge=False)
        for title in rows.header(TRAINING_JOBS, wide=True, namespaces=False):
            jobs.add_column(title, style="bold" if title == "NAME" else "")
        now = time.time()
        for job in overview.jobs:
            jobs.add_row(*map(Text, rows.row(TRAINING_JOBS, job, now, wide=True, namespaces=False)))
        asked, room = overview.load
        load = Table.grid(padding=(0, 2))
        load.add_row(
            "cluster", ProgressBar(max(room, 1), asked, 50), f"{asked / max(room, 1):.0%} of {room / 1000:g} cores"
        )
        log = Text("\n".join(self._log[-_EVENTS_SHOWN:]), style="dim")
        return Group(jobs, Text(""), load, Text(""), log)

    def close(self) -> None:
        """See `Screen`."""
        self._live.stop()


def make_screen(plain: bool) -> Screen:
    """Return what suits stdout; rich is optional (``edl[rich]``)."""
    if plain or not sys.stdout.isatty():
        return PlainScreen()
    try:
        return LiveScreen()
    except ImportError:
        return PlainScreen()
