"""``edl scale | suspend | resume | delete``: changes of a job that is there."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edl_agent.cli.durations import SECONDS
from edl_controller import errors
from edl_controller.cli.target import connected, namespace_option, root_option
from edl_controller.cli.words import OBJECT_NAME

if TYPE_CHECKING:
    from edl_controller.api.v1 import TrainingJob
    from edl_controller.cluster.local import LocalCluster


@click.command()
@click.argument("name", type=OBJECT_NAME)
@click.option("--min", "least", type=click.IntRange(0), help="Trainers that the job always keeps.")
@click.option("--max", "most", type=click.IntRange(0), help="Trainers that it may have when there is room.")
@click.option("--to", "exactly", type=click.IntRange(0), help="Exactly so many: both bounds.")
@namespace_option
@root_option
def scale(
    name: str, least: int | None, most: int | None, exactly: int | None, namespace: str, root: Path | None
) -> None:
    """Change between which bounds the number of trainers of job NAME may move."""
    if (exactly is None) == (least is None and most is None):
        raise click.UsageError("give --to N, or --min and/or --max")
    with connected(root) as cluster:
        job = _read(cluster, namespace, name)
        trainer = job.spec.trainer
        low = exactly if exactly is not None else trainer.min_instance if least is None else least
        high = exactly if exactly is not None else trainer.max_instance if most is None else most
        if (low, high) == (trainer.min_instance, trainer.max_instance):
            click.echo(f"trainingjob/{name} unchanged: {low}..{high} trainers")
            return
        bounds = {"min-instance": low, "max-instance": high}
        _patch_checked(cluster, job, {"spec": {"trainer": bounds}})
    click.echo(f"trainingjob/{name} scaled to {low}..{high} trainers")


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", type=OBJECT_NAME)
@namespace_option
@root_option
def suspend(names: tuple[str, ...], namespace: str, root: Path | None) -> None:
    """Stop the pods of the jobs and keep the jobs; `edl resume` starts them again from their checkpoints."""
    _set_suspended(names, namespace, root, wanted=True)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", type=OBJECT_NAME)
@namespace_option
@root_option
def resume(names: tuple[str, ...], namespace: str, root: Path | None) -> None:
    """Let suspended jobs go on."""
    _set_suspended(names, namespace, root, wanted=False)


def _set_suspended(names: tuple[str, ...], namespace: str, root: Path | None, *, wanted: bool) -> None:
    with connected(root) as cluster:
        for name in names:
            job = _read(cluster, namespace, name)
            if job.spec.suspend == wanted:
                click.echo(f"trainingjob/{name} unchanged")
                continue
            _patch_checked(cluster, job, {"spec": {"suspend": wanted or None}})
            click.echo(f"trainingjob/{name} {'suspended' if wanted else 'resumed'}")


def _read(cluster: LocalCluster, namespace: str, name: str) -> TrainingJob:
    from edl_controller.api.kinds import TRAINING_JOBS

    return cluster.get(TRAINING_JOBS, namespace, name)


def _patch_checked(cluster: LocalCluster, job: TrainingJob, patch: dict[str, Any]) -> None:
    """Patch, unless the result would have faults that the job does not have now.

    Raises:
        ConfigurationError: names them.
    """
    from edl_controller.api.defaults import with_defaults
    from edl_controller.api.kinds import TRAINING_JOBS
    from edl_controller.api.validation import validate
    from edl_controller.core.semantics.storage import patched

    after = patched(TRAINING_JOBS, job, patch, subresource="", now=0.0)
    before = set(validate(with_defaults(job)))
    new = [fault for fault in validate(with_defaults(after)) if fault not in before]
    if new:
        raise errors.ConfigurationError("; ".join(map(str, new)))
    meta = job.metadata
    cluster.patch(TRAINING_JOBS, meta.namespace, meta.name, patch, uid=meta.uid)


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", type=OBJECT_NAME)
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="Delete the jobs of this file; - is stdin.")
@click.option("--all", "everything", is_flag=True, help="All jobs of the namespace.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until their pods are gone, too.")
@click.option("--timeout", type=SECONDS, default=60.0, show_default=True, metavar="S", help="Longest wait, in seconds.")
@namespace_option
@root_option
def delete(
    names: tuple[str, ...],
    files: tuple[str, ...],
    everything: bool,
    wait: bool,
    timeout: float,
    namespace: str,
    root: Path | None,
) -> None:
    """Delete jobs with all that belongs to them."""
    from edl_controller.api.kinds import TRAINING_JOBS
    from edl_controller.cli.submit import read_jobs

    if not (names or files or everything):
        raise click.UsageError("name jobs, or give -f FILE or --all")
    if everything and (names or files):
        raise click.UsageError("--all and names (or -f FILE) do not go together: nothing was deleted")
    with connected(root) as cluster:
        targets = [(namespace, name) for name in names]
        targets += [(job.metadata.namespace or namespace, job.metadata.name) for job in read_jobs(files)]
        if everything:
            targets += [(namespace, one.metadata.name) for one in cluster.list(TRAINING_JOBS, namespace).items]
        gone: list[TrainingJob] = []
        missing: list[str] = []
        for where, name in dict.fromkeys(targets):
            try:
                job = _read(cluster, where, name)
                cluster.delete(TRAINING_JOBS, where, name, uid=job.metadata.uid)
                gone.append(job)
            except errors.NotFound:
                missing.append(name)
        if not targets:
            click.echo(f"no trainingjobs found in namespace {namespace}", err=True)
        end = time.monotonic() + timeout
        for job in gone:
            if wait:
                _until_gone(cluster, job, end)
            click.echo(f"trainingjob/{job.metadata.name} deleted")
    if missing:
        raise errors.NotFound(f"no trainingjob {', '.join(map(repr, missing))} in namespace {namespace!r}")


_LOOK_EVERY = 0.2
"""Seconds between two looks at what is left of a deleted job."""

_SAY_AFTER = 2.0
"""Seconds after which people are told what is waited for."""


_NAMED = 5
"""Pods that are named of those that are waited for."""


def _until_gone(cluster: LocalCluster, job: TrainingJob, end: float) -> None:
    from edl_controller.api.kinds import PODS
    from edl_controller.core.names import JOB_UID_LABEL

    meta, said = job.metadata, time.monotonic() + _SAY_AFTER
    while left := cluster.list(PODS, meta.namespace, labels={JOB_UID_LABEL: meta.uid}).items:
        names = ", ".join(one.metadata.name for one in left[:_NAMED])
        names += f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        if time.monotonic() > end:
            raise errors.Unavailable(f"trainingjob {meta.name!r} is deleted, but pods are still there: {names}")
        if time.monotonic() > said:
            said = float("inf")
            with contextlib.suppress(OSError):  # stderr is closed or full
                click.echo(f"trainingjob/{meta.name}: waiting for the end of {names}", err=True)
        threading.Event().wait(_LOOK_EVERY)
