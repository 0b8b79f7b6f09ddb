"""PURE: TrainingJob -> ReplicaSet (master), ReplicaSet (pservers), Job (trainers)."""

from __future__ import annotations

import hashlib
from typing import Protocol

import msgspec

from edl_controller.api.defaults import has_master, with_defaults
from edl_controller.api.kinds import TRAINING_JOBS
from edl_controller.api.meta import Json, LabelSelector, ObjectMeta, OwnerReference
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.validation import check
from edl_controller.api.workloads import Job, JobSpec, ReplicaSet, ReplicaSetSpec
from edl_controller.core.job_settings import DEFAULT_SETTINGS, JobSettings
from edl_controller.core.meeting_point import MeetingPoint, default_meeting_point
from edl_controller.core.names import (
    COORDINATION_ANNOTATION,
    PSERVERS_ANNOTATION,
    REVISION_ANNOTATION,
    ROLES,
    Role,
    child_name,
    labels,
)
from edl_controller.core.pod_template import pod_template

_IGNORE_DISRUPTION: Json = {
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}
"""A trainer that was preempted, evicted or lost with its node is no failure of the job."""

_NOT_OF_THE_PODS = (
    *("suspend", "clean_pod_policy", "ttl_seconds_after_finished", "active_deadline_seconds", "backoff_limit"),
    "autoscaling",
)
"""Fields of the spec that no pod depends on."""

_NUMBERS = ("min-instance", "max-instance", "replicaSpec", "etcd-endpoint")
"""Fields of a role that its pods do not depend on."""


class JobParser(Protocol):
    """What turns a TrainingJob into its children. Every method is pure."""

    def validate(self, job: TrainingJob) -> TrainingJob:
        """Return the job with its defaults.

        Raises:
            InvalidTrainingJob: it has faults; the message names every one.
        """
        ...

    def parse_to_trainer(self, job: TrainingJob, meeting: MeetingPoint | None = None) -> Job:
        """Return the Job of the trainers, at the smallest number of them."""
        ...

    def parse_to_pserver(self, job: TrainingJob, meeting: MeetingPoint | None = None) -> ReplicaSet:
        """Return the ReplicaSet of the pservers."""
        ...

    def parse_to_master(self, job: TrainingJob) -> ReplicaSet | None:
        """Return the ReplicaSet of the master, None where the job has none."""
        ...


class DefaultJobParser:
    """The parser of the controller.

    The three ``parse_to`` methods take a valid job, with its defaults or without. Without a meeting point they use the
    external etcd; in mode ``Master`` the address of the job's etcd is known only when its pod runs
    (`edl_controller.core.lifecycle`), and a child made before that carries no ``EDL_ETCD_ENDPOINTS``.
    """

    def __init__(self, settings: JobSettings = DEFAULT_SETTINGS) -> None:
        self._settings = settings

    def validate(self, job: TrainingJob) -> TrainingJob:
        """Return the job with its defaults.

        Raises:
            InvalidTrainingJob: it has faults; the message names every one.
        """
        return check(job, self._settings.rules)

    def parse_to_trainer(self, job: TrainingJob, meeting: MeetingPoint | None = None) -> Job:
        """Return the Job of the trainers, at the smallest number of them.

        ``completions`` is unset: trainers are alike, and come and go. Failed ones are replaced by the Job; how often
        is its ``backoff_limit``.
        """
        filled, meeting = self._known(job, meeting)
        return Job(
            metadata=self._metadata(job, "trainer", filled, meeting),
            spec=JobSpec(
                parallelism=filled.spec.trainer.min_instance,
                backoff_limit=filled.spec.backoff_limit,
                pod_failure_policy=_IGNORE_DISRUPTION,
                # The one that goes with a failure policy.
                pod_replacement_policy="Failed",
                template=pod_template(filled, "trainer", meeting, _marks(job, "trainer", meeting), self._settings),
            ),
        )

    def parse_to_pserver(self, job: TrainingJob, meeting: MeetingPoint | None = None) -> ReplicaSet:
        """Return the ReplicaSet of the pservers."""
        filled, meeting = self._known(job, meeting)
        return self._replica_set(job, "pserver", filled, meeting, filled.spec.pserver.min_instance or 0)

    def parse_to_master(self, job: TrainingJob) -> ReplicaSet | None:
        """Return the ReplicaSet of the master, None where the job has none: no etcd of its own and no command."""
        filled, meeting = self._known(job, None)
        return self._replica_set(job, "master", filled, meeting, 1) if has_master(filled.spec) else None

    def _known(self, job: TrainingJob, meeting: MeetingPoint | None) -> tuple[TrainingJob, MeetingPoint]:
        filled = with_defaults(job, self._settings.rules)
        return filled, meeting or default_meeting_point(filled, self._settings)

    def _replica_set(
        self, job: TrainingJob, role: Role, filled: TrainingJob, meeting: MeetingPoint, replicas: int
    ) -> ReplicaSet:
        chosen = labels(job.metadata.name, job.metadata.uid, role)
        return ReplicaSet(
            metadata=self._metadata(job, role, filled, meeting),
            spec=ReplicaSetSpec(
                replicas=replicas,
                selector=LabelSelector(match_labels=chosen),
                template=pod_template(filled, role, meeting, _marks(job, role, meeting), self._settings),
            ),
        )

    @staticmethod
    def _metadata(job: TrainingJob, role: Role, filled: TrainingJob, meeting: MeetingPoint) -> ObjectMeta:
        owner = job.metadata
        return ObjectMeta(
            name=child_name(owner.name, role),
            namespace=owner.namespace,
            labels=labels(owner.name, owner.uid, role),
            annotations={
                **_marks(job, role, meeting),
                **({} if role == "master" else {PSERVERS_ANNOTATION: str(filled.spec.pserver.min_instance or 0)}),
            },
            owner_references=(
                OwnerReference(
                    api_version=TRAINING_JOBS.api_version,
                    kind=TRAINING_JOBS.name,
                    name=owner.name,
                    uid=owner.uid,
                    controller=True,
                    block_owner_deletion=True,
                ),
            ),
        )


def revision(job: TrainingJob, role: Role) -> str:
    """Return a hash of everything that the user wrote and a role's pods depend on.

    Of the user's words and not of the generated pods: a new version of the controller, which generates others, must
    not restart what runs. The numbers of trainers and pservers are no part of it.
    """
    parts = msgspec.to_builtins(job.spec)
    for name in _NOT_OF_THE_PODS:
        parts.pop(_JSON_NAMES[name], None)
    for other in ROLES:
        own = parts.pop(other, {})
        kept = {name: value for name, value in own.items() if name not in _NUMBERS}
        if other == role and kept:
            parts[other] = kept
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


_JSON_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(type(TrainingJob().spec))}


def _marks(job: TrainingJob, role: Role, meeting: MeetingPoint) -> dict[str, str]:
    identity = {} if role == "master" or not meeting.identity else {COORDINATION_ANNOTATION: meeting.identity}
    return {REVISION_ANNOTATION: revision(job, role), **identity}
