"""``edl logs``: what the pods of a job wrote, read from the nodes' files."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edl_controller import errors
from edl_controller.cli.target import connected, local_state, namespace_option, root_option
from edl_controller.cli.words import OBJECT_NAME

if TYPE_CHECKING:
    from edl_controller.cluster.port import ObjectReader

_FOLLOW_EVERY = 0.3
"""Seconds between two looks at files that grow."""


@dataclass(frozen=True)
class LogFile:
    """One start of one container: ``<node>/logs/<namespace>_<pod>_<uid>/<container>/<restart>.log``."""

    path: Path
    pod: str
    container: str
    restart: int


def find_logs(nodes: Path, namespace: str) -> Iterator[LogFile]:
    """Yield the log files of all pods of a namespace, by pod, container and start."""
    found: list[LogFile] = []
    for path in nodes.glob(f"*/logs/{namespace}_*_*/*/*.log"):
        pod = path.parent.parent.name.split("_")[1]
        if path.stem.isdecimal():
            found.append(LogFile(path, pod, path.parent.name, int(path.stem)))
    yield from sorted(found, key=lambda file: (file.pod, file.container, file.restart))


def belongs(pod: str, name: str, role: str | None) -> bool:
    """Tell whether ``pod`` is one of job ``name`` (and role), or has this very name."""
    if pod == name:
        return True
    from edl_controller.core.names import ROLES, child_name

    names = [child_name(name, one) for one in ROLES if role in (None, one)]
    return any(re.fullmatch(rf"{re.escape(one)}-[a-z0-9]+", pod) for one in names)


@click.command()
@click.argument("name", type=OBJECT_NAME)
@click.option("--role", type=click.Choice(["master", "pserver", "trainer"]), help="Only of this role.")
@click.option("-c", "--container", help="Only of this container.")
@click.option("-p", "--previous", is_flag=True, help="Also of earlier starts of a container.")
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is written, until the pods have ended.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of each.")
@namespace_option
@root_option
def logs(
    name: str,
    role: str | None,
    container: str | None,
    previous: bool,
    follow: bool,
    tail: int | None,
    namespace: str,
    root: Path | None,
) -> None:
    """Print what the pods of job NAME wrote (or the one pod NAME), each line with its pod.

    Needs no cluster that is up: what was written is kept in files.
    """
    reader = _Reader(local_state(root).nodes, namespace, name, role, container, previous=previous or follow)
    files = reader.files()
    if not follow:
        if not files:
            raise errors.NotFound(f"no logs of {name!r} in namespace {namespace!r}")
        reader.show(files, tail, whole=True)
        return
    with connected(root) as cluster:
        if not files and _is_over(cluster, namespace, name):
            raise errors.NotFound(f"no logs of {name!r} in namespace {namespace!r}")
        reader.show(files, tail)
        while not _is_over(cluster, namespace, name):
            threading.Event().wait(_FOLLOW_EVERY)
            reader.show(reader.files())
        reader.show(reader.files(), whole=True)


def _is_over(cluster: ObjectReader, namespace: str, name: str) -> bool:
    """Tell whether nothing will be written any more: the job or pod has ended, or is gone with its pods."""
    from edl_controller.api.kinds import PODS, TRAINING_JOBS
    from edl_controller.api.meta import find_condition
    from edl_controller.cli.waiting import ended
    from edl_controller.core.semantics.pod_state import is_active

    with contextlib.suppress(errors.NotFound):
        job = cluster.get(TRAINING_JOBS, namespace, name)
        suspended = find_condition(job.status.conditions, "Suspended")
        if not ended(job) and (suspended is None or suspended.reason != "Suspended"):
            return False
    pods = [pod for pod in cluster.list(PODS, namespace).items if belongs(pod.metadata.name, name, None)]
    return not any(is_active(pod) or pod.metadata.deletion_timestamp for pod in pods)


class _Reader:
    """Prints what is new in the files of one job or pod."""

    def __init__(
        self, nodes: Path, namespace: str, name: str, role: str | None, container: str | None, *, previous: bool
    ) -> None:
        self._nodes, self._namespace, self._name, self._role = nodes, namespace, name, role
        self._container, self._previous = container, previous
        self._read: dict[Path, int] = {}

    def files(self) -> list[LogFile]:
        """Return the files that are asked for."""
        files = [one for one in find_logs(self._nodes, self._namespace) if belongs(one.pod, self._name, self._role)]
        files = [one for one in files if self._container in (None, one.container)]
        if self._previous:
            return files
        return [*{(one.path.parent.parent, one.container): one for one in files}.values()]  # the newest start of each

    def show(self, files: list[LogFile], tail: int | None = None, *, whole: bool = False) -> None:
        """Print what was not printed yet. ``whole``: also a last line without an end."""
        several = {(one.pod, one.container) for one in files}
        pods = [pod for pod, _ in several]
        for file in files:
            where = file.pod if pods.count(file.pod) == 1 else f"{file.pod}/{file.container}"
            self._show(file, "" if file.pod == self._name and len(several) == 1 else f"[{where}] ", tail, whole)

    def _show(self, file: LogFile, prefix: str, tail: int | None, whole: bool) -> None:
        begin = self._read.get(file.path, 0)
        try:
            with file.path.open("rb") as stream:
                if stream.seek(0, os.SEEK_END) < begin:  # the node has cut it
                    begin = 0
                stream.seek(begin)
                data = stream.read()
        except FileNotFoundError:  # its pod was removed just now
            return
        end = len(data) if whole else data.rfind(b"\n") + 1
        self._read[file.path] = begin + end
        lines = data[:end].decode("utf-8", "backslashreplace").split("\n")
        if lines[-1] == "":
            lines.pop()
        for line in lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]:
            click.echo(prefix + line)
