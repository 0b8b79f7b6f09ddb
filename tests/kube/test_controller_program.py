"""`edl-controller run` as processes before a real API server: its start, its end, and what it asks for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_controller.api import crd
from tests.bench.controller_process import ControllerProcess
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_proxy import Call, KubeProxy, kubeconfig_for
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never
from tests.kube.conftest import DEFINITIONS
from tests.kube.controller_bench import ControllerBench

ROOT = Path(__file__).parents[2]
DEFINITION = f"{DEFINITIONS}/trainingjobs.paddlepaddle.org"
FAST = ("--lease-duration", "6", "--lease-renew-deadline", "4", "--lease-retry", "0.5")
RBAC = "/apis/rbac.authorization.k8s.io/v1"

Run = Callable[..., ControllerProcess]


@pytest.fixture
def run(kube_proxy: KubeProxy, control_plane: KubeControlPlane, namespace: str, tmp_path: Path) -> Iterator[Run]:
    """``run(*arguments, token=, server=) -> ControllerProcess``, started for the test's namespace."""
    made: list[ControllerProcess] = []

    def start(*arguments: str, token: str = "", server: str = "", everywhere: bool = False) -> ControllerProcess:
        path = kubeconfig_for(kube_proxy, tmp_path, token or control_plane.token)
        if server:
            config = json.loads(path.read_text())
            config["clusters"][0]["cluster"]["server"] = server
            path = tmp_path / "kubeconfig-server"
            path.write_text(json.dumps(config))
        where = () if everywhere else ("--namespace", namespace)
        lease = ("--lease-namespace", namespace)
        made.append(ControllerProcess("--kubeconfig", str(path), *where, *lease, *arguments))
        return made[-1].start()

    yield start
    for one in made:
        one.kill()


@pytest.fixture
def account(control_plane: KubeControlPlane, namespace: str) -> str:
    """The token of an account that may do nothing."""
    where = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    control_plane.client.post(where, {"metadata": {"name": "edl"}})
    answer = control_plane.client.post(f"{where}/edl/token", {"spec": {"expirationSeconds": 3600}})
    return str(answer["status"]["token"])


def _grant(control_plane: KubeControlPlane, namespace: str, *files: str, account_in: str = "") -> None:
    """Give it the rights of the manifests, in the namespace alone."""
    rules = [
        rule
        for file in files
        for document in yaml.safe_load_all((ROOT / "deploy" / file).read_text())
        if document["kind"] == "Role"
        for rule in document["rules"]
    ]
    _bind(control_plane, namespace, account_in or namespace, rules)


def _bind(control_plane: KubeControlPlane, namespace: str, account_in: str, rules: list[Any]) -> None:
    where = f"{RBAC}/namespaces/{namespace}"
    subject = {"kind": "ServiceAccount", "name": "edl", "namespace": account_in}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "edl"}
    control_plane.client.post(f"{where}/roles", {"metadata": {"name": "edl"}, "rules": rules})
    control_plane.client.post(
        f"{where}/rolebindings", {"metadata": {"name": "edl"}, "roleRef": reference, "subjects": [subject]}
    )


@pytest.mark.fault("K43")
def test_an_api_server_that_is_down_at_the_start_and_later_is_waited_for(
    run: Run, kube_proxy: KubeProxy, definition: None
) -> None:
    with TcpProxy(kube_proxy.url) as link:
        link.refuse()
        program = run(server=link.endpoint)
        eventually(lambda: "Unavailable: GET" in program.get("/readyz").text, 30, "the reason is said")
        assert program.get("/readyz").status == 503
        never(lambda: program.get("/healthz").status != 200, 3, "it is healthy", interval=0.2)
        assert program.logged("^Not ready: .*trainingjobs.*Unavailable", level="warning")
        pid = program.pid
        link.pass_all()
        program.wait_ready().wait_leading()
        link.refuse()
        eventually(lambda: program.get("/readyz").status == 503, 40, "not ready")
        assert program.get("/healthz").status == 200
        assert program.process.poll() in (None, 3), "at most the lead is lost"
        assert program.pid == pid


@pytest.mark.timeout(300)
@pytest.mark.fault("K23")
def test_a_definition_that_comes_late_goes_and_comes_again(
    run: Run, bench: ControllerBench, kube_proxy: KubeProxy
) -> None:
    client = bench.client

    def uninstall() -> None:
        client.call("DELETE", DEFINITION)
        eventually(lambda: client.call("GET", DEFINITION).status == 404, 40, "the definition is gone")
        served = "/apis/paddlepaddle.org/v1/trainingjobs"
        eventually(lambda: client.call("GET", served).status == 404, 40, "the resource is gone")

    def install() -> None:
        client.post(DEFINITIONS, crd.manifest())

    uninstall()
    program = run("--etcd-endpoints", bench.etcd)
    eventually(lambda: "the resource is not installed" in program.get("/readyz").text, 40, "the reason")
    page = program.get("/readyz")
    assert page.status == 503
    assert "edl-controller crd | kubectl apply --server-side -f -" in page.text
    never(lambda: program.get("/healthz").status != 200, 6, "it is healthy", interval=0.2)
    assert len(program.logged("resource is not installed")) == 1, "said once"
    assert len(program.logged("Cannot watch trainingjobs")) == 1, "said once"
    install()
    program.wait_ready().wait_leading()
    bench.create("tj", trainers=1)
    # The API server's own list of kinds may be 30 s old: it refuses owners of a kind that it does not know yet, and
    # what is refused is tried again after a minute.
    eventually(lambda: len(bench.children()) >= 2, 90, lambda: f"its children: {bench.job('tj').get('status')}")
    begin = time.monotonic()
    uninstall()
    eventually(lambda: program.get("/readyz").status == 503, 40, "not ready")
    eventually(lambda: program.metric("edl_cache_objects", resource="trainingjobs") == 0, 40, "an empty cache")
    assert not [call for call in kube_proxy.calls("delete") if call.time >= begin], "children are not deleted"
    install()
    program.wait_ready()
    bench.create("next", trainers=1)
    eventually(lambda: [one for one in bench.children() if "next" in one["metadata"]["name"]], 90, "its children")
    assert program.terminate() == 0
    assert not kube_proxy.calls("delete")
    uninstall()  # who needs it next has it installed, with a garbage collector that knows it


@pytest.mark.report("M51")
def test_with_rights_in_one_namespace_only_that_is_asked_for(
    run: Run, bench: ControllerBench, kube_proxy: KubeProxy, control_plane: KubeControlPlane, account: str
) -> None:
    namespace = bench.namespace
    _grant(control_plane, namespace, "namespaced/role.yaml", "common/rbac-election.yaml")
    time.sleep(1.0)  # the authorizer learns of it by a watch
    kube_proxy.clear()
    begin = time.monotonic()
    program = run("--etcd-endpoints", bench.etcd, "--log-level", "debug", token=account)
    program.wait_ready()
    assert time.monotonic() - begin < 30, "10 s, and a machine that is busy"
    program.wait_leading()
    bench.create("tj", trainers=1)
    bench.wait_phase("tj", "running")
    created = {"kind": "Job", "namespace": namespace, "name": "tj-trainer"}
    assert [line for line in program.logged("^Created Job") if line["object"] == created], "machines find the object"
    pages = "".join(program.get(path).text for path in ("/healthz", "/readyz", "/metrics"))
    assert program.metric("edl_api_requests_total", method="GET", code="200")
    assert program.terminate() == 0
    elsewhere = {call.path for call in kube_proxy.calls() if call.namespace != namespace}
    assert elsewhere == set(), "a call to the cluster as a whole"
    refused = {(call.verb, call.path) for call in kube_proxy.calls() if call.status in (401, 403)}
    assert refused == set()
    assert account not in program.output + pages, "a token is shown"


def test_for_the_whole_cluster_it_lists_each_kind_once_and_scales(
    run: Run, bench: ControllerBench, kube_proxy: KubeProxy
) -> None:
    kube_proxy.clear()
    program = run("--etcd-endpoints", bench.etcd, everywhere=True)
    program.wait_ready().wait_leading()
    lists = [(one.resource, one.namespace) for one in kube_proxy.calls("list")]
    kinds = ("trainingjobs", "replicasets", "jobs", "pods", "nodes")
    assert sorted(set(lists)) == sorted((kind, "") for kind in kinds), "all namespaces, and nothing else"
    # Without agents (mode Classic) trainers are scaled by what the cluster shows alone.
    bench.create("tj", trainers=1, most=2)
    eventually(lambda: bench.trainer("tj")["spec"]["parallelism"] == 2, 60, "it grows")
    eventually(
        lambda: program.metric("edl_autoscaler_decisions_total", kind="grow", reason="fits"), 20, "it is counted"
    )
    assert program.metric("edl_cache_objects", resource="nodes")
    assert program.terminate() == 0
    bench.assert_invariants()


@pytest.mark.fault("K22")
def test_a_namespace_without_rights_at_the_start_hinders_no_other(
    run: Run, bench: ControllerBench, kube_proxy: KubeProxy, control_plane: KubeControlPlane, account: str
) -> None:
    client, second = bench.client, f"{bench.namespace}-second"
    client.post("/api/v1/namespaces", {"metadata": {"name": second}})
    try:
        rights = "namespaced/role.yaml", "common/rbac-election.yaml"
        _grant(control_plane, bench.namespace, *rights)
        # Of the second one it may see the jobs and nothing else: what they have already is not to be made again.
        jobs = {"apiGroups": ["paddlepaddle.org"], "resources": ["trainingjobs"], "verbs": ["get", "list", "watch"]}
        _bind(control_plane, second, bench.namespace, [jobs])
        time.sleep(1.0)
        there = f"/apis/paddlepaddle.org/v1/namespaces/{second}/trainingjobs"
        program = run("--namespace", second, "--etcd-endpoints", bench.etcd, token=account)
        program.wait_leading()
        document = bench.create("tj", trainers=1)
        bench.wait_phase("tj", "running")
        client.post(there, {**document, "metadata": {"name": "other"}, "status": {}})
        never(lambda: [one for one in kube_proxy.writes() if one.namespace == second], 4, "a write there", interval=0.2)
        page = program.get("/readyz")
        assert page.status == 503
        assert f"pods in {second}: no permission" in page.text
        assert f"in {bench.namespace}:" not in page.text
        client.delete(f"{RBAC}/namespaces/{second}/rolebindings/edl")
        client.delete(f"{RBAC}/namespaces/{second}/roles/edl")
        _grant(control_plane, second, *rights, account_in=bench.namespace)
        program.wait_ready(60)
        eventually(lambda: client.get(f"{there}/other").get("status", {}).get("phase"), 40, "it is looked after")
        assert program.terminate() == 0
    finally:
        client.delete(f"/api/v1/namespaces/{second}")


def test_without_any_rights_it_says_what_is_missing_and_goes_on_trying(
    run: Run, definition: None, account: str
) -> None:
    program = run("--no-leader-elect", token=account)
    eventually(
        lambda: "trainingjobs" in program.get("/readyz").text and "no permission" in program.get("/readyz").text, 30
    )
    page = program.get("/readyz")
    assert page.status == 503
    assert "system:serviceaccount" in page.text
    assert program.get("/healthz").status == 200
    assert len(program.logged("Cannot watch trainingjobs", level="error")) == 1
    assert program.terminate() == 0


def test_without_the_right_to_the_lease_it_says_so_and_leads_once_it_has_it(
    run: Run, bench: ControllerBench, control_plane: KubeControlPlane, account: str
) -> None:
    _grant(control_plane, bench.namespace, "namespaced/role.yaml")
    time.sleep(1.0)  # the authorizer learns of it by a watch
    program = run(token=account)
    said = "leader election: no permission"
    eventually(lambda: said in program.get("/readyz").text, 40, "what is missing")
    time.sleep(5.0)  # two more tries
    assert len(program.logged("of the lease", level="warning")) == 1, "said once"
    role = f"{RBAC}/namespaces/{bench.namespace}/roles/edl"
    rules = bench.client.get(role)["rules"]
    rules += next(yaml.safe_load_all((ROOT / "deploy/common/rbac-election.yaml").read_text()))["rules"]
    bench.client.patch(role, {"rules": rules})
    program.wait_ready().wait_leading()
    assert program.terminate() == 0


def _lease_releases(calls: list[Call]) -> list[Call]:
    return [one for one in calls if one.resource == "leases" and not one.json.get("spec", {}).get("holderIdentity")]


@pytest.mark.fault("K42")
def test_a_stop_with_ten_jobs_in_work_finishes_them_and_releases_the_lease_last(
    run: Run, bench: ControllerBench, kube_proxy: KubeProxy
) -> None:
    arguments = ("--etcd-endpoints", bench.etcd, "--workers", "10")
    first = run(*arguments)
    first.wait_ready().wait_leading()
    second = run(*arguments)
    second.wait_ready()
    second.wait_logged("Competing")
    held = kube_proxy.hold("create", "replicasets")
    for number in range(12):
        bench.create(f"tj{number}", trainers=1)
    held.wait_fired(40, times=10)
    begin = time.monotonic()
    first.process.terminate()
    eventually(lambda: "being stopped" in first.get("/readyz").text, 10, "not ready")
    never(lambda: _lease_releases(kube_proxy.writes()), 1.0, "released while work is under way")
    held.remove()
    assert first.wait() == 0
    assert time.monotonic() - begin < 30
    ended = first.lines[-1]["seen"]
    led = second.wait_logged("leads by the lease")["seen"]
    assert led - ended < 10.0, "3 s, and room for a machine that is busy; of a Lease that is not released 15 s"
    release = _lease_releases(kube_proxy.writes())[0]
    taken = next(call for call in kube_proxy.writes("leases") if call.time > release.time)
    between = [call for call in kube_proxy.writes() if release.time < call.time < taken.time]
    assert between == [], "a write after the release"
    eventually(lambda: all(bench.phase(f"tj{n}") for n in range(12)), 60, "the other one goes on")
    bench.assert_invariants()
    assert second.terminate() == 0


@pytest.mark.fault("K42")
def test_work_that_does_not_end_is_left_behind_and_the_lease_runs_out(
    run: Run, bench: ControllerBench, kube_proxy: KubeProxy
) -> None:
    arguments = ("--etcd-endpoints", bench.etcd, *FAST)
    first = run(*arguments, "--stop-within", "6")
    first.wait_ready().wait_leading()
    held = kube_proxy.hold("create", "replicasets")
    bench.create("tj", trainers=1)
    held.wait_fired(40)
    begin = time.monotonic()
    assert first.terminate() == 0
    assert time.monotonic() - begin < 15, "6 s, and a machine that is busy"
    assert first.logged("the Lease is not released", level="error")
    assert not _lease_releases(kube_proxy.writes())
    held.remove()
    second = run(*arguments)
    second.wait_ready().wait_leading()
    bench.wait_phase("tj", "running")
    bench.assert_invariants()
    assert second.terminate() == 0
