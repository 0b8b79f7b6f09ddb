"""The scheduler of a virtual cluster."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from edl_controller.api.kinds import NODES, PODS, Kind
from edl_controller.api.meta import Condition
from edl_controller.api.pods import Pod, PodSpec
from edl_controller.cluster.sim.cluster import SimCluster
from edl_controller.cluster.sim.notes import Notes
from edl_controller.cluster.sim.stamps import Stamps
from edl_controller.cluster.sim.timetable import Timetable
from edl_controller.core.capacity import Accounts
from edl_controller.core.placement import Shape, shape_of
from edl_controller.core.semantics import scheduler
from edl_controller.core.semantics.node_lifecycle import with_condition
from edl_controller.errors import InvalidQuantity

_replace = msgspec.structs.replace


class Scheduling:
    """Binds pods that wait, each time that something has changed which may help one of them."""

    def __init__(self, cluster: SimCluster, timetable: Timetable, stamps: Stamps, notes: Notes) -> None:
        self._cluster = cluster
        self._notes = notes
        self._timetable = timetable
        self._stamps = stamps
        self._verdicts = scheduler.Verdicts()
        self._shapes: dict[str, tuple[PodSpec, Shape]] = {}
        self.accounts = Accounts()
        """What is booked on each node; for reading."""

    def see(self, kind: Kind[Any], before: Any, after: Any) -> None:
        """Book a change, and plan a look at those that wait."""
        if kind is NODES:
            self.accounts.put_node(after) if after is not None else self.accounts.remove_node(before.metadata.name)
        elif kind is PODS and after is None:
            self.accounts.remove_pod(before.metadata.uid)
            self._shapes.pop(before.metadata.uid, None)
        elif kind is PODS:
            self.accounts.put_pod(after)
            if after.spec.scheduling_gates and not after.status.conditions:
                self._timetable.plan(("gated", after.metadata.uid), 0.0, partial(self._explain, after, scheduler.GATED))
        else:
            return
        if self.accounts.has_waiting:
            self._timetable.plan("schedule", 0.0, self._round)

    def _round(self) -> None:
        """Place all that wait: higher priority first, then who came first."""
        waiting = sorted(self.accounts.waiting(), key=lambda pod: -(pod.spec.priority or 0))
        hopeless: dict[Shape, scheduler.Placement] = {}
        for pod in waiting:
            shape = self._shape(pod)
            placement = hopeless.get(shape) if shape is not None else None
            if placement is None:
                placement = scheduler.place(pod, self.accounts, self._verdicts, shape=shape)
            if placement.node is not None:
                self._shapes.pop(pod.metadata.uid, None)
                self._bind(pod, placement.node)
            else:
                if shape is not None:
                    hopeless[shape] = placement
                self._explain(pod, placement)

    def _shape(self, pod: Pod) -> Shape | None:
        """Return the pod's shape, made once while it waits; None: its amounts cannot be read."""
        known = self._shapes.get(pod.metadata.uid)
        if known is not None and known[0] is pod.spec:
            return known[1]
        try:
            shape = shape_of(pod.spec)
        except InvalidQuantity:
            return None
        self._shapes[pod.metadata.uid] = (pod.spec, shape)
        return shape

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

    def _explain(self, pod: Pod, placement: scheduler.Placement) -> None:
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

        if self._cluster.find(pod.metadata.uid) is None:
            return
        before = self._cluster.get(PODS, pod.metadata.namespace, pod.metadata.name)
        after = self._cluster.rewrite(PODS, pod.metadata.namespace, pod.metadata.name, explained)
        if after is not before and placement is not scheduler.GATED:
            self._notes.write(PODS, pod, "FailedScheduling", placement.message, warning=True)
