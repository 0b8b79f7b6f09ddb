"""``edl-controller run``, ``settings`` and ``crd``. The options are made from the table of settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from edl_controller.cli.controller_program import EXIT_STATUS_HELP
from edl_controller.program.read_settings import CONFIG, EffectiveSettings, read
from edl_controller.program.settings import ROWS, Row

Command = TypeVar("Command", bound=Callable[..., Any])

_EPILOG = f"""\b
Flags win over the environment, that over the file, that over the defaults.

\b
Exit status:
{EXIT_STATUS_HELP}
"""


def _shown(row: Row) -> str:
    default = f"; default: {row.shown_default}" if row.shown_default else ""
    return f"  [{row.environment}{default}]"


def _option(row: Row) -> Callable[[Command], Command]:
    text = row.reason + _shown(row)
    if row.kind == "switch":
        return click.option(f"{row.flag}/--no-{row.flag[2:]}", row.name, default=None, help=text)
    metavar = "|".join(row.choices) or row.unit.upper() or ("TEXT" if row.kind == "text" else None)
    if row.kind == "list":
        return click.option(row.flag, row.name, multiple=True, metavar=f"{row.unit.upper() or 'NAME'},...", help=text)
    return click.option(row.flag, row.name, default=None, metavar=metavar, help=text)


def settings_options(command: Command) -> Command:
    """Add an option for each setting, ``--config`` and ``--debug``."""
    command = click.option("--debug", is_flag=True, help="As --log-level debug; and show tracebacks.")(command)
    for row in reversed(ROWS):
        command = _option(row)(command)
    return click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"File of settings (YAML): the flags' names without dashes before.  [{CONFIG}]",
    )(command)


def effective(given: dict[str, Any]) -> EffectiveSettings:
    """Put together the settings of a command.

    Raises:
        ConfigurationError: one of them cannot be.
    """
    file, debug = given.pop("config"), given.pop("debug")
    if debug:
        given["log_level"] = "debug"
    return read(given, os.environ, file)


@click.command(epilog=_EPILOG)
@click.option("--print-settings", is_flag=True, help="Print the settings as `edl-controller settings` does, and end.")
@settings_options
def run(print_settings: bool, **given: Any) -> int:
    """Look after TrainingJobs until SIGTERM or SIGINT.

    Several replicas may run: one leads (by a Lease), the others wait with their caches filled.
    """
    found = effective(given)
    if print_settings:
        click.echo(found.render(), nl=False)
        return 0
    from edl_controller.program.run import run as run_program
    from edl_controller.runtime import logs

    logs.configure(found.settings.log_format, found.settings.log_level.upper())
    return run_program(found.settings)


@click.command()
@settings_options
def settings(**given: Any) -> None:
    """Print the settings that run would have with the same flags, environment and file; a file for --config, too."""
    click.echo(effective(given).render(), nl=False)


@click.command()
def crd() -> None:
    """Print the CustomResourceDefinition of TrainingJob, for `kubectl apply --server-side`."""
    from edl_controller.api.crd import render

    click.echo(render(), nl=False)
