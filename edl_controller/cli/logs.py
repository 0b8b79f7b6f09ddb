"""``edl logs``: what the pods of a job wrote, read from the nodes' files."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from edl_controller import errors
from edl_controller.cli.target import local_state, namespace_option, root_option

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
    """Yield the log files of all pods of a namespace, oldest first."""
    found: list[tuple[float, LogFile]] = []
    for path in nodes.glob(f"*/logs/{namespace}_*_*/*/*.log"):
        pod = path.parent.parent.name.split("_")[1]
        if path.stem.isdecimal():
            found.append((path.stat().st_mtime, LogFile(path, pod, path.parent.name, int(path.stem))))
    yield from (file for _, file in sorted(found, key=lambda pair: (pair[1].pod, pair[1].container, pair[1].restart)))


def belongs(file: LogFile, name: str, role: str | None) -> bool:
    """Tell whether a file is of job ``name`` (and role), or of the pod ``name``."""
    if file.pod == name:
        return True
    from edl_controller.core.names import ROLES, child_name

    names = [child_name(name, one) for one in ROLES if role in (None, one)]
    return any(re.fullmatch(rf"{re.escape(one)}-[a-z0-9]+", file.pod) for one in names)


@click.command()
@click.argument("name")
@click.option("--role", type=click.Choice(["master", "pserver", "trainer"]), help="Only of this role.")
@click.option("-c", "--container", help="Only of this container.")
@click.option("-p", "--previous", is_flag=True, help="Also of earlier starts of a container.")
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is written.")
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
    """Print what the pods of job NAME wrote (or the one pod NAME), each line with its pod."""
    nodes = local_state(root).nodes
    seen: dict[Path, int] = {}
    while True:
        files = [one for one in find_logs(nodes, namespace) if belongs(one, name, role)]
        files = [one for one in files if container in (None, one.container)]
        if not previous and not follow:
            newest = {(one.pod, one.container): one for one in files}
            files = list(newest.values())
        if not files and not follow:
            raise errors.NotFound(f"no logs of {name!r} in namespace {namespace!r}")
        single = len({(one.pod, one.container) for one in files}) == 1
        for file in files:
            _print_new(file, seen, "" if single and not follow else f"[{file.pod}] ", tail)
        if not follow:
            return
        threading.Event().wait(_FOLLOW_EVERY)


def _print_new(file: LogFile, seen: dict[Path, int], prefix: str, tail: int | None) -> None:
    begin = seen.get(file.path, 0)
    with file.path.open("rb") as stream:
        stream.seek(begin)
        data = stream.read()
    end = len(data) if data.endswith(b"\n") or not data else data.rfind(b"\n") + 1
    seen[file.path] = begin + end
    lines = data[:end].decode("utf-8", "backslashreplace").splitlines()
    if tail is not None and begin == 0:
        lines = lines[len(lines) - min(tail, len(lines)) :]
    for line in lines:
        click.echo(prefix + line)
