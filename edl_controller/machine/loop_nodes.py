"""The loop that sees to the pods of nodes that fail or vanish (`edl_controller.core.semantics.node_lifecycle`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from edl_controller.api import timestamps
from edl_controller.api.kinds import NODES, PODS
from edl_controller.api.meta import find_condition
from edl_controller.api.nodes import Node, Taint
from edl_controller.api.pods import Pod
from edl_controller.cluster.port import Cluster
from edl_controller.core.merge_patch import difference
from edl_controller.core.semantics import node_lifecycle as semantics
from edl_controller.errors import NotFound
from edl_controller.runtime.cache import Cache
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.reconciler import Reconciler
from edl_controller.runtime.reflector import Delta

NODE = "node"
"""Index of the pods by the node they are assigned to."""
TAINTS = {"False": semantics.NOT_READY, "Unknown": semantics.UNREACHABLE}
"""Status of a node's condition Ready, and what it is tainted with then."""


def node_of(pod: Pod) -> tuple[str, ...]:
    """Index function of `NODE`."""
    return (pod.spec.node_name,) if pod.spec.node_name else ()


class NodeLoop:
    """Taints nodes that are not ready, and ends the pods of nodes that are gone or tainted.

    Args:
        cluster: to act on.
        informers: to read from; that of pods has the index `NODE`. Handlers are added.
        now: Unix seconds.
    """

    def __init__(self, cluster: Cluster, informers: Informers, now: Callable[[], float]) -> None:
        self._cluster, self._now = cluster, now
        pods, nodes = informers.of(PODS), informers.of(NODES)
        self._pods: Cache[Pod] = pods.cache
        self._nodes: Cache[Node] = nodes.cache
        self._missed_since: dict[str, float] = {}
        self.reconciler: Reconciler[str] = Reconciler("nodes", self.reconcile)
        nodes.add_handler(self._on_node)
        pods.add_handler(self._on_pod)

    def reconcile(self, name: str) -> float | None:
        """See to one node and its pods."""
        pods = [pod for pod in self._pods.by_index(NODE, name) if pod.metadata.deletion_grace_period_seconds != 0]
        node = self._nodes.get("", name)
        if node is None:
            return self._without_node(name, pods)
        self._missed_since.pop(name, None)
        node = self._tainted(node)
        ready = find_condition(node.status.conditions, "Ready")
        waits = []
        for pod in pods:
            if ready is not None and ready.status != "True":
                pod = self._write_status(pod, semantics.without_readiness(pod, self._now()))
            wait = semantics.stays_for(pod, node, self._now())
            if wait is None or pod.metadata.deletion_timestamp is not None:
                continue
            if wait > 0:
                waits.append(wait)
            else:
                self._end(self._write_status(pod, semantics.evicted(pod, self._now())), None)
        return min(waits, default=None)

    def _without_node(self, name: str, pods: list[Pod]) -> float | None:
        if not pods:
            self._missed_since.pop(name, None)
            return None
        left = self._missed_since.setdefault(name, self._now()) + semantics.MISSED - self._now()
        if left > 0:
            return left
        with contextlib.suppress(NotFound):
            self._cluster.get(NODES, "", name)
            return semantics.MISSED  # the cache has not heard of it yet
        for pod in pods:
            self._end(self._write_status(pod, semantics.lost(pod, self._now())), 0)
        return None

    def _tainted(self, node: Node) -> Node:
        """Keep the taint that says how the node is."""
        ready = find_condition(node.status.conditions, "Ready")
        wanted = None if ready is None else TAINTS.get(ready.status)
        present = {taint.key for taint in node.spec.taints if taint.effect == "NoExecute"}
        others = tuple(
            taint
            for taint in node.spec.taints
            if taint.key == wanted or taint.effect != "NoExecute" or taint.key not in TAINTS.values()
        )
        if wanted is not None and wanted not in present:
            others = (*others, Taint(key=wanted, effect="NoExecute", time_added=timestamps.render(self._now())))
        if others == node.spec.taints:
            return node
        meta = node.metadata
        written = self._cluster.patch(
            NODES,
            "",
            meta.name,
            {"spec": {"taints": msgspec.to_builtins(others) or None}},
            resource_version=meta.resource_version,
            uid=meta.uid,
        )
        self._nodes.observe(written)
        return written

    def _write_status(self, before: Pod, after: Pod) -> Pod:
        patch = difference(msgspec.to_builtins(before.status), msgspec.to_builtins(after.status))
        if not patch:
            return before
        meta = before.metadata
        written = self._cluster.patch(
            PODS,
            meta.namespace,
            meta.name,
            {"status": patch},
            subresource="status",
            resource_version=meta.resource_version,
            uid=meta.uid,
        )
        self._pods.observe(written)
        return written

    def _end(self, pod: Pod, grace_seconds: int | None) -> None:
        meta = pod.metadata
        with contextlib.suppress(NotFound):
            self._cluster.delete(PODS, meta.namespace, meta.name, uid=meta.uid, grace_seconds=grace_seconds)
        self._pods.observe_end(pod, timestamps.render(self._now()))

    def _on_node(self, delta: Delta[Node]) -> None:
        self.reconciler.queue.add(delta.obj.metadata.name)

    def _on_pod(self, delta: Delta[Pod]) -> None:
        name = delta.obj.spec.node_name
        node = self._nodes.get("", name)
        # Only what a node has to do with: pods come and go without end on nodes that are well.
        if name and (node is None or node.spec.taints):
            self.reconciler.queue.add(name)
