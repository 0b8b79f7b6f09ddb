"""Virtual nodes: their pods run, end and vanish at virtual times, as a kubelet would report it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from edl_controller.api.kinds import NODES, PODS
from edl_controller.api.meta import Condition, ObjectMeta
from edl_controller.api.nodes import Node, NodeSpec, NodeStatus, Taint
from edl_controller.api.pods import Pod
from edl_controller.cluster.sim.cluster import SimCluster
from edl_controller.cluster.sim.pod_course import Courses, PodCourse, ended, running
from edl_controller.cluster.sim.stamps import Stamps
from edl_controller.cluster.sim.timetable import Timetable
from edl_controller.core.semantics import node_lifecycle
from edl_controller.core.semantics.pod_state import ENDED

_replace = msgspec.structs.replace


@dataclass
class _Seen:
    """What a node knows of one pod."""

    course: PodCourse
    address: str
    containers_ready: bool = False
    is_asked: bool = False
    exit_code: int | None = None


class VirtualNodes:
    """All nodes of a virtual cluster, and what becomes of their pods when they fail or go."""

    def __init__(self, cluster: SimCluster, timetable: Timetable, stamps: Stamps, courses: Courses) -> None:
        self._cluster = cluster
        self._timetable = timetable
        self._stamps = stamps
        self._courses = courses
        self._pods: dict[str, _Seen] = {}
        self._on_node: dict[str, dict[str, None]] = {}
        self._dead: set[str] = set()
        self._count = 0
        self.holds = False
        """Pods that are asked to end do not, whatever their grace."""
        self.end_code: int | None = None
        """Exit code of all pods that are asked to end, in place of their course's."""

    # --- nodes ---

    def add(
        self, name: str, resources: Mapping[str, str], labels: Mapping[str, str] | None, taints: Sequence[Taint]
    ) -> Node:
        """Create a ready node."""
        meta = ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **(labels or {})})
        self._cluster.create(Node(metadata=meta, spec=NodeSpec(taints=tuple(taints))))
        ready = Condition(type="Ready", status="True", reason="KubeletReady", last_transition_time=self._stamps.now())
        status = NodeStatus(capacity=dict(resources), allocatable=dict(resources), conditions=(ready,))
        return self._cluster.rewrite(NODES, "", name, lambda node: _replace(node, status=status))

    def fail(self, name: str) -> None:
        """The node falls silent: its pods are not ready any more, and deleted when their patience is over."""
        self._dead.add(name)
        self._set_ready(name, False)
        node = self._cluster.get(NODES, "", name)
        for pod in self._pods_on(name):
            now = self._timetable.clock.wall()
            self._write(pod, lambda pod: node_lifecycle.without_readiness(pod, self._timetable.clock.wall()))
            wait = node_lifecycle.stays_for(pod, node, now)
            if wait is not None:
                uid = pod.metadata.uid
                self._timetable.plan(("evict", uid), wait, partial(self._evict, uid), soon=False)

    def recover(self, name: str) -> None:
        """The node is back: its pods were running all the time."""
        self._dead.discard(name)
        self._set_ready(name, True)
        for pod in self._pods_on(name):
            self._timetable.forget(("evict", pod.metadata.uid))
            if pod.metadata.deletion_timestamp is not None:
                self._ask_to_end(pod)
            elif pod.status.phase == "Running":
                self._report(pod.metadata.uid)
            elif pod.status.phase == "Pending":
                self._plan(("start", pod.metadata.uid), self._pods[pod.metadata.uid].course.start, self._start)

    def remove(self, name: str) -> None:
        """The node is gone, and nobody will ever say what became of its pods."""
        self._dead.add(name)
        self._cluster.delete(NODES, "", name)
        for uid in [*self._on_node.get(name, {})]:
            self._timetable.plan(("lost", uid), node_lifecycle.MISSED, partial(self._lose, uid), soon=False)

    def _set_ready(self, name: str, ready: bool) -> None:
        stamp = self._stamps.now()
        condition = Condition(
            type="Ready",
            status="True" if ready else "Unknown",
            reason="KubeletReady" if ready else "NodeStatusUnknown",
            last_transition_time=stamp,
        )
        marks = (
            Taint(key=node_lifecycle.UNREACHABLE, effect="NoSchedule", time_added=stamp),
            Taint(key=node_lifecycle.UNREACHABLE, effect="NoExecute", time_added=stamp),
        )

        def change(node: Node) -> Node:
            taints = tuple(taint for taint in node.spec.taints if taint.key != node_lifecycle.UNREACHABLE)
            spec = _replace(node.spec, taints=taints if ready else taints + marks)
            conditions = node_lifecycle.with_condition(node.status.conditions, condition)
            return _replace(node, spec=spec, status=_replace(node.status, conditions=conditions))

        self._cluster.rewrite(NODES, "", name, change)

    def _evict(self, uid: str) -> None:
        pod = self._find(uid)
        if pod is not None:
            self._write(pod, lambda pod: node_lifecycle.evicted(pod, self._timetable.clock.wall()))
            self._cluster.delete(PODS, pod.metadata.namespace, pod.metadata.name, uid=uid)

    def _lose(self, uid: str) -> None:
        pod = self._find(uid)
        if pod is not None:
            self._write(pod, lambda pod: node_lifecycle.lost(pod, self._timetable.clock.wall()))
            self._cluster.delete(PODS, pod.metadata.namespace, pod.metadata.name, uid=uid, grace_seconds=0)

    def _sweep(self, uid: str) -> None:
        pod = self._find(uid)
        if pod is not None and node_lifecycle.never_placed(pod):
            self._write(pod, node_lifecycle.unplaced)

    # --- pods ---

    def see(self, before: Pod | None, after: Pod | None) -> None:
        """Take notice of a change of a pod, and plan what follows."""
        if after is None:
            assert before is not None
            self._forget(before)
            return
        uid, node = after.metadata.uid, after.spec.node_name
        if not node:
            if node_lifecycle.never_placed(after):
                self._plan(("unplaced", uid), node_lifecycle.SWEEP, self._sweep)
            return
        seen = self._pods.get(uid)
        if seen is None:
            self._count += 1
            address = f"10.{self._count >> 16 & 255}.{self._count >> 8 & 255}.{self._count & 255}"
            seen = self._pods[uid] = _Seen(self._courses(after), address)
            self._on_node.setdefault(node, {})[uid] = None
            if node not in self._dead:
                self._plan(("start", uid), seen.course.start, self._start)
        if node in self._dead:
            return
        if after.metadata.deletion_timestamp is not None:
            if not seen.is_asked or after.status.phase in ENDED:
                self._ask_to_end(after)
        elif (
            after.spec.readiness_gates
            and before is not None
            and after.status.phase == "Running"
            and before.status.conditions != after.status.conditions
        ):
            self._plan(("report", uid), 0.0, self._report)

    def set_ready(self, uid: str, ready: bool) -> None:
        """Let the containers of a running pod pass or fail their readiness probe."""
        self._timetable.forget(("ready", uid))
        self._pods[uid].containers_ready = ready
        self._report(uid)

    def finish(self, uid: str, exit_code: int) -> None:
        """Let the containers of a running pod end by themselves, for ever."""
        pod = self._find(uid)
        if pod is None or pod.status.phase in ENDED or pod.spec.node_name in self._dead:
            return
        if pod.metadata.deletion_timestamp is not None:
            self._pods[uid].exit_code = exit_code
            self._plan(("end", uid), 0.0, self._end)
            return
        stamp = self._stamps.now()
        self._write(pod, lambda pod: _replace(pod, status=ended(pod, exit_code, stamp)))

    def let_terminate(self, exit_code: int) -> None:
        """End the pods that are held, and do not hold those to come."""
        self.holds, self.end_code = False, exit_code
        for uid, seen in self._pods.items():
            if seen.is_asked:
                self._plan(("end", uid), 0.0, self._end)

    def _start(self, uid: str) -> None:
        pod, seen = self._find(uid), self._pods.get(uid)
        if pod is None or seen is None or pod.status.phase != "Pending" or pod.metadata.deletion_timestamp is not None:
            return
        if pod.spec.node_name in self._dead:
            return
        course = seen.course
        seen.containers_ready = not course.ready
        self._report(uid)
        if course.ready:
            self._plan(("ready", uid), course.ready, self._get_ready)
        if course.runs is not None:
            self._timetable.plan(("finish", uid), course.runs, lambda: self.finish(uid, course.exit_code), soon=False)

    def _get_ready(self, uid: str) -> None:
        if uid in self._pods:
            self._pods[uid].containers_ready = True
            self._report(uid)

    def _report(self, uid: str) -> None:
        pod, seen = self._find(uid), self._pods.get(uid)
        if pod is None or seen is None or pod.status.phase in ENDED or pod.spec.node_name in self._dead:
            return
        status = running(pod, seen.containers_ready, self._stamps.now(), seen.address)
        self._write(pod, lambda pod: pod if pod.status == status else _replace(pod, status=status))

    def _ask_to_end(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        seen = self._pods[uid]
        seen.is_asked = True
        if pod.status.phase in ENDED:
            self._plan(("gone", uid), 0.0, self._gone)
        elif not self.holds:
            grace = pod.metadata.deletion_grace_period_seconds or 0
            self._plan(("end", uid), min(seen.course.end, grace), self._end)

    def _end(self, uid: str) -> None:
        pod, seen = self._find(uid), self._pods.get(uid)
        if pod is None or seen is None or pod.spec.node_name in self._dead:
            return
        if pod.status.phase in ENDED:
            self._gone(uid)
            return
        code = seen.course.end_code if self.end_code is None else self.end_code
        code = code if seen.exit_code is None else seen.exit_code
        stamp = self._stamps.now()
        self._write(pod, lambda pod: _replace(pod, status=ended(pod, code, stamp)))

    def _gone(self, uid: str) -> None:
        """As the kubelet does it: the object goes once the containers have ended."""
        pod = self._find(uid)
        if pod is not None and not (pod.metadata.deletion_grace_period_seconds == 0 and pod.metadata.finalizers):
            self._cluster.delete(PODS, pod.metadata.namespace, pod.metadata.name, uid=uid, grace_seconds=0)

    def _forget(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if self._pods.pop(uid, None) is None:
            return
        self._on_node.get(pod.spec.node_name, {}).pop(uid, None)
        for what in ("start", "ready", "report", "finish", "end", "gone", "evict", "lost"):
            self._timetable.forget((what, uid))

    # --- tools ---

    def _plan(self, key: tuple[str, str], seconds: float, action: Callable[[str], None]) -> None:
        self._timetable.plan(key, seconds, partial(action, key[1]))

    def _find(self, uid: str) -> Pod | None:
        found = self._cluster.find(uid)
        return found[1] if found is not None else None

    def _pods_on(self, name: str) -> list[Pod]:
        found = (self._find(uid) for uid in [*self._on_node.get(name, {})])
        return [pod for pod in found if pod is not None]

    def _write(self, pod: Pod, change: Callable[[Pod], Pod]) -> None:
        self._cluster.rewrite(PODS, pod.metadata.namespace, pod.metadata.name, change)
