"""A run of some jobs on a cluster of their own: up, submit, watch, sum up, down."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from edl_controller import errors
from edl_controller.cli.failures import FAILED, OK
from edl_controller.cli.live_table import Overview, Screen, look, make_screen
from edl_controller.cli.logs import belongs, find_logs
from edl_controller.cli.rows import duration, pod_state
from edl_controller.cli.waiting import ended, why
from edl_controller.machine import node_sizes
from edl_controller.machine.node.images import Images
from edl_controller.machine.one_machine import OneMachine
from edl_controller.runtime import logs

if TYPE_CHECKING:
    from edl_controller.api.v1 import TrainingJob
    from edl_controller.machine.local_state import LocalState

_LOOK_EVERY = 0.5
"""Seconds between two looks at the cluster."""

_LAST_LINES = 10
"""Shown of what the pods of a failed job wrote last."""


def run_jobs(
    state: LocalState,
    nodes: tuple[str, ...],
    images: Path | None,
    jobs: list[TrainingJob],
    *,
    timeout: float | None,
    plain: bool,
) -> int:
    """Run the jobs to their ends; returns the exit status.

    Raises:
        Unavailable: the time ran out.
    """
    state.make()
    with log_into(state.log), leaving_in_order(), _machine(state, nodes, images) as machine:
        screen = make_screen(plain)
        try:
            for job in jobs:
                machine.cluster.create(job)
            last = follow(machine, screen, jobs, timeout=timeout)
        except (KeyboardInterrupt, SystemExit):
            screen.say("stopping ...")
            raise
        finally:
            screen.close()
        status = summary(last, jobs)
        for job in jobs:
            show_failures(state, last, job)
    return status


def _machine(state: LocalState, nodes: tuple[str, ...], images: Path | None) -> OneMachine:
    return OneMachine(state, node_sizes.read(nodes), images=Images.read(images) if images else None)


@contextlib.contextmanager
def log_into(path: Path) -> Iterator[None]:
    """Have the logs of this process in a file meanwhile: on the screen they would break the table."""
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    with path.open("a", encoding="utf-8") as file:
        logs.configure("text", stream=file)
        try:
            yield
        finally:
            root.setLevel(before[0])
            root.handlers[:] = before[1]


@contextlib.contextmanager
def leaving_in_order() -> Iterator[None]:
    """End on SIGINT, SIGTERM and SIGHUP by unwinding the stack, with the exit status of the signal.

    What is stopped on the way is not disturbed by a second signal.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def leave(number: int, _: FrameType | None) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow(
    machine: OneMachine,
    screen: Screen,
    jobs: list[TrainingJob],
    *,
    timeout: float | None = None,
    at_each_look: Callable[[Overview], None] = lambda _: None,
) -> Overview:
    """Show the cluster until all jobs have ended; returns the last look.

    Raises:
        Unavailable: the time ran out.
    """
    begin = time.monotonic()
    names = {(job.metadata.namespace or "default", job.metadata.name) for job in jobs}
    while True:
        overview = look(machine.cluster, begin)
        screen.show(overview)
        at_each_look(overview)
        going_on = [
            one for one in overview.jobs if (one.metadata.namespace, one.metadata.name) in names and not ended(one)
        ]
        if not going_on:
            return overview
        if timeout is not None and overview.seconds > timeout:
            raise errors.Unavailable(
                f"after {timeout:g} s not ended: {', '.join(one.metadata.name for one in going_on)}"
            )
        threading.Event().wait(_LOOK_EVERY)


def summary(last: Overview, jobs: list[TrainingJob]) -> int:
    """Say how each job ended; returns the exit status."""
    status = OK
    for job in jobs:
        found = next((one for one in last.jobs if one.metadata.name == job.metadata.name), None)
        if found is None:
            click.echo(f"{job.metadata.name}: deleted")
            continue
        sizes = [record.additional for record in found.status.scale_records.scale_records]
        click.echo(
            f"{found.metadata.name}: {found.status.phase} after {duration(last.seconds)}: {why(found)}"
            f" (grown {sum(one > 0 for one in sizes)} times, shrunk {sum(one < 0 for one in sizes)} times)"
        )
        status = FAILED if ended(found) == "failed" else status
    return status


def show_failures(state: LocalState, last: Overview, job: TrainingJob) -> None:
    """Print the last words of the failed pods of a failed job: they may be removed with the cluster."""
    found = next((one for one in last.jobs if one.metadata.name == job.metadata.name), None)
    if found is None or ended(found) != "failed":
        return
    failed = {pod.metadata.name: pod_state(pod) for pod in last.pods if pod.status.phase == "Failed"}
    files = {
        one.pod: one.path
        for one in find_logs(state.nodes, found.metadata.namespace)
        if one.pod in failed and belongs(one.pod, job.metadata.name, None)
    }
    for pod, path in files.items():
        lines = path.read_text("utf-8", "backslashreplace").splitlines()[-_LAST_LINES:]
        click.echo(f"{pod} ({failed[pod]}) " + ("wrote last:" if lines else "wrote nothing"))
        for line in lines:
            click.echo(f"  {line}")
