"""PURE: Node: the machine that pods run on."""

from __future__ import annotations

from edl_controller.api.meta import Condition, Json, ObjectMeta, Record
from edl_controller.api.pods import Quantities


class Taint(Record, frozen=True, kw_only=True):
    """What keeps pods away that do not tolerate it. Effects: NoSchedule, PreferNoSchedule, NoExecute."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class NodeSpec(Record, frozen=True, kw_only=True):
    """How a node may be used; ``unschedulable`` is what ``kubectl cordon`` sets."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(Record, frozen=True, kw_only=True):
    """What a node has, and how it is."""

    capacity: Quantities = {}
    allocatable: Quantities = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[Json, ...] = ()


class Node(Record, frozen=True, kw_only=True):
    """A node (not namespaced)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
