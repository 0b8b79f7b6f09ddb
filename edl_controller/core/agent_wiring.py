"""PURE: how a program takes part: what is started in its container, who probes it, what runs beside it.

- ``Launcher``: ``edl-agent run ... -- COMMAND`` holds the slot, fences, drains, answers the probes.
- ``Library``: the program imports ``edl_agent`` and does that itself; a pod is ready when its container runs.
- ``Sidecar``: the program asks an agent in a native sidecar, over a Unix socket in a folder that they share.
- ``Classic``: the original's start script of the image; it takes the program from ``ENTRY``.

Commands are lists from end to end; no shell is started, and what users wrote is not expanded by Kubernetes.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl_controller.api.pods import Container, EmptyDir, ExecAction, HttpGetAction, Probe, Volume, VolumeMount
from edl_controller.api.rules.programs import words as split_words
from edl_controller.api.v1 import RoleSpec, TrainingJob
from edl_controller.core.expansion import literal
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.names import Role
from edl_controller.core.pod_environment import role_spec

SOCKET_FOLDER = "/run/edl"
SOCKET = f"{SOCKET_FOLDER}/agent/agent.sock"
"""In a folder below the volume: the agent makes it for its own user only."""

SOCKET_VOLUME = "edl-agent-socket"

_VOLUME = Volume(name=SOCKET_VOLUME, empty_dir=EmptyDir(medium="Memory"))
_MOUNT = VolumeMount(name=SOCKET_VOLUME, mount_path=SOCKET_FOLDER)

_DRAIN_MARGIN = 5
"""Seconds between the end of a pserver's drain and SIGKILL by the kubelet."""


@dataclass(frozen=True)
class Wiring:
    """What a way of taking part adds to a pod.

    Attributes:
        command: of the main container; empty: the image's own entry point.
        args: to it.
        working_dir: of the main container; empty: the image's.
        readiness: probe of the main container.
        liveness: probe of the main container.
        environment: further variables of the main container.
        sidecars: native sidecars; their environment, security and volumes are the caller's.
        volumes: for the agent's socket.
        mounts: of these volumes, in all containers.
    """

    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    readiness: Probe | None = None
    liveness: Probe | None = None
    environment: tuple[tuple[str, str], ...] = ()
    sidecars: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    mounts: tuple[VolumeMount, ...] = ()


def words(spec: RoleSpec) -> tuple[str, ...]:
    """Return a role's command as the user wrote it, as a list.

    Raises:
        ValueError: a quotation in ``entrypoint`` has no end.
    """
    return spec.command or tuple(split_words(spec.entrypoint))


def classic_start(job: TrainingJob, role: Role) -> tuple[str, ...]:
    """Return the original's start command."""
    new = "new_" if job.spec.fault_tolerant else ""
    return ("paddle_k8s", "start_master" if role == "master" else f"start_{new}{role}")


def wire(job: TrainingJob, role: Role, settings: JobSettings, *, read_only_root: bool = False) -> Wiring:
    """Return what a role's pods start.

    Args:
        job: validated.
        role: whose.
        settings: of the operator.
        read_only_root: the job wants its containers so; a launcher is then given a folder for its socket.
    """
    spec, mode = role_spec(job, role), job.spec.agent.mode
    if mode == "Classic":
        return Wiring(*_split(words(spec) if role != "trainer" and words(spec) else classic_start(job, role)))
    command = tuple(map(literal, words(spec)))
    folder = literal(spec.workspace) if spec.workspace.startswith("/") else ""
    # Without pservers there is nothing that a launcher could wait for or hand on: the command runs as it is.
    if mode == "Launcher" and role != "master" and job.spec.pserver.min_instance:
        return _launched(job, role, command or classic_start(job, role), folder, settings, read_only_root)
    if mode == "Sidecar" and role != "master":
        return _with_sidecar(job, role, command, folder, settings)
    return Wiring(*_split(command), working_dir=folder)


def _split(command: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return command[:1], command[1:]


def _launched(
    job: TrainingJob, role: Role, command: tuple[str, ...], folder: str, settings: JobSettings, read_only_root: bool
) -> Wiring:
    flags = ["--role", role]
    if role == "pserver":
        flags += ["--port", str(job.spec.port), "--num-pservers", str(job.spec.pserver.min_instance), "--wait-pservers"]
        grace = role_spec(job, role).template.termination_grace_period_seconds
        if grace is None:
            grace = job.spec.template.termination_grace_period_seconds
        if grace is not None:
            flags += ["--drain-seconds", str(max(1, grace - _DRAIN_MARGIN))]
    else:
        flags += ["--live-trainers"]
    port = 0 if job.spec.host_network else settings.probe_port
    if port:
        flags += ["--probe-port", str(port), "--probe-host", "$(POD_IP)"]
    return Wiring(
        (*settings.agent_command, "run", *flags, "--"),
        command,
        working_dir=folder,
        readiness=_probe("ready", port, settings, period=2 if port else 10),
        liveness=_probe("alive", port, settings, period=20),
        # Elsewhere /tmp does, and a node that cannot mount has nothing to report.
        environment=(("EDL_RUN_DIR", f"{SOCKET_FOLDER}/agent"),) if read_only_root else (),
        volumes=(_VOLUME,) if read_only_root else (),
        mounts=(_MOUNT,) if read_only_root else (),
    )


def _probe(question: str, port: int, settings: JobSettings, *, period: int) -> Probe:
    """Return a probe. Starting Python to ask takes its time, so does a busy node: 5 s."""
    if port:
        return Probe(http_get=HttpGetAction(port=port, path=f"/{question}"), period_seconds=period, timeout_seconds=5)
    return Probe(exec=ExecAction(command=(*settings.agent_command, question)), period_seconds=period, timeout_seconds=5)


def _with_sidecar(job: TrainingJob, role: Role, command: tuple[str, ...], folder: str, settings: JobSettings) -> Wiring:
    flags = ["--socket", SOCKET]
    if role == "pserver":
        flags += ["--num-pservers", str(job.spec.pserver.min_instance)]
    sidecar = Container(
        name="edl-agent",
        image=job.spec.agent.image or role_spec(job, role).image,
        command=(*settings.agent_command, "sidecar", *flags),
        restart_policy="Always",
    )
    return Wiring(
        *_split(command),
        working_dir=folder,
        environment=(("EDL_SOCKET", SOCKET),),
        sidecars=(sidecar,),
        volumes=(_VOLUME,),
        mounts=(_MOUNT,),
    )
