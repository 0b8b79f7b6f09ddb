"""The ``edl-controller`` command. Each subcommand is imported when it is used."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import click

from edl_agent.cli.commands import Entry, LazyGroup

_COMMANDS = {
    "run": Entry("edl_controller.cli.controller_run", "run", "Look after TrainingJobs until a signal."),
    "settings": Entry(
        "edl_controller.cli.controller_run", "settings", "Print the settings that run would have, and where from."
    ),
    "crd": Entry("edl_controller.cli.controller_run", "crd", "Print the CustomResourceDefinition of TrainingJob."),
}

_OF_THE_EXTRA = ("kubernetes", "msgspec", "prometheus_client", "pythonjsonlogger", "yaml")
"""Packages that the extra ``controller`` brings."""

EXIT_STATUS_HELP = """\
  0   a clean end, after SIGTERM or SIGINT
  1   a fault: a part of the program has died (run again with --debug)
  2   wrong usage or settings: no kubeconfig, a bad value, an address that is taken
  3   the lead was lost: another replica leads; start this one again"""

_EPILOG = f"""\b
Exit status:
{EXIT_STATUS_HELP}

\b
Examples:
  edl-controller crd | kubectl apply --server-side -f -
  edl-controller run --etcd-endpoints http://etcd:2379 --http-bind :8080
  edl-controller run --cluster local --no-leader-elect
  edl-controller settings --namespace training
"""


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"edl-controller {version('edl')}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    entries=_COMMANDS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    no_args_is_help=True,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def program() -> None:
    """The controller of elastic training jobs.

    Each command has its own help: edl-controller COMMAND --help
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: default ``sys.argv[1:]``.

    Returns:
        The exit status; see ``edl-controller --help``.
    """
    from edl_agent.cli import output

    given = list(sys.argv[1:] if arguments is None else arguments)
    output.hold_standard_files()
    try:
        result: Any = program.main(
            given, prog_name="edl-controller", complete_var="_EDL_CONTROLLER_COMPLETE", standalone_mode=False
        )
        sys.stdout.flush()
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        output.silence()
        return 0
    except Exception as error:
        if "--debug" in given:
            import traceback

            with contextlib.suppress(OSError):
                traceback.print_exc()
        return _report(error)
    return result if isinstance(result, int) else 0


def _report(error: Exception) -> int:
    from edl_controller.errors import ConfigurationError, MissingExtra

    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OF_THE_EXTRA:
        error = MissingExtra(f"{error.name} is not installed: pip install 'edl[controller]'")
    known = isinstance(error, (ConfigurationError, MissingExtra))
    text = str(error) if known else f"unexpected {type(error).__name__}: {error}"
    with contextlib.suppress(OSError):
        click.echo(f"Error: {text}", err=True)
        if not known:
            click.echo("  next: run again with --debug and report what it prints", err=True)
    return 2 if known else 1


__all__ = ["EXIT_STATUS_HELP", "main", "program"]
