"""``edl local``: the cluster of this machine: up, down, status, and a run of some jobs from beginning to end."""

from __future__ import annotations

import os
import select
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
from edl_agent.cli.durations import SECONDS
from edl_controller import errors
from edl_controller.cli.target import local_state, namespace_option, root_option
from edl_controller.cli.target import serving as find_serving

if TYPE_CHECKING:
    from edl_controller.machine.local_state import LocalState, Serving

_ENTRIES = {
    "up": Entry("edl_controller.cli.local", "up", "Start the cluster of this machine."),
    "down": Entry("edl_controller.cli.local", "down", "Stop it with all its pods; nothing is left running."),
    "status": Entry("edl_controller.cli.local", "status", "Tell whether it is up, its nodes and its jobs."),
    "run": Entry("edl_controller.cli.local", "run", "Run jobs from beginning to end, with a live table."),
}

_UP_WITHIN = 30.0
_DOWN_WITHIN = 120.0
"""Seconds until a start or a stop counts as failed."""

_SAY_AFTER = 3.0
"""Seconds after which people are told what is waited for."""

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
        if nodes or images:
            raise errors.ConfigurationError(
                f"a cluster is up already in {state.root} (process {serving.pid}), with its own nodes and images:"
                " `edl local down` first, or name another --root"
            )
        click.echo(f"already up (process {serving.pid}, {state.root})")
        return
    if foreground:
        serve.serve(state, nodes, images)
        return
    state.make()
    with state.log.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "edl_controller.machine.serve", str(state.root), str(images or ""), *nodes],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        serving = _until_served(state, process, begin)
    except BaseException:  # also Ctrl-C: nobody would know of it
        process.terminate()
        raise
    beside = "" if serving.pid == process.pid else "already "
    click.echo(f"{beside}up (process {serving.pid}, {state.root})")


def _until_served(state: LocalState, process: subprocess.Popen[bytes], begin: int) -> Serving:
    """Wait until the cluster is up: started by this process, or by another one at the same moment.

    Raises:
        Unavailable: it did not start; with the end of the log, which began at ``begin``.
    """
    end, said = time.monotonic() + _UP_WITHIN, time.monotonic() + _SAY_AFTER
    while (serving := state.serving()) is None:
        failed = process.poll() is not None and not state.taken()
        if failed or time.monotonic() > end:
            raise errors.Unavailable(f"the cluster did not start; the end of {state.log}:\n{_end_of(state.log, begin)}")
        if time.monotonic() > said:
            said = float("inf")
            click.echo("starting ...", err=True)
        threading.Event().wait(_LOOK_EVERY)
    return serving


def _end_of(path: Path, begin: int) -> str:
    lines = path.read_bytes()[begin:].decode(errors="backslashreplace").splitlines()
    return "\n".join("  " + line for line in lines[-8:])


@click.command()
@click.option("--purge", is_flag=True, help="Also remove the objects, logs and volumes.")
@root_option
def down(purge: bool, root: Path | None) -> None:
    """Stop the cluster of this machine with all its pods. Jobs are kept, and go on at the next `up`."""
    state = local_state(root)
    if purge and state.foreign:
        raise errors.ConfigurationError(f"{state.root} is no cluster's folder: nothing is removed")
    serving = _settled(state)
    if serving is not None:
        _stop(state, serving.pid)
    click.echo("down" if serving else "was not up")
    if purge:
        _purge(state)


def _settled(state: LocalState) -> Serving | None:
    """Return who serves the cluster, once it neither starts nor stops any more.

    Raises:
        Unavailable: it takes too long.
    """
    end = time.monotonic() + _DOWN_WITHIN
    while (serving := state.serving()) is None and state.taken():
        if time.monotonic() > end:
            raise errors.Unavailable(f"the cluster in {state.root} neither starts nor stops; see {state.log}")
        threading.Event().wait(_LOOK_EVERY)
    return serving


def _stop(state: LocalState, pid: int) -> None:
    try:
        process = os.pidfd_open(pid)  # it also tells the end of a process that nobody has waited for
    except ProcessLookupError:
        return
    with open(process, "rb", buffering=0):
        signal.pidfd_send_signal(process, signal.SIGTERM)
        _until_ended(state, pid, process)


def _until_ended(state: LocalState, pid: int, process: int) -> None:
    end, said = time.monotonic() + _DOWN_WITHIN, time.monotonic() + _SAY_AFTER
    while state.taken() or not select.select([process], [], [], 0)[0]:
        if time.monotonic() > end:
            raise errors.Unavailable(f"process {pid} does not end; see {state.log}")
        if time.monotonic() > said:
            said = float("inf")
            click.echo("waiting for the pods to end ...", err=True)
        threading.Event().wait(_LOOK_EVERY)


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
    from edl_controller.cli.get import Printer
    from edl_controller.cli.rows import duration
    from edl_controller.cluster.local import LocalCluster

    state = local_state(root)
    serving = find_serving(root)
    click.echo(
        f"up for {duration(time.time() - serving.since)}: process {serving.pid}, etcd {serving.endpoints}, {state.root}"
    )
    with LocalCluster(serving.endpoints, prefix=serving.prefix) as cluster:
        shown: tuple[Kind[Any], ...] = (NODES, TRAINING_JOBS)
        for kind in shown:
            click.echo()
            items = cluster.list(kind).items
            Printer(kind, "wide", namespaces=kind.namespaced).show(items)
            if not items:
                click.echo(f"no {kind.plural}")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@node_option
@images_option
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up after so many seconds.  [default: never]")
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
    with tempfile.TemporaryDirectory(prefix="edl-local-", ignore_cleanup_errors=True) as folder:
        return run_jobs(LocalState(Path(folder)), nodes, images, jobs, timeout=timeout, plain=plain)
