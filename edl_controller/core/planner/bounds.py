"""PURE: the policy ``bounds``: each job stays between its minimum and its maximum, and nothing else is done.

For installations that may not look at the nodes: without them nobody knows where there is room.
"""

from __future__ import annotations

from edl_controller.core.planner.plan import Cause, JobPlan, Plan
from edl_controller.core.planner.policy import PlannerSettings
from edl_controller.core.planner.snapshot import JobView, Snapshot
from edl_controller.core.planner.victims import choose_victims


class Bounds:
    """Follows what users set, such as by ``kubectl scale``. See the module."""

    name = "bounds"

    def plan(self, snapshot: Snapshot, settings: PlannerSettings, now: float) -> Plan:
        """Return a target for each job. See `edl_controller.core.planner.policy.Policy`."""
        return Plan(now, tuple(_kept_within(job) for job in snapshot.jobs))


def _kept_within(job: JobView) -> JobPlan:
    has = job.committed
    if job.frozen:
        return JobPlan(job.key, has, has, job.frozen)
    if has > job.maximum:
        there = sum(not pod.draining for pod in job.pods)  # pods that are still to come are the first to be given up
        victims = tuple(pod.name for pod in choose_victims(job.pods, there - job.maximum))
        return JobPlan(job.key, has, job.maximum, f"More than the maximum of {job.maximum}.", victims, Cause.BOUNDS)
    if has < job.minimum:
        return JobPlan(job.key, has, job.minimum, f"Fewer than the minimum of {job.minimum}.", cause=Cause.BOUNDS)
    return JobPlan(job.key, has, has, "This installation does not scale by itself.")
