"""The same node behind a real API server and scheduler: a Job of real processes runs to its end."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from edl_controller.api.configuration import ConfigMap
from edl_controller.api.kinds import JOBS, NODES, PODS
from edl_controller.api.meta import ObjectMeta, is_true
from edl_controller.api.pods import Pod
from edl_controller.errors import NotFound
from edl_controller.machine.node.node_agent import NodeAgent
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.waiting import eventually
from tests.contract.kube_world import RawKubeCluster
from tests.node.conftest import NAP, condition, of, processes_with

_numbers = itertools.count(1)


@pytest.fixture
def namespace(control_plane: KubeControlPlane) -> str:
    name = f"node-{next(_numbers)}"
    client = control_plane.client
    client.post("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    eventually(lambda: client.call("GET", account).status == 200, 20, "the namespace's service account")
    return name


def container(script: str, **more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "local", "command": [sys.executable, "-u", "-c", script], **more}


def test_pods_of_a_real_cluster(control_plane: KubeControlPlane, namespace: str, tmp_path: Path) -> None:
    cluster: Any = RawKubeCluster(control_plane.client)
    name = f"process-node-{namespace}"
    capacity: dict[str, str | int | float] = {"cpu": "4", "memory": "8Gi", "pods": "20"}

    def pods() -> list[Pod]:
        return list(cluster.list(PODS, namespace).items)

    with NodeAgent(cluster, name, capacity, tmp_path / "node") as agent:
        untainted = lambda: not cluster.get(NODES, "", name).spec.taints  # noqa: E731
        eventually(untainted, 20, "the node controller to trust the node")
        cluster.create(ConfigMap(metadata=ObjectMeta(name="cm", namespace=namespace), data={"WORD": "real"}))
        script = "import os; e = os.environ; print(e['WORD'], e['POD_IP'], open(e['EDL_VOLUME_V'] + '/WORD').read())"
        template = {
            "restartPolicy": "Never",
            "nodeName": "",
            "nodeSelector": {"kubernetes.io/hostname": name},
            "automountServiceAccountToken": False,
            "containers": [
                container(
                    script,
                    envFrom=[{"configMapRef": {"name": "cm"}}],
                    env=[{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    volumeMounts=[{"name": "v", "mountPath": str(tmp_path / "at")}],
                )
            ],
            "volumes": [{"name": "v", "configMap": {"name": "cm"}}],
        }
        job = {"metadata": {"name": "j", "namespace": namespace}, "spec": {"completions": 2, "parallelism": 2,
               "template": {"spec": template}}}  # fmt: skip
        cluster.create(JOBS.from_json(job))
        eventually(lambda: cluster.get(JOBS, namespace, "j").status.succeeded == 2, 30, lambda: str(pods()))
        for pod in pods():
            meta = pod.metadata
            log = agent.root / "logs" / f"{namespace}_{meta.name}_{meta.uid}" / "c" / "0.log"
            assert log.read_text() == f"real {pod.status.pod_ip} real\n"
            assert is_true(pod.status.conditions, "PodScheduled")  # others' conditions are kept
            assert condition(pod, "Initialized")[0] == "True"

        spec = {**template, "containers": [container(f"import time; time.sleep({NAP})")], "volumes": []}
        spec |= {"readinessGates": [{"conditionType": "edl.example/active"}], "terminationGracePeriodSeconds": 2}
        cluster.create(PODS.from_json({"metadata": {"name": "p", "namespace": namespace}, "spec": spec}))

        def current() -> Pod:
            found: Pod = cluster.get(PODS, namespace, "p")
            return found

        eventually(
            lambda: condition(current(), "Ready")[1] == "ReadinessGatesNotReady", 20, lambda: str(current().status)
        )
        others = PODS.to_json(current())["status"]["conditions"]
        gate = {"type": "edl.example/active", "status": "True"}
        cluster.patch(PODS, namespace, "p", {"status": {"conditions": [*others, gate]}}, subresource="status")
        eventually(lambda: condition(current(), "Ready")[0] == "True", 10, lambda: str(current().status))
        assert of(current(), "c").ready
        cluster.delete(PODS, namespace, "p")

        def gone() -> bool:
            try:
                current()
            except NotFound:
                return True
            return False

        eventually(gone, 10, "end of the pod")
        assert not processes_with(NAP)
    cluster.delete(NODES, "", name)
