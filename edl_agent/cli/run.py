"""``edl-agent run``: hold a slot for a command, with its environment, its signals, its end."""

import contextlib
import logging
import os
import shlex
import signal
from typing import Literal

import click

from edl_agent.address import check_port, configured_host
from edl_agent.cli.durations import POSITIVE_SECONDS
from edl_agent.cli.failures import report
from edl_agent.cli.options import Common, shared_options
from edl_agent.errors import ConfigurationError, EdlAgentError
from edl_agent.keys import Role
from edl_agent.launcher.asking import socket_path
from edl_agent.launcher.options import Options
from edl_agent.launcher.policy import Rules, describe
from edl_agent.launcher.run import Launcher
from edl_agent.reporting import check_report_name

_log = logging.getLogger(__name__)

_PSERVER_DRAIN, _TRAINER_DRAIN = 20.0, 1.8
_PSERVER_GRACE, _TRAINER_GRACE = 5.0, 1.4

_TERMINATION_LOG = "/dev/termination-log"
_TERMINATION_LIMIT = 4096
"""Bytes; the kubelet keeps no more."""


def _signal_number(name: str) -> int:
    wanted = name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
    with contextlib.suppress(KeyError):
        return int(signal.Signals[wanted])
    raise ConfigurationError(f"there is no signal {name!r}")


@click.command(context_settings={"ignore_unknown_options": False})
@click.option("--role", type=click.Choice(["pserver", "trainer"]), required=True, help="What the command is.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="P", help="TCP port of the command; pservers need one.")
@click.option("--host", metavar="H", help="Address to register; default POD_IP, else the source of the route to etcd.")
@click.option(
    "--num-pservers",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Create /ps_desired with N where it is absent; an existing value wins.",
)
@click.option("--num-trainers", type=click.IntRange(1), metavar="N", help="For PADDLE_TRAINERS_NUM and its like.")
@click.option(
    "--live-trainers",
    is_flag=True,
    help="At each start of the command TRAINERS and its like are the number of trainers that hold a slot, at least "
    "what --num-trainers or TRAINERS says.",
)
@click.option("--name", metavar="NAME", help="For reports and drain requests; default POD_NAME, else hostname-pid.")
@click.option(
    "--restart",
    type=click.Choice(["never", "on-failure", "always"]),
    default="never",
    show_default=True,
    help="Start the command again when it ended by itself.",
)
@click.option(
    "--max-restarts", type=click.IntRange(0), default=10, show_default=True, metavar="N", help="In a row; then exit."
)
@click.option(
    "--backoff",
    type=POSITIVE_SECONDS,
    default=1.0,
    show_default=True,
    metavar="S",
    help="Before the first restart; doubled for each further one, at most 60.",
)
@click.option(
    "--on-loss",
    type=click.Choice(["restart", "exit"]),
    default="restart",
    show_default=True,
    help="When the slot was lost (the command is killed in any case): claim one again and start anew, or exit with 4.",
)
@click.option(
    "--on-pserver-change",
    type=click.Choice(["restart", "signal", "ignore"]),
    help="When a pserver has another address or epoch: stop the command and start it with the new list, send it a "
    "signal, or nothing. Default: restart for trainers, ignore for pservers.",
)
@click.option(
    "--change-signal", default="HUP", show_default=True, metavar="SIG", help="For --on-pserver-change signal."
)
@click.option("--wait-pservers", is_flag=True, help="A pserver too is started only when all pservers are registered.")
@click.option("--trainer-zero-first", is_flag=True, help="Other trainers wait until trainer 0 runs (--ready-file).")
@click.option("--ready-file", default="", metavar="FILE", help="Made by the command when it serves.")
@click.option("--tf-config", is_flag=True, help="Write TF_CONFIG too.")
@click.option("--socket", envvar="EDL_SOCKET", default="", metavar="PATH", help="A sidecar's, given to the command.")
@click.option(
    "--checkpoint-hook",
    default="",
    metavar="CMD",
    help="Run before a pserver is stopped by a drain; split into words like a shell does, but not run by one.",
)
@click.option("--checkpoint-signal", metavar="SIG", help="In place of a hook: sent to the command, which then ends.")
@click.option(
    "--drain-seconds",
    type=POSITIVE_SECONDS,
    metavar="S",
    help=f"From SIGTERM to the end, at most; default {_PSERVER_DRAIN:g} for pservers, {_TRAINER_DRAIN:g} for trainers.",
)
@click.option(
    "--stop-grace",
    type=POSITIVE_SECONDS,
    metavar="S",
    help=f"From the command's SIGTERM to SIGKILL; default {_PSERVER_GRACE:g} for pservers, {_TRAINER_GRACE:g} for "
    "trainers. None when the slot is lost.",
)
@click.option("--exit-when-drained", is_flag=True, help="Do not wait to be removed after a drain requested in etcd.")
@click.option(
    "--probe-port", type=click.IntRange(0, 65535), metavar="P", help="Serve /ready and /alive over HTTP; 0 = any port."
)
@click.option(
    "--probe-host",
    default="127.0.0.1",
    show_default=True,
    metavar="H",
    help="For --probe-port. A kubelet's httpGet comes from outside the pod: 0.0.0.0, or :: for IPv6.",
)
@click.option(
    "--progress-file",
    default="",
    metavar="FILE",
    help="Written or touched by the command now and then; a JSON object with step, samples, busy, queue or "
    "checkpoint_age goes into the report.",
)
@click.option(
    "--progress-timeout",
    type=POSITIVE_SECONDS,
    default=300.0,
    show_default=True,
    metavar="S",
    help="Not alive when --progress-file has not changed for so long.",
)
@click.option(
    "--control",
    metavar="PATH",
    help="Socket for ready, alive, drain; default NAME.sock in EDL_RUN_DIR or /tmp/edl-UID.",
)
@click.option(
    "--termination-log",
    envvar="TERMINATION_LOG",
    metavar="FILE",
    help=f"Gets the reason of the end; default {_TERMINATION_LOG} where it exists.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND ...")
@shared_options(logging.INFO)
def run(
    common: Common,
    role: Role,
    port: int | None,
    host: str | None,
    num_pservers: int | None,
    num_trainers: int | None,
    live_trainers: bool,
    name: str | None,
    restart: Literal["never", "on-failure", "always"],
    max_restarts: int,
    backoff: float,
    on_loss: Literal["restart", "exit"],
    on_pserver_change: Literal["restart", "signal", "ignore"] | None,
    change_signal: str,
    wait_pservers: bool,
    trainer_zero_first: bool,
    ready_file: str,
    tf_config: bool,
    socket: str,
    checkpoint_hook: str,
    checkpoint_signal: str | None,
    drain_seconds: float | None,
    stop_grace: float | None,
    exit_when_drained: bool,
    probe_port: int | None,
    probe_host: str,
    progress_file: str,
    progress_timeout: float,
    control: str | None,
    termination_log: str | None,
    command: tuple[str, ...],
) -> int:
    """Hold a slot for COMMAND: wait for what it needs, run it, stop it when the slot is lost or on SIGTERM.

    COMMAND gets EDL_ROLE, EDL_INDEX, EDL_EPOCH, EDL_NAME, EDL_PSERVERS, EDL_NUM_PSERVERS, EDL_ETCD_ENDPOINTS,
    EDL_PREFIX and the PADDLE_* variables, in an environment of its own making; SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and
    SIGWINCH are passed on to its process group. Exits with COMMAND's code (128 + n for signal n); a trainer that is
    stopped by a signal exits with 143 (SIGINT: 130), whatever COMMAND makes of it.
    """
    if role == "pserver":
        check_port(port)
    rules = Rules(
        role=role,
        restart=restart,
        max_restarts=max_restarts,
        backoff=backoff,
        on_loss=on_loss,
        on_pserver_change=on_pserver_change or ("restart" if role == "trainer" else "ignore"),
        needs_pservers=role == "trainer" or wait_pservers,
        zero_first=trainer_zero_first,
        stop_grace=stop_grace or (_PSERVER_GRACE if role == "pserver" else _TRAINER_GRACE),
        checkpoint=bool(checkpoint_hook or checkpoint_signal),
        linger=not exit_when_drained,
        start_timeout=common.timeout,
    )
    name = check_report_name(name)
    options = Options(
        command=command,
        rules=rules,
        name=name,
        endpoints=common.endpoints,
        prefix=common.prefix,
        port=port,
        host=configured_host(host, {}),
        num_trainers=num_trainers,
        live_trainers=live_trainers,
        tf_config=tf_config,
        socket=socket,
        control=control or str(socket_path(name, os.environ)),
        control_required=control is not None,
        probe_host=probe_host,
        probe_port=probe_port,
        progress_file=progress_file,
        progress_timeout=progress_timeout,
        hook=shlex.split(checkpoint_hook),
        checkpoint_signal=_signal_number(checkpoint_signal) if checkpoint_signal else None,
        change_signal=_signal_number(change_signal),
        drain_seconds=drain_seconds or (_PSERVER_DRAIN if role == "pserver" else _TRAINER_DRAIN),
        ready_file=ready_file,
    )
    try:
        code, why = Launcher(common.client(num_pservers, host=host), options).run()
    except EdlAgentError as error:
        _tell_termination(termination_log, str(error))
        return report(error)
    _tell_termination(
        termination_log, f"{why}\n" if why.endswith(f"(exit code {code})") else f"{describe(code)}: {why}\n"
    )
    _log.info("Exit with %d: %s", code, why)
    return code


def _tell_termination(path: str | None, text: str) -> None:
    """Write the reason where the kubelet looks for it. Trouble is logged, the end goes on."""
    where = path or (_TERMINATION_LOG if os.path.exists(_TERMINATION_LOG) else "")
    if not where:
        return
    try:
        # Neither made anew by rename (it is a mounted file) nor followed into a pipe that nobody reads.
        with open(os.open(where, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644), "wb") as file:
            file.write(text.encode()[:_TERMINATION_LIMIT])
    except OSError as error:
        _log.warning("The reason could not be written to %s: %s", where, error)
