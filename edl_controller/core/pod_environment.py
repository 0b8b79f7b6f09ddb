"""PURE: the environment of a job's pods: the original's variables, the agent's, the user's.

Where a name is given twice, the reserved ones (`edl_controller.api.rules.environment`) are the controller's; of the
others the role's ``env`` wins over the job's, and both win over the original's. Variables that others refer to come
first, since Kubernetes expands ``$(NAME)`` only from earlier ones.

``TRAINERS`` and its like are the number at the start (``min-instance``), as the original's programs expect it. A pod's
environment cannot follow a number that changes: the live count is the number of held slots ``/trainer/<i>`` in etcd.
The launcher writes it over these variables at each start of the command (``--live-trainers``); a program that lives
longer reads it with the agent (``get_prefix("/trainer/")``).
"""

from __future__ import annotations

from edl_controller.api import quantity
from edl_controller.api.defaults import GPU
from edl_controller.api.pods import EnvVar, EnvVarSource, FieldSelector, KeySelector, ResourceRequirements
from edl_controller.api.rules.environment import RESERVED, RESERVED_PREFIX
from edl_controller.api.v1 import RoleSpec, TrainingJob
from edl_controller.core.expansion import literal
from edl_controller.core.meeting_point import MeetingPoint
from edl_controller.core.names import Role

TLS_FOLDER = "/etc/edl/etcd-tls"
LOGIN_FOLDER = "/etc/edl/etcd-login"

_DEFAULTS = {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}


def role_spec(job: TrainingJob, role: Role) -> RoleSpec:
    """Return a role's part of the spec."""
    spec = job.spec
    return {"master": spec.master, "pserver": spec.pserver, "trainer": spec.trainer}[role]


def environment(job: TrainingJob, role: Role, meeting: MeetingPoint, extra: dict[str, str]) -> tuple[EnvVar, ...]:
    """Return the variables of a role's main container.

    Args:
        job: validated.
        role: whose.
        meeting: where the agents meet.
        extra: what the way of taking part adds.
    """
    users = {
        one.name: _literal(one)
        for one in (*job.spec.env, *role_spec(job, role).env)
        if one.name not in RESERVED and not one.name.startswith(RESERVED_PREFIX)
    }
    ours = {
        **_references(),
        **_values(_DEFAULTS | _classic(job)),
        **_agent(job, role, meeting),
        **_values(extra),
    }
    return (*(one for name, one in ours.items() if name not in users), *users.values())


def agent_environment(job: TrainingJob, role: Role, meeting: MeetingPoint) -> tuple[EnvVar, ...]:
    """Return the variables of a container that holds nothing but the agent."""
    return tuple({**_references(), **_agent(job, role, meeting)}.values())


def pod_references() -> tuple[EnvVar, ...]:
    """Return what a pod is told about itself."""
    return tuple(_references().values())


def _gpus(resources: ResourceRequirements) -> int:
    return quantity.units(resources.requests.get(GPU, resources.limits.get(GPU, 0)))


def _trainer_count(resources: ResourceRequirements) -> int:
    """How many threads or devices one trainer uses: its GPUs, else its whole CPUs; at least one."""
    cpu = resources.requests.get("cpu", resources.limits.get("cpu", 1))
    return _gpus(resources) or max(1, quantity.milli(cpu) // 1000)


def _references() -> dict[str, EnvVar]:
    fields = {
        "NAMESPACE": "metadata.namespace",
        "POD_NAME": "metadata.name",
        "POD_UID": "metadata.uid",
        "POD_IP": "status.podIP",
    }
    return {
        name: EnvVar(name=name, value_from=EnvVarSource(field_ref=FieldSelector(field_path=path)))
        for name, path in fields.items()
    }


def _classic(job: TrainingJob) -> dict[str, str]:
    spec = job.spec
    trainers, resources = str(spec.trainer.min_instance), spec.trainer.resources
    entry = literal(spec.trainer.entrypoint)
    return {
        "PADDLE_JOB_NAME": job.metadata.name,
        "TRAINERS": trainers,
        "PADDLE_INIT_NUM_GRADIENT_SERVERS": trainers,
        "PSERVERS": str(spec.pserver.min_instance),
        "ENTRY": entry,
        "TOPOLOGY": entry,
        "TRAINER_PACKAGE": literal(spec.trainer.workspace),
        "PADDLE_INIT_PORT": str(spec.port),
        "PADDLE_INIT_PORTS_NUM": str(spec.ports_num),
        "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": str(spec.ports_num_for_sparse),
        "PADDLE_INIT_TRAINER_COUNT": str(_trainer_count(resources)),
        "PADDLE_INIT_NUM_PASSES": str(spec.passes),
        "PADDLE_INIT_USE_GPU": "1" if _gpus(resources) else "0",
    }


def _agent(job: TrainingJob, role: Role, meeting: MeetingPoint) -> dict[str, EnvVar]:
    values = {
        "EDL_ROLE": role,
        "EDL_NUM_PSERVERS": str(job.spec.pserver.min_instance),
        "EDL_PREFIX": meeting.prefix,
        "EDL_TTL": str(job.spec.agent.ttl_seconds or ""),
        "EDL_ETCD_ENDPOINTS": ",".join(meeting.endpoints),
    }
    if meeting.tls_secret:
        values["EDL_ETCD_CA"] = f"{TLS_FOLDER}/ca.crt"
        if meeting.client_certificate:
            values |= {"EDL_ETCD_CERT": f"{TLS_FOLDER}/tls.crt", "EDL_ETCD_KEY": f"{TLS_FOLDER}/tls.key"}
    found = _values({name: value for name, value in values.items() if value})
    if meeting.credentials_secret:
        user = KeySelector(name=meeting.credentials_secret, key="username")
        found["EDL_ETCD_USER"] = EnvVar(name="EDL_ETCD_USER", value_from=EnvVarSource(secret_key_ref=user))
        found |= _values({"EDL_ETCD_PASSWORD_FILE": f"{LOGIN_FOLDER}/password"})
    return found


def _values(values: dict[str, str]) -> dict[str, EnvVar]:
    return {name: EnvVar(name=name, value=value) for name, value in values.items()}


def _literal(one: EnvVar) -> EnvVar:
    return one if one.value_from else EnvVar(name=one.name, value=literal(one.value))
