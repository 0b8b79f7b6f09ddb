"""The real control plane itself, and what it does beyond the port.

What Jobs, ReplicaSets, the scheduler and the garbage collector do is stated in ``tests/contract``, which runs against
this control plane first of all.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.kube_control_plane import KubeControlPlane, control_plane_missing
from tests.bench.kube_http import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Json, KubeHttpClient
from tests.bench.kube_test_node import KubeTestNodes
from tests.bench.waiting import eventually, resource_counts

_numbers = itertools.count(1)


class Place:
    """A namespace of this test's own, with a client."""

    def __init__(self, client: KubeHttpClient, nodes: KubeTestNodes) -> None:
        self.client, self.nodes = client, nodes
        self.name = f"control-plane-{next(_numbers)}"
        client.post("/api/v1/namespaces", {"metadata": {"name": self.name}})
        self.pods_path = f"/api/v1/namespaces/{self.name}/pods"
        self.jobs_path = f"/apis/batch/v1/namespaces/{self.name}/jobs"
        self._nodes: list[str] = []
        account = f"/api/v1/namespaces/{self.name}/serviceaccounts/default"
        eventually(lambda: client.call("GET", account).status == 200, 20, "the namespace's service account")

    def add_node(self, name: str, **options: Any) -> str:
        full = f"{self.name}-{name}"
        self._nodes.append(full)
        self.nodes.add(full, **options)
        path = f"/api/v1/nodes/{full}"
        eventually(lambda: not self.client.get(path)["spec"].get("taints"), 20, "a node without taints")
        return full

    def add_job(self, name: str, parallelism: int, **spec: Any) -> None:
        template = {"metadata": {"labels": {"app": name}}, "spec": pod_spec()}
        body = {"metadata": {"name": name}, "spec": {"parallelism": parallelism, "template": template, **spec}}
        self.client.post(self.jobs_path, body)

    def job_status(self, name: str) -> Json:
        status: Json = self.client.get(f"{self.jobs_path}/{name}")["status"]
        return status

    def pods(self, app: str) -> dict[str, Json]:
        items = self.client.get(f"{self.pods_path}?labelSelector=app={app}")["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def close(self) -> None:
        self.nodes.let_terminate()
        self.client.delete(f"/api/v1/namespaces/{self.name}")
        self.client.delete(self.pods_path, {"gracePeriodSeconds": 0})
        eventually(lambda: not self.client.get(self.pods_path)["items"], 30, "the end of the pods", interval=0.1)
        for node in self._nodes:
            self.nodes.remove(node)


def pod_spec(cpu: str = "100m", **spec: Any) -> Json:
    container = {"name": "main", "image": "registry.invalid/none", "resources": {"requests": {"cpu": cpu}}}
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container], **spec}


@pytest.fixture
def place(control_plane: KubeControlPlane, light_nodes: KubeTestNodes) -> Iterator[Place]:
    made = Place(control_plane.client, light_nodes)
    try:
        yield made
    finally:
        made.close()


# -- the control plane -------------------------------------------------------------------------------------------------


def test_it_serves_loopback_only_and_says_its_version(control_plane: KubeControlPlane) -> None:
    version = control_plane.client.get("/version")

    assert version["gitVersion"].startswith("v1.")
    for component in control_plane.components:
        assert component.pid is not None
        assert _listens(component.pid) <= {"0100007F"}, component.name


def _listens(pid: int) -> set[str]:
    """Addresses (hexadecimal, as the kernel writes them) on which a process listens, IPv4 and IPv6."""
    held = {Path(f).readlink().name for f in Path(f"/proc/{pid}/fd").iterdir() if f.is_symlink()}
    inodes = {name.removeprefix("socket:[").removesuffix("]") for name in held if name.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                found.add(columns[1].partition(":")[0])
    return found


def test_the_kubeconfig_is_what_the_official_client_reads(control_plane: KubeControlPlane) -> None:
    library: Any = pytest.importorskip("kubernetes")
    configuration = library.client.Configuration()
    library.config.load_kube_config(str(control_plane.kubeconfig), client_configuration=configuration)
    client = library.client.ApiClient(configuration)
    try:
        namespace = library.client.CoreV1Api(client).read_namespace("default")
    finally:
        client.close()

    assert namespace.metadata.name == "default"


def test_a_service_account_may_do_what_its_role_says(control_plane: KubeControlPlane, place: Place) -> None:
    client, where = control_plane.client, f"/namespaces/{place.name}"
    client.post(f"/api/v1{where}/serviceaccounts", {"metadata": {"name": "reader"}})
    rbac = f"/apis/rbac.authorization.k8s.io/v1{where}"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    client.post(f"{rbac}/roles", {"metadata": {"name": "reader"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": place.name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    client.post(f"{rbac}/rolebindings", {"metadata": {"name": "reader"}, "roleRef": role, "subjects": [subject]})
    token = client.post(f"/api/v1{where}/serviceaccounts/reader/token", {"spec": {}})["status"]["token"]

    reader = control_plane.client_for(token)
    try:
        eventually(lambda: reader.call("GET", place.pods_path).status == 200, 5, "the role to be known")
        refused = reader.call("POST", place.jobs_path, {"metadata": {"name": "a"}})
        assert (refused.status, refused.reason) == (403, "Forbidden")
        assert reader.call("GET", "/api/v1/pods").status == 403
    finally:
        reader.close()
    stranger = control_plane.client_for("nobody's token")
    try:
        assert stranger.call("GET", place.pods_path).status == 401
    finally:
        stranger.close()


@pytest.mark.skipif(control_plane_missing() is not None, reason=control_plane_missing() or "")
def test_each_component_can_be_killed_and_comes_back(tmp_path: Path) -> None:
    started = time.monotonic()
    with KubeControlPlane(tmp_path) as hurt:
        seconds = time.monotonic() - started
        assert seconds < 60, f"started in {seconds:.1f} s"
        assert sum(resource_counts(c.pid).rss for c in hurt.components) < 900 << 20
        client = hurt.client
        with KubeTestNodes(client) as nodes:
            place = Place(client, nodes)
            place.add_node("n1")
            hurt.controller_manager.kill()
            place.add_job("a", 2)
            assert place.pods("a") == {}
            hurt.scheduler.kill()
            hurt.controller_manager.start()
            eventually(lambda: len(place.pods("a")) == 2, 20, "pods, once the controller manager is back")
            assert not any(pod["spec"].get("nodeName") for pod in place.pods("a").values())
            hurt.scheduler.restart()
            eventually(lambda: place.job_status("a").get("ready") == 2, 20, "ready pods, once the scheduler is back")
            hurt.apiserver.kill()
            hurt.apiserver.start()
            before = place.pods("a")
            place.client.patch(f"{place.jobs_path}/a", {"spec": {"parallelism": 3}})
            eventually(lambda: place.job_status("a").get("ready") == 3, 30, "one more pod on the restarted API server")
            assert set(before) < set(place.pods("a"))
    assert not any(component.running for component in hurt.components)


def test_a_hundred_pods_are_ready_and_gone_in_seconds(place: Place) -> None:
    for number in range(4):
        place.add_node(f"n{number}", cpu="64")
    place.add_job("many", 100)
    eventually(lambda: place.job_status("many").get("ready") == 100, 30, "a hundred ready pods")

    place.client.patch(f"{place.jobs_path}/many", {"spec": {"parallelism": 1}})

    eventually(lambda: len(place.pods("many")) == 1, 30, "one pod")
    eventually(lambda: place.job_status("many").get("ready") == 1, 30, "the Job to see it")
    assert "failed" not in place.job_status("many")
    assert not place.nodes.errors


# -- beyond the port ---------------------------------------------------------------------------------------------------


def test_an_evicted_pod_is_a_disruption_that_a_policy_can_ignore(place: Place) -> None:
    place.add_node("n1")
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    place.add_job("a", 2, backoffLimit=0, podFailurePolicy={"rules": rules})
    eventually(lambda: place.job_status("a").get("ready") == 2, 20, "two ready pods")
    victim = next(iter(place.pods("a")))
    place.nodes.termination_exit_code = None

    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": victim}}
    assert place.client.call("POST", f"{place.pods_path}/{victim}/eviction", body).status == 201

    evicted = place.pods("a")[victim]
    condition = next(c for c in evicted["status"]["conditions"] if c["type"] == "DisruptionTarget")
    assert (condition["status"], condition["reason"]) == ("True", "EvictionByEvictionAPI")
    assert "deletionTimestamp" in evicted["metadata"]
    place.nodes.let_terminate()
    eventually(lambda: victim not in place.pods("a"), 10, "the end of the pod")
    eventually(lambda: place.job_status("a").get("ready") == 2, 30, "a replacement")
    assert "failed" not in place.job_status("a")


def test_a_disruption_that_does_not_happen_is_withdrawn(place: Place) -> None:
    place.add_node("n1")
    place.add_job("a", 1)
    eventually(lambda: place.job_status("a").get("ready") == 1, 20, "a ready pod")
    name = next(iter(place.pods("a")))

    stale = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    place.client.patch(f"{place.pods_path}/{name}/status", {"status": {"conditions": [stale]}}, STRATEGIC_PATCH)

    def withdrawn() -> bool:
        conditions = place.pods("a")[name]["status"]["conditions"]
        return [c["status"] for c in conditions if c["type"] == "DisruptionTarget"] == ["False"]

    eventually(withdrawn, 10, "the condition to be withdrawn")


def test_only_a_higher_priority_pushes_a_pod_out(place: Place) -> None:
    node = place.add_node("n1", cpu="2")
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, policy in (("pushes", "PreemptLowerPriority"), ("waits", "Never")):
        place.client.post(
            classes, {"metadata": {"name": f"{place.name}-{name}"}, "value": 1000, "preemptionPolicy": policy}
        )

    def create(name: str, **spec: Any) -> None:
        place.client.post(place.pods_path, {"metadata": {"name": name}, "spec": pod_spec(cpu="1500m", **spec)})

    def pod(name: str) -> Json:
        return place.client.get(f"{place.pods_path}/{name}")

    def verdict(name: str) -> str:
        conditions = pod(name)["status"].get("conditions", [])
        return next((c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), "")

    create("low")
    eventually(lambda: pod("low")["status"]["phase"] == "Running", 10, "a running pod")
    create("polite", priorityClassName=f"{place.name}-waits")
    eventually(lambda: verdict("polite").endswith("preemption: not eligible due to preemptionPolicy=Never."), 10)
    assert "deletionTimestamp" not in pod("low")["metadata"]
    place.client.delete(f"{place.pods_path}/polite")

    place.nodes.termination_exit_code = None
    create("high", priorityClassName=f"{place.name}-pushes")
    eventually(lambda: pod("high")["status"].get("nominatedNodeName") == node, 10, "a node to be named")
    reasons = [c.get("reason") for c in pod("low")["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert reasons == ["PreemptionByScheduler"]
    assert "deletionTimestamp" in pod("low")["metadata"]
    place.nodes.let_terminate()
    eventually(lambda: pod("high")["spec"].get("nodeName") == node, 10, "the room of the other")


def test_the_four_kinds_of_patch(place: Place) -> None:
    path = f"/api/v1/namespaces/{place.name}/configmaps"
    place.client.post(path, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    merged = place.client.patch(f"{path}/a", {"data": {"y": "2"}}, MERGE_PATCH)
    assert merged["data"] == {"x": "1", "y": "2"}

    wrong = [{"op": "test", "path": "/data/x", "value": "9"}, {"op": "replace", "path": "/data/x", "value": "3"}]
    refused = place.client.call("PATCH", f"{path}/a", wrong, content_type=JSON_PATCH)
    assert (refused.status, refused.reason) == (422, "Invalid")

    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"z": "4"}}
    answer = place.client.call(
        "PATCH", f"{path}/a?fieldManager=tests", json.dumps(applied).encode(), content_type=APPLY_PATCH
    )
    assert answer.body["data"] == {"x": "1", "y": "2", "z": "4"}

    unsupported = place.client.call("PATCH", f"{path}/a", {}, content_type="text/plain")
    assert unsupported.status == 415


def test_a_job_deleted_without_a_policy_leaves_its_pods(place: Place) -> None:
    place.add_node("n1")
    place.add_job("a", 1)
    eventually(lambda: place.job_status("a").get("ready") == 1, 20, "a ready pod")

    place.client.delete(f"{place.jobs_path}/a")

    eventually(lambda: place.client.call("GET", f"{place.jobs_path}/a").status == 404, 10, "the end of the Job")
    (left,) = place.pods("a").values()
    assert "ownerReferences" not in left["metadata"]
    assert "deletionTimestamp" not in left["metadata"]
