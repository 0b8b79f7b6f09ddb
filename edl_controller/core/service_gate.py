"""PURE: the readiness gate of the trainers: each gets it set True once; only the autoscaler sets it False."""

from __future__ import annotations

import msgspec

from edl_controller.api import timestamps
from edl_controller.api.kinds import PODS
from edl_controller.api.meta import Condition, find_condition
from edl_controller.api.pods import Pod
from edl_controller.core.actions import Patch
from edl_controller.core.children import Children
from edl_controller.core.names import IN_SERVICE_GATE
from edl_controller.core.semantics.pod_state import is_active


def open_gates(children: Children, now: float) -> tuple[Patch, ...]:
    """Return the patches of the trainer pods whose gate nobody has set yet."""
    return tuple(
        set_gate(pod, in_service=True, reason="Started", now=now)
        for pod in children.trainer_pods
        if is_active(pod)
        and any(gate.condition_type == IN_SERVICE_GATE for gate in pod.spec.readiness_gates)
        and find_condition(pod.status.conditions, IN_SERVICE_GATE) is None
    )


def set_gate(pod: Pod, *, in_service: bool, reason: str, now: float) -> Patch:
    """Return the patch that sets a pod's gate.

    A merge patch replaces the list of conditions whole, so it holds for exactly the version of the pod that was read.

    Args:
        pod: a trainer.
        in_service: False for one that is to be removed by the next cut of the parallelism.
        reason: one word in CamelCase.
        now: Unix seconds.
    """
    meta, status = pod.metadata, "True" if in_service else "False"
    gate = Condition(type=IN_SERVICE_GATE, status=status, reason=reason, last_transition_time=timestamps.render(now))
    others = [condition for condition in pod.status.conditions if condition.type != IN_SERVICE_GATE]
    return Patch(
        PODS,
        meta.namespace,
        meta.name,
        meta.uid,
        {"status": {"conditions": msgspec.to_builtins([*others, gate])}},
        subresource="status",
        resource_version=meta.resource_version,
    )
