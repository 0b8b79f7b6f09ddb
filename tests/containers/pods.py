"""Pods of one namespace: made restricted, read, waited for, removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.bench.kube_http import Json, KubeHttpClient
from tests.bench.waiting import eventually

RESTRICTED_POD = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "fsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def restricted(name: str, image: str, *, args: list[str] | None = None, **more: Any) -> Json:
    """A container with a read-only root and no rights, of an image that is on the node."""
    made = {"name": name, "image": image, "imagePullPolicy": "Never", "securityContext": RESTRICTED, **more}
    return made if args is None else {**made, "args": args}


class Pods:
    """The pods of a namespace, through a raw client."""

    def __init__(self, client: KubeHttpClient, namespace: str) -> None:
        """``client``: of whoever may do all."""
        self.client, self.namespace = client, namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def spec(self, *containers: Json, **more: Any) -> Json:
        """A restricted pod's spec that is not started again."""
        spec = {"containers": list(containers), "securityContext": RESTRICTED_POD, "restartPolicy": "Never"}
        return {**spec, "automountServiceAccountToken": False, "enableServiceLinks": False, **more}

    def create(self, name: str, spec: Json) -> None:
        """Create a pod."""
        self.client.post(self.path, {"metadata": {"name": name}, "spec": spec})

    def read(self, name: str) -> Json | None:
        """The pod, or None."""
        answer = self.client.call("GET", f"{self.path}/{name}")
        return answer.body if answer.status == 200 else None

    def all(self, selector: str = "") -> list[Json]:
        """All of them, or those with labels."""
        query = f"?labelSelector={selector}" if selector else ""
        found: list[Json] = self.client.get(f"{self.path}{query}")["items"]
        return found

    def log(self, name: str, container: str = "", *, previous: bool = False) -> str:
        """What a container wrote so far."""
        query = f"?previous={str(previous).lower()}" + (f"&container={container}" if container else "")
        said = self.client.call("GET", f"{self.path}/{name}/log{query}").body
        # The client decodes what is JSON, such as a single event of the sidecar.
        return str(said.get("text", "") if "text" in said else json.dumps(said) if said else "")

    def wait(self, name: str, condition: Callable[[Json], object], what: str, timeout: float = 60.0) -> Json:
        """Wait (seconds) until a pod is so, and return it. Raises AssertionError with its state."""
        seen: list[Json] = []

        def met() -> bool:
            pod = self.read(name)
            if pod is not None:
                seen[:] = [pod]
            return pod is not None and bool(condition(pod))

        eventually(met, timeout, lambda: f"{name}: {what}; {seen[0]['status'] if seen else 'no pod'}", interval=0.1)
        return seen[0]

    def wait_ended(self, name: str, timeout: float = 60.0) -> Json:
        """Wait (seconds) until it has Succeeded or Failed."""
        return self.wait(name, lambda pod: pod["status"].get("phase") in ("Succeeded", "Failed"), "it ends", timeout)

    def remove_all(self) -> None:
        """Delete the namespace's pods at once, and wait until none is left; then the namespace."""
        now = {"gracePeriodSeconds": 0}
        for kind in ("batch/v1/namespaces/{}/jobs", "apps/v1/namespaces/{}/replicasets"):
            self.client.delete(f"/apis/{kind.format(self.namespace)}?propagationPolicy=Background")
        self.client.delete(self.path, now)
        eventually(lambda: not self.all(), 60, "no pod is left", interval=0.1)
        self.client.delete(f"/api/v1/namespaces/{self.namespace}")
