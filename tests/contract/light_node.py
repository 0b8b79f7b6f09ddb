"""Nodes for clusters without a kubelet: pods "run" by what is written into their status, as told from outside."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from edl_controller import errors
from edl_controller.api import timestamps
from edl_controller.api.kinds import NODES, PODS
from edl_controller.api.meta import Condition, ObjectMeta
from edl_controller.api.nodes import Node, NodeSpec, NodeStatus, Taint
from edl_controller.api.pods import Pod, PodStatus
from edl_controller.cluster.port import Cluster
from edl_controller.cluster.sim.pod_course import ended, running
from edl_controller.core.semantics.pod_state import ENDED


@dataclass
class _Told:
    """What a pod was told."""

    ready: bool = True
    exit_code: int | None = None
    address: str = ""


class LightNodes:
    """All nodes of one cluster, on one thread that follows its pods."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told: dict[str, _Told] = {}
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._holds = False
        self._exit_code = 143
        self._stop = threading.Event()
        self._version = cluster.list(PODS).resource_version
        self._thread = threading.Thread(target=self._follow, name="light-nodes", daemon=True)
        self._thread.start()

    def add(self, name: str, cpu: str, memory: str, labels: Mapping[str, str] | None, taints: Sequence[Taint]) -> None:
        """Add a ready node."""
        room: dict[str, str | int | float] = {"cpu": cpu, "memory": memory, "pods": "110"}
        meta = ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **(labels or {})})
        self._cluster.create(Node(metadata=meta, spec=NodeSpec(taints=tuple(taints))))
        ready = Condition(type="Ready", status="True", last_transition_time=timestamps.render(time.time()))
        status = NodeStatus(capacity=room, allocatable=room, conditions=(ready,))
        self._cluster.patch(NODES, "", name, {"status": msgspec.to_builtins(status)}, subresource="status")

    def set_ready(self, pod: Pod, ready: bool) -> None:
        """Let the containers pass or fail their probe."""
        self._of(pod).ready = ready
        self._react(pod.metadata.namespace, pod.metadata.name)

    def finish(self, pod: Pod, exit_code: int) -> None:
        """Let the containers end by themselves."""
        self._of(pod).exit_code = exit_code
        self._react(pod.metadata.namespace, pod.metadata.name)

    def hold_terminating(self) -> None:
        """Pods that are asked to end do not."""
        self._holds = True

    def let_terminate(self, exit_code: int) -> None:
        """End those that are held, and those to come."""
        self._holds, self._exit_code = False, exit_code
        for pod in self._cluster.list(PODS).items:
            self._react(pod.metadata.namespace, pod.metadata.name)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(5.0)

    def _of(self, pod: Pod) -> _Told:
        with self._lock:
            return self._told.setdefault(pod.metadata.uid, _Told(address=f"10.0.0.{next(self._numbers)}"))

    def _follow(self) -> None:
        for change in self._cluster.watch(PODS, "", self._version, self._stop):
            if change.obj is not None and change.type != "DELETED":
                self._react(change.obj.metadata.namespace, change.obj.metadata.name)

    def _react(self, namespace: str, name: str) -> None:
        """Bring one pod's status in line with what it was told."""
        with self._lock:
            try:
                pod = self._cluster.get(PODS, namespace, name)
                if pod.spec.node_name:
                    self._settle(pod)
            except (errors.NotFound, errors.Conflict):
                pass  # gone or changed: the watch brings what is there now

    def _settle(self, pod: Pod) -> None:
        told, stamp = self._of(pod), timestamps.render(time.time())
        terminating = pod.metadata.deletion_timestamp is not None
        if pod.status.phase not in ENDED:
            if terminating and told.exit_code is None and not self._holds:
                told.exit_code = self._exit_code
            if told.exit_code is not None:
                pod = self._write(pod, ended(pod, told.exit_code, stamp))
            else:
                pod = self._write(pod, running(pod, told.ready, stamp, told.address))
        if terminating and pod.status.phase in ENDED and pod.metadata.deletion_grace_period_seconds:
            meta = pod.metadata
            self._cluster.delete(PODS, meta.namespace, meta.name, uid=meta.uid, grace_seconds=0)

    def _write(self, pod: Pod, status: PodStatus) -> Pod:
        meta = pod.metadata
        value = msgspec.to_builtins(status)
        return self._cluster.patch(
            PODS,
            meta.namespace,
            meta.name,
            {"status": value},
            subresource="status",
            uid=meta.uid,
            resource_version=meta.resource_version,
        )
