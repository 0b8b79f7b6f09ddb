"""``edl-agent ready`` and ``edl-agent alive``: exec probes that ask the launcher of this container."""

import os
from collections.abc import Callable

import click

from edl_agent.cli.durations import POSITIVE_SECONDS
from edl_agent.cli.failures import ABSENT, OK, UNREACHED, say_error
from edl_agent.cli.output import say
from edl_agent.errors import Unavailable
from edl_agent.launcher.asking import ask, find

_CONTROL = click.option(
    "--control", metavar="PATH", help="The launcher's socket; default EDL_CONTROL, else the only one of this user."
)
_TIMEOUT = click.option("--timeout", type=POSITIVE_SECONDS, default=2.0, show_default=True, metavar="S")


def _probe(target: str) -> Callable[[str | None, float], int]:
    def asked(control: str | None, timeout: float) -> int:
        try:
            status, text = ask(find(control, os.environ), "GET", target, timeout)
        except Unavailable as error:
            say_error(f"Error: {error}")
            return UNREACHED
        say(text)
        return OK if status == 200 else ABSENT

    return asked


@click.command()
@_CONTROL
@_TIMEOUT
def ready(control: str | None, timeout: float) -> int:
    """Exit with 0 when the slot is held, the command runs and no drain was asked; else with 1 and the reason.

    Exits with 3 where no launcher answers.
    """
    return _probe("/ready")(control, timeout)


@click.command()
@_CONTROL
@_TIMEOUT
def alive(control: str | None, timeout: float) -> int:
    """Exit with 0 while there is progress: the launcher's loop, the keepalives, and the command (--progress-file).

    Exits with 1 and the reason where there is none, with 3 where no launcher answers. Waiting for etcd or a slot is no
    reason: a restart would not help.
    """
    return _probe("/alive")(control, timeout)
