"""What stands for the nodes in tests of the controller: bound pods run at once, and end when they are asked to."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from edl_controller.api import timestamps
from edl_controller.api.kinds import PODS
from edl_controller.api.meta import Condition, ObjectMeta
from edl_controller.api.nodes import Node, NodeStatus
from edl_controller.api.pods import Pod
from edl_controller.cluster.port import Cluster
from edl_controller.errors import Conflict, NotFound
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.reflector import Delta


def node(name: str, cpu: str = "64", memory: str = "256Gi", pods: str = "5000", ready: str = "True") -> Node:
    """A ready node."""
    return Node(
        metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}),
        status=NodeStatus(
            capacity={"cpu": cpu, "memory": memory, "pods": pods},
            allocatable={"cpu": cpu, "memory": memory, "pods": pods},
            conditions=(Condition(type="Ready", status=ready),),
        ),
    )


def add_node(cluster: Cluster, made: Node) -> None:
    """Create it, with its status."""
    cluster.create(made)
    status = {"capacity": made.status.capacity, "allocatable": made.status.allocatable}
    conditions = [{"type": one.type, "status": one.status} for one in made.status.conditions]
    from edl_controller.api.kinds import NODES

    cluster.patch(NODES, "", made.metadata.name, {"status": status | {"conditions": conditions}}, subresource="status")


class LightNodes:
    """Plays all nodes. ``hold``: pods that are asked to end do not."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.hold = False
        self.informers = Informers(cluster)
        self.informers.of(PODS).add_handler(self._on_pod)

    def run(self, stop: threading.Event) -> None:
        self.informers.run(stop)

    def finish(self, pod: Pod, phase: str) -> None:
        """Let a pod end by itself: ``Succeeded`` or ``Failed``."""
        code = 0 if phase == "Succeeded" else 1
        status: dict[str, Any] = {"phase": phase, "conditions": None}
        status["containerStatuses"] = [
            {
                "name": container.name,
                "state": {"terminated": {"exitCode": code, "finishedAt": timestamps.render(time.time())}},
            }
            for container in pod.spec.containers
        ]
        self._cluster.patch(
            PODS,
            pod.metadata.namespace,
            pod.metadata.name,
            {"status": status},
            subresource="status",
            uid=pod.metadata.uid,
        )

    def _on_pod(self, delta: Delta[Pod]) -> None:
        pod, meta = delta.obj, delta.obj.metadata
        if delta.type == "deleted" or not pod.spec.node_name:
            return
        with contextlib.suppress(NotFound, Conflict):
            if meta.deletion_timestamp is not None:
                if self.hold:
                    return
                if pod.status.phase not in ("Succeeded", "Failed"):
                    self.finish(pod, "Failed")
                if meta.deletion_grace_period_seconds != 0:
                    self._cluster.delete(PODS, meta.namespace, meta.name, uid=meta.uid, grace_seconds=0)
            elif pod.status.phase == "Running" and _is_out_of_service(pod):
                others = [
                    {"type": one.type, "status": one.status} for one in pod.status.conditions if one.type != "Ready"
                ]
                conditions = [*others, {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"}]
                self._cluster.patch(
                    PODS,
                    meta.namespace,
                    meta.name,
                    {"status": {"conditions": conditions}},
                    subresource="status",
                    uid=meta.uid,
                    resource_version=meta.resource_version,
                )
            elif pod.status.phase == "Pending":
                moment = timestamps.render(time.time())
                ready = {"type": "Ready", "status": "True", "lastTransitionTime": moment}
                others = [
                    {"type": one.type, "status": one.status} for one in pod.status.conditions if one.type != "Ready"
                ]
                self._cluster.patch(
                    PODS,
                    meta.namespace,
                    meta.name,
                    {"status": {"phase": "Running", "conditions": [*others, ready], "podIP": "127.0.0.1"}},
                    subresource="status",
                    uid=meta.uid,
                )


def _is_out_of_service(pod: Pod) -> bool:
    """Whether it is ready although a gate says that it must not be."""
    statuses = {one.type: one.status for one in pod.status.conditions}
    closed = any(statuses.get(gate.condition_type) == "False" for gate in pod.spec.readiness_gates)
    return closed and statuses.get("Ready") == "True"
