"""PURE: when a job has ended, and how.

- It has **succeeded** when its Job is Complete; or when the final pass is recorded in etcd and one trainer succeeded;
  or, in a fault-tolerant job without a task queue, when one trainer succeeded and those that are left never got to run.
  In the latter two some trainers may still be there, pending: they find no work, and are cleaned up.
- It has **failed** when its Job has: a strict job by its first failed trainer, a fault-tolerant one when the failures
  exceed ``backoff_limit``; or when ``active_deadline_seconds`` have passed.

Nothing is compared with the number of trainers, which changes. A pserver or a master that fails is replaced by its
ReplicaSet and ends nothing. Success is judged first: a trainer that fails after the work is done does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl_controller.api import timestamps
from edl_controller.api.meta import find_condition, is_true
from edl_controller.api.v1 import TrainingJob
from edl_controller.core.agents import AgentState
from edl_controller.core.children import Children
from edl_controller.core.semantics.pod_state import is_active


@dataclass(frozen=True)
class Ending:
    """How a job ended."""

    succeeded: bool
    reason: str
    message: str


def judge(job: TrainingJob, children: Children, agents: AgentState, now: float) -> Ending | None:
    """Return how the job (with its defaults) has ended; None while it goes on."""
    trainer = children.trainer
    if trainer is not None:
        conditions = trainer.status.conditions
        if is_true(conditions, "Complete"):
            return Ending(True, "TrainersCompleted", "every trainer has ended, and at least one has succeeded")
        if some_succeeded(children):
            if agents.finished:
                return Ending(
                    True, "FinalPassRecorded", f"pass {agents.passes} is recorded, and a trainer has succeeded"
                )
            if job.spec.fault_tolerant and not agents.passes and _nobody_else_ran(children):
                return Ending(True, "OthersNeverRan", "a trainer has succeeded, and those left never got to run")
        failed = find_condition(conditions, "Failed")
        if failed is not None and failed.status == "True":
            return Ending(False, failed.reason or "TrainersFailed", failed.message or "the trainers' Job has failed")
    end = deadline(job, job.status.start_time)
    if end is not None and now >= end:
        return Ending(
            False, "DeadlineExceeded", f"it was active for more than {job.spec.active_deadline_seconds} seconds"
        )
    return None


def deadline(job: TrainingJob, start: str | None) -> float | None:
    """Return by when the job must have ended (Unix seconds); None where it may take its time, or is suspended."""
    seconds = job.spec.active_deadline_seconds
    if seconds is None or start is None or job.spec.suspend:
        return None
    return timestamps.parse(start) + seconds


def some_succeeded(children: Children) -> bool:
    """Tell whether a trainer has succeeded: from then on the Job does not replace or scale any more."""
    trainer = children.trainer
    if trainer is not None and trainer.status.succeeded > 0:
        return True
    return any(pod.status.phase == "Succeeded" for pod in children.trainer_pods)


def _nobody_else_ran(children: Children) -> bool:
    active = [pod for pod in children.trainer_pods if is_active(pod)]
    terminating = any(pod.metadata.deletion_timestamp for pod in children.trainer_pods)
    return bool(active) and not terminating and all(_never_ran(pod.status.phase) for pod in active)


def _never_ran(phase: str) -> bool:
    return phase in ("", "Pending")
