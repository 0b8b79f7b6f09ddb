"""``edl local``: the cluster of this machine: up, down, status, and a run of some jobs from beginning to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edl_agent.cli.commands import Entry, LazyGroup
from edl_controller import errors
from edl_controller.cli.target import local_state, namespace_option, root_option

if TYPE_CHECKING:
    from edl_controller.machine.local_state import LocalState

_ENTRIES = {
    "up": Entry("edl_controller.cli.local", "up", "Start the cluster of this machine."),
    "down": Entry("edl_controller.cli.local", "down", "Stop it with all its pods; nothing is left running."),
    "status": Entry("edl_controller.cli.local", "status", "Tell whether it is up, its nodes and its jobs."),
    "run": Entry("edl_controller.cli.local", "run", "Run jobs from beginning to end, with a live table."),
}

_UP_WITHIN = 30.0
_DOWN_WITHIN = 60.0
"""Seconds until a start or a stop counts as failed."""

_LOOK_EVERY = 0.1
"""Seconds between two looks at a cluster that starts or stops."""


@click.group(cls=LazyGroup, entries=_ENTRIES, no_args_is_help=True)
def local() -> None:
    """Run a cluster on this machine: the objects in a real etcd, the pods as processes.

    An image is not fetched: a pod's command is run with the programs of this machine.
    """


node_option = click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME=CPU,MEMORY",
    help="A virtual node and what it claims to have, such as node-0=8,16Gi; several times for several."
    "  [default: one node with what this machine has]",
)


images_option = click.option(
    "--images",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="What the images of pods stand for here (see docs/local.md).  [default: this very environment]",
)


@click.command()
@click.option("--foreground", is_flag=True, help="Serve until Ctrl-C in place of going to the background.")
@node_option
@images_option
@root_option
def up(foreground: bool, nodes: tuple[str, ...], images: Path | None, root: Path | None) -> None:
    """Start the cluster of this machine in the background."""
    from edl_controller.machine import node_sizes, serve

    state = local_state(root)
    node_sizes.read(nodes)  # a fault is told here, not in a log
    if serving := state.serving():
        click.echo(f"already up (process {serving.pid}, {state.root})")
        return
    if foreground:
        serve.serve(state, nodes, images)
        return
    state.make()
    with state.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "edl_controller.machine.serve", str(state.root), str(images or ""), *nodes],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    end = time.monotonic() + _UP_WITHIN
    while state.serving() is None:
        if process.poll() is not None or time.monotonic() > end:
            process.terminate()
            raise errors.Unavailable(f"the cluster did not start; the end of {state.log}:\n{_end_of(state.log)}")
        threading.Event().wait(_LOOK_EVERY)
    click.echo(f"up (process {process.pid}, {state.root})")


def _end_of(path: Path) -> str:
    return "\n".join("  " + line for line in path.read_text(errors="backslashreplace").splitlines()[-8:])


@click.command()
@click.option("--purge", is_flag=True, help="Also remove the objects, logs and volumes.")
@root_option
def down(purge: bool, root: Path | None) -> None:
    """Stop the cluster of this machine with all its pods. Jobs are kept, and go on at the next `up`."""
    state = local_state(root)
    serving = state.serving()
    if serving is not None:
        os.kill(serving.pid, signal.SIGTERM)
        end = time.monotonic() + _DOWN_WITHIN
        while state.serving() is not None:
            if time.monotonic() > end:
                raise errors.Unavailable(f"process {serving.pid} does not end; see {state.log}")
            threading.Event().wait(_LOOK_EVERY)
    click.echo("down" if serving else "was not up")
    if purge:
        _purge(state)


def _purge(state: LocalState) -> None:
    import shutil

    for path in (state.etcd, state.nodes):
        shutil.rmtree(path, ignore_errors=True)
    state.log.unlink(missing_ok=True)
    click.echo(f"removed what was kept in {state.root}")


@click.command()
@root_option
def status(root: Path | None) -> None:
    """Tell whether the cluster of this machine is up, its nodes and its jobs."""
    from edl_controller.api.kinds import NODES, TRAINING_JOBS, Kind
    from edl_controller.cli.get import show
    from edl_controller.cluster.local import LocalCluster

    state = local_state(root)
    serving = state.serving()
    if serving is None:
        raise errors.Unavailable(f"no cluster is up in {state.root}")
    click.echo(
        f"up for {int(time.time() - serving.since)} s: process {serving.pid}, etcd {serving.endpoints}, {state.root}"
    )
    with LocalCluster(serving.endpoints, prefix=serving.prefix) as cluster:
        shown: tuple[Kind[Any], ...] = (NODES, TRAINING_JOBS)
        for kind in shown:
            click.echo()
            show(kind, cluster.list(kind).items, "wide", namespaces=kind.namespaced, single=False)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@node_option
@images_option
@click.option("--timeout", type=float, metavar="S", help="Give up after so many seconds.  [default: never]")
@click.option("--plain", is_flag=True, help="Plain lines also on a terminal.")
@click.option("--keep", is_flag=True, help="Keep objects and logs in --root (else they are removed at the end).")
@namespace_option
@root_option
def run(
    files: tuple[str, ...],
    nodes: tuple[str, ...],
    images: Path | None,
    timeout: float | None,
    plain: bool,
    keep: bool,
    namespace: str,
    root: Path | None,
) -> int:
    """Run the TrainingJobs of FILE... on a cluster of their own, from beginning to end, with a live table.

    Exit 6 when a job failed. Nothing is left running, also after Ctrl-C.
    """
    from edl_controller.cli.local_run import run_jobs
    from edl_controller.cli.submit import place, read_jobs
    from edl_controller.machine.local_state import LocalState

    jobs = [place(job, namespace) for job in read_jobs(files)]
    if keep or root is not None:
        return run_jobs(local_state(root), nodes, images, jobs, timeout=timeout, plain=plain)
    with tempfile.TemporaryDirectory(prefix="edl-local-") as folder:
        return run_jobs(LocalState(Path(folder)), nodes, images, jobs, timeout=timeout, plain=plain)
