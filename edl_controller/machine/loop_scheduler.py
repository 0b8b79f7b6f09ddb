"""The loop that gives waiting pods a node (`edl_controller.core.semantics.scheduler`).

One worker, one key: a pass books what has changed into the accounts and then places whatever waits, the highest
priority first. Many changes at once are one pass.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable

import msgspec

from edl_controller.api import timestamps
from edl_controller.api.kinds import NODES, PODS
from edl_controller.api.meta import Condition, find_condition
from edl_controller.api.nodes import Node
from edl_controller.api.pods import Pod
from edl_controller.cluster.port import Cluster
from edl_controller.core.capacity import Accounts
from edl_controller.core.semantics.node_lifecycle import with_condition
from edl_controller.core.semantics.scheduler import GATED, Placement, Verdicts, place
from edl_controller.errors import Conflict, NotFound
from edl_controller.machine.loop_events import LoopEvents
from edl_controller.runtime.cache import Cache, Key
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.reconciler import Reconciler
from edl_controller.runtime.reflector import Delta

PASS = "pass"
"""The one key."""
SCHEDULED = "PodScheduled"


class SchedulerLoop:
    """Places pods.

    Args:
        cluster: to act on.
        informers: to read from; handlers are added.
        events: what is said beside.
        now: Unix seconds.
    """

    def __init__(self, cluster: Cluster, informers: Informers, events: LoopEvents, now: Callable[[], float]) -> None:
        self._cluster, self._events, self._now = cluster, events, now
        pods, nodes = informers.of(PODS), informers.of(NODES)
        self._pods: Cache[Pod] = pods.cache
        self._nodes: Cache[Node] = nodes.cache
        self._accounts = Accounts()
        self._verdicts = Verdicts()
        self._changed: queue.SimpleQueue[tuple[str, Key]] = queue.SimpleQueue()
        self._uids: dict[Key, str] = {}
        self.reconciler: Reconciler[str] = Reconciler("scheduler", self.reconcile)
        pods.add_handler(self._on_pod)
        nodes.add_handler(self._on_node)

    def reconcile(self, key: str) -> float | None:
        """Make one pass."""
        for pod in self._book_changes():
            with contextlib.suppress(NotFound, Conflict):  # then there is news of it
                self._say_why_not(pod, GATED)
        waiting = sorted(self._accounts.waiting(), key=lambda pod: -(pod.spec.priority or 0))
        lost_race = False
        for pod in waiting:
            placement = place(pod, self._accounts, self._verdicts)
            try:
                if placement.node is None:
                    self._say_why_not(pod, placement)
                else:
                    self._bind(pod, placement.node)
            except NotFound:
                self._accounts.remove_pod(pod.metadata.uid)
            except Conflict:
                # Somebody changed the pod: the news of it will bring the next pass; to be safe there is one soon.
                lost_race = True
        return 0.1 if lost_race else None

    def _book_changes(self) -> list[Pod]:
        """Book the cache's state, not the news: the cache knows what this loop wrote itself. Returns gated pods."""
        forget, gated = False, []
        while not self._changed.empty():
            kind, key = self._changed.get()
            if kind == NODES.name:
                forget = True
                node = self._nodes.get(*key)
                self._accounts.put_node(node) if node is not None else self._accounts.remove_node(key[1])
                continue
            pod = self._pods.get(*key)
            known = self._uids.get(key)
            if known is not None and (pod is None or pod.metadata.uid != known):
                self._accounts.remove_pod(known)
                del self._uids[key]
            if pod is not None:
                self._uids[key] = pod.metadata.uid
                self._accounts.put_pod(pod)
                if pod.spec.scheduling_gates and not pod.spec.node_name:
                    gated.append(pod)
        if forget or len(self._verdicts.by_shape) > 1000:
            self._verdicts = Verdicts()
        return gated

    def _bind(self, pod: Pod, node: str) -> None:
        self._set_condition(pod, Condition(type=SCHEDULED, status="True"))
        meta = pod.metadata
        bound = self._cluster.patch(PODS, meta.namespace, meta.name, {"spec": {"nodeName": node}}, uid=meta.uid)
        self._pods.observe(bound)
        self._accounts.put_pod(bound)
        self._events.say(pod, "Scheduled", f"Successfully assigned {meta.namespace}/{meta.name} to {node}")

    def _say_why_not(self, pod: Pod, placement: Placement) -> None:
        condition = Condition(type=SCHEDULED, status="False", reason=placement.reason, message=placement.message)
        if self._set_condition(pod, condition) and placement is not GATED:
            self._events.say(pod, "FailedScheduling", placement.message, warning=True)

    def _set_condition(self, pod: Pod, condition: Condition) -> bool:
        """Write it where it differs; tells whether it did."""
        new = msgspec.structs.replace(condition, last_transition_time=timestamps.render(self._now()))
        known = find_condition(pod.status.conditions, SCHEDULED)
        conditions = with_condition(pod.status.conditions, new)
        if known is not None and conditions is pod.status.conditions:
            return False
        meta = pod.metadata
        written = self._cluster.patch(
            PODS,
            meta.namespace,
            meta.name,
            {"status": {"conditions": msgspec.to_builtins(conditions)}},
            subresource="status",
            resource_version=meta.resource_version,
            uid=meta.uid,
        )
        self._pods.observe(written)
        self._accounts.put_pod(written)
        return True

    def _on_pod(self, delta: Delta[Pod]) -> None:
        self._changed.put((PODS.name, (delta.obj.metadata.namespace, delta.obj.metadata.name)))
        self.reconciler.queue.add(PASS)

    def _on_node(self, delta: Delta[Node]) -> None:
        self._changed.put((NODES.name, (delta.obj.metadata.namespace, delta.obj.metadata.name)))
        self.reconciler.queue.add(PASS)
