"""The controller as its users install it: ``kubectl apply --server-side -k``, with an overlay for this cluster."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.bench.kube_http import Json, KubeHttpClient
from tests.bench.kubectl import Kubectl
from tests.bench.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "edl-system"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def api_server(address: str) -> list[dict[str, Any]]:
    """Variables that lead to the API server at ``host:port``: there is no kube-proxy, so its Service goes nowhere."""
    host, _, port = address.rpartition(":")
    return [
        {"name": "KUBERNETES_SERVICE_HOST", "value": host},
        {"name": "KUBERNETES_SERVICE_PORT", "value": port},
    ]


def write_overlay(folder: Path, base: str, *, images: Mapping[str, str], api: str, etcd: str = "") -> None:
    """Write a kustomization over a folder of deploy/.

    Args:
        folder: where.
        base: which folder.
        images: name in the manifests -> image with its tag.
        api: where the API server is.
        etcd: URL; "": as the base has it.
    """
    container = "/spec/template/spec/containers/0"
    never = {"op": "add", "path": f"{container}/imagePullPolicy", "value": "Never"}
    patch = [never, *({"op": "add", "path": f"{container}/env/-", "value": one} for one in api_server(api))]
    if etcd:
        patch.append({"op": "add", "path": f"{container}/args/-", "value": f"--etcd-endpoints={etcd}"})
    named = {name: image.rpartition(":") for name, image in images.items()}
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        # Bases are named by relative paths only; from where the folder really is.
        "resources": [os.path.relpath(ROOT / "deploy" / base, folder.resolve())],
        "images": [{"name": name, "newName": new, "newTag": tag} for name, (new, _, tag) in named.items()],
        "patches": [
            {"target": {"kind": "Deployment", "name": "edl-controller"}, "patch": yaml.safe_dump(patch)},
            {"target": {"kind": "StatefulSet"}, "patch": yaml.safe_dump([never])},
        ],
    }
    if base == "cluster":
        document["patches"] = document["patches"][:1]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))


def page(pod: Json, path: str) -> str:
    """What a controller's pod answers on its port for probes and metrics."""
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8080{path}", timeout=20) as answer:
        return str(answer.read().decode())


class Installation:
    """The Deployment in edl-system."""

    def __init__(self, kubectl: Kubectl, client: KubeHttpClient, overlay: Path) -> None:
        """``overlay``: the folder of a kustomization."""
        self._kubectl, self._client, self.overlay = kubectl, client, overlay

    def kubectl(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run kubectl in the controller's namespace."""
        return self._kubectl("-n", NAMESPACE, *arguments, timeout=timeout)

    def apply(self) -> None:
        """Install, as the page says."""
        self.kubectl("apply", "--server-side", "-k", str(self.overlay))

    def typed(self, script: str, replaced: Mapping[str, Path], **variables: str) -> None:
        """Run commands of a page by a shell, with these folders in the place of others, in the checkout."""
        for folder, other in replaced.items():
            script = script.replace(folder, str(other))
        environment = {**self._kubectl.environment, **variables}
        command = ["/bin/sh", "-euc", script]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    def rolled_out(self) -> None:
        """Wait until all replicas are of the newest template and ready, and no other is left."""
        self.kubectl("rollout", "status", "deployment/edl-controller", "--timeout=180s", timeout=200)
        eventually(lambda: len(self.pods()) == 2, 60, lambda: f"two pods: {self.pods()}", interval=0.2)

    def remove(self) -> None:
        """Remove, as the page says: the namespace and the definition, too."""
        self.kubectl("delete", "-k", str(self.overlay), "--timeout=120s", timeout=150)

    def pods(self) -> list[Json]:
        """All there are, those that end among them."""
        items: list[Json] = self._client.get(f"{PODS}?labelSelector=app.kubernetes.io/name=edl-controller")["items"]
        return items

    def lease(self) -> Json:
        """The record of the election."""
        spec: Json = self._client.get(f"{LEASES}/edl-controller")["spec"]
        return spec

    def leader(self) -> str:
        """The pod that leads; empty: none."""
        return str(self.lease().get("holderIdentity") or "").rpartition("_")[0]

    def logs(self) -> str:
        """Of all its pods, as far as they can be had."""
        found = [self._client.call("GET", f"{PODS}/{pod['metadata']['name']}/log").body for pod in self.pods()]
        return "\n".join(str(one.get("text", one)) for one in found)
