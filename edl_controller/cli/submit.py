"""``edl submit | validate | example``: TrainingJobs out of files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from edl_agent.cli.durations import SECONDS
from edl_controller import errors
from edl_controller.cli.target import connected, namespace_option, root_option

if TYPE_CHECKING:
    from edl_controller.api.v1 import TrainingJob
    from edl_controller.cluster.local import LocalCluster


def read_jobs(files: tuple[str, ...]) -> list[TrainingJob]:
    """Return the jobs of all files, checked; ``-`` is stdin.

    Raises:
        InvalidTrainingJob: all faults of all files, each with its file.
        OSError: a file cannot be read.
    """
    from edl_controller.api import submission

    jobs: list[TrainingJob] = []
    faults: list[errors.Fault] = []
    for name in files:
        text = _stdin() if name == "-" else Path(name).read_bytes()
        try:
            jobs += submission.read(text)
        except errors.InvalidTrainingJob as error:
            where = "stdin" if name == "-" else name
            faults += [fault._replace(path=f"{where}: {fault.path}".rstrip(": ")) for fault in error.faults]
    if faults:
        raise errors.InvalidTrainingJob(faults)
    return jobs


def _stdin() -> bytes:
    if sys.stdin is None:
        raise errors.ConfigurationError("- reads stdin, which is closed")
    return sys.stdin.buffer.read()


def put(cluster: LocalCluster, job: TrainingJob) -> str:
    """Create the job, or change the spec of the one that is there; returns what was done.

    Raises:
        Invalid: the job has begun with another number of pservers.
    """
    from edl_controller.api.kinds import TRAINING_JOBS
    from edl_controller.core.merge_patch import difference

    meta = job.metadata
    try:
        cluster.create(job)
        return "created"
    except errors.AlreadyExists:
        there = cluster.get(TRAINING_JOBS, meta.namespace, meta.name)
        _check_pservers(cluster, there, job)
        before, after = msgspec.to_builtins(there.spec), msgspec.to_builtins(job.spec)
        patch = {
            "spec": difference(before, after),
            "metadata": {"labels": meta.labels, "annotations": meta.annotations},
        }
        done = cluster.patch(TRAINING_JOBS, meta.namespace, meta.name, patch, uid=there.metadata.uid)
        return "unchanged" if done.metadata.resource_version == there.metadata.resource_version else "configured"


def _check_pservers(cluster: LocalCluster, there: TrainingJob, wanted: TrainingJob) -> None:
    """Refuse what the controller would not do (it would say so by a condition only)."""
    from edl_controller.api.defaults import with_defaults
    from edl_controller.api.kinds import JOBS, REPLICA_SETS
    from edl_controller.core.bring_up import pservers_in_effect
    from edl_controller.core.children import collect_children

    if there.status.completion_time:
        return
    namespace = there.metadata.namespace
    children = collect_children(
        there, cluster.list(REPLICA_SETS, namespace).items, cluster.list(JOBS, namespace).items, ()
    )
    if children.pserver is None and children.trainer is None:
        return
    now = pservers_in_effect(with_defaults(there), children)
    new = with_defaults(wanted).spec.pserver.min_instance or 0
    if new != now:
        raise errors.Invalid(
            f"trainingjob {there.metadata.name!r} runs with {now} pservers and cannot go on with {new}: its"
            " parameters are shared out by their number. Delete it first, or submit it under another name"
        )


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--dry-run", is_flag=True, help="Only check, and say what would be submitted.")
@click.option("--wait", is_flag=True, help="Wait until the jobs have ended; exit 6 when one failed.")
@click.option("--timeout", type=SECONDS, metavar="S", help="Longest wait, in seconds.  [default: none]")
@namespace_option
@root_option
def submit(
    files: tuple[str, ...], dry_run: bool, wait: bool, timeout: float | None, namespace: str, root: Path | None
) -> int:
    """Create TrainingJobs, or change those that are there.

    FILE is YAML or JSON, with one or several documents; - is stdin. Nothing is submitted when one of them has a fault.
    """
    from edl_controller.cli.waiting import wait_for_end

    jobs = [place(job, namespace) for job in read_jobs(files)]
    if dry_run:
        for job in jobs:
            click.echo(f"trainingjob/{job.metadata.name} would be submitted to namespace {job.metadata.namespace}")
        return 0
    with connected(root) as cluster:
        for job in jobs:
            click.echo(f"trainingjob/{job.metadata.name} {put(cluster, job)}")
        if wait:
            return wait_for_end(cluster, jobs, timeout)
    return 0


def place(job: TrainingJob, namespace: str) -> TrainingJob:
    """Return the job in its own namespace, or in this one."""
    meta = job.metadata
    return msgspec.structs.replace(job, metadata=msgspec.structs.replace(meta, namespace=meta.namespace or namespace))


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def validate(files: tuple[str, ...]) -> None:
    """Check TrainingJobs without a cluster; all faults are named at once, each with its path.

    FILE is YAML or JSON, with one or several documents; - is stdin. Exit 2 when there is a fault.
    """
    for job in read_jobs(files):
        click.echo(f"trainingjob/{job.metadata.name} is valid")


@click.command()
def example() -> None:
    """Print a TrainingJob with comments."""
    from edl_controller.api.example import EXAMPLE

    click.echo(EXAMPLE, nl=False)
