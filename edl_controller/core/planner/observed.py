"""PURE: from objects and agents' words to a snapshot: what counts as a trainer, as waiting, as frozen, as lost."""

from __future__ import annotations

from collections.abc import Iterable

from edl_controller.api import timestamps
from edl_controller.api.meta import find_condition, is_true
from edl_controller.api.pods import Pod
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job
from edl_controller.core.agents import AgentState
from edl_controller.core.names import IN_SERVICE_GATE
from edl_controller.core.placement import is_over, is_terminating, shape_of
from edl_controller.core.planner.snapshot import AgentWord, JobView, TrainerPod, WaitingPod

SILENT_AFTER = 30.0
"""Seconds after it became Ready within which a trainer's agent must have reported, where others of the job have."""

DECISION = "edl-scale-"
"""How the ids of this program's drain requests begin; requests of people have others, and are left alone."""


def job_key(job: TrainingJob) -> str:
    """Return ``namespace/name/uid``: two jobs that had the same name one after the other are two."""
    return f"{job.metadata.namespace}/{job.metadata.name}/{job.metadata.uid}"


def hears_agents(job: TrainingJob) -> bool:
    """Tell whether the job's programs have agents that report (the original's programs have none)."""
    return job.spec.agent.mode != "Classic"


def is_scalable(job: TrainingJob, trainer: Job) -> bool:
    """Tell whether the trainer Job is to be looked after: it is this job's, and neither of them ends or rests."""
    owner = trainer.metadata.controller()
    over = any(is_true(trainer.status.conditions, kind) for kind in ("Complete", "Failed", "FailureTarget"))
    return (
        owner is not None
        and owner.uid == job.metadata.uid
        and not over
        and not job.spec.suspend
        and not trainer.spec.suspend
        and job.metadata.deletion_timestamp is None
        and trainer.metadata.deletion_timestamp is None
        and not any(is_true(job.status.conditions, kind) for kind in ("Succeeded", "Failed"))
    )


def active_trainers(trainer: Job, pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return the trainer Job's pods that have neither ended nor been asked to end."""
    uid = trainer.metadata.uid
    return tuple(
        pod
        for pod in pods
        if (owner := pod.metadata.controller()) is not None
        and owner.uid == uid
        and not is_over(pod)
        and not is_terminating(pod)
    )


def drains_of_ours(agents: AgentState) -> dict[str, str]:
    """Return whom this program (or one before it) has asked to drain: name to pod uid, empty where none was named."""
    return {name: request.pod_uid for name, request in agents.drain_requests if request.decision.startswith(DECISION)}


def gate_of(pod: Pod) -> str:
    """Return the status of the pod's readiness gate; ``Unset`` = nobody has set it yet; empty = it has none."""
    if all(gate.condition_type != IN_SERVICE_GATE for gate in pod.spec.readiness_gates):
        return ""
    found = find_condition(pod.status.conditions, IN_SERVICE_GATE)
    return "Unset" if found is None else found.status


def job_view(job: TrainingJob, trainer: Job, pods: Iterable[Pod], agents: AgentState, now: float) -> JobView:
    """Return how a policy sees a job.

    Args:
        job: with its defaults.
        trainer: its trainer Job.
        pods: all pods of the trainer Job.
        agents: what they say.
        now: Unix seconds.

    Raises:
        InvalidQuantity: the trainer's resources are none.
    """
    scaling, spec = job.spec.autoscaling, job.spec
    minimum = spec.trainer.min_instance or 0
    drains = drains_of_ours(agents)
    reporting = {report.name for report in agents.reports} if hears_agents(job) else set()
    grown, shrunk = _last_changes(job)
    return JobView(
        key=job_key(job),
        trainer=shape_of(trainer.spec.template.spec),
        minimum=minimum,
        maximum=max(minimum, spec.trainer.max_instance or 0),
        parallelism=1 if trainer.spec.parallelism is None else trainer.spec.parallelism,
        pods=tuple(_trainer_pod(pod, drains, reporting, now) for pod in active_trainers(trainer, pods)),
        enabled=scaling.enabled is not False,
        frozen=_frozen(trainer, agents),
        agents_age=agents.age(now) if hears_agents(job) else 0.0,
        missing_pservers=agents.missing(agents.desired or spec.pserver.min_instance or 0) if hears_agents(job) else (),
        grown=grown,
        shrunk=shrunk,
        up_cooldown=float(scaling.scale_up_cooldown_seconds or 0),
        down_cooldown=float(scaling.scale_down_cooldown_seconds or 0),
        priority=scaling.priority or 0,
    )


def waiting_pods(pods: Iterable[Pod], elastic: frozenset[str]) -> tuple[WaitingPod, ...]:
    """Return the pods that get room first: all that wait, but for those of the trainer Jobs with these uids."""
    found = []
    for pod in pods:
        owner = pod.metadata.controller()
        if owner is not None and owner.uid in elastic:
            continue
        meta = pod.metadata
        since = timestamps.parse(meta.creation_timestamp) if meta.creation_timestamp else 0.0
        found.append(WaitingPod(f"{meta.namespace}/{meta.name}", shape_of(pod.spec), pod.spec.priority or 0, since))
    return tuple(found)


def _trainer_pod(pod: Pod, drains: dict[str, str], reporting: set[str], now: float) -> TrainerPod:
    meta, status = pod.metadata, pod.status
    ready = find_condition(status.conditions, "Ready")
    since = None
    if ready is not None and ready.status == "True":
        since = timestamps.parse(ready.last_transition_time) if ready.last_transition_time else 0.0
    agent: AgentWord = ""
    if reporting:
        silent = meta.name not in reporting and since is not None and now - since > SILENT_AFTER
        agent = "lost" if silent else "reporting"
    return TrainerPod(
        meta.name,
        meta.uid,
        pod.spec.node_name,
        status.phase in ("", "Pending"),
        since,
        timestamps.parse(meta.creation_timestamp) if meta.creation_timestamp else 0.0,
        sum(one.restart_count for one in status.container_statuses),
        gate_of(pod) == "False" or drains.get(meta.name, "-") in ("", meta.uid),
        agent,
    )


def _frozen(trainer: Job, agents: AgentState) -> str:
    if trainer.status.succeeded:
        return "one of its trainers has succeeded, so its size cannot change any more"
    return "its final pass is over" if agents.finished else ""


def _last_changes(job: TrainingJob) -> tuple[float | None, float | None]:
    """From the scale records in the status: they outlive this program."""
    grown = shrunk = None
    for record in job.status.scale_records.scale_records:
        if record.scale_timestamp:
            at = timestamps.parse(record.scale_timestamp)
            if record.additional > 0:
                grown = max(at, grown or at)
            elif record.additional < 0:
                shrunk = max(at, shrunk or at)
    return grown, shrunk
