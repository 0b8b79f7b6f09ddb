"""The whole installation, deploy/with-etcd: an etcd of three members with TLS, from its manifests, on real nodes."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bench.container_images import write_archive
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_http import Json
from tests.bench.kubectl import Kubectl, kubectl_missing
from tests.bench.kubelet_node import KubeletNodes
from tests.bench.waiting import eventually
from tests.containers.conftest import NODES
from tests.containers.installed_controller import NAMESPACE, PODS, ROOT, Installation, write_overlay
from tests.containers.jobs import Jobs
from tests.containers.pods import Pods
from tests.etcd36.build import PROGRAMS
from tests.kube.controlplane.build import find_kubectl

IMAGE = "localhost/edl-tests-etcd:3.6.16"
MEMBERS = ("edl-etcd-0", "edl-etcd-1", "edl-etcd-2")
VOLUMES = "/api/v1/persistentvolumes"
(LOGIN,) = re.findall(
    r"^```sh login\n(.*?)^```$", (ROOT / "docs" / "etcd-roles.md").read_text(), re.DOTALL | re.MULTILINE
)
"""The commands that switch authentication on."""


@pytest.fixture(scope="module")
def volumes(control_plane: KubeControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three volumes for whoever claims them; both nodes are on this machine, so each has all of them."""
    folder = tmp_path_factory.mktemp("volumes")
    for parent in itertools.takewhile(lambda one: one != Path("/tmp"), folder.parents):
        parent.chmod(0o755)  # pytest's folders are the owner's only
    folder.chmod(0o755)
    for name in MEMBERS:
        (folder / name).mkdir()
        os.chown(folder / name, 65532, 65532)
        spec = {
            "capacity": {"storage": "8Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": str(folder / name), "type": "Directory"},
        }
        control_plane.client.post(VOLUMES, {"metadata": {"name": name}, "spec": spec})
    yield folder
    control_plane.client.delete(VOLUMES)


@pytest.fixture(scope="module")
def installed(
    control_plane: KubeControlPlane,
    nodes: KubeletNodes,
    volumes: Path,
    api_address: str,
    image: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installation]:
    """As docs/install.md says under 2a, with this cluster's images; ready."""
    if (reason := kubectl_missing()) is not None:
        pytest.skip(reason)
    if (programs := PROGRAMS.cached()) is None:
        pytest.skip("no etcd 3.6: make test-containers builds it (needs Go)")
    folder = tmp_path_factory.mktemp("with-etcd")
    files = {f"usr/local/bin/{name}": (programs / name).read_bytes() for name in ("etcd", "etcdctl")}
    write_archive(folder / "etcd.tar", IMAGE, files, ["/usr/local/bin/etcd"])
    for node in nodes.nodes.values():
        node.ctr("images", "import", str(folder / "etcd.tar"))
    program = find_kubectl()
    assert program is not None
    kubectl = Kubectl(program, control_plane.kubeconfig, ROOT)
    images = {"edl-controller": image("edl-controller"), "quay.io/coreos/etcd": IMAGE}
    write_overlay(folder, "with-etcd", images=images, api=api_address)
    (folder / "login").mkdir()
    write_overlay(folder / "login", "with-etcd-login", images=images, api=api_address)
    made = Installation(kubectl, control_plane.client, folder)
    kubectl("create", "namespace", NAMESPACE)
    kubectl("apply", "--server-side", "-f", "-", stdin=certificates(folder))
    made.apply()
    try:
        made.kubectl("rollout", "status", "statefulset/edl-etcd", "--timeout=180s", timeout=200)
        made.rolled_out()
        eventually(made.leader, 60, "one leads", interval=0.2)
        yield made
    finally:
        made.remove()


def certificates(folder: Path) -> str:
    """What the script prints; its files are in ``folder/certificates``."""
    environment = {**os.environ, "OUT": str(folder / "certificates"), "NAMESPACE": NAMESPACE}
    script = ROOT / "deploy" / "etcd" / "certificates.sh"
    return subprocess.run([script], env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


def etcdctl(installed: Installation, member: str, *arguments: str) -> str:
    """Ask one member, inside its container."""
    return installed.kubectl("exec", member, "--", "etcdctl", *arguments)


def test_three_members_serve_the_agents_of_a_job_and_one_may_be_lost(
    installed: Installation,
    control_plane: KubeControlPlane,
    pods: Pods,
    image: Callable[[str], str],
) -> None:
    health = etcdctl(installed, MEMBERS[0], "endpoint", "health", "--cluster")
    assert health.count("is healthy") == 3, health
    members = etcdctl(installed, MEMBERS[0], "member", "list")
    print(members)
    trust(control_plane, pods)
    jobs = Jobs(pods, image("edl-digits"))
    jobs.submit("kept", seconds=40)
    try:
        jobs.wait("kept", "running", 120)
        (uid,) = {one["metadata"]["uid"] for one in _trainingjobs(pods)}
        slots = etcdctl(installed, MEMBERS[0], "get", "--prefix", f"/edl/jobs/{pods.namespace}/kept/{uid}/ps/")
        assert slots.count("/ps/") == 2, slots
        running = jobs.running("kept")

        control_plane.client.delete(f"{PODS}/{MEMBERS[1]}", {"gracePeriodSeconds": 0})
        jobs.wait("kept", "succeeded", 150)

        path = f"/apis/batch/v1/namespaces/{pods.namespace}/jobs"
        assert [one["status"].get("failed", 0) for one in pods.client.get(path)["items"]] == [0]
        assert not [name for name, uid in jobs.running("kept").items() if running.get(name) != uid]
        # It comes back with what it had: the same member, and not a new one.
        installed.kubectl("rollout", "status", "statefulset/edl-etcd", "--timeout=120s", timeout=150)
        assert etcdctl(installed, MEMBERS[1], "member", "list") == members
        assert etcdctl(installed, MEMBERS[1], "endpoint", "health", "--cluster").count("is healthy") == 3
    finally:
        jobs.remove()


def test_members_lie_on_both_nodes_with_a_volume_each(installed: Installation, control_plane: KubeControlPlane) -> None:
    claims = control_plane.client.get(f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims")["items"]
    bound = {one["metadata"]["name"]: one["status"]["phase"] for one in claims}
    assert bound == {f"data-{name}": "Bound" for name in MEMBERS}
    members = [control_plane.client.get(f"{PODS}/{name}") for name in MEMBERS]
    assert {one["spec"]["nodeName"] for one in members} == set(NODES)


def test_with_authentication_each_namespace_reaches_its_own_jobs_only(
    installed: Installation, control_plane: KubeControlPlane, pods: Pods, image: Callable[[str], str]
) -> None:
    """The last one here: authentication stays on."""
    trust(control_plane, pods)
    password = secrets.token_hex(16)
    installed.typed(
        LOGIN,
        {"deploy/with-etcd-login": installed.overlay / "login"},
        NAMESPACE=pods.namespace,
        PASSWORD=password,
        CONTROLLER_PASSWORD=secrets.token_hex(16),
        ROOT_PASSWORD=secrets.token_hex(16),
    )
    installed.rolled_out()
    jobs = Jobs(pods, image("edl-digits"))
    jobs.submit("known", seconds=5)
    try:
        jobs.wait("known", "succeeded", 150)

        login = f"--user={pods.namespace}:{password}"
        own = etcdctl(installed, MEMBERS[0], login, "get", "--prefix", "--keys-only", f"/edl/jobs/{pods.namespace}/")
        assert "/known/" in own
        assert "cannot be read" not in installed.logs(), "the controller's words where it is refused"
        for others in ([login, "get", "--prefix", "/edl/jobs/"], ["get", "--prefix", "/edl/jobs/"]):
            with pytest.raises(AssertionError, match=r"permission denied|user name is empty"):
                etcdctl(installed, MEMBERS[0], *others)
    finally:
        jobs.remove()


def trust(control_plane: KubeControlPlane, pods: Pods) -> None:
    """The CA in the namespace of jobs, as docs/install.md has it."""
    made = control_plane.client.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/edl-etcd-client")["data"]
    secret = {"metadata": {"name": "edl-etcd"}, "data": {"ca.crt": made["ca.crt"]}}
    control_plane.client.post(f"/api/v1/namespaces/{pods.namespace}/secrets", secret)


def _trainingjobs(pods: Pods) -> list[Json]:
    found: list[Json] = pods.client.get(f"/apis/paddlepaddle.org/v1/namespaces/{pods.namespace}/trainingjobs")["items"]
    return found
