"""PURE: which pod may run on which node: what it asks for, what there is, and the rules of the scheduler.

Amounts are whole numbers: ``cpu`` in millicores, everything else in its own unit (memory in bytes, devices in pieces),
each rounded up as the scheduler does. The rules are those of kube-scheduler's filters NodeResourcesFit, NodeAffinity,
TaintToleration and NodeUnschedulable; affinity between pods and topology spread are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from edl_controller.api.meta import Json, is_true
from edl_controller.api.nodes import Node, Taint
from edl_controller.api.pods import Container, Pod, PodSpec, Quantities, Toleration
from edl_controller.api.quantity import milli, units

Amounts = dict[str, int]
"""Resource name to whole amount."""

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
"""Every pod takes one; nodes say how many they hold."""

GPU_SUFFIXES = ("/gpu", "/nvidia-gpu")
"""``nvidia.com/gpu``, ``amd.com/gpu``, the original's ``alpha.kubernetes.io/nvidia-gpu``: a GPU, by its name."""

_UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")


def amounts(quantities: Quantities) -> Amounts:
    """Read a resource list into whole amounts.

    Raises:
        InvalidQuantity: one of them is no quantity.
    """
    return {name: _whole(name == CPU, value) for name, value in quantities.items()}


@lru_cache(maxsize=4096)
def _whole(is_cpu: bool, value: str | int | float) -> int:
    """The same few texts come again and again: thousands of pods are made from one template."""
    return milli(value) if is_cpu else units(value)


def is_gpu(resource: str) -> bool:
    """Tell whether a resource is a GPU, by its name."""
    return resource.endswith(GPU_SUFFIXES)


def gpus(asked: Mapping[str, int]) -> int:
    """Return how many GPUs are among these amounts, of whatever maker."""
    return sum(amount for name, amount in asked.items() if is_gpu(name))


def container_requests(container: Container) -> Amounts:
    """Return what one container asks for; where only a limit is given, it is the request (the API server's default)."""
    return amounts({**container.resources.limits, **container.resources.requests})


def container_limits(container: Container) -> Amounts:
    """Return what one container may use at most."""
    return amounts(container.resources.limits)


def is_sidecar(container: Container) -> bool:
    """Tell whether an init container is a native sidecar: it keeps running beside the others."""
    return container.restart_policy == "Always"


def pod_requests(spec: PodSpec) -> Amounts:
    """Return what the scheduler reserves for a pod, with one of `PODS`.

    Init containers run one after the other, before the others: the largest counts, not the sum. A native sidecar counts
    beside all that start after it. The overhead of the runtime class comes on top (KEP-753).

    Raises:
        InvalidQuantity: one of the amounts is no quantity.
    """
    return _pod_amounts(spec, container_requests) | {PODS: 1}


def pod_limits(spec: PodSpec) -> Amounts:
    """Return the most a pod may use, by the rule of `pod_requests`; resources without a limit are absent."""
    return _pod_amounts(spec, container_limits)


def _pod_amounts(spec: PodSpec, count: Callable[[Container], Amounts]) -> Amounts:
    sidecars: Amounts = {}
    largest: Amounts = {}
    for container in spec.init_containers:
        asked = count(container)
        if is_sidecar(container):
            add(sidecars, asked)
            asked = sidecars
        else:
            asked = add(dict(asked), sidecars)
        raise_to(largest, asked)
    total = dict(sidecars)
    for container in spec.containers:
        add(total, count(container))
    raise_to(total, largest)
    return add(total, amounts(spec.overhead))


def add(into: Amounts, more: Mapping[str, int]) -> Amounts:
    """Add amounts in place; returns ``into``."""
    for name, amount in more.items():
        into[name] = into.get(name, 0) + amount
    return into


def subtract(into: Amounts, less: Mapping[str, int]) -> Amounts:
    """Subtract amounts in place, below zero too; returns ``into``."""
    for name, amount in less.items():
        into[name] = into.get(name, 0) - amount
    return into


def raise_to(into: Amounts, least: Mapping[str, int]) -> Amounts:
    """Raise amounts in place to at least these; returns ``into``."""
    for name, amount in least.items():
        if amount > into.get(name, 0):
            into[name] = amount
    return into


def insufficient(asked: Mapping[str, int], room: Mapping[str, int]) -> tuple[str, ...]:
    """Return the resources of which there is too little room; none: it fits. What is not asked for is not looked at."""
    return tuple(name for name, amount in asked.items() if amount > 0 and amount > room.get(name, 0))


def slots(asked: Mapping[str, int], room: Mapping[str, int]) -> int:
    """Return how many pods that ask for this fit into the room (every pod asks for one of `PODS`)."""
    return max(0, min((room.get(name, 0) // amount for name, amount in asked.items() if amount > 0), default=0))


# --- pods ---


def is_over(pod: Pod) -> bool:
    """Tell whether a pod has ended: it takes no room any more."""
    return pod.status.phase in ("Succeeded", "Failed")


def is_terminating(pod: Pod) -> bool:
    """Tell whether a pod was asked to end."""
    return pod.metadata.deletion_timestamp is not None


def is_ready(pod: Pod) -> bool:
    """Tell whether a pod is Ready."""
    return is_true(pod.status.conditions, "Ready")


def is_waiting(pod: Pod) -> bool:
    """Tell whether a pod waits for a node: unassigned, not gated, not ended, not leaving."""
    return not (pod.spec.node_name or pod.spec.scheduling_gates or is_over(pod) or is_terminating(pod))


@dataclass(frozen=True, slots=True)
class Rules:
    """Where a pod wants to run, hashable: many pods share one."""

    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    terms: bytes = b""
    """Required node affinity as JSON; empty: none."""

    def required_terms(self) -> tuple[Json, ...] | None:
        """Return the terms of the required node affinity, of which one must hold; None: there is no such rule."""
        return None if not self.terms else tuple(msgspec.json.decode(self.terms))

    def label_keys(self) -> frozenset[str]:
        """Return the node labels that the rules read."""
        expressions = [one for term in self.required_terms() or () for one in term.get("matchExpressions") or ()]
        return frozenset([key for key, _ in self.node_selector] + [one.get("key", "") for one in expressions])

    def names_nodes(self) -> bool:
        """Tell whether the rules read the names of nodes."""
        return any(term.get("matchFields") for term in self.required_terms() or ())


@dataclass(frozen=True, slots=True)
class Shape:
    """All that the scheduler looks at of a pod: what it asks for (with `PODS`), and where it wants to run."""

    asked: tuple[tuple[str, int], ...]
    rules: Rules = Rules()

    @property
    def amounts(self) -> Amounts:
        """Return what it asks for."""
        return dict(self.asked)


def rules_of(spec: PodSpec) -> Rules:
    """Return where a pod wants to run."""
    required = ((spec.affinity or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = None if required is None else required.get("nodeSelectorTerms") or []
    return Rules(
        tuple(sorted(spec.node_selector.items())),
        spec.tolerations,
        b"" if terms is None else msgspec.json.encode(terms),
    )


def shape_of(spec: PodSpec) -> Shape:
    """Return what the scheduler looks at of a pod.

    Raises:
        InvalidQuantity: one of its amounts is no quantity.
    """
    return Shape(tuple(sorted(pod_requests(spec).items())), rules_of(spec))


# --- nodes ---


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """All that the rules look at of a node."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True


def facts_of(node: Node) -> NodeFacts:
    """Return what the rules look at of a node."""
    return NodeFacts(
        node.metadata.name,
        node.metadata.labels,
        node.spec.taints,
        node.spec.unschedulable,
        is_true(node.status.conditions, "Ready"),
    )


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Tell whether a toleration covers a taint. Without a key (and with Exists) it covers every key."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return bool(toleration.key) and toleration.value == taint.value
    return False


def repelled_by(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> Taint | None:
    """Return the first taint that keeps the pod away (PreferNoSchedule does not), or None."""
    known = tuple(tolerations)
    for taint in taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(tolerates(one, taint) for one in known):
            return taint
    return None


def why_not(rules: Rules, node: NodeFacts) -> str:
    """Say why a pod with these rules may not run on a node, whatever its room; empty: it may.

    A node that is not Ready is tainted so by Kubernetes, a cordoned one too: a pod may tolerate both.
    """
    if node.unschedulable and repelled_by(rules.tolerations, (_UNSCHEDULABLE,)):
        return "node is cordoned"
    if not node.ready and repelled_by(rules.tolerations, (_NOT_READY,)):
        return "node is not ready"
    if taint := repelled_by(rules.tolerations, node.taints):
        return f"node has the taint {taint.key}={taint.value}:{taint.effect}"
    if any(node.labels.get(key) != value for key, value in rules.node_selector):
        return "node does not match the selector"
    terms = rules.required_terms()
    if terms is not None and not any(_term_holds(term, node) for term in terms):
        return "node does not match the affinity"
    return ""


def _term_holds(term: Json, node: NodeFacts) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term selects nothing
    known_fields = {"metadata.name": node.name}
    return all(_holds(one, node.labels) for one in expressions) and all(_holds(one, known_fields) for one in fields)


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    key: str = expression.get("key", "")
    values: Sequence[str] = expression.get("values") or ()
    found = labels.get(key)
    match expression.get("operator", ""):
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt" as operator:
            try:
                mine, other = int(found or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return mine > other if operator == "Gt" else mine < other
    return False
