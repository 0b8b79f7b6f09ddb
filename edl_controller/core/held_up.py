"""PURE: why pods of a job do not run, in the words of those who hold them up: the scheduler and admission.

What is said stays the same while nothing changes: counts of nodes and names of pods, which differ at every try, are
left out, or each try would be a write.
"""

from __future__ import annotations

import re

from edl_controller.api.meta import find_condition
from edl_controller.api.pods import Pod
from edl_controller.core.children import Children
from edl_controller.core.names import Role
from edl_controller.core.semantics.pod_state import is_active

_LONGEST = 300
"""Characters of a foreign text."""
_NODES = re.compile(r"^\d+/\d+ nodes are available: ")
_COUNT = re.compile(r"^\d+ ")
_FORBIDDEN = re.compile(r'^pods "[^"]*" is forbidden: ')


def held_up(children: Children) -> str:
    """Return how many pods wait and for what, each part after a semicolon; empty where all are on their way.

    Args:
        children: of a job that is to run.
    """
    parts = []
    replica_set, trainer = children.pserver, children.trainer
    if replica_set is not None:
        wanted = replica_set.spec.replicas or 0
        parts.append(_unscheduled("pserver", children.pserver_pods, wanted))
        refused = find_condition(replica_set.status.conditions, "ReplicaFailure")
        if refused is not None and refused.status == "True":
            missing = wanted - sum(map(is_active, children.pserver_pods))
            why = _FORBIDDEN.sub("", refused.message)[:_LONGEST]
            parts.append(f"{missing} of {wanted} pservers are refused: {why}" if missing > 0 else "")
    if trainer is not None and not trainer.spec.suspend:
        wanted = trainer.spec.parallelism or 0
        parts.append(_unscheduled("trainer", children.trainer_pods, wanted))
        missing = wanted - sum(map(is_active, children.trainer_pods))
        if missing > 0:
            # Of a Job's refusals only its Events tell, and the controller does not read those.
            name = trainer.metadata.name
            parts.append(f"{missing} of {wanted} trainers are not created (if for long, see the Events of Job {name})")
    return "".join(f"; {part}" for part in parts if part)


def _unscheduled(role: Role, pods: tuple[Pod, ...], wanted: int) -> str:
    reasons: set[str] = set()
    count = 0
    for pod in pods:
        found = find_condition(pod.status.conditions, "PodScheduled") if is_active(pod) else None
        if found is not None and (found.status, found.reason) == ("False", "Unschedulable"):
            count += 1
            reasons |= _reasons(found.message)
    return f"{count} of {wanted} {role}s wait for a node: {', '.join(sorted(reasons))[:_LONGEST]}" if count else ""


def _reasons(message: str) -> set[str]:
    """Return the reasons in ``0/3 nodes are available: 1 Insufficient cpu, 2 Too many pods. preemption: …``."""
    text = _NODES.sub("", message).partition(". ")[0].rstrip(".")
    return {_COUNT.sub("", one.strip()) for one in text.split(", ")}
