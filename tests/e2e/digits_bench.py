"""The digits job on a real control plane: nodes that run pods as processes, controllers as processes, one user.

The controllers' requests go through a proxy, so its record of writes is the controllers' alone; the nodes and the user
speak to the API server directly.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from edl_controller.api.kinds import JOBS, NODES, PODS, REPLICA_SETS, TRAINING_JOBS, Kind
from edl_controller.api.meta import is_true
from edl_controller.api.pods import Pod
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job
from edl_controller.cli.logs import find_logs
from edl_controller.cluster.kube import KubeCluster, kubeconfig
from edl_controller.core.names import IN_SERVICE_GATE
from edl_controller.machine.node.images import ImageMapping, Images
from edl_controller.machine.node.node_agent import NodeAgent
from examples.digits.cluster_demo import JOB, ROOT, accuracy
from tests.bench.controller_process import ControllerProcess
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_http import Json
from tests.bench.kube_proxy import Call, KubeProxy, kubeconfig_for
from tests.bench.waiting import eventually
from tests.conftest import SharedEtcd

LONGEST = 90.0
"""Seconds in which anything must have happened: machines of CI are slow."""
NAME = "digits"
LABEL = "e2e"
"""Of the bench's nodes, and in the jobs' node selector: pods of other tests go elsewhere."""


class DigitsBench:
    """One namespace with one job. ``with`` ends all that was started, and removes the nodes."""

    def __init__(self, plane: KubeControlPlane, namespace: str, etcd: SharedEtcd, folder: Path) -> None:
        """``etcd``: the one that all jobs share; ``folder``: for nodes, checkpoints and kubeconfigs."""
        self.plane, self.namespace, self.etcd = plane, namespace, etcd.client_url
        self._etcd = etcd
        self._stack = contextlib.ExitStack()
        self.proxy = self._stack.enter_context(KubeProxy(plane.url, plane.ca))
        self.cluster = KubeCluster(kubeconfig(plane.kubeconfig))
        self._stack.callback(self.cluster.close)
        self.source = kubeconfig_for(self.proxy, folder, plane.token)
        self.logs = folder / "nodes"
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.tell(), file=sys.stderr)
        self._stack.close()

    # --- what runs ---

    def node(self, cpu: str = "6") -> NodeAgent:
        """Start a node, and wait until pods may be bound to it."""
        name = f"{self.namespace}-node"
        link = KubeCluster(kubeconfig(self.plane.kubeconfig))
        self._stack.callback(link.close)
        images = Images({"*": ImageMapping(virtualenv=sys.prefix, working_dir=str(ROOT))})
        labels = {LABEL: self.namespace}
        agent = NodeAgent(
            link,
            name,
            {"cpu": cpu, "memory": "64Gi", "pods": "50"},
            self.logs / name,
            labels=labels,
            images=images,
        )
        self._stack.callback(self.cluster.delete, NODES, "", name)
        agent.start()
        self._stack.callback(agent.stop)
        eventually(lambda: not self.cluster.get(NODES, "", name).spec.taints, LONGEST, "a node without taints")
        return agent

    def controller(self, *arguments: str, own_etcd: bool = False) -> ControllerProcess:
        """Start a replica of the controller; ``own_etcd``: no etcd is given, jobs have one in their master pods."""
        shared = () if own_etcd else ("--etcd-endpoints", self.etcd)
        process = ControllerProcess(
            "--kubeconfig", str(self.source), "--namespace", self.namespace, "--lease-namespace", self.namespace,
            "--autoscale", "--job-host-paths", str(self.checkpoints), *shared, *arguments,
        )  # fmt: skip
        return self._stack.enter_context(process)

    # --- its user ---

    def submit(self, *, passes: int = 20, think: float = 0.15, trainers: int = 1, most: int = 1, **spec: Any) -> None:
        """The example, but for its sizes, its etcd and where its checkpoints are."""
        job = yaml.safe_load(JOB.read_text())
        whole = job["spec"]
        del whole["master"]
        whole |= {"passes": passes, "etcd": {"mode": "External"}, "NodeSelector": {LABEL: self.namespace}}
        # Kept when a pod goes, as a shared volume is.
        whole["volumes"] = [{"name": "checkpoints", "hostPath": {"path": str(self.checkpoints)}}]
        command = whole["trainer"]["command"]
        command[command.index("--passes") + 1], command[command.index("--think") + 1] = str(passes), str(think)
        whole["trainer"] |= {"min-instance": trainers, "max-instance": most}
        job["metadata"]["namespace"] = self.namespace
        job["spec"] = whole | spec
        self.cluster.create(TRAINING_JOBS.from_json(job))

    def change(self, spec: Json) -> None:
        """Patch the job, as its user does."""
        self.cluster.patch(TRAINING_JOBS, self.namespace, NAME, {"spec": spec})

    # --- what is there ---

    def job(self) -> TrainingJob:
        """The TrainingJob."""
        found: TrainingJob = self.cluster.get(TRAINING_JOBS, self.namespace, NAME)
        return found

    def condition(self, name: str) -> bool:
        """Whether a condition of the job is true."""
        return is_true(self.job().status.conditions, name)

    def trainer(self) -> Job:
        """The Job of its trainers."""
        found: Job = self.cluster.get(JOBS, self.namespace, f"{NAME}-trainer")
        return found

    def pods(self, role: str = "") -> list[Pod]:
        """Pods, also of one role, also those about to go."""
        pods = self.cluster.list(PODS, self.namespace).items
        return [pod for pod in pods if pod.metadata.name.startswith(f"{NAME}-{role}")]

    def ready(self, role: str) -> list[Pod]:
        """Those that are ready and stay."""
        return [
            pod
            for pod in self.pods(role)
            if is_true(pod.status.conditions, "Ready") and pod.metadata.deletion_timestamp is None
        ]

    def wait(self, condition: Callable[[], object], what: str, timeout: float = LONGEST) -> None:
        """Wait. Raises AssertionError with what is there instead."""
        eventually(lambda: bool(condition()), timeout, lambda: f"{what}\n{self.tell()}", interval=0.1)

    def wait_ready(self, role: str, count: int) -> list[Pod]:
        """Wait until exactly so many pods of a role are ready, and none is about to go."""
        self.wait(lambda: len(self.ready(role)) == len(self.live(role)) == count, f"{count} of {role} are ready")
        return self.ready(role)

    def live(self, role: str) -> list[Pod]:
        """Those that have not ended."""
        return [pod for pod in self.pods(role) if pod.status.phase in ("Pending", "Running")]

    def said(self, pattern: str = "") -> str:
        """What the pods' programs have written, those of gone pods too; ``pattern``: part of the pod's name."""
        return "".join(file.path.read_text() for file in find_logs(self.logs, self.namespace) if pattern in file.pod)

    def wait_passes(self, count: int) -> None:
        """Wait until so many passes are over."""
        self.wait(lambda: self.said("-trainer-").count("a pass is over") >= count, f"{count} passes")

    def wait_succeeded(self, timeout: float = LONGEST) -> float:
        """Wait for success; returns the share of the held-out images that are recognised."""
        self.wait(lambda: self.job().status.phase in ("succeeded", "failed"), "the job ends", timeout)
        assert self.job().status.phase == "succeeded", self.tell()
        return accuracy(self.logs)

    def children(self) -> list[Any]:
        """All ReplicaSets, Jobs and pods of the namespace."""
        kinds: tuple[Kind[Any], ...] = (REPLICA_SETS, JOBS, PODS)
        return [one for kind in kinds for one in self.cluster.list(kind, self.namespace).items]

    def keys(self) -> list[str]:
        """What is in the shared etcd below the namespace's prefix."""
        return self._etcd.etcdctl("get", f"/edl/jobs/{self.namespace}/", "--prefix", "--keys-only").split()

    def named_victims(self) -> list[str]:
        """The pods that a controller took out of service, in order."""
        return [call.name for call in self.proxy.writes("pods/status") if _takes_out(call)]

    def tell(self) -> str:
        """How everything is, for messages."""
        lines = []
        with contextlib.suppress(Exception):
            lines = [f"{pod.metadata.name} {pod.status.phase} {restarts(pod)}" for pod in self.pods()]
            lines.append(str(self.job().status))
        return "\n".join([*lines, self.said()[-3000:]])


def restarts(pod: Pod) -> int:
    """How often containers of a pod were started again."""
    return sum(status.restart_count for status in pod.status.container_statuses)


def _takes_out(call: Call) -> bool:
    conditions: list[Mapping[str, Any]] = call.json.get("status", {}).get("conditions", [])
    return any(one["type"] == IN_SERVICE_GATE and one["status"] == "False" for one in conditions)
