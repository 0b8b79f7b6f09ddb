"""``edl-agent drain``: the preStop hook; asks the launcher, or a sidecar, to drain, and waits until it is done."""

import json
import os
import time
from urllib.parse import quote

import click

from edl_agent.cli.durations import POSITIVE_SECONDS, SECONDS
from edl_agent.cli.failures import OK, UNREACHED, say_error
from edl_agent.errors import ConfigurationError, Unavailable
from edl_agent.launcher.asking import ask, find

_PAUSE = 0.1


@click.command()
@click.option(
    "--control", metavar="PATH", help="The launcher's socket; default EDL_CONTROL, else the only one of this user."
)
@click.option("--socket", metavar="PATH", help="A sidecar's socket; default EDL_SOCKET, where no launcher is named.")
@click.option(
    "--seconds",
    type=SECONDS,
    metavar="S",
    help="Time for the drain; default the launcher's --drain-seconds, a sidecar's the --timeout.",
)
@click.option(
    "--timeout",
    type=POSITIVE_SECONDS,
    default=25.0,
    show_default=True,
    metavar="S",
    help="How long to wait for its end; keep it below terminationGracePeriodSeconds.",
)
@click.option("--reason", default="preStop", show_default=True, metavar="TEXT", help="For people.")
def drain(control: str | None, socket: str | None, seconds: float | None, timeout: float, reason: str) -> int:
    """Ask the launcher to drain (checkpoint, stop the command, free the slot), and wait until it has.

    With a sidecar: ask its program to go, and wait until it has detached. Exits with 0 when that is done, with 3 when
    it is not within --timeout, or when there is no launcher or sidecar.
    """
    sidecar = _sidecar(control, socket)
    if sidecar:
        return _drain_sidecar(sidecar, reason, timeout if seconds is None else seconds, timeout)
    end = time.monotonic() + timeout
    target = f"/drain?why={quote(reason)}" + ("" if seconds is None else f"&seconds={seconds:g}")
    try:
        path = find(control, os.environ)
        ask(path, "POST", target, timeout)
    except Unavailable as error:
        say_error(f"Error: {error}")
        return UNREACHED
    while (left := end - time.monotonic()) > 0:
        try:
            status, text = ask(path, "GET", "/state", left)
        except Unavailable:
            return OK  # it is gone
        if status == 200 and json.loads(text).get("drained"):
            return OK
        time.sleep(min(_PAUSE, max(0.0, left)))
    say_error(f"not drained within {timeout:g} s")
    return UNREACHED


def _sidecar(control: str | None, socket: str | None) -> str | None:
    """Which sidecar is meant; ``None`` = a launcher: flags win, and a launcher that is named wins over a sidecar."""
    if control and socket:
        raise ConfigurationError("--control is a launcher's, --socket a sidecar's: give one of them")
    if socket or control or os.environ.get("EDL_CONTROL"):
        return socket
    return os.environ.get("EDL_SOCKET")


def _drain_sidecar(socket: str, reason: str, seconds: float, timeout: float) -> int:
    from edl_agent.sidecar.drain_call import drain_through  # gRPC is not needed to ask a launcher

    try:
        if drain_through(socket, reason=reason, seconds=seconds, timeout=timeout):
            return OK
    except Unavailable as error:
        say_error(f"Error: {error}")
        return UNREACHED
    say_error(f"not drained within {timeout:g} s")
    return UNREACHED
