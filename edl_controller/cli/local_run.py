"""A run of some jobs on a cluster of their own: up, submit, watch, sum up, down."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from edl_controller import errors
from edl_controller.cli.failures import FAILED, OK
from edl_controller.cli.live_table import Overview, Screen, look, make_screen
from edl_controller.cli.rows import duration
from edl_controller.cli.waiting import ended, why
from edl_controller.machine import node_sizes
from edl_controller.machine.node.images import Images
from edl_controller.machine.one_machine import OneMachine

if TYPE_CHECKING:
    from edl_controller.api.v1 import TrainingJob
    from edl_controller.machine.local_state import LocalState

_LOOK_EVERY = 0.5
"""Seconds between two looks at the cluster."""


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
    signal.signal(signal.SIGTERM, _leave)
    with OneMachine(state, node_sizes.read(nodes), images=Images.read(images) if images else None) as machine:
        screen = make_screen(plain)
        try:
            for job in jobs:
                machine.cluster.create(job)
            last = follow(machine, screen, jobs, timeout=timeout)
        finally:
            screen.close()
    return summary(last, jobs)


def _leave(_: int, __: FrameType | None) -> None:
    sys.exit(143)


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
            f"{found.metadata.name}: {found.status.phase} after {duration(last.seconds)}: {why(found)};"
            f" {sum(one > 0 for one in sizes)} times grown, {sum(one < 0 for one in sizes)} times shrunk"
        )
        status = FAILED if ended(found) == "failed" else status
    return status
