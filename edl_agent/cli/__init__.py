"""The ``edl-agent`` command. Each subcommand is a module of its own that is imported when it is used."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

# gRPC's C core logs to stderr by itself; its faults reach the user as our own errors. Set before grpc is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import click

from edl_agent.cli.commands import Entry, LazyGroup
from edl_agent.cli.failures import EXIT_STATUS_HELP, INTERNAL, USAGE, StreamFailed, report, set_command

_COMMANDS = {
    "register": Entry("edl_agent.cli.register", "register", "Hold a pserver slot until a signal; one line per change."),
    "get": Entry("edl_agent.cli.keys", "get", "Print a key's value."),
    "put": Entry("edl_agent.cli.keys", "put", "Write a key."),
    "delete": Entry("edl_agent.cli.keys", "delete", "Delete a key."),
    "slots": Entry("edl_agent.cli.slots", "slots", "Show who holds which slot."),
    "run": Entry("edl_agent.cli.run", "run", "Hold a slot for a command: environment, signals, fencing, drain."),
    "ready": Entry("edl_agent.cli.probes", "ready", "Probe: is the program of this container's launcher ready?"),
    "alive": Entry("edl_agent.cli.probes", "alive", "Probe: does it make progress?"),
    "drain": Entry("edl_agent.cli.drain", "drain", "Ask the launcher or sidecar to drain, and wait (preStop)."),
    "sidecar": Entry("edl_agent.cli.sidecar", "sidecar", "Serve a program in any language on a Unix socket."),
    "doctor": Entry("edl_agent.cli.doctor", "doctor", "Check etcd and the job's keys, and say what to do next."),
}

_EPILOG = f"""\b
Exit status:
{EXIT_STATUS_HELP}

\b
Environment (flags win):
  EDL_ETCD_ENDPOINTS, EDL_PREFIX, EDL_TTL, EDL_ETCD_USER, EDL_ETCD_PASSWORD_FILE,
  EDL_ETCD_CA, EDL_ETCD_CERT, EDL_ETCD_KEY; NO_COLOR switches colours off.

\b
Shell completion (bash; zsh and fish likewise), into your ~/.bashrc:
  eval "$(_EDL_AGENT_COMPLETE=bash_source edl-agent)"

\b
Examples:
  edl-agent doctor --endpoints http://127.0.0.1:2379
  edl-agent register --endpoints http://127.0.0.1:2379 --port 7164 --num-pservers 2
  edl-agent slots --endpoints http://127.0.0.1:2379 -o json
"""


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"edl-agent {version('edl')}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    entries=_COMMANDS,
    on_resolved=set_command,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def _program() -> None:
    """Pserver slots and keys of an elastic training job, kept in etcd.

    Each command has its own help: edl-agent COMMAND --help
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: default ``sys.argv[1:]``.

    Returns:
        The exit status; see ``edl-agent --help``.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    # Imported here, since it costs a start that only completes a word its time.
    from edl_agent.cli import output

    output.hold_standard_files()
    try:
        result: Any = _program.main(given, prog_name="edl-agent", standalone_mode=False)
    except click.ClickException as error:
        with contextlib.suppress(OSError):  # stderr is closed or full
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        if isinstance(error, OSError) and _written_by_click(error):
            error = output.unwritable(error)
        if isinstance(error, StreamFailed):
            output.silence()
        if debug:
            import traceback

            with contextlib.suppress(OSError):
                traceback.print_exc()
        return report(error)
    return result if isinstance(result, int) else 0


def _written_by_click(error: OSError) -> bool:
    """Whether this is click's own attempt to write to stdout (help, version, completion)."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code is click.echo.__code__


__all__ = ["INTERNAL", "USAGE", "main"]
