"""PURE: where the scheduler of Kubernetes (1.36) puts a pod: filters, then least allocated and most balanced.

The filters are those of `edl_controller.core.placement`. Scores: NodeResourcesFit (least allocated),
NodeResourcesBalancedAllocation, and TaintToleration (``PreferNoSchedule``). Nodes with equal scores: the one with fewer
pods, then the first by name, where the real one draws lots. Preemption, preferred affinity, affinity between pods and
topology spread are not imitated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edl_controller.api.pods import Pod
from edl_controller.core.capacity import NodeRoom
from edl_controller.core.placement import CPU, MEMORY, PODS, Shape, insufficient, shape_of, tolerates, why_not
from edl_controller.errors import InvalidQuantity

_WORDS = (
    ("node is cordoned", "node(s) were unschedulable"),
    ("node does not match", "node(s) didn't match Pod's node affinity/selector"),
    ("node", "node(s) had untolerated taint(s)"),
)
"""How a reason of `why_not` begins, and what Kubernetes says for it."""


@dataclass(frozen=True)
class Placement:
    """Where a pod goes; without a node, why not, in the words of Kubernetes (``reason`` of ``PodScheduled``)."""

    node: str | None
    reason: str = ""
    message: str = ""


@dataclass
class Verdicts:
    """Earlier verdicts, so that a pod like the last one is placed without looking at every node again.

    They are by shape and node, and hold for as long as the node's account is the very same object.
    """

    by_shape: dict[Shape, dict[str, tuple[NodeRoom, int | str]]] = field(default_factory=dict)

    def of(self, shape: Shape) -> dict[str, tuple[NodeRoom, int | str]]:
        """Return those of one shape, to be read and added to."""
        return self.by_shape.setdefault(shape, {})


GATED = Placement(None, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")


def place(
    pod: Pod, rooms: Iterable[NodeRoom], verdicts: Verdicts | None = None, *, shape: Shape | None = None
) -> Placement:
    """Decide where a pod goes.

    Args:
        pod: it waits for a node.
        shape: the pod's, where it is known already.
        rooms: the accounts of all nodes; what is booked on them counts, whether it stays or leaves.
        verdicts: of earlier calls; they are read and added to.
    """
    if pod.spec.scheduling_gates:
        return GATED
    try:
        shape = shape or shape_of(pod.spec)
    except InvalidQuantity as error:
        return Placement(None, "Unschedulable", str(error))
    known = (verdicts or Verdicts()).of(shape)
    asked = dict(shape.asked)
    best: tuple[int, int, str] | None = None
    faults: list[int | str] = []
    for room in rooms:
        name = room.facts.name
        before = known.get(name)
        if before is not None and before[0] is room:
            verdict = before[1]
        else:
            verdict = _verdict(shape, asked, room)
            known[name] = (room, verdict)
        if isinstance(verdict, str):
            faults.append(verdict)
            continue
        rank = (-verdict, room.used.get(PODS, 0), name)
        if best is None or rank < best:
            best = rank
    if best is not None:
        return Placement(best[2])
    return Placement(None, "Unschedulable", _message(faults))


def _verdict(shape: Shape, asked: Mapping[str, int], room: NodeRoom) -> int | str:
    """Return a score, or the reasons against the node, one a line."""
    if why := why_not(shape.rules, room.facts):
        return next(words for start, words in _WORDS if why.startswith(start))
    if short := insufficient(asked, room.room):
        return "\n".join("Too many pods" if name == PODS else f"Insufficient {name}" for name in short)
    score = _least_allocated(asked, room)
    if asked.get(CPU) or asked.get(MEMORY):
        score += _balance_gained(asked, room)
    unwanted = [taint for taint in room.facts.taints if taint.effect == "PreferNoSchedule"]
    if unwanted:
        score -= 300 * (not all(any(tolerates(one, t) for one in shape.rules.tolerations) for t in unwanted))
    return score


def _least_allocated(asked: Mapping[str, int], room: NodeRoom) -> int:
    scores = []
    for name in (CPU, MEMORY):
        if has := room.allocatable.get(name, 0):
            scores.append(max(0, room.room.get(name, 0) - asked.get(name, 0)) * 100 // has)
    return sum(scores) // len(scores) if scores else 0


def _balance_gained(asked: Mapping[str, int], room: NodeRoom) -> int:
    """A node scores more when the pod brings its use of CPU and of memory nearer together (75: no change)."""
    return 50 + (50 + _balance(asked, room) - _balance({}, room)) // 2


def _balance(more: Mapping[str, int], room: NodeRoom) -> int:
    fractions = []
    for name in (CPU, MEMORY):
        if has := room.allocatable.get(name, 0):
            fractions.append(min(1.0, (has - room.room.get(name, 0) + more.get(name, 0)) / has))
    return int((1 - abs(fractions[0] - fractions[-1]) / 2) * 100) if fractions else 100


def _message(faults: list[int | str]) -> str:
    if not faults:
        return "no nodes available to schedule pods"
    counts = Counter(reason for fault in faults for reason in str(fault).split("\n"))
    reasons = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"0/{len(faults)} nodes are available: {', '.join(reasons)}. No pod is preempted for it."
