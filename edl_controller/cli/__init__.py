"""The ``edl`` command (also ``kubectl edl``). Each subcommand is a module that is imported when it is used."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

# gRPC's C core logs to stderr by itself; its faults reach the user as our own errors. Set before grpc is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import click

from edl_agent.cli.commands import Entry, LazyGroup
from edl_controller.cli.failures import EXIT_STATUS_HELP, report

_COMMANDS = {
    "submit": Entry("edl_controller.cli.submit", "submit", "Create or change TrainingJobs from files."),
    "get": Entry("edl_controller.cli.get", "get", "List objects, or show one; as a table, json, yaml or names."),
    "describe": Entry("edl_controller.cli.describe", "describe", "Show a job: conditions, agents, decisions, events."),
    "logs": Entry("edl_controller.cli.logs", "logs", "Print what the pods of a job wrote."),
    "scale": Entry("edl_controller.cli.change", "scale", "Change how many trainers a job may have."),
    "suspend": Entry("edl_controller.cli.change", "suspend", "Stop a job's pods and keep the job."),
    "resume": Entry("edl_controller.cli.change", "resume", "Let a suspended job go on."),
    "delete": Entry("edl_controller.cli.change", "delete", "Delete jobs with all that belongs to them."),
    "validate": Entry("edl_controller.cli.submit", "validate", "Check files without a cluster; every fault at once."),
    "example": Entry("edl_controller.cli.submit", "example", "Print a TrainingJob with comments to begin with."),
    "local": Entry("edl_controller.cli.local", "local", "A cluster on this machine: up, down, status, run."),
}

_EPILOG = f"""\b
Exit status:
{EXIT_STATUS_HELP}

\b
Environment (flags win):
  EDL_LOCAL_ROOT     folder of the cluster of this machine
  EDL_NAMESPACE      namespace; default "default"
  NO_COLOR           switches colours off

\b
Shell completion, also of the names of jobs:
  bash, into ~/.bashrc:  eval "$(_EDL_COMPLETE=bash_source edl)"
  zsh, into ~/.zshrc:    eval "$(_EDL_COMPLETE=zsh_source edl)"
  fish:                  _EDL_COMPLETE=fish_source edl | source

\b
Examples:
  edl example > job.yaml
  edl validate job.yaml
  edl local up
  edl submit job.yaml
  edl get tj -w
  edl local run job.yaml
"""


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"edl {version('edl')}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    entries=_COMMANDS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks (also after the command).")
def program() -> None:
    """Elastic training jobs: submit them, look at them, change them.

    Each command has its own help: edl COMMAND --help
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: default ``sys.argv[1:]``.

    Returns:
        The exit status; see ``edl --help``.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in _before_dashes(given)
    if debug:
        given = [one for one in _before_dashes(given) if one != "--debug"] + given[len(_before_dashes(given)) :]
    # Imported here, since it costs a start that only completes a word its time.
    from edl_agent.cli import output

    output.hold_standard_files()
    try:
        result: Any = program.main(given, prog_name=_called_as(), complete_var="_EDL_COMPLETE", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        with contextlib.suppress(OSError):  # stderr is closed or full
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:  # the reader of stdout went away, such as `head`
        output.silence()
        return 0
    except Exception as error:
        if isinstance(error, OSError) and _is_of_stdout(error):
            output.silence()
            error = output.unwritable(error)
        if debug:
            import traceback

            with contextlib.suppress(OSError):
                traceback.print_exc()
        return report(error)
    return result if isinstance(result, int) else 0


def _before_dashes(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def _called_as() -> str:
    return "kubectl edl" if os.path.basename(sys.argv[0]).startswith("kubectl") else "edl"


def _is_of_stdout(error: OSError) -> bool:
    """Whether a write to stdout failed; errors of files carry their names."""
    return error.filename is None and error.errno in (errno.EBADF, errno.ENOSPC, errno.EIO)


__all__ = ["main", "program"]
