"""PURE: what a TrainingJob means where it says nothing. Applied whenever one is read, never written back."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from edl_controller.api.pods import Quantities, ResourceRequirements
from edl_controller.api.settings import Settings
from edl_controller.api.v1 import (
    AgentSpec,
    Autoscaling,
    PserverSpec,
    RoleSpec,
    TrainingJob,
    TrainingJobSpec,
)

GPU = "nvidia.com/gpu"
"""The resource that counts GPUs today."""
ALPHA_GPU = "alpha.kubernetes.io/nvidia-gpu"
"""The original's name for it, which Kubernetes refuses since 1.11; read as `GPU`."""

MASTER_RESOURCES = ResourceRequirements(requests={"cpu": "1", "memory": "500Mi"}, limits={"cpu": "2", "memory": "1Gi"})
"""The original's, of a master that brings etcd."""

ENDLESS_BACKOFF = 1_000_000
"""Failed trainers that a fault-tolerant job survives: in effect all, since each is waited for longer and longer."""

Role = TypeVar("Role", bound=RoleSpec)


def with_defaults(job: TrainingJob, settings: Settings = Settings()) -> TrainingJob:  # noqa: B008 - frozen
    """Return the job with every default filled in. Doing it twice changes nothing; nothing given is changed.

    Zero counts as not given for ``port``, ``ports_num``, ``ports_num_for_sparse`` and ``passes``, as in the original.
    """
    spec = job.spec
    image = spec.image or settings.default_image
    low, high = _bounds(spec.trainer.min_instance, spec.trainer.max_instance, otherwise=1)
    trainer = replace(_role(spec.trainer, image), min_instance=low, max_instance=high)
    # Without a word about pservers there are none.
    low, high = _bounds(spec.pserver.min_instance, spec.pserver.max_instance, otherwise=int(_mentioned(spec.pserver)))
    pserver = replace(_role(spec.pserver, image), min_instance=low, max_instance=high)
    agent = _agent(spec.agent, pserver)
    # The original's programs look for etcd in the master pod, and know no prefix to share another one by.
    shared = settings.external_etcd and agent.mode != "Classic"
    mode = spec.etcd.mode or ("External" if spec.etcd.endpoints or shared else "Master")
    master = _role(spec.master, image)
    if mode == "Master" and master.resources == ResourceRequirements():
        master = replace(master, resources=MASTER_RESOURCES)
    filled = replace(
        spec,
        image=image,
        port=spec.port or 7164,
        ports_num=spec.ports_num or 1,
        ports_num_for_sparse=spec.ports_num_for_sparse or 1,
        passes=spec.passes or 1,
        trainer=trainer,
        pserver=pserver,
        master=master,
        etcd=replace(spec.etcd, mode=mode),
        agent=agent,
        autoscaling=_autoscaling(spec.autoscaling),
        clean_pod_policy=spec.clean_pod_policy or "Running",
        backoff_limit=_first(spec.backoff_limit, ENDLESS_BACKOFF if spec.fault_tolerant else 0),
    )
    return replace(job, spec=filled)


def is_elastic(spec: TrainingJobSpec) -> bool:
    """Tell whether the number of trainers may change: ``min-instance`` is less than ``max-instance``."""
    return (spec.trainer.min_instance or 0) < (spec.trainer.max_instance or 0)


def has_command(role: RoleSpec) -> bool:
    """Tell whether the user says what this role runs."""
    return bool(role.command or role.entrypoint)


def has_master(spec: TrainingJobSpec) -> bool:
    """Tell whether the job (with its defaults) has a master pod: to bring etcd, or to run the user's command."""
    return spec.etcd.mode == "Master" or has_command(spec.master)


def _bounds(low: int | None, high: int | None, *, otherwise: int) -> tuple[int, int]:
    """One bound alone is both; a negative or contradictory one stays, for validation to name."""
    if low is None:
        low = high if high is not None else otherwise
    return low, high if high is not None else low


def _mentioned(role: PserverSpec) -> bool:
    return role != PserverSpec()


def _role(role: Role, image: str) -> Role:
    return replace(role, image=role.image or image, resources=with_present_names(role.resources))


def with_present_names(resources: ResourceRequirements) -> ResourceRequirements:
    """Return the resources with GPUs under their present name; one given under that name wins."""
    return replace(resources, limits=_renamed(resources.limits), requests=_renamed(resources.requests))


def _renamed(amounts: Quantities) -> Quantities:
    if ALPHA_GPU not in amounts:
        return amounts
    rest = {name: amount for name, amount in amounts.items() if name != ALPHA_GPU}
    return {GPU: amounts[ALPHA_GPU], **rest}


def _agent(agent: AgentSpec, pserver: PserverSpec) -> AgentSpec:
    classic = bool(pserver.min_instance) and not has_command(pserver)  # its command is in the image, as in the original
    return replace(
        agent, mode=agent.mode or ("Classic" if classic else "Launcher"), ttl_seconds=_first(agent.ttl_seconds, 10)
    )


def _autoscaling(given: Autoscaling) -> Autoscaling:
    return replace(
        given,
        enabled=given.enabled is not False,
        scale_up_cooldown_seconds=_first(given.scale_up_cooldown_seconds, 30),
        scale_down_cooldown_seconds=_first(given.scale_down_cooldown_seconds, 0),
        drain_seconds=_first(given.drain_seconds, 30),
        priority=_first(given.priority, 0),
        weight=_first(given.weight, 1),
    )


def _first(given: int | None, otherwise: int) -> int:
    return otherwise if given is None else given
