"""The API server takes what the manifests ask for, at the level `restricted` of Pod Security."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kubectl import Kubectl
from tests.bench.waiting import eventually
from tests.deploy.conftest import ROOT

pytestmark = pytest.mark.usefixtures("definition")
NAMESPACE = "/api/v1/namespaces/edl-system"


def _pods(control_plane: KubeControlPlane, name: str) -> list[dict[str, Any]]:
    selector = f"labelSelector=app.kubernetes.io%2Fname%3D{name}"
    items = control_plane.client.get(f"{NAMESPACE}/pods?{selector}")["items"]
    return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]


@pytest.mark.parametrize(
    ("folder", "kind", "name", "count"),
    [("cluster", "deployment", "edl-controller", 2), ("etcd", "statefulset", "edl-etcd", 3)],
)
def test_pods_are_admitted(
    kubectl: Kubectl, control_plane: KubeControlPlane, folder: str, kind: str, name: str, count: int
) -> None:
    control_plane.client.call("POST", "/api/v1/namespaces", {"metadata": {"name": "edl-system"}})
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    control_plane.client.patch(NAMESPACE, level)

    printed = kubectl("apply", "--server-side", "--force-conflicts", "-k", f"deploy/{folder}")
    try:
        assert "Warning" not in printed
        eventually(lambda: len(_pods(control_plane, name)) == count, 30, f"{count} pods of {name}")
        again = kubectl("apply", "--server-side", "-k", f"deploy/{folder}")
        assert "configured" not in again, "the second time changes nothing"
    finally:
        kubectl("-n", "edl-system", "delete", kind, name, "--wait=false")


@pytest.mark.parametrize("path", sorted((ROOT / "deploy/samples").iterdir()), ids=lambda path: path.stem)
def test_samples_are_taken(kubectl: Kubectl, path: Any) -> None:
    printed = json.loads(kubectl("apply", "--server-side", "--dry-run=server", "-f", str(path), "-o", "json"))

    assert printed["kind"] == "TrainingJob"


def test_people_who_may_edit_may_edit_jobs(kubectl: Kubectl, control_plane: KubeControlPlane) -> None:
    """The roles for people are aggregated into those that every cluster has."""
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "deploy/cluster/rbac-users.yaml")
    token = {"edit": "editor-of-jobs", "view": "viewer-of-jobs"}
    for role, user in token.items():
        kubectl("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}", "-n", "default")

    def may(user: str, verb: str, subresource: str = "") -> bool:
        what = ("trainingjobs.paddlepaddle.org", f"--subresource={subresource}")
        answer = kubectl("auth", "can-i", verb, *what, "-n", "default", "--as", user, check=False)
        return answer.strip().splitlines()[0] == "yes"

    try:
        eventually(lambda: may(token["view"], "list"), 30, "the aggregation")
        assert may(token["edit"], "create")
        assert may(token["edit"], "patch", "scale")
        assert not may(token["edit"], "patch", "status")
        assert not may(token["view"], "create")
    finally:
        for user in token.values():
            kubectl("delete", "rolebinding", user, "-n", "default")
