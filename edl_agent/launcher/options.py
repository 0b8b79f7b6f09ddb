"""What ``edl-agent run`` was told on its command line, beyond the client's settings."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from edl_agent.launcher.policy import Rules


@dataclass(frozen=True, slots=True)
class Options:
    """Everything beyond the client's settings.

    Attributes:
        command: list of arguments, never a shell string.
        rules: for `policy`.
        name: under which this process reports and is asked to drain.
        endpoints: as exported.
        prefix: as exported.
        port: of the program.
        host: to register or to tell, ``None`` = as the client finds it.
        num_trainers: as told by the user.
        live_trainers: whether the trainers that hold a slot are counted at each start.
        tf_config: whether to write ``TF_CONFIG``.
        socket: of a sidecar, exported.
        control: path of the launcher's own socket, exported; empty = none.
        control_required: whether to end where it cannot be made.
        probe_host: for probes over HTTP.
        probe_port: ``None`` = none.
        progress_file: that the command writes now and then.
        progress_timeout: seconds without a change of it after which the command is stuck.
        hook: checkpoint command of a pserver, run before it is stopped.
        checkpoint_signal: sent to the command in place of a hook.
        change_signal: for new pservers.
        drain_seconds: from SIGTERM to the end.
        ready_file: that the program makes when it serves; removed before each start.
    """

    command: Sequence[str]
    rules: Rules
    name: str
    endpoints: str = ""
    prefix: str = ""
    port: int | None = None
    host: str | None = None
    num_trainers: int | None = None
    live_trainers: bool = False
    tf_config: bool = False
    socket: str = ""
    control: str = ""
    control_required: bool = False
    probe_host: str = "127.0.0.1"
    probe_port: int | None = None
    progress_file: str = ""
    progress_timeout: float = 300.0
    hook: Sequence[str] = ()
    checkpoint_signal: int | None = None
    change_signal: int = signal.SIGHUP
    drain_seconds: float = 20.0
    ready_file: str = ""
