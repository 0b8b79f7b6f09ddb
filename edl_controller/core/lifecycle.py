"""PURE: the life of a job: what is done next, and what its status says. See `decide`."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from edl_controller.api import conditions as known
from edl_controller.api import timestamps
from edl_controller.api.defaults import has_master, with_defaults
from edl_controller.api.kinds import TRAINING_JOBS
from edl_controller.api.meta import Condition, find_condition, is_true
from edl_controller.api.v1 import AgentView, TrainingJob, TrainingJobStatus
from edl_controller.api.validation import validate
from edl_controller.core.actions import Action, Delete, Note
from edl_controller.core.agents import AgentState
from edl_controller.core.bring_up import bring_up, pservers_in_effect
from edl_controller.core.children import NO_CHILDREN, Children, collect_children
from edl_controller.core.going_down import delete_children, stop_pods
from edl_controller.core.job_conditions import (
    Conditions,
    changes,
    say_agents,
    say_progress,
    say_running,
    say_scaling,
    say_spec,
    say_suspended,
)
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.names import ROLES, labels, selector_text
from edl_controller.core.replica_statuses import ready, replica_statuses
from edl_controller.core.scaling import NOT_SCALING, ScalingView
from edl_controller.core.service_gate import open_gates
from edl_controller.core.success import Ending, deadline, judge

_RATE_MATTERS = 0.1
"""Share by which the rate must differ from the one shown; it never stands still, and each change is a write."""


@dataclass(frozen=True)
class Outcome:
    """What one pass over a job came to.

    Attributes:
        actions: to take, in this order; the first that fails ends the pass.
        status: to write after them, last, if it differs from the job's.
        notes: to record, one for each change.
        again_after: seconds after which to look again although nothing has changed; None = no need.
    """

    actions: tuple[Action, ...]
    status: TrainingJobStatus
    notes: tuple[Note, ...] = ()
    again_after: float | None = None


def decide(
    job: TrainingJob,
    children: Children,
    agents: AgentState,
    settings: JobSettings,
    now: float,
    scaling: ScalingView = NOT_SCALING,
) -> Outcome:
    """Return the next step in the life of a job. Level-triggered: any history that led here is as good.

    1. A job that is being deleted is left alone: its children go with it. One that has ended is cleaned up.
    2. An end is recorded first, and acted on in the next pass: what it was judged by may go away with the clean-up.
    3. A spec with faults makes nothing; what was made from an earlier one goes on. It is no end: an edit mends it.
    4. A suspended job loses its pods, trainers first; its master (and so its etcd) stays.
    5. Master, pservers, trainers are made in this order, each when the one before serves.

    Args:
        job: as the user wrote it, with the status as last written.
        children: as they are.
        agents: as last heard.
        settings: of the operator.
        now: Unix seconds.
        scaling: what the autoscaler is about.
    """
    if job.metadata.deletion_timestamp is not None:
        return Outcome((), job.status)
    if known.is_final(job.status.conditions):
        return _after_the_end(job, children, settings, now)
    filled = with_defaults(job, settings.rules)
    ending = judge(filled, children, agents, now)
    if ending is not None:
        return _end(job, children, ending, now)
    conditions = Conditions(job.status.conditions, now, job.metadata.generation)
    count = pservers_in_effect(filled, children)
    faults = validate(job, settings.rules)
    actions: list[Action] = []
    wake_up: list[float] = []
    if faults:
        conditions.set(known.INVALID, True, "Invalid", "; ".join(map(str, faults)))
    else:
        conditions.set_back(known.INVALID, "Valid")
        if job.spec.suspend:
            actions += stop_pods(children, keep_master=True)
        else:
            progress = bring_up(job, children, agents, settings, now)
            actions += progress.actions
            say_progress(conditions, progress, all_there=_all_there(filled, children, count))
            if progress.waiting[0] == "NameTaken":
                wake_up.append(now + settings.foreign_retry)
        say_spec(conditions, job, filled.spec.pserver.min_instance or 0, children, count)
    actions += open_gates(children, now)
    say_suspended(conditions, job, children)
    if children != NO_CHILDREN:
        say_agents(conditions, agents, settings)
        if agents.age(now) <= settings.agents_stale:
            wake_up.append(now + settings.agents_stale - agents.age(now) + 1.0)
        if not job.spec.suspend:
            say_running(conditions, filled, children, agents, count, settings)
        say_scaling(conditions, children, job.status.desired_trainers, scaling)
    status = replace(_counted(job, children), agents=_view(job, agents, count, settings, now))
    if job.spec.suspend:
        status = replace(status, start_time=None)
    elif not faults:
        status = replace(status, start_time=status.start_time or timestamps.render(now))
    end = deadline(filled, status.start_time)
    if end is not None:
        wake_up.append(end)
    again = max(min(wake_up) - now, 0.0) if wake_up else None
    return Outcome(tuple(actions), *_concluded(job, status, conditions), again)


def _end(job: TrainingJob, children: Children, ending: Ending, now: float) -> Outcome:
    """Record how a job ended."""
    conditions = Conditions(job.status.conditions, now, job.metadata.generation)
    conditions.set(known.SUCCEEDED if ending.succeeded else known.FAILED, True, ending.reason, ending.message)
    for kind in (known.RUNNING, known.SCALING, known.SUSPENDED):
        conditions.set_back(kind, "Ended")
    status = replace(
        _counted(job, children, ended="succeeded" if ending.succeeded else "failed"),
        completion_time=timestamps.render(now),
    )
    return Outcome((), *_concluded(job, status, conditions), again_after=0.0)


def _after_the_end(job: TrainingJob, children: Children, settings: JobSettings, now: float) -> Outcome:
    """Clean up after a job, and delete it when its time is over."""
    spec = with_defaults(job, settings.rules).spec
    actions: tuple[Action, ...] = ()
    if spec.clean_pod_policy == "All":
        actions = delete_children(children)
    elif spec.clean_pod_policy != "None":
        actions = stop_pods(children, keep_master=False)
    again = None
    if spec.ttl_seconds_after_finished is not None and job.status.completion_time is not None:
        again = timestamps.parse(job.status.completion_time) + spec.ttl_seconds_after_finished - now
        if again <= 0:
            meta = job.metadata
            return Outcome((Delete(TRAINING_JOBS, meta.namespace, meta.name, meta.uid),), job.status)
    ended = "succeeded" if is_true(job.status.conditions, known.SUCCEEDED) else "failed"
    return Outcome(actions, _counted(job, children, ended=ended), again_after=again)


def _all_there(job: TrainingJob, children: Children, count: int) -> bool:
    present = [child for role in ROLES if (child := children.child(role)) is not None]
    return (
        (children.master is not None or not has_master(job.spec))
        and (children.pserver is not None or not count)
        and children.trainer is not None
        and all(child.metadata.deletion_timestamp is None for child in present)
    )


def _counted(job: TrainingJob, children: Children, *, ended: str = "") -> TrainingJobStatus:
    """Return the status with what can be counted."""
    meta, trainer = job.metadata, children.trainer
    wanted = 0 if trainer is None or trainer.spec.suspend or ended else trainer.spec.parallelism or 0
    return replace(
        job.status,
        observed_generation=meta.generation,
        replica_statuses=replica_statuses(children, ended=ended),
        trainers=ready(children.trainer_pods),
        desired_trainers=wanted,
        pservers=ready(children.pserver_pods),
        trainer_selector=selector_text(labels(meta.name, meta.uid, "trainer")),
    )


def _view(job: TrainingJob, agents: AgentState, count: int, settings: JobSettings, now: float) -> AgentView | None:
    """Return what is shown of the agents; the same as before where nothing worth a write has changed."""
    if agents.observed is None:
        return job.status.agents
    reports = [report for report in agents.reports if report.role == "trainer"]
    rate, old = sum(report.rate for report in reports), job.status.agents
    shown = f"{rate:.3g}" if rate else ""
    if old is not None and rate and old.rate and abs(float(old.rate) - rate) <= _RATE_MATTERS * rate:
        shown = old.rate
    view = AgentView(
        pservers=len(agents.pservers),
        lost_pservers=agents.missing(count),
        trainers=len(reports),
        rate=shown,
        observed=timestamps.render(agents.observed),
    )
    stale = agents.age(now) > settings.agents_stale
    return old if old is not None and not stale and replace(view, observed=old.observed) == old else view


def _concluded(
    job: TrainingJob, status: TrainingJobStatus, conditions: Conditions
) -> tuple[TrainingJobStatus, tuple[Note, ...]]:
    """Return the status with its conditions and what follows from them, and the notes."""
    value = conditions.value
    status = replace(status, conditions=value, phase=known.phase(value), reason=_reason(value))
    return status, changes(job.status.conditions, value)


def _reason(value: tuple[Condition, ...]) -> str:
    """Return the classic reason: what the job waits for, or how it ended; empty while it runs well."""
    told = [
        found
        for kind in (known.FAILED, known.SUCCEEDED, known.INVALID, known.SUSPENDED)
        if (found := _true(value, kind))
    ]
    told += [
        found
        for kind in (known.CREATED, known.RUNNING)
        if (found := find_condition(value, kind)) and found.status == "False"
    ]
    return f"{told[0].reason}: {told[0].message}" if told else ""


def _true(value: tuple[Condition, ...], kind: str) -> Condition | None:
    return find_condition(value, kind) if is_true(value, kind) else None


__all__ = ("AgentState", "Children", "JobSettings", "Outcome", "collect_children", "decide")
