"""PURE: Job and ReplicaSet, as far as they are read."""

from __future__ import annotations

from edl_controller.api.meta import Condition, Json, LabelSelector, ObjectMeta, Record
from edl_controller.api.pods import PodTemplateSpec


class ReplicaSetSpec(Record, frozen=True, kw_only=True):
    """How many pods of one template there should be."""

    replicas: int | None = None
    selector: LabelSelector = LabelSelector()
    template: PodTemplateSpec = PodTemplateSpec()
    min_ready_seconds: int = 0


class ReplicaSetStatus(Record, frozen=True, kw_only=True):
    """How many there are. ``replicas`` is always written, 0 too."""

    replicas: int | None = None
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int | None = None
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class ReplicaSet(Record, frozen=True, kw_only=True):
    """A ReplicaSet (``apps/v1``)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class JobSpec(Record, frozen=True, kw_only=True):
    """A batch Job's wish. ``completions`` unset: a work queue; the first success ends all scaling (measured)."""

    parallelism: int | None = None
    completions: int | None = None
    backoff_limit: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    suspend: bool | None = None
    completion_mode: str = ""
    pod_replacement_policy: str = ""
    pod_failure_policy: Json | None = None
    manual_selector: bool | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class JobStatus(Record, frozen=True, kw_only=True):
    """What became of a Job. Conditions: Suspended, SuccessCriteriaMet, Complete, FailureTarget, Failed."""

    active: int = 0
    ready: int | None = None
    terminating: int | None = None
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None
    completion_time: str | None = None
    uncounted_terminated_pods: Json | None = None


class Job(Record, frozen=True, kw_only=True):
    """A batch Job (``batch/v1``)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()
