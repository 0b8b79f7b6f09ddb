"""PURE: what the Job controller of Kubernetes (1.36) does for one Job without indexes, given its pods.

Rules: ``pkg/controller/job/job_controller.go`` and measurements. Each pod of a Job carries a finalizer until the Job
has counted it, so that no end is missed and none is counted twice:

1. a pod that has ended is written into ``status.uncountedTerminatedPods``;
2. then its finalizer is removed;
3. then it moves from there into ``succeeded`` or ``failed``.

Who acts on a decision keeps this order (`JobDecision`); then a crash between any two steps loses nothing.
Not imitated: indexed Jobs (they are left alone), pods without a controller that the selector matches (never adopted).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from edl_controller.api import timestamps
from edl_controller.api.kinds import JOBS
from edl_controller.api.meta import Condition, find_condition, is_true
from edl_controller.api.pods import Pod
from edl_controller.api.workloads import Job, JobSpec, JobStatus
from edl_controller.core.semantics.admission import BACKOFF_LIMIT
from edl_controller.core.semantics.failure_back_off import FRESH, FailureMemory
from edl_controller.core.semantics.failure_policy import judge
from edl_controller.core.semantics.new_pod import MOST_AT_ONCE, is_controlled_by, new_pod
from edl_controller.core.semantics.pod_state import ENDED, all_restarts, is_ready, seconds
from edl_controller.core.semantics.removal_order import job_removal_order

TRACKING = "batch.kubernetes.io/job-tracking"
"""Finalizer of a pod that its Job has not counted yet."""

EVENTS_BATCHED = 1.0
"""Seconds that the Job controller waits after a pod's event, for more of them; a change of the Job acts at once."""


@dataclass(frozen=True)
class JobDecision:
    """What to do, in this order; each step may be repeated.

    Attributes:
        cut: pods to remove uncounted: take the finalizer away, then delete.
        delete: pods of a failed Job: delete; the finalizer stays until they are counted.
        create: new pods.
        status: write it if it differs (and then decide again, at once).
        release: take the finalizer away: they are named in the status.
        memory: to be handed to the next decision of this Job, once the status is written.
        delete_job: its time after the end is over: delete the Job in the foreground.
        again_after: decide again after so many seconds, whatever happens; None = only when something changes.
    """

    status: JobStatus
    cut: tuple[Pod, ...] = ()
    delete: tuple[Pod, ...] = ()
    create: tuple[Pod, ...] = ()
    release: tuple[Pod, ...] = ()
    memory: FailureMemory = FRESH
    delete_job: bool = False
    again_after: float | None = None


def is_finished(job: Job) -> bool:
    """Tell whether the Job has ended, well or not: it is never acted for again."""
    return is_true(job.status.conditions, "Complete") or is_true(job.status.conditions, "Failed")


def is_tracked(pod: Pod) -> bool:
    """Tell whether a Job still has to count the pod."""
    return TRACKING in pod.metadata.finalizers


def decide(job: Job, pods: Sequence[Pod], now: float, memory: FailureMemory = FRESH) -> JobDecision:
    """Decide what becomes of a Job.

    Args:
        job: as it is stored.
        pods: at least all pods that the Job controls; others are not looked at.
        now: Unix seconds.
        memory: of the last decision; lost with the process, as the real controller's is.
    """
    own = [pod for pod in pods if is_controlled_by(pod, job.metadata.uid)]
    if job.spec.completion_mode == "Indexed":
        return JobDecision(job.status, memory=memory)
    if is_finished(job):
        return _after_the_end(job, own, now)
    return _Pass(job, own, now, memory).decision()


def _after_the_end(job: Job, own: Sequence[Pod], now: float) -> JobDecision:
    """A finished Job only lets its deleted pods go, and goes itself when its time is over."""
    release = tuple(pod for pod in own if is_tracked(pod) and pod.metadata.deletion_timestamp is not None)
    wait = None
    if job.spec.ttl_seconds_after_finished is not None and job.metadata.deletion_timestamp is None:
        end = next(c for c in job.status.conditions if c.type in ("Complete", "Failed") and c.status == "True")
        wait = (seconds(end.last_transition_time) or now) + job.spec.ttl_seconds_after_finished - now
    over = wait is not None and wait <= 0
    return JobDecision(job.status, release=release, delete_job=over, again_after=None if over else wait)


@dataclass
class _Pods:
    """The pods of a Job, by what became of them. ``succeeded``, ``failed`` and ``living`` are still to be counted."""

    tracked: set[str] = field(default_factory=set)
    succeeded: list[Pod] = field(default_factory=list)
    failed: list[Pod] = field(default_factory=list)
    living: list[Pod] = field(default_factory=list)
    active: list[Pod] = field(default_factory=list)
    terminating: int = 0


def _sorted_out(pods: Sequence[Pod], *, only_ended: bool) -> _Pods:
    """A deleted pod counts as failed at once, unless ``only_ended``. One pass: Jobs have thousands of pods."""
    found = _Pods()
    for pod in pods:
        meta, phase = pod.metadata, pod.status.phase
        is_deleted = meta.deletion_timestamp is not None
        if phase not in ENDED:
            if is_deleted:
                found.terminating += 1
            else:
                found.active.append(pod)
        if TRACKING not in meta.finalizers:
            continue
        found.tracked.add(meta.uid)
        if phase == "Succeeded":
            found.succeeded.append(pod)
        elif phase == "Failed" or (is_deleted and not only_ended):
            found.failed.append(pod)
        else:
            found.living.append(pod)
    return found


@dataclass
class _Pass:
    """One look at a Job that has not ended."""

    job: Job
    own: Sequence[Pod]
    now: float
    memory: FailureMemory
    cut: list[Pod] = field(default_factory=list)
    delete: list[Pod] = field(default_factory=list)
    create: list[Pod] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    @property
    def spec(self) -> JobSpec:
        return self.job.spec

    def decision(self) -> JobDecision:
        status, pods = self.job.status, self.own
        uncounted = status.uncounted_terminated_pods or {}
        uncounted_succeeded, uncounted_failed = uncounted.get("succeeded") or (), uncounted.get("failed") or ()
        seen = _sorted_out(pods, only_ended=self._waits_for_the_end)
        new_succeeded = [pod for pod in seen.succeeded if pod.metadata.uid not in uncounted_succeeded]
        new_failed = [pod for pod in seen.failed if pod.metadata.uid not in uncounted_failed]
        counted_failed = [pod for pod in new_failed if judge(self.spec.pod_failure_policy, pod)[0] != "Ignore"]
        succeeded = status.succeeded + len(uncounted_succeeded) + len(new_succeeded)
        failed = status.failed + len(uncounted_failed) + len(counted_failed)
        active, terminating = seen.active, seen.terminating
        memory = self.memory.after(new_succeeded, new_failed)

        is_leaving = self.job.metadata.deletion_timestamp is not None
        start = status.start_time
        if start is None and not self.spec.suspend:
            start = timestamps.render(self.now)
        conditions = status.conditions
        if ending := self._ending(failed, start):
            self.delete = active
            left: list[Pod] = []
        else:
            if not is_leaving:
                self._manage(active, succeeded, terminating, memory)
            gone = {pod.metadata.uid for pod in self.cut}
            left = [pod for pod in active if pod.metadata.uid not in gone]
            if self._is_complete(succeeded, len(left) + len(self.create)):
                ending = self._condition(
                    "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
                )
            elif not is_leaving:
                conditions, start = self._suspension(conditions, start)

        # What was named in the status and has lost its finalizer since is counted now.
        still_succeeded = [uid for uid in uncounted_succeeded if uid in seen.tracked]
        still_failed = [uid for uid in uncounted_failed if uid in seen.tracked]
        counted_now = JobStatus(
            succeeded=status.succeeded + len(uncounted_succeeded) - len(still_succeeded),
            failed=status.failed + len(uncounted_failed) - len(still_failed),
        )
        release = seen.succeeded + seen.failed
        still_succeeded += [pod.metadata.uid for pod in new_succeeded if pod.metadata.uid not in still_failed]
        still_failed += [pod.metadata.uid for pod in counted_failed]
        if ending is not None or is_leaving:
            release += seen.living
        if ending is not None and ending.type == "FailureTarget":
            # A pod that runs when its Job fails is a failure, too.
            still_failed += [
                pod.metadata.uid
                for pod in seen.living
                if pod.metadata.uid not in still_failed and judge(self.spec.pod_failure_policy, pod)[0] != "Ignore"
            ]

        terminating += len(self.cut) + len(self.delete)
        completion = status.completion_time
        if ending is not None:
            if find_condition(conditions, ending.type) is None:
                conditions = (*conditions, ending)
            elif not still_succeeded and not still_failed and not terminating:
                # All is counted, and nothing runs any more.
                last = "Complete" if ending.type == "SuccessCriteriaMet" else "Failed"
                conditions = (*conditions, self._condition(last, ending.reason, ending.message))
                completion = timestamps.render(self.now) if last == "Complete" else completion
        lists = {"succeeded": still_succeeded, "failed": still_failed}
        after = msgspec.structs.replace(
            status,
            active=len(left) + len(self.create),
            ready=sum(map(is_ready, left)),
            terminating=terminating,
            succeeded=counted_now.succeeded,
            failed=counted_now.failed,
            conditions=conditions,
            start_time=start,
            completion_time=completion,
            uncounted_terminated_pods={name: uids for name, uids in lists.items() if uids},
        )
        return JobDecision(
            after,
            tuple(self.cut),
            tuple(self.delete),
            tuple(self.create),
            tuple(release),
            memory,
            again_after=min(self.waits, default=None),
        )

    @property
    def _waits_for_the_end(self) -> bool:
        """Whether only pods that have really ended are replaced and counted."""
        return self.spec.pod_replacement_policy == "Failed" or self.spec.pod_failure_policy is not None

    def _ending(self, failed: int, start: str | None) -> Condition | None:
        """Return what says how the Job ends, if that is decided: by an earlier pass, or by its failures."""
        for kind in ("SuccessCriteriaMet", "FailureTarget"):
            if is_true(self.job.status.conditions, kind):
                return find_condition(self.job.status.conditions, kind)
        if self.spec.pod_failure_policy is not None:
            for pod in self.own:
                verdict, why = judge(self.spec.pod_failure_policy, pod) if pod.status.phase == "Failed" else ("", "")
                if verdict == "FailJob":
                    return self._condition("FailureTarget", "PodFailurePolicy", why)
        if self._is_past_limit(failed):
            return self._condition(
                "FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
            )
        if self.spec.active_deadline_seconds is not None and not self.spec.suspend:
            left = (seconds(start) or self.now) + self.spec.active_deadline_seconds - self.now
            if left <= 0:
                return self._condition(
                    "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline"
                )
            self.waits.append(left)
        return None

    def _is_past_limit(self, failed: int) -> bool:
        limit = BACKOFF_LIMIT if self.spec.backoff_limit is None else self.spec.backoff_limit
        if failed > limit:
            return True
        if self.spec.template.spec.restart_policy != "OnFailure":
            return False
        restarted = sum(all_restarts(pod) for pod in self.own if pod.status.phase in ("Running", "Pending"))
        return restarted >= max(limit, 1)

    def _manage(self, active: list[Pod], succeeded: int, terminating: int, memory: FailureMemory) -> None:
        """Create pods or cut some, never both."""
        if self.spec.suspend:
            self.cut = job_removal_order(active)[:MOST_AT_ONCE]
            return
        parallelism = 1 if self.spec.parallelism is None else self.spec.parallelism
        if self.spec.completions is not None:
            wanted = max(0, min(parallelism, self.spec.completions - succeeded))
        else:
            # A work queue: the first success means that the work is done, so what runs is left to end.
            wanted = len(active) if succeeded else parallelism
        if len(active) > wanted:
            self.cut = job_removal_order(active)[: min(MOST_AT_ONCE, len(active) - wanted)]
            return
        missing = wanted - len(active) - (terminating if self._waits_for_the_end else 0)
        if missing <= 0:
            return
        if wait := memory.wait(self.now):
            self.waits.append(max(wait, EVENTS_BATCHED))
            return
        pod = new_pod(JOBS, self.job.metadata, self.spec.template, TRACKING)
        self.create = [pod] * min(MOST_AT_ONCE, missing)

    def _is_complete(self, succeeded: int, active: int) -> bool:
        needed = 1 if self.spec.completions is None else self.spec.completions
        return succeeded >= needed and active == 0

    def _suspension(
        self, conditions: tuple[Condition, ...], start: str | None
    ) -> tuple[tuple[Condition, ...], str | None]:
        """Say whether the Job is suspended; a resumed Job starts anew for its deadline."""
        old = find_condition(conditions, "Suspended")
        suspended = bool(self.spec.suspend)
        if (old is not None and old.status == "True") == suspended:
            return conditions, start
        new = (
            self._condition("Suspended", "JobSuspended", "Job suspended")
            if suspended
            else self._condition("Suspended", "JobResumed", "Job resumed", "False")
        )
        others = conditions if old is not None else (*conditions, new)
        changed = tuple(new if condition.type == "Suspended" else condition for condition in others)
        return changed, None if suspended else timestamps.render(self.now)

    def _condition(self, kind: str, reason: str, message: str, status: str = "True") -> Condition:
        moment = timestamps.render(self.now)
        return Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message,
            last_probe_time=moment,
            last_transition_time=moment,
        )
