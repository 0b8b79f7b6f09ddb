"""``edl get``: objects as a table, json, yaml or names; once, or as they change."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edl_controller import errors
from edl_controller.cli.failures import NotUp
from edl_controller.cli.target import connected, local_state, namespace_option, root_option, serving
from edl_controller.cli.words import KIND_NAME, OBJECT_NAME, find

if TYPE_CHECKING:
    from edl_controller.api.kinds import Kind
    from edl_controller.cluster.port import ObjectReader

_LOOK_EVERY = 0.5
"""Seconds between two looks whether the cluster is up."""


@click.command()
@click.argument("kind", default="tj", type=KIND_NAME)
@click.argument("names", nargs=-1, metavar="[NAME]...", type=OBJECT_NAME)
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
    """List objects of a KIND: tj (TrainingJobs, the default), pods, jobs, replicasets, nodes, events.

    KIND/NAME names one object, too.
    """
    kind, slash, name = kind.partition("/")
    names = (name, *names) if slash else names
    found = find(kind)
    where = "" if all_namespaces or not found.namespaced else namespace
    if names and all_namespaces and found.namespaced:
        raise click.UsageError("names and -A do not go together: a name is that of one namespace")
    labels = read_selector(selector)
    printer = Printer(found, output, namespaces=not where and found.namespaced, single=len(names) == 1)
    with connected(root) as cluster:
        listing = cluster.list(found, where, labels=labels)
        items = in_order([one for one in listing.items if not names or one.metadata.name in names])
        missing = sorted(set(names) - {one.metadata.name for one in items})
        if not items and not missing and output in ("table", "wide"):
            place = f" in namespace {where}" if where else ""
            click.echo(f"no {found.plural} found{place}", err=True)
        if items or not names:
            printer.show(items)
        if missing:
            raise errors.NotFound(f"no {found.name.lower()} {', '.join(map(repr, missing))} in namespace {namespace!r}")
        if watch:
            _follow(cluster, Down(root), printer, where, listing.resource_version, frozenset(names), labels)


def read_selector(text: str) -> dict[str, str]:
    """Read ``KEY=VALUE,...``.

    Raises:
        click.UsageError: it is something else.
    """
    parts = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not equals or not key.strip() or key.endswith("!") for key, equals, _ in parts):
        raise click.UsageError(f"{text!r} is no selector: write KEY=VALUE,... (all of them must hold)")
    return {key.strip(): value.lstrip("=").strip() for key, _, value in parts}


def in_order(items: Sequence[Any]) -> list[Any]:
    """Return objects as people look for them: by name, events by time."""
    from edl_controller.api.events import Event

    return sorted(
        items,
        key=lambda one: (
            one.last_seen if isinstance(one, Event) else "",
            one.metadata.namespace,
            one.metadata.name,
        ),
    )


class Printer:
    """Prints objects of one kind in one form; of a table the titles once, and columns that never get narrower."""

    def __init__(self, kind: Kind[Any], output: str, *, namespaces: bool, single: bool = False) -> None:
        self.kind = kind
        self._output, self._namespaces, self._single = output, namespaces, single
        self._widths: list[int] = []
        self._last: dict[str, list[str]] = {}
        self._documents = 0

    def show(self, items: Sequence[Any]) -> None:
        """Print a list; an empty table is nothing."""
        match self._output:
            case "table" | "wide":
                self._table([self._cells(one) for one in items])
            case "name":
                for one in items:
                    click.echo(f"{self.kind.name.lower()}/{one.metadata.name}")
            case _:
                values = [self.kind.to_json(one) for one in items]
                self._document(values[0] if self._single and values else _list_of(values))

    def change(self, obj: Any, *, deleted: bool = False) -> None:
        """Print one object again, where anything of what is shown has changed."""
        if self._output not in ("table", "wide", "name"):
            self._document(self.kind.to_json(obj))
            return
        known = self._last.get(obj.metadata.uid)
        cells = self._cells(obj, deleted=deleted)
        if known is not None and self._without_age(known) == self._without_age(cells):
            return
        if self._output == "name":
            click.echo(f"{self.kind.name.lower()}/{obj.metadata.name}" + (" deleted" if deleted else ""))
        else:
            self._table([cells])

    def _without_age(self, cells: list[str]) -> list[str]:
        age = self._titles().index("AGE")
        return cells[:age] + cells[age + 1 :]

    def _titles(self) -> list[str]:
        from edl_controller.cli import rows

        return rows.header(self.kind, wide=self._output == "wide", namespaces=self._namespaces)

    def _cells(self, obj: Any, *, deleted: bool = False) -> list[str]:
        from edl_controller.cli import rows
        from edl_controller.runtime.plain_text import printable

        wide = self._output == "wide"
        cells = rows.row(self.kind, obj, time.time(), wide=wide, namespaces=self._namespaces)
        if deleted:
            cells[2 if self._namespaces else 1] = "deleted"
        cells = [printable(cell) for cell in cells]
        self._last[obj.metadata.uid] = cells
        return cells

    def _table(self, lines: list[list[str]]) -> None:
        if not lines:
            return
        if not self._widths:
            lines = [self._titles(), *lines]
            self._widths = [0] * len(lines[0])
        self._widths = [max(width, *map(len, column)) for width, *column in zip(self._widths, *lines, strict=True)]
        for line in lines:
            padded = (cell.ljust(width) for cell, width in zip(line, self._widths, strict=True))
            click.echo("  ".join(padded).rstrip())

    def _document(self, value: Any) -> None:
        if self._output == "yaml" and self._documents:
            click.echo("---")
        self._documents += 1
        click.echo(as_text(value, self._output), nl=False)


def _list_of(values: list[Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": values}


def as_text(value: Any, output: str) -> str:
    """Write a value as json or yaml."""
    if output == "json":
        return json.dumps(value, indent=2) + "\n"
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text


class Down:
    """Is set once the cluster is down: a watch of its own would wait for it to come back."""

    def __init__(self, root: Path | None) -> None:
        self._root, self._never = root, threading.Event()
        self._served = serving(root)

    def is_set(self) -> bool:
        """Tell whether the cluster is down, or is another one by now."""
        return local_state(self._root).serving() != self._served

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it."""
        self._never.wait(_LOOK_EVERY if timeout is None else timeout)
        return self.is_set()


def _follow(
    cluster: ObjectReader,
    down: Down,
    printer: Printer,
    namespace: str,
    version: str,
    names: frozenset[str],
    labels: dict[str, str],
) -> None:
    from edl_controller.core.semantics.storage import selects

    while not down.is_set():
        try:
            for change in cluster.watch(printer.kind, namespace, version, down):
                version = change.resource_version or version
                obj = change.obj
                if obj is not None and (not names or obj.metadata.name in names) and selects(labels, obj):
                    printer.change(obj, deleted=change.type == "DELETED")
        except errors.Gone:
            listing = cluster.list(printer.kind, namespace, labels=labels)
            version = listing.resource_version
            for one in listing.items:
                if not names or one.metadata.name in names:
                    printer.change(one)
    raise NotUp("the cluster went down")
