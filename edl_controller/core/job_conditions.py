"""PURE: what a job's conditions say, from what there is; and the notes for people when that changes."""

from __future__ import annotations

from dataclasses import dataclass

from edl_controller.api import conditions as known
from edl_controller.api import timestamps
from edl_controller.api.meta import Condition, find_condition, is_true
from edl_controller.api.v1 import TrainingJob
from edl_controller.core.actions import Note
from edl_controller.core.agents import AgentState
from edl_controller.core.bring_up import Progress, pservers_up
from edl_controller.core.children import Children
from edl_controller.core.held_up import held_up
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.names import REVISION_ANNOTATION, Role
from edl_controller.core.parser import revision
from edl_controller.core.replica_statuses import left, ready
from edl_controller.core.scaling import ScalingView
from edl_controller.core.semantics.pod_state import is_active
from edl_controller.core.success import some_succeeded

SPEC_APPLIED = "SpecApplied"
"""Whether all that runs is as the spec says (`edl_controller.core.bring_up` has the rules for edits)."""

_WARNINGS = frozenset(
    {
        *("Invalid/True", "Failed/True", "CoordinationStateLost/True"),
        *("Created/False/NameTaken", "SpecApplied/False/PserverCountFixed", "AgentStateKnown/False/Stale"),
    }
)

_QUIET = frozenset({known.SCALING})
"""Told by the autoscaler, which knows why."""


@dataclass
class Conditions:
    """A job's conditions while they are being set."""

    value: tuple[Condition, ...]
    now: float
    generation: int

    def set(self, kind: str, holds: bool, reason: str, message: str = "") -> None:
        """Set one."""
        self.value = known.set_condition(
            self.value,
            kind,
            "True" if holds else "False",
            reason,
            message,
            now=self.now,
            generation=self.generation,
        )

    def set_back(self, kind: str, reason: str, message: str = "") -> None:
        """Set one to False, where it has ever been set."""
        if find_condition(self.value, kind) is not None:
            self.set(kind, False, reason, message)

    def reason(self, kind: str) -> str:
        """Return the reason of one; empty where it is not there."""
        found = find_condition(self.value, kind)
        return found.reason if found is not None else ""


def say_agents(conditions: Conditions, agents: AgentState, settings: JobSettings) -> None:
    """Set ``AgentStateKnown``. Nothing in it changes while nothing happens; the age is that of ``observed``."""
    if agents.age(conditions.now) <= settings.agents_stale:
        conditions.set(known.AGENT_STATE_KNOWN, True, "Fresh", "what the agents say is read and fresh")
        return
    reason = "NeverSeen" if agents.observed is None else "Stale"
    old = find_condition(conditions.value, known.AGENT_STATE_KNOWN)
    unread = "the job's etcd has not been read"
    said = old is not None and old.reason == reason and old.observed_generation == conditions.generation
    if said and old is not None and not (agents.error and old.message == unread):
        return  # each try may fail in other words; the first says why
    since = "" if agents.observed is None else f"; last seen {timestamps.render(agents.observed)}"
    conditions.set(known.AGENT_STATE_KNOWN, False, reason, (agents.error or unread) + since)


def say_suspended(conditions: Conditions, job: TrainingJob, children: Children) -> None:
    """Set ``Suspended``; with it goes ``Running``."""
    if not job.spec.suspend:
        conditions.set_back(known.SUSPENDED, "Resumed")
        return
    pods = left(children.trainer_pods) + left(children.pserver_pods)
    if pods:
        conditions.set(known.SUSPENDED, True, "Suspending", "its trainers go first, then its pservers")
    else:
        conditions.set(known.SUSPENDED, True, "Suspended", "it has no trainers and no pservers")
    conditions.set_back(known.RUNNING, "Suspended")


def say_progress(conditions: Conditions, progress: Progress, *, all_there: bool) -> None:
    """Set ``Created`` and ``CoordinationStateLost``."""
    reason, message = progress.waiting
    if all_there and not progress.lost and reason in ("", "MasterStarting", "PserversStarting"):
        conditions.set(known.CREATED, True, "ChildrenCreated", "master, pservers and trainers are created")
    else:
        conditions.set(known.CREATED, False, reason or "Creating", message)
    lost = known.COORDINATION_STATE_LOST
    if progress.lost or (is_true(conditions.value, lost) and reason):
        conditions.set(lost, True, "StoreReplaced", "the job's etcd has lost its data: all roles restart")
    else:
        conditions.set_back(lost, "Restarted", "all roles restarted from their checkpoints")


def say_running(
    conditions: Conditions,
    job: TrainingJob,
    children: Children,
    agents: AgentState,
    count: int,
    settings: JobSettings,
) -> None:
    """Set ``Running``: all pservers serve and the smallest number of trainers is ready.

    Trainers that have succeeded count: near its end a job runs with fewer and fewer. A job that ran and misses some of
    them has another reason than one that waits for its first: its phase stays.
    """
    trainers, least = ready(children.trainer_pods), job.spec.trainer.min_instance or 0
    done = some_succeeded(children)
    enough = trainers >= least or done
    waiting = "" if done else held_up(children)
    up = pservers_up(count, children, agents, settings, conditions.now)
    if children.trainer is not None and not children.trainer.spec.suspend and up and enough:
        if not least and not trainers:
            message = f"min-instance is 0, and no trainer runs{waiting}"
            conditions.set(known.RUNNING, True, "NoTrainersWanted", message)
        else:
            message = f"all pservers and enough trainers are ready{waiting}"
            conditions.set(known.RUNNING, True, "EnoughReady", message)
        return
    ran = has_run(conditions)
    if not up:
        lost = agents.missing(count) if agents.age(conditions.now) <= settings.agents_stale else ()
        which = f"; nobody holds index {', '.join(map(str, lost))}" if lost else ""
        message = f"{ready(children.pserver_pods)} of {count} pservers are ready{which}{waiting}"
        conditions.set(known.RUNNING, False, "PserversMissing" if ran else "WaitingForPods", message)
    else:
        message = f"{trainers} trainers are ready, at least {least} are wanted{waiting}"
        conditions.set(known.RUNNING, False, "TrainersMissing" if ran else "WaitingForPods", message)


def has_run(conditions: Conditions) -> bool:
    """Tell whether the job runs, or ran and misses some of its pods; False while it comes up."""
    return is_true(conditions.value, known.RUNNING) or conditions.reason(known.RUNNING) in known.INTERRUPTED


def say_scaling(conditions: Conditions, children: Children, before: int, scaling: ScalingView) -> None:
    """Set ``Scaling``: while the autoscaler is on its way, and after a change of the parallelism until all are ready.

    Args:
        conditions: of the job.
        children: as they are.
        before: the parallelism at the last pass.
        scaling: what the autoscaler is about; its reason is shown only on the way, so that a job at rest rests.
    """
    trainer = children.trainer
    if trainer is None or trainer.spec.suspend:
        conditions.set_back(known.SCALING, "NoTrainers")
        return
    wanted, now = trainer.spec.parallelism or 0, ready(children.trainer_pods)
    begun = bool(before) and before != wanted
    if some_succeeded(children):
        conditions.set(known.SCALING, False, "Finishing", "a trainer has succeeded: nothing is scaled any more")
    elif not has_run(conditions):
        conditions.set(known.SCALING, False, "ComingUp", f"{wanted} trainers are wanted")
    elif scaling.scaling and scaling.desired is not None and scaling.desired != now:
        direction = "Growing" if scaling.desired > now else "Shrinking"
        conditions.set(known.SCALING, True, direction, f"to {scaling.desired} trainers: {scaling.reason}")
    elif wanted != now and (begun or is_true(conditions.value, known.SCALING)):
        conditions.set(known.SCALING, True, "Growing" if wanted > now else "Shrinking", f"to {wanted} trainers")
    else:
        conditions.set(known.SCALING, False, "Settled", f"{wanted} trainers are wanted")


def say_spec(conditions: Conditions, job: TrainingJob, wanted: int, children: Children, count: int) -> None:
    """Set ``SpecApplied``, once there are children.

    Args:
        conditions: of the job.
        job: as the user wrote it.
        wanted: pservers, by the spec.
        children: as they are.
        count: pservers in effect.
    """
    if children.pserver is None and children.trainer is None:
        return
    if wanted != count:
        conditions.set(
            SPEC_APPLIED,
            False,
            "PserverCountFixed",
            f"it runs with {count} pservers, not {wanted}: parameters are spread modulo that number; make a new job",
        )
        return
    roles: tuple[Role, ...] = ("master", "pserver", "trainer")
    behind = [role for role in roles if _behind(job, children, role)]
    if behind:
        conditions.set(SPEC_APPLIED, False, "AtNextRestart", f"pods with the earlier spec run on: {', '.join(behind)}")
    else:
        conditions.set(SPEC_APPLIED, True, "Applied")


def _behind(job: TrainingJob, children: Children, role: Role) -> bool:
    wanted, child = revision(job, role), children.child(role)
    if child is not None and child.metadata.annotations.get(REVISION_ANNOTATION) != wanted:
        return True
    return any(
        pod.metadata.annotations.get(REVISION_ANNOTATION) != wanted for pod in children.pods(role) if is_active(pod)
    )


def changes(before: tuple[Condition, ...], after: tuple[Condition, ...]) -> tuple[Note, ...]:
    """Return one note for each condition whose status or reason has changed."""
    notes = []
    for one in after:
        old = find_condition(before, one.type)
        if one.type in _QUIET or (old is not None and (old.status, old.reason) == (one.status, one.reason)):
            continue
        if old is None and one.status == "False" and one.type != known.CREATED:
            continue  # nothing was lost: it has not come yet
        word = f"{one.type}/{one.status}"
        warning = word in _WARNINGS or f"{word}/{one.reason}" in _WARNINGS
        if one.message or warning:  # without a word about it nobody needs to read it
            text = one.message or f"{one.type} is {one.status}"
            notes.append(Note(reason=one.reason, action=one.type, note=text[:1024], warning=warning))
    return tuple(notes)
