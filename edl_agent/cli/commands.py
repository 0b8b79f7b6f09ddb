"""Groups of commands that are imported when they are used, so that ``--help`` and completion are quick."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click


class Entry(NamedTuple):
    """Where a command is, and what it does in one line."""

    module: str
    name: str
    help: str


class LazyGroup(click.Group):
    """Knows its commands by name and imports one when it is called.

    Args:
        entries: name of the command to where it is.
        on_resolved: told the name of the command that will run.
    """

    def __init__(
        self,
        *args: Any,
        entries: Mapping[str, Entry],
        on_resolved: Callable[[str], None] = lambda _: None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._entries = entries
        self._on_resolved = on_resolved

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command and say which it is."""
        found = super().resolve_command(ctx, args)
        self._on_resolved(found[0] or "COMMAND")
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of use."""
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self._entries.items()])
