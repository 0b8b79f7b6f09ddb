"""Exit statuses of ``edl``, and what is said on stderr when something fails: what, and what to do next."""

from __future__ import annotations

import contextlib

import click

from edl_agent.cli.failures import StreamFailed
from edl_controller.errors import Unavailable

OK, ABSENT, USAGE, UNREACHED, REFUSED, FAILED, STREAMS, INTERNAL = 0, 1, 2, 3, 5, 6, 7, 70

EXIT_STATUS_HELP = """\
  0   done
  1   no such object
  2   wrong usage, or a TrainingJob with faults
  3   the cluster was not reached, or a wait ran out of time
  5   the cluster refused it: a conflict, no permission, an invalid object
  6   the job was waited for, and failed
  7   stdout cannot be written (closed, full)
  70  a fault of edl itself (run again with --debug)
  130 Ctrl-C; 143 SIGTERM"""


class NotUp(Unavailable):
    """There is no cluster to talk to."""


def report(error: BaseException) -> int:
    """Say on stderr what went wrong and what to do; returns the exit status."""
    status, advice = _judge(error)
    what = "\n  ".join(_lines(error))
    if status == INTERNAL:
        what = f"unexpected {type(error).__name__}: {what}"
    with contextlib.suppress(OSError):  # stderr is closed or full
        click.echo(f"Error: {what}", err=True)
        if advice:
            click.echo(f"  next: {advice}", err=True)
    return status


def _lines(error: BaseException) -> list[str]:
    faults = getattr(error, "faults", ())
    if not faults:
        return [str(error) or type(error).__name__]
    return [f"{len(faults)} fault{'s' if len(faults) > 1 else ''}:", *map(str, faults)]


def _judge(error: BaseException) -> tuple[int, str]:
    # Only reached with an error of the package, which is imported by then (start-up stays quick).
    from edl_controller import errors

    match error:
        case StreamFailed():
            return STREAMS, ""
        case errors.NotFound():
            return ABSENT, "`edl get tj -A` lists all jobs"
        case errors.ConfigurationError():
            return USAGE, ""
        case errors.InvalidTrainingJob() | errors.InvalidQuantity():
            return USAGE, "`edl example` prints a job with comments"
        case NotUp():
            return UNREACHED, "`edl local up` starts one; --root or EDL_LOCAL_ROOT names another folder"
        case errors.Unavailable():
            return UNREACHED, ""
        case errors.MissingExtra():
            return USAGE, ""
        case errors.AlreadyExists():
            return REFUSED, "choose another name, or change the object that is there"
        case errors.Conflict():
            return REFUSED, "somebody else changed it at the same time: try again"
        case errors.EdlControllerError():
            return REFUSED, ""
        case OSError():
            return USAGE, ""
        case _:
            return INTERNAL, "run again with --debug and report what it prints"
