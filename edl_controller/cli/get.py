"""``edl get``: objects as a table, json, yaml or names; once, or as they change."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edl_agent.cli.output import table
from edl_controller import errors
from edl_controller.cli.target import connected, namespace_option, root_option

if TYPE_CHECKING:
    from edl_controller.api.kinds import Kind
    from edl_controller.cluster.port import ObjectReader


@click.command()
@click.argument("kind", default="tj")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml", "name"]),
    default="table",
    help="Form of the output.",
)
@click.option("-w", "--watch", is_flag=True, help="After listing, print every change.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Of all namespaces.")
@click.option("-l", "--selector", metavar="KEY=VALUE,...", default="", help="Only objects with these labels.")
@namespace_option
@root_option
def get(
    kind: str,
    names: tuple[str, ...],
    output: str,
    watch: bool,
    all_namespaces: bool,
    selector: str,
    namespace: str,
    root: Path | None,
) -> None:
    """List objects of a KIND: tj (TrainingJobs, the default), pods, jobs, replicasets, nodes, events."""
    found = find(kind)
    where = "" if all_namespaces or not found.namespaced else namespace
    labels = dict(part.split("=", 1) for part in selector.split(",") if "=" in part)
    with connected(root) as cluster:
        listing = cluster.list(found, where, labels=labels)
        items = [one for one in listing.items if not names or one.metadata.name in names]
        missing = sorted(set(names) - {one.metadata.name for one in items})
        show(found, items, output, namespaces=not where and found.namespaced, single=len(names) == 1)
        if missing:
            raise errors.NotFound(f"{found.plural} not found: {', '.join(missing)}")
        if watch:
            _follow(cluster, found, where, listing.resource_version, output, names)


def find(word: str) -> Kind[Any]:
    """Return the kind that the user means.

    Raises:
        click.UsageError: there is none of this name.
    """
    from edl_controller.api.kinds import ALL, find_kind

    kind = find_kind(word)
    if kind is None:
        raise click.UsageError(
            f"there is no kind {word!r}; kinds are tj, {', '.join(sorted(one.plural for one in ALL))}"
        )
    return kind


def show(kind: Kind[Any], items: Sequence[Any], output: str, *, namespaces: bool, single: bool) -> None:
    """Print objects in the form that was asked for."""
    from edl_controller.cli import rows

    match output:
        case "name":
            for one in items:
                click.echo(f"{kind.name.lower()}/{one.metadata.name}")
        case "json" | "yaml":
            values = [kind.to_json(one) for one in items]
            value: Any = values[0] if single and values else {"apiVersion": "v1", "kind": "List", "items": values}
            click.echo(as_text(value, output), nl=False)
        case _:
            wide = output == "wide"
            if not items:
                click.echo(f"no {kind.plural} found", err=True)
                return
            now = time.time()
            cells = [rows.row(kind, one, now, wide=wide, namespaces=namespaces) for one in items]
            click.echo(table(rows.header(kind, wide=wide, namespaces=namespaces), cells))


def as_text(value: Any, output: str) -> str:
    """Write a value as json or yaml."""
    if output == "json":
        return json.dumps(value, indent=2) + "\n"
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text


def _follow(
    cluster: ObjectReader, kind: Kind[Any], namespace: str, version: str, output: str, names: tuple[str, ...]
) -> None:
    stop = threading.Event()
    for change in cluster.watch(kind, namespace, version, stop):
        if change.obj is not None and (not names or change.obj.metadata.name in names):
            show(kind, [change.obj], output, namespaces=not namespace and kind.namespaced, single=True)
