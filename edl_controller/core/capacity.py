"""PURE: resource lists, and the accounts of a cluster: what each node has, what is used, what is about to be free.

The accounts are kept up to date pod by pod; nothing is ever counted anew from a list. A pod that terminates is neither
free nor in use: its room is still taken, but nobody will keep it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edl_controller.api import quantity
from edl_controller.api.nodes import Node
from edl_controller.api.pods import Container, Pod, PodSpec, Quantities
from edl_controller.core.placement import (
    CPU,
    MEMORY,
    PODS,
    Amounts,
    NodeFacts,
    add,
    amounts,
    facts_of,
    gpus,
    is_over,
    is_terminating,
    is_waiting,
    pod_limits,
    pod_requests,
    subtract,
)
from edl_controller.errors import InvalidQuantity

MEGA = 10**6
"""The original's unit of memory: 10^6 bytes."""


def add_resource_list(a: Quantities, b: Quantities) -> None:
    """Add the amounts of ``b`` into ``a``, exactly (no float), in place; what only ``b`` has is taken over.

    Raises:
        InvalidQuantity: one of them is no quantity; ``a`` is as before then.
    """
    a.update({name: quantity.add(a.get(name, "0"), amount) for name, amount in b.items()})


@dataclass
class Nodes:
    """What each node has left: node name to amount. Both maps have the same names.

    Raises:
        ValueError: they do not (when made, and when written as text).
    """

    nodes_cpu_idle_milli: dict[str, int] = field(default_factory=dict)
    nodes_memory_free_mega: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Compare the names of both maps.

        Raises:
            ValueError: they differ.
        """
        odd = sorted(self.nodes_cpu_idle_milli.keys() ^ self.nodes_memory_free_mega.keys())
        if odd:
            raise ValueError(f"only CPU or only memory is known of these nodes: {', '.join(odd)}")

    def __str__(self) -> str:
        self.check()
        return "\n".join(
            f"{name}: {cpu} milli CPU idle, {self.nodes_memory_free_mega[name]} mega memory free"
            for name, cpu in sorted(self.nodes_cpu_idle_milli.items())
        )


@dataclass
class ClusterResource:
    """The sums over the nodes that take pods (ready, not cordoned), and over the pods on them that are to stay."""

    node_count: int = 0
    gpu_request: int = 0
    gpu_limit: int = 0
    gpu_total: int = 0
    cpu_request_milli: int = 0
    cpu_limit_milli: int = 0
    cpu_total_milli: int = 0
    memory_request_mega: int = 0
    memory_limit_mega: int = 0
    memory_total_mega: int = 0
    nodes: Nodes = field(default_factory=Nodes)


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """The account of one node. The maps are never changed.

    Attributes:
        facts: what the scheduler's rules look at.
        allocatable: what it has for pods.
        used: asked for by pods that are there to stay.
        leaving: asked for by pods that terminate.
        room: allocatable, without used and leaving; below zero where more is promised than there is.
    """

    facts: NodeFacts
    allocatable: Mapping[str, int]
    used: Mapping[str, int]
    leaving: Mapping[str, int]
    room: Mapping[str, int]

    @property
    def open(self) -> bool:
        """Whether it takes new pods at all (taints aside)."""
        return self.facts.ready and not self.facts.unschedulable


class ChangeOfObject(Protocol):
    """`edl_controller.cluster.port.Change`, as far as it is read here."""

    @property
    def type(self) -> str:
        """ADDED, MODIFIED, DELETED or BOOKMARK."""
        ...

    @property
    def obj(self) -> Any:
        """The object; None for a bookmark."""
        ...


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is booked for one pod."""

    node: str
    leaving: bool
    asked: Amounts
    containers: tuple[Container, ...]


_NOTHING: Mapping[str, int] = {}


class Accounts:
    """The accounts of all nodes. Not thread-safe. Objects of other kinds than pods and nodes are passed over."""

    def __init__(self) -> None:
        self._rooms: dict[str, NodeRoom] = {}
        self._unknown: dict[str, tuple[Mapping[str, int], Mapping[str, int]]] = {}
        self._entries: dict[str, _Entry] = {}
        self._waiting: dict[str, Pod] = {}

    def apply(self, change: ChangeOfObject) -> None:
        """Book one change. Applying the same state again changes nothing."""
        if isinstance(change.obj, Pod):
            self.put_pod(change.obj) if change.type != "DELETED" else self.remove_pod(change.obj.metadata.uid)
        elif isinstance(change.obj, Node):
            self.put_node(change.obj) if change.type != "DELETED" else self.remove_node(change.obj.metadata.name)

    def put_node(self, node: Node) -> None:
        """A node is there, or has changed. Unreadable amounts count as none."""
        facts, name = facts_of(node), node.metadata.name
        known = self._rooms.get(name)
        used, leaving = (known.used, known.leaving) if known else self._unknown.pop(name, (_NOTHING, _NOTHING))
        try:
            allocatable = amounts(node.status.allocatable or node.status.capacity)
        except InvalidQuantity:
            allocatable = {}
        self._rooms[name] = _account(facts, allocatable, used, leaving)

    def remove_node(self, name: str) -> None:
        """A node is gone; what is booked on it is remembered until its pods are gone, too."""
        known = self._rooms.pop(name, None)
        if known is not None:
            self._unknown[name] = (known.used, known.leaving)

    def put_pod(self, pod: Pod) -> None:
        """A pod is there, or has changed (assigned, resized, ended, asked to end)."""
        uid, spec = pod.metadata.uid, pod.spec
        if is_waiting(pod):
            self._waiting[uid] = pod
        else:
            self._waiting.pop(uid, None)
        before = self._entries.get(uid)
        after: _Entry | None = None
        if spec.node_name and not is_over(pod):
            same = before is not None and before.containers == spec.containers
            asked = before.asked if before is not None and same else _asked(spec)
            after = _Entry(spec.node_name, is_terminating(pod), asked, spec.containers)
            if before is not None and same and (before.node, before.leaving) == (after.node, after.leaving):
                return
        self._book(uid, before, after)

    def remove_pod(self, uid: str) -> None:
        """A pod is gone."""
        self._waiting.pop(uid, None)
        self._book(uid, self._entries.get(uid), None)

    def nodes(self) -> tuple[NodeRoom, ...]:
        """Return the accounts of all nodes, in the order in which they came."""
        return tuple(self._rooms.values())

    def waiting(self) -> tuple[Pod, ...]:
        """Return the pods that wait for a node, the longest waiting first."""
        return tuple(self._waiting.values())

    def __iter__(self) -> Iterator[NodeRoom]:
        return iter(self._rooms.values())

    def _book(self, uid: str, before: _Entry | None, after: _Entry | None) -> None:
        if before is not None:
            self._move(before, subtract)
            del self._entries[uid]
        if after is not None:
            self._move(after, add)
            self._entries[uid] = after

    def _move(self, entry: _Entry, move: Any) -> None:
        known = self._rooms.get(entry.node)
        used, leaving = (known.used, known.leaving) if known else self._unknown.get(entry.node, (_NOTHING, _NOTHING))
        if entry.leaving:
            leaving = _tidy(move(dict(leaving), entry.asked))
        else:
            used = _tidy(move(dict(used), entry.asked))
        if known is not None:
            self._rooms[entry.node] = _account(known.facts, known.allocatable, used, leaving)
        elif used or leaving:
            self._unknown[entry.node] = (used, leaving)
        else:
            self._unknown.pop(entry.node, None)


def _asked(spec: PodSpec) -> Amounts:
    try:
        return pod_requests(spec)
    except InvalidQuantity:  # no server keeps such a pod; one that does must not stop the accounts of all others
        return {PODS: 1}


def _tidy(booked: Amounts) -> Amounts:
    return {name: amount for name, amount in booked.items() if amount}


def _account(
    facts: NodeFacts, allocatable: Mapping[str, int], used: Mapping[str, int], leaving: Mapping[str, int]
) -> NodeRoom:
    room = subtract(dict(allocatable), used)
    if leaving:
        subtract(room, leaving)
    return NodeRoom(facts, allocatable, used, leaving, room)


def inquiry(nodes: Iterable[Node], pods: Iterable[Pod]) -> ClusterResource:
    """Add up what the nodes have and the pods ask for.

    Nodes that take no pods (cordoned, not ready) count neither in the totals nor with their pods; pods that have ended,
    terminate or wait for a node are in no request. Memory is added up in bytes: totals are cut to 10^6 bytes, requests
    and limits rounded up.
    """
    accounts = Accounts()
    for node in nodes:
        accounts.put_node(node)
    limits: Amounts = {}
    open_nodes = {account.facts.name for account in accounts if account.open}
    for pod in pods:
        accounts.put_pod(pod)
        if pod.spec.node_name in open_nodes and not is_over(pod) and not is_terminating(pod):
            add(limits, pod_limits(pod.spec))
    total: Amounts = {}
    used: Amounts = {}
    rooms = [account for account in accounts if account.open]
    for account in rooms:
        add(total, account.allocatable)
        add(used, account.used)
    return ClusterResource(
        node_count=len(rooms),
        gpu_request=gpus(used),
        gpu_limit=gpus(limits),
        gpu_total=gpus(total),
        cpu_request_milli=used.get(CPU, 0),
        cpu_limit_milli=limits.get(CPU, 0),
        cpu_total_milli=total.get(CPU, 0),
        memory_request_mega=-(-used.get(MEMORY, 0) // MEGA),
        memory_limit_mega=-(-limits.get(MEMORY, 0) // MEGA),
        memory_total_mega=total.get(MEMORY, 0) // MEGA,
        nodes=Nodes(
            {account.facts.name: account.room.get(CPU, 0) for account in rooms},
            {account.facts.name: account.room.get(MEMORY, 0) // MEGA for account in rooms},
        ),
    )
