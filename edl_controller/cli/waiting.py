"""Waiting for jobs to end."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import click

from edl_controller import errors
from edl_controller.api.kinds import TRAINING_JOBS
from edl_controller.api.meta import find_condition
from edl_controller.api.v1 import TrainingJob
from edl_controller.cli.failures import FAILED, OK

if TYPE_CHECKING:
    from edl_controller.cluster.port import ObjectReader

_LOOK_AGAIN = 5.0
"""Seconds between looks, should a watch end."""


def ended(job: TrainingJob) -> str:
    """Return ``succeeded`` or ``failed``; empty while the job goes on."""
    return job.status.phase if job.status.phase in ("succeeded", "failed") else ""


def why(job: TrainingJob) -> str:
    """Return what is said about a job's end."""
    found = find_condition(job.status.conditions, "Failed" if job.status.phase == "failed" else "Succeeded")
    return found.message or found.reason if found else job.status.reason


def wait_for_end(cluster: ObjectReader, jobs: list[TrainingJob], timeout: float | None) -> int:
    """Print each job's end as it comes; returns the exit status.

    Raises:
        Unavailable: the time ran out.
        NotFound: a job was deleted meanwhile.
    """
    end = None if timeout is None else time.monotonic() + timeout
    status = OK
    for job in jobs:
        last = _one(cluster, job, end)
        click.echo(f"trainingjob/{last.metadata.name} {last.status.phase}: {why(last)}")
        status = FAILED if ended(last) == "failed" else status
    return status


def _one(cluster: ObjectReader, job: TrainingJob, end: float | None) -> TrainingJob:
    meta = job.metadata
    while True:
        listing = cluster.list(TRAINING_JOBS, meta.namespace)
        found = next((one for one in listing.items if one.metadata.name == meta.name), None)
        if found is None:
            raise errors.NotFound(f"trainingjob {meta.name!r} was deleted")
        if ended(found):
            return found
        left = _LOOK_AGAIN if end is None else min(_LOOK_AGAIN, end - time.monotonic())
        if left <= 0:
            raise errors.Unavailable(f"trainingjob {meta.name!r} has not ended in time (it is {found.status.phase!r})")
        stop = threading.Event()
        timer = threading.Timer(left, stop.set)
        timer.daemon = True
        timer.start()
        try:
            for change in cluster.watch(TRAINING_JOBS, meta.namespace, listing.resource_version, stop):
                if change.obj is not None and change.obj.metadata.name == meta.name:
                    break
        except errors.Gone:
            pass
        finally:
            timer.cancel()
