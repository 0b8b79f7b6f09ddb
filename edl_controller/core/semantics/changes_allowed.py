"""PURE: which changes of a spec an API server refuses, for the kinds that are imitated.

Rules of Kubernetes 1.36: ``pkg/apis/{core,batch,apps}/validation``, ``pkg/registry/batch/job/strategy.go``; KEP-2926
and KEP-5440 (template of a suspended Job), KEP-3838 (pods that are gated), KEP-1287 (resize).
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from edl_controller import errors
from edl_controller.api.kinds import ApiObject, Kind
from edl_controller.api.meta import Json, is_true
from edl_controller.api.pods import Container, Pod, PodSpec, PodTemplateSpec
from edl_controller.api.workloads import Job, ReplicaSet

T = TypeVar("T", bound=ApiObject)

NODE_AFFINITY = "nodeAffinity"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

_replace = msgspec.structs.replace


def check_change(kind: Kind[T], before: T, after: T, *, resize: bool = False) -> None:
    """Refuse changes of what must stay. The resources of a pod's containers change by the subresource ``resize`` only.

    Raises:
        Invalid: names the field.
    """
    match before, after:
        case Job(), Job():
            _check_job(kind, before, after)
        case ReplicaSet(), ReplicaSet():
            _unchanged(kind, after, "spec.selector", before.spec.selector, after.spec.selector)
            check_count(kind.name, after, "spec.replicas", after.spec.replicas)
        case Pod(), Pod():
            _check_pod(kind, before, after, resize)


def check_count(kind: str, obj: ApiObject, path: str, count: int | None) -> None:
    """Refuse a count below 0.

    Raises:
        Invalid: it is.
    """
    if count is not None and count < 0:
        raise errors.Invalid(f"{kind} {obj.metadata.name!r} is invalid: {path}: must be 0 or more, not {count}")


def _unchanged(kind: Kind[Any], obj: ApiObject, path: str, before: object, after: object) -> None:
    if before != after:
        raise errors.Invalid(f"{kind.name} {obj.metadata.name!r} is invalid: {path}: field is immutable")


# --- Jobs -------------------------------------------------------------------------------------------------------------


def _check_job(kind: Kind[Any], before: Job, after: Job) -> None:
    old, new = before.spec, after.spec
    template = _open_parts(old.template, new.template) if _is_put_off(before) else old.template
    _unchanged(kind, after, "spec.template", template, new.template)
    _unchanged(kind, after, "spec.selector", old.selector, new.selector)
    _unchanged(kind, after, "spec.completions", old.completions, new.completions)
    check_count(kind.name, after, "spec.parallelism", new.parallelism)


def _is_put_off(job: Job) -> bool:
    """Tell whether the Job is suspended and has no pods: they are still to be made from its template."""
    status = job.status
    return (
        bool(job.spec.suspend)
        and not status.active
        and (status.start_time is None or is_true(status.conditions, "Suspended"))
    )


def _open_parts(old: PodTemplateSpec, new: PodTemplateSpec) -> PodTemplateSpec:
    """Return the old template with those parts of the new that say where the pods go and what they ask for."""
    meta = _replace(old.metadata, labels=new.metadata.labels, annotations=new.metadata.annotations)
    spec = _replace(
        old.spec,
        node_selector=new.spec.node_selector,
        tolerations=new.spec.tolerations,
        scheduling_gates=new.spec.scheduling_gates,
        affinity=_with_node_affinity(old.spec.affinity, new.spec.affinity),
        containers=_with_resources(old.spec.containers, new.spec.containers),
        init_containers=_with_resources(old.spec.init_containers, new.spec.init_containers),
    )
    return _replace(old, metadata=meta, spec=spec)


def _with_resources(old: tuple[Container, ...], new: tuple[Container, ...]) -> tuple[Container, ...]:
    resources = {container.name: container.resources for container in new}
    return tuple(_replace(one, resources=resources.get(one.name, one.resources)) for one in old)


def _with_node_affinity(old: Json | None, new: Json | None) -> Json | None:
    """Return the old affinity with the node affinity of the new; that to other pods stays in any case."""
    rest = {key: value for key, value in (old or {}).items() if key != NODE_AFFINITY}
    wanted = (new or {}).get(NODE_AFFINITY)
    # An affinity that says nothing is the same as none.
    return {**rest, NODE_AFFINITY: wanted} if wanted is not None else rest or (None if new is None else {})


# --- pods -------------------------------------------------------------------------------------------------------------


def _check_pod(kind: Kind[Any], before: Pod, after: Pod, resize: bool) -> None:
    """A pod's spec stays, but for its node (bound once), removed gates, more tolerations, images, a nearer deadline."""
    old, new = before.spec, after.spec
    if old.node_name:
        _unchanged(kind, after, "spec.nodeName", old.node_name, new.node_name)
    if not {gate.get("name") for gate in new.scheduling_gates} <= {gate.get("name") for gate in old.scheduling_gates}:
        raise _forbidden(kind, after, "spec.schedulingGates: gates may only be removed")
    kept = {_replace(toleration, toleration_seconds=None) for toleration in new.tolerations}
    if not {_replace(toleration, toleration_seconds=None) for toleration in old.tolerations} <= kept:
        raise _forbidden(kind, after, "spec.tolerations: tolerations may only be added")
    if old.active_deadline_seconds is not None and not (
        new.active_deadline_seconds is not None and 0 <= new.active_deadline_seconds <= old.active_deadline_seconds
    ):
        raise _forbidden(kind, after, "spec.activeDeadlineSeconds: may only be made less")
    if old.scheduling_gates and not _is_tighter(old, new):
        raise _forbidden(kind, after, "spec: while it is gated, its node selector and affinity may only be tightened")
    _unchanged(kind, after, "spec", _open_parts_of_pod(old, new, resize), new)


def _open_parts_of_pod(old: PodSpec, new: PodSpec, resize: bool) -> PodSpec:
    """Return the old spec with those parts of the new that may change."""
    gated = bool(old.scheduling_gates)
    containers, init_containers = old.containers, old.init_containers
    if resize:
        containers = _with_resources(containers, new.containers)
        init_containers = _with_resources(init_containers, new.init_containers)
    return _replace(
        old,
        node_name=new.node_name,
        scheduling_gates=new.scheduling_gates,
        tolerations=new.tolerations,
        node_selector=new.node_selector if gated else old.node_selector,
        affinity=_with_node_affinity(old.affinity, new.affinity) if gated else old.affinity,
        active_deadline_seconds=new.active_deadline_seconds,
        containers=_with_images(containers, new.containers),
        init_containers=_with_images(init_containers, new.init_containers),
    )


def _with_images(old: tuple[Container, ...], new: tuple[Container, ...]) -> tuple[Container, ...]:
    images = {container.name: container.image for container in new}
    return tuple(_replace(one, image=images.get(one.name, one.image)) for one in old)


def _is_tighter(old: PodSpec, new: PodSpec) -> bool:
    """Tell whether each node that the new spec allows is one that the old allows, as far as the rules can tell."""
    if not old.node_selector.items() <= new.node_selector.items():
        return False
    before, after = _terms(old), _terms(new)
    return not before or (
        len(before) == len(after) and all(_has_only_more(*pair) for pair in zip(before, after, strict=True))
    )


def _terms(spec: PodSpec) -> list[Json]:
    required = ((spec.affinity or {}).get(NODE_AFFINITY) or {}).get(REQUIRED) or {}
    return cast(list[Json], required.get("nodeSelectorTerms") or [])


def _has_only_more(old: Json, new: Json) -> bool:
    """Tell whether a term has all the requirements that it had, in their order, before those that are new."""
    known = [(old.get(key) or [], new.get(key) or []) for key in ("matchExpressions", "matchFields")]
    if not any(before for before, _ in known):  # a term without requirements matches no node, and stays so
        return not any(after for _, after in known)
    return all(after[: len(before)] == before for before, after in known)


def _forbidden(kind: Kind[Any], obj: ApiObject, text: str) -> errors.Invalid:
    return errors.Invalid(f"{kind.name} {obj.metadata.name!r} is invalid: {text}")
