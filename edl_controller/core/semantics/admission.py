"""PURE: defaults that an API server fills, and new objects that it refuses, for the kinds that are imitated."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

from edl_controller import errors
from edl_controller.api import quantity
from edl_controller.api.kinds import JOBS, REPLICA_SETS, ApiObject, Kind
from edl_controller.api.meta import LabelSelector
from edl_controller.api.pods import Pod, PodSpec, PodStatus, PodTemplateSpec
from edl_controller.api.v1 import TrainingJob, TrainingJobStatus
from edl_controller.api.workloads import Job, JobStatus, ReplicaSet, ReplicaSetStatus
from edl_controller.core.semantics.changes_allowed import check_count

T = TypeVar("T", bound=ApiObject)

CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_NAME = "batch.kubernetes.io/job-name"
_OLD_CONTROLLER_UID = "controller-uid"
_OLD_JOB_NAME = "job-name"

BACKOFF_LIMIT = 6
"""Default of ``spec.backoffLimit`` of a Job."""

_replace = msgspec.structs.replace
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def admitted(kind: Kind[T], obj: T, now: float) -> T:
    """Return a new object with its defaults; a status that was sent along is dropped.

    Raises:
        Invalid: a rule of its kind is broken.
    """
    _check_labels(kind, obj, obj.metadata.labels)
    match obj:
        case Job():
            return cast(T, _job(obj))
        case ReplicaSet():
            return cast(T, _replica_set(obj))
        case Pod():
            return cast(T, _pod(obj))
        case TrainingJob():
            return cast(T, _replace(obj, status=TrainingJobStatus()))
    return obj


def _check_labels(kind: Kind[Any], obj: ApiObject, labels: dict[str, str]) -> None:
    for key, value in labels.items():
        if not _is_label_value(value):
            raise errors.Invalid(f"{kind.name} {obj.metadata.name!r} is invalid: metadata.labels[{key}]: {value!r}")


@lru_cache(maxsize=4096)
def _is_label_value(value: str) -> bool:
    """Thousands of pods carry the same few labels."""
    return _LABEL_VALUE.fullmatch(value) is not None


def _check_containers(kind: str, obj: ApiObject, path: str, spec: PodSpec) -> None:
    if not spec.containers:
        raise errors.Invalid(f"{kind} {obj.metadata.name!r} is invalid: {path}.containers: required")
    for container in (*spec.containers, *spec.init_containers):
        asked, most = container.resources.requests, container.resources.limits
        try:
            fits = all(_amount(value) >= 0 for value in (*asked.values(), *most.values())) and all(
                _amount(value) <= _amount(most[name]) for name, value in asked.items() if name in most
            )
        except errors.InvalidQuantity as error:
            raise errors.Invalid(f"{kind} {obj.metadata.name!r} is invalid: {path}.containers: {error}") from error
        if not fits:
            raise errors.Invalid(
                f"{kind} {obj.metadata.name!r} is invalid: {path}.containers: {container.name!r}: resources below "
                "0, or the request is above the limit"
            )


_amount = lru_cache(maxsize=4096)(quantity.parse)


def _job(job: Job) -> Job:
    spec, meta = job.spec, job.metadata
    _check_containers("Job", job, "spec.template.spec", spec.template.spec)
    _check_labels(JOBS, job, spec.template.metadata.labels)
    if spec.template.spec.restart_policy not in ("Never", "OnFailure"):
        raise errors.Invalid(
            f"Job {meta.name!r} is invalid: spec.template.spec.restartPolicy: must be Never or OnFailure"
        )
    both_unset = spec.parallelism is None and spec.completions is None
    own = {CONTROLLER_UID: meta.uid, _OLD_CONTROLLER_UID: meta.uid, JOB_NAME: meta.name, _OLD_JOB_NAME: meta.name}
    template = spec.template
    if not spec.manual_selector:
        labels = {**template.metadata.labels, **own}
        template = _replace(template, metadata=_replace(template.metadata, labels=labels))
    spec = _replace(
        spec,
        parallelism=1 if spec.parallelism is None else spec.parallelism,
        completions=1 if both_unset else spec.completions,
        backoff_limit=BACKOFF_LIMIT if spec.backoff_limit is None else spec.backoff_limit,
        completion_mode=spec.completion_mode or "NonIndexed",
        suspend=bool(spec.suspend),
        pod_replacement_policy=spec.pod_replacement_policy
        or ("Failed" if spec.pod_failure_policy else "TerminatingOrFailed"),
        selector=spec.selector if spec.manual_selector else LabelSelector(match_labels={CONTROLLER_UID: meta.uid}),
        template=template,
    )
    result = _replace(
        job, spec=spec, status=JobStatus(), metadata=_replace(meta, labels=meta.labels or own_labels(template))
    )
    check_count("Job", result, "spec.parallelism", spec.parallelism)
    return result


def own_labels(template: PodTemplateSpec) -> dict[str, str]:
    """Return the labels that a workload without any takes over from its pods."""
    return dict(template.metadata.labels)


def _replica_set(replica_set: ReplicaSet) -> ReplicaSet:
    spec, meta = replica_set.spec, replica_set.metadata
    _check_containers("ReplicaSet", replica_set, "spec.template.spec", spec.template.spec)
    _check_labels(REPLICA_SETS, replica_set, spec.template.metadata.labels)
    if spec.template.spec.restart_policy not in ("", "Always"):
        raise errors.Invalid(f"ReplicaSet {meta.name!r} is invalid: spec.template.spec.restartPolicy: must be Always")
    if not spec.selector.matches(spec.template.metadata.labels) or spec.selector == LabelSelector():
        raise errors.Invalid(
            f"ReplicaSet {meta.name!r} is invalid: spec.selector: must match spec.template.metadata.labels"
        )
    spec = _replace(spec, replicas=1 if spec.replicas is None else spec.replicas)
    check_count("ReplicaSet", replica_set, "spec.replicas", spec.replicas)
    return _replace(replica_set, spec=spec, status=ReplicaSetStatus(replicas=0))


def _pod(pod: Pod) -> Pod:
    _check_containers("Pod", pod, "spec", pod.spec)
    spec = pod.spec
    grace = spec.termination_grace_period_seconds
    spec = _replace(
        spec,
        restart_policy=spec.restart_policy or "Always",
        termination_grace_period_seconds=30 if grace is None else grace,
    )
    return _replace(pod, spec=spec, status=PodStatus(phase="Pending", qos_class=qos_class(spec)))


def qos_class(spec: PodSpec) -> str:
    """Return ``Guaranteed``, ``Burstable`` or ``BestEffort``, by the requests and limits of CPU and memory."""
    containers = (*spec.containers, *spec.init_containers)
    if not any(one.resources.requests or one.resources.limits for one in containers):
        return "BestEffort"
    for one in containers:
        for resource in ("cpu", "memory"):
            limit = one.resources.limits.get(resource)
            if limit is None or one.resources.requests.get(resource, limit) != limit:
                return "Burstable"
    return "Guaranteed"
