"""The real thing as a world: a real control plane with light nodes, through a raw client of the tests' own.

The port here is as plain as can be: what it answers is what Kubernetes answers, so that a case that passes here states
a fact about Kubernetes and not about an adapter.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from edl_controller.api.kinds import ApiObject, Kind, kind_of
from edl_controller.api.nodes import Taint
from edl_controller.api.pods import Pod
from edl_controller.cluster.port import Change, Cluster, Listing, Propagation, Stop, Subresource
from edl_controller.cluster.workloads import WorkloadCalls
from edl_controller.errors import AlreadyExists, ClusterError, Conflict, Forbidden, Gone, Invalid, NotFound, Unavailable
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_http import MERGE_PATCH, Answer, Json, KubeHttpClient
from tests.bench.kube_test_node import KubeTestNodes
from tests.bench.waiting import eventually

T = TypeVar("T", bound=ApiObject)

ERRORS: Mapping[int, type[ClusterError]] = {
    400: Invalid, 403: Forbidden, 404: NotFound, 409: Conflict, 410: Gone, 422: Invalid,
    429: Unavailable, 500: Unavailable, 503: Unavailable, 504: Unavailable,
}  # fmt: skip


def _checked(answer: Answer) -> Json:
    if answer.status < 400:
        return answer.body
    kind = AlreadyExists if answer.reason == "AlreadyExists" else ERRORS[answer.status]
    causes = answer.body.get("details", {}).get("causes", [])
    if kind is Invalid and any(cause.get("field") == "metadata.uid" for cause in causes):
        kind = Conflict  # a merge patch that carries another uid: "field is immutable"
    raise kind(str(answer.body.get("message", answer.body)))


class RawKubeCluster(WorkloadCalls):
    """The port, one HTTP request per call."""

    def __init__(self, client: KubeHttpClient) -> None:
        self._client = client

    def get(self, kind: Kind[T], namespace: str, name: str) -> T:
        return kind.from_json(_checked(self._client.call("GET", _path(kind, namespace, name))))

    def list(self, kind: Kind[T], namespace: str = "", *, labels: dict[str, str] | None = None) -> Listing[T]:
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())} if labels else {}
        found = _checked(self._client.call("GET", f"{_path(kind, namespace)}?{urlencode(query)}"))
        items = tuple(kind.from_json(item) for item in found["items"])
        return Listing(items, found["metadata"]["resourceVersion"])

    def watch(self, kind: Kind[T], namespace: str, resource_version: str, stop: Stop) -> Iterator[Change[T]]:
        query = urlencode({"resourceVersion": resource_version, "allowWatchBookmarks": "true"})
        while not stop.is_set():
            for event in self._client.watch(f"{_path(kind, namespace)}?{query}", seconds=1):
                if event["type"] == "ERROR":
                    _checked(Answer(event["object"]["code"], event["object"], {}))
                resource_version = event["object"]["metadata"]["resourceVersion"]
                obj = None if event["type"] == "BOOKMARK" else kind.from_json(event["object"])
                yield Change(event["type"], obj, resource_version)
                if stop.is_set():
                    return
            query = urlencode({"resourceVersion": resource_version, "allowWatchBookmarks": "true"})

    def create(self, obj: T) -> T:
        kind = kind_of(obj)
        path = _path(kind, obj.metadata.namespace)
        return kind.from_json(_checked(self._client.call("POST", path, kind.to_json(obj))))

    def patch(
        self,
        kind: Kind[T],
        namespace: str,
        name: str,
        patch: dict[str, Any],
        *,
        subresource: Subresource = "",
        resource_version: str = "",
        uid: str = "",
    ) -> T:
        given = {"resourceVersion": resource_version, "uid": uid}
        conditions = {key: value for key, value in given.items() if value}
        if conditions:
            patch = {**patch, "metadata": {**patch.get("metadata", {}), **conditions}}
        path = _path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        return kind.from_json(_checked(self._client.call("PATCH", path, patch, content_type=MERGE_PATCH)))

    def delete(
        self,
        kind: Kind[T],
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = "Background",
        grace_seconds: int | None = None,
    ) -> None:
        given = {"uid": uid, "resourceVersion": resource_version}
        options: Json = {
            "propagationPolicy": propagation,
            "preconditions": {key: value for key, value in given.items() if value},
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        _checked(self._client.call("DELETE", _path(kind, namespace, name), options))


def _path(kind: Kind[Any], namespace: str, name: str = "") -> str:
    root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
    where = f"/namespaces/{namespace}" if kind.namespaced and namespace else ""
    return f"{root}{where}/{kind.plural}" + (f"/{name}" if name else "")


class KubeWorld:
    """One namespace of a shared control plane, with nodes of its own; ``close()`` leaves it as it was."""

    name = "kube"
    _numbers = itertools.count(1)

    def __init__(self, control_plane: KubeControlPlane, nodes: KubeTestNodes, cluster: Cluster | None = None) -> None:
        """``nodes``: started, shared with other worlds. ``cluster``: the port to judge; default the raw one."""
        self._client = control_plane.client
        self._cluster: Cluster = cluster or RawKubeCluster(self._client)
        self.namespace = f"contract-{next(self._numbers)}"
        self._client.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"
        eventually(lambda: self._client.call("GET", account).status == 200, 20, "the namespace's service account")
        self._nodes = nodes
        self._own_nodes: list[str] = []

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    def settle(self, seconds: float = 0.0) -> None:
        # Nobody can tell when a real cluster is quiet: the Job controller gathers events for a second.
        time.sleep(seconds or 1.2)

    def add_node(
        self,
        name: str,
        cpu: str = "4",
        memory: str = "8Gi",
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Taint] = (),
    ) -> None:
        plain = [msgspec.to_builtins(taint) for taint in taints]
        self._own_nodes.append(name)
        self._nodes.add(name, cpu=cpu, memory=memory, labels=labels, taints=plain)
        # The API server taints every new node until the node controller has seen that it is ready.
        eventually(lambda: len(self._node(name)["spec"].get("taints", [])) == len(plain), 20, f"node {name}")

    def _node(self, name: str) -> Json:
        return self._client.get(f"/api/v1/nodes/{name}")

    def set_ready(self, pod: Pod, ready: bool) -> None:
        self._nodes.set_ready(pod.metadata.namespace, pod.metadata.name, ready)

    def finish(self, pod: Pod, exit_code: int) -> None:
        self._nodes.finish(pod.metadata.namespace, pod.metadata.name, exit_code)

    def hold_terminating(self) -> None:
        self._nodes.termination_exit_code = None

    def let_terminate(self, exit_code: int = 143) -> None:
        self._nodes.let_terminate(exit_code)

    def old_version(self) -> str:
        # The API server began to keep changes when it started.
        return "1"

    def close(self) -> None:
        """Delete the namespace and the nodes and check that the nodes met no error."""
        self._nodes.let_terminate()
        # The namespace controller does the rest; nothing new is admitted from here on.
        self._client.delete(f"/api/v1/namespaces/{self.namespace}")
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self._client.delete(pods, {"gracePeriodSeconds": 0})
        eventually(lambda: not self._client.get(pods)["items"], 30, "end of the pods", interval=0.1)
        for name in self._own_nodes:
            self._nodes.remove(name)
        assert not self._nodes.errors, self._nodes.errors
