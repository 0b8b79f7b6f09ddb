"""The scheduler of a virtual cluster."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import msgspec

from edl_controller.api.kinds import NODES, PODS, Kind
from edl_controller.api.meta import Condition
from edl_controller.api.pods import Pod
from edl_controller.cluster.sim.cluster import SimCluster
from edl_controller.cluster.sim.notes import Notes
from edl_controller.cluster.sim.stamps import Stamps
from edl_controller.cluster.sim.timetable import Timetable
from edl_controller.core.capacity import Accounts
from edl_controller.core.placement import Shape, is_over, is_waiting, shape_of
from edl_controller.core.semantics import scheduler
from edl_controller.core.semantics.node_lifecycle import with_condition
from edl_controller.errors import InvalidQuantity

_replace = msgspec.structs.replace

TOLD_AGAIN = 10.0
"""Seconds before pods that wait are told another reason: a queue of thousands is not rewritten at every change."""


@dataclass
class _Queue:
    """Pods of one shape and one priority: where the first finds no place, none does."""

    priority: int
    shape: Shape | None
    pods: dict[str, tuple[int, Pod]] = field(default_factory=dict)
    """By uid, with its number: who came first."""
    untold: dict[str, None] = field(default_factory=dict)
    """Those that have not been told yet why they wait."""
    told: scheduler.Placement | None = None
    told_at: float = 0.0

    def first(self) -> int:
        """Return the number of its first pod."""
        return next(iter(self.pods.values()))[0]


class Scheduling:
    """Binds pods that wait, each time that something has changed which may help one of them."""

    def __init__(self, cluster: SimCluster, timetable: Timetable, stamps: Stamps, notes: Notes) -> None:
        self._cluster = cluster
        self._notes = notes
        self._timetable = timetable
        self._stamps = stamps
        self._verdicts = scheduler.Verdicts()
        self._queues: dict[tuple[int, Shape | None], _Queue] = {}
        self._queue_of: dict[str, _Queue] = {}
        self._gated: dict[str, None] = {}
        self._numbers = itertools.count()
        self.accounts = Accounts()
        """What is booked on each node; for reading."""

    def see(self, kind: Kind[Any], before: Any, after: Any) -> None:
        """Book a change, and plan a look at those that wait."""
        if kind is NODES:
            self.accounts.put_node(after) if after is not None else self.accounts.remove_node(before.metadata.name)
        elif kind is PODS and after is None:
            self.accounts.remove_pod(before.metadata.uid)
            self._leave(before.metadata.uid)
        elif kind is PODS:
            self.accounts.put_pod(after)
            self._see_pod(after)
            if before is not None and before.spec is after.spec and not is_over(after):
                return  # says nothing of room
        else:
            return
        if self._queue_of or self._gated:
            self._timetable.plan("schedule", 0.0, self._round)

    def _see_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if not is_waiting(pod):
            self._leave(uid)
            if pod.spec.scheduling_gates and not pod.status.conditions:
                self._gated[uid] = None
            return
        queue = self._queue_of.get(uid)
        if queue is not None:
            number, known = queue.pods[uid]
            if known.spec is pod.spec:
                queue.pods[uid] = (number, pod)
                return
            self._leave(uid)
        try:
            shape = shape_of(pod.spec)
        except InvalidQuantity:
            shape = None
        key = (-(pod.spec.priority or 0), shape)
        queue = self._queues.setdefault(key, _Queue(*key))
        queue.pods[uid] = (next(self._numbers), pod)
        queue.untold[uid] = None
        self._queue_of[uid] = queue

    def _leave(self, uid: str) -> None:
        self._gated.pop(uid, None)
        queue = self._queue_of.pop(uid, None)
        if queue is not None:
            del queue.pods[uid]
            queue.untold.pop(uid, None)
            if not queue.pods:
                del self._queues[queue.priority, queue.shape]

    def _round(self) -> None:
        """Place all that find room: higher priority first, then who came first."""
        for uid in [*self._gated]:
            del self._gated[uid]
            self._explain(uid, scheduler.GATED)
        open_queues = [*self._queues.values()]
        while open_queues:
            queue = min(open_queues, key=lambda queue: (queue.priority, queue.first()))
            uid, (_, pod) = next(iter(queue.pods.items()))
            placement = scheduler.place(pod, self.accounts, self._verdicts, shape=queue.shape)
            if placement.node is not None:
                self._bind(pod, placement.node)
            if placement.node is None or not queue.pods:
                open_queues.remove(queue)
            if placement.node is None:
                self._tell(queue, placement)

    def _tell(self, queue: _Queue, placement: scheduler.Placement) -> None:
        """Tell the pods of a queue why they wait; the new ones at once, the others not too often."""
        now = self._timetable.clock.wall()
        who = queue.untold
        if placement != queue.told:
            if queue.told is not None and now < queue.told_at + TOLD_AGAIN:
                self._timetable.plan("tell again", queue.told_at + TOLD_AGAIN - now, self._round, soon=False)
            else:
                queue.told, queue.told_at = placement, now
                who = dict.fromkeys(queue.pods)
        queue.untold = {}
        for uid in who:
            self._explain(uid, placement)

    def _bind(self, pod: Pod, node: str) -> None:
        condition = Condition(type="PodScheduled", status="True", last_transition_time=self._stamps.now())

        def bound(pod: Pod) -> Pod:
            conditions = with_condition(pod.status.conditions, condition)
            return _replace(
                pod, spec=_replace(pod.spec, node_name=node), status=_replace(pod.status, conditions=conditions)
            )

        where, name = pod.metadata.namespace, pod.metadata.name
        self._cluster.rewrite(PODS, where, name, bound)
        self._notes.write(PODS, pod, "Scheduled", f"Successfully assigned {where}/{name} to {node}")

    def _explain(self, uid: str, placement: scheduler.Placement) -> None:
        condition = Condition(
            type="PodScheduled",
            status="False",
            reason=placement.reason,
            message=placement.message,
            last_transition_time=self._stamps.now(),
        )

        def explained(pod: Pod) -> Pod:
            conditions = with_condition(pod.status.conditions, condition)
            if conditions is pod.status.conditions:
                return pod
            return _replace(pod, status=_replace(pod.status, conditions=conditions))

        found = self._cluster.find(uid)
        if found is None:
            return
        pod: Pod = found[1]
        after = self._cluster.rewrite(PODS, pod.metadata.namespace, pod.metadata.name, explained)
        if after is not pod and placement is not scheduler.GATED:
            self._notes.write(PODS, pod, "FailedScheduling", placement.message, warning=True)
