"""The adapter itself: deadlines, refusals in the words of the port, credentials that change, decoding, stopping."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from edl_controller import errors
from edl_controller.api.configuration import ConfigMap
from edl_controller.api.events import Event
from edl_controller.api.kinds import CONFIG_MAPS, EVENTS, JOBS, PODS, SECRETS
from edl_controller.api.meta import ObjectMeta, ObjectReference
from edl_controller.api.pods import Container, Pod, PodSpec
from edl_controller.cluster.kube import KubeCluster, credentials, in_cluster, kubeconfig
from edl_controller.cluster.kube.answers import LONGEST, error_of
from edl_controller.cluster.kube.credentials import Credentials
from edl_controller.cluster.kube.decode import WholeObjects
from edl_controller.cluster.kube.lean_pods import LeanPods
from edl_controller.cluster.kube.transport import Transport
from edl_controller.core.capacity import Accounts
from tests.bench.certificates import CertificateFolder
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_proxy import KubeProxy, kubeconfig_for
from tests.bench.waiting import eventually

Connect = Callable[..., KubeCluster]


def config_map(namespace: str, name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace), data=data)


# --- requests ---


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../secrets", "a%2fb"])
@pytest.mark.security(13)
def test_a_name_never_becomes_another_path(
    cluster: KubeCluster, namespace: str, kube_proxy: KubeProxy, name: str
) -> None:
    with pytest.raises(errors.Invalid):
        cluster.get(CONFIG_MAPS, namespace, name)
    with pytest.raises(errors.Invalid):
        cluster.delete(CONFIG_MAPS, namespace, name)
    with pytest.raises(errors.Invalid):
        cluster.patch(CONFIG_MAPS, namespace, name, {})
    assert kube_proxy.calls() == []


def test_no_subresource_is_written_but_those_of_the_port(cluster: KubeCluster, kube_proxy: KubeProxy) -> None:
    with pytest.raises(ValueError, match="binding"):
        cluster.patch(PODS, "default", "p", {}, subresource="binding")  # type: ignore[arg-type]
    assert kube_proxy.calls() == []


def test_a_delete_always_says_what_becomes_of_the_children(
    cluster: KubeCluster, namespace: str, kube_proxy: KubeProxy
) -> None:
    made = cluster.create(config_map(namespace, "x"))
    cluster.delete(CONFIG_MAPS, namespace, "x", uid=made.metadata.uid, grace_seconds=0)
    (call,) = kube_proxy.writes("configmaps")[1:]
    assert call.json["propagationPolicy"] == "Background"
    assert call.json["preconditions"] == {"uid": made.metadata.uid}
    assert call.json["gracePeriodSeconds"] == 0


def test_an_answer_that_does_not_come_is_not_waited_for(
    kube_proxy: KubeProxy, control_plane: KubeControlPlane, tmp_path: Path, namespace: str
) -> None:
    source = kubeconfig(kubeconfig_for(kube_proxy, tmp_path, control_plane.token))
    transport = Transport(Credentials(source), answer_within=0.7)
    with KubeCluster(source, transport=transport) as cluster:
        calls: dict[str, Callable[[], Any]] = {
            "list": lambda: cluster.list(CONFIG_MAPS, namespace),
            "watch": lambda: next(cluster.watch(CONFIG_MAPS, namespace, "1", threading.Event())),
        }
        for verb, call in calls.items():
            held = kube_proxy.hold(verb, "configmaps")
            begin = time.monotonic()
            with pytest.raises(errors.Unavailable):
                call()
            assert 0.5 < time.monotonic() - begin < 3
            held.remove()
        assert cluster.list(CONFIG_MAPS, namespace).items


def test_half_an_answer_is_none(cluster: KubeCluster, namespace: str, kube_proxy: KubeProxy) -> None:
    kube_proxy.cut_answer("list", "configmaps")
    with pytest.raises(errors.Unavailable):
        cluster.list(CONFIG_MAPS, namespace)
    kube_proxy.cut_answer("create", "configmaps")
    with pytest.raises(errors.Unavailable):
        cluster.create(config_map(namespace, "x"))
    assert cluster.get(CONFIG_MAPS, namespace, "x").metadata.uid


@pytest.mark.security(21)
def test_credentials_are_sent_nowhere_else(cluster: KubeCluster, namespace: str, kube_proxy: KubeProxy) -> None:
    kube_proxy.fail(302, "get", "configmaps", body=b"moved")
    with pytest.raises(errors.Unavailable, match="HTTP 302"):
        cluster.get(CONFIG_MAPS, namespace, "kube-root-ca.crt")
    assert len(kube_proxy.calls()) == 1


def test_events_of_the_new_kind_are_written(cluster: KubeCluster, namespace: str) -> None:
    event = Event(
        metadata=ObjectMeta(name="e", namespace=namespace),
        event_time="2026-12-01T00:05:18.000001Z",
        reporting_controller="edl",
        reporting_instance="edl-1",
        action="Test",
        reason="Tested",
        note="works",
        type="Normal",
        regarding=ObjectReference(api_version="v1", kind="Pod", namespace=namespace, name="p"),
    )
    assert cluster.create(event).note == "works"
    assert [one.reason for one in cluster.list(EVENTS, namespace).items] == ["Tested"]


# --- refusals ---


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", errors.Invalid),
        (401, "Unauthorized", errors.Forbidden),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (413, "RequestEntityTooLarge", errors.Invalid),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.Unavailable),
        (500, "InternalError", errors.Unavailable),
        (503, "ServiceUnavailable", errors.Unavailable),
        (504, "Timeout", errors.Unavailable),
        (307, "", errors.Unavailable),
    ],
)
def test_refusals(code: int, reason: str, expected: type[errors.ClusterError]) -> None:
    body = json.dumps({"kind": "Status", "reason": reason, "message": "m\x1b[31m" + "x" * 9000}).encode()
    error = error_of(code, body, asked="GET /x")
    assert type(error) is expected
    assert len(str(error)) <= LONGEST
    assert "\x1b" not in str(error)


def test_another_uid_in_a_patch_is_a_conflict_and_the_wait_is_read() -> None:
    cause = {"reason": "FieldValueInvalid", "field": "metadata.uid"}
    body = json.dumps({"reason": "Invalid", "details": {"causes": [cause]}}).encode()
    assert type(error_of(422, body, asked="x")) is errors.Conflict
    for header, details, wait in (("7", {}, 7.0), (None, {"retryAfterSeconds": 2}, 2.0), ("Tue, 1 Dec", {}, None)):
        error = error_of(429, json.dumps({"details": details}).encode(), asked="x", retry_after=header)
        assert isinstance(error, errors.Unavailable)
        assert error.retry_after == wait


@pytest.mark.security(22)
def test_what_a_body_says_is_not_told_where_it_may_be_secret(
    cluster: KubeCluster, namespace: str, kube_proxy: KubeProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    calls: dict[str, Callable[[], Any]] = {
        "get": lambda: cluster.get(SECRETS, namespace, "s"),
        "list": lambda: cluster.list(SECRETS, namespace),
    }
    for verb, call in calls.items():
        kube_proxy.fail(422, verb, "secrets", message='data[k]: Invalid value: "hunter2"')
        kube_proxy.fail(502, verb, "secrets", body=b"<html>hunter2</html>")
        for _ in range(2):
            with pytest.raises(errors.ClusterError) as caught:
                call()
            assert "hunter2" not in str(caught.value)
    assert "hunter2" not in caplog.text


# --- credentials ---


@pytest.fixture
def account(tmp_path: Path, control_plane: KubeControlPlane) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "ca.crt").write_bytes(control_plane.ca.read_bytes())
    (folder / "token").write_text(control_plane.token + "\n")
    return folder


@pytest.fixture
def tls_proxy(control_plane: KubeControlPlane, tmp_path: Path) -> Any:
    certificates = CertificateFolder(tmp_path / "proxy-certificates")
    with KubeProxy(control_plane.url, control_plane.ca, tls=certificates.server) as proxy:
        yield proxy, certificates


@pytest.mark.fault("K29")
@pytest.mark.security(5)
def test_a_rotated_token_is_used_within_a_minute_and_at_once_where_the_old_one_is_refused(
    account: Path, tls_proxy: Any, control_plane: KubeControlPlane, namespace: str
) -> None:
    proxy, certificates = tls_proxy
    (account / "ca.crt").write_bytes(certificates.ca.read_bytes())
    where = urlsplit(proxy.url)
    environment = {"KUBERNETES_SERVICE_HOST": where.hostname, "KUBERNETES_SERVICE_PORT": str(where.port)}
    now = [1000.0]
    known = Credentials(in_cluster(account, environment), clock=lambda: now[0])
    with KubeCluster(in_cluster(account, environment), transport=Transport(known)) as cluster:
        assert cluster.list(CONFIG_MAPS, namespace).items
        (account / "token").write_text("worn-out")
        assert cluster.list(CONFIG_MAPS, namespace).items  # still the one that was read
        now[0] += 61
        with pytest.raises(errors.Forbidden):
            cluster.list(CONFIG_MAPS, namespace)
        assert [call.status for call in proxy.calls("list")] == [200, 200, 401, 401]
        (account / "token").write_text(control_plane.token)
        proxy.clear()
        assert cluster.list(CONFIG_MAPS, namespace).items
        assert cluster.list(CONFIG_MAPS, namespace).items
        assert [call.status for call in proxy.calls("list")] == [401, 200, 200]


@pytest.mark.fault("K29")
def test_a_file_that_is_being_replaced_does_not_stop_anything(
    account: Path, control_plane: KubeControlPlane, namespace: str
) -> None:
    where = urlsplit(control_plane.url)
    environment = {"KUBERNETES_SERVICE_HOST": where.hostname or "", "KUBERNETES_SERVICE_PORT": str(where.port)}
    now = [1000.0]
    known = Credentials(in_cluster(account, environment), clock=lambda: now[0])
    with KubeCluster(in_cluster(account, environment), transport=Transport(known)) as cluster:
        assert cluster.list(CONFIG_MAPS, namespace).items
        (account / "token").write_text("")
        now[0] += 61
        assert cluster.list(CONFIG_MAPS, namespace).items


@pytest.mark.security(5)
def test_renewed_certificates_get_new_connections(account: Path, tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    now = [1000.0]
    known = Credentials(in_cluster(account, environment), clock=lambda: now[0])
    first = known.access()
    now[0] += 61
    assert known.access().identity == first.identity
    (account / "ca.crt").write_bytes(CertificateFolder(tmp_path / "new").ca.read_bytes())
    now[0] += 61
    assert known.access().identity != first.identity


@pytest.mark.security(1)
def test_a_server_with_a_foreign_certificate_gets_no_token(account: Path, tls_proxy: Any, namespace: str) -> None:
    proxy, _ = tls_proxy  # its certificate is of another authority than ca.crt
    where = urlsplit(proxy.url)
    environment = {"KUBERNETES_SERVICE_HOST": where.hostname, "KUBERNETES_SERVICE_PORT": str(where.port)}
    with KubeCluster(in_cluster(account, environment)) as cluster, pytest.raises(errors.Unavailable, match="CERTIF"):
        cluster.list(CONFIG_MAPS, namespace)
    assert proxy.calls() == []


def exec_kubeconfig(proxy: KubeProxy, folder: Path, script: str) -> Path:
    path = kubeconfig_for(proxy, folder, "unused")
    config = json.loads(path.read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": ["-c", script]}
    config["users"][0]["user"] = {"exec": {**plugin, "interactiveMode": "Never"}}
    path.write_text(json.dumps(config))
    return path


def test_a_plugin_is_run_again_only_when_its_token_is_refused(
    kube_proxy: KubeProxy, control_plane: KubeControlPlane, tmp_path: Path, namespace: str
) -> None:
    (tmp_path / "now").write_text(control_plane.token)
    script = (
        f"import json, pathlib; folder = pathlib.Path({str(tmp_path)!r}); open(folder / 'runs', 'a').write('x');"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': {'token': (folder / 'now').read_text()}}))"
    )
    with KubeCluster(kubeconfig(exec_kubeconfig(kube_proxy, tmp_path, script))) as cluster:
        assert cluster.list(CONFIG_MAPS, namespace).items
        assert cluster.list(CONFIG_MAPS, namespace).items
        assert (tmp_path / "runs").read_text() == "x"
        (tmp_path / "now").write_text("worn-out")
        kube_proxy.fail(401, "list", "configmaps")
        with pytest.raises(errors.Forbidden):
            cluster.list(CONFIG_MAPS, namespace)
        assert (tmp_path / "runs").read_text() == "xx"


@pytest.mark.parametrize("script", ["import time; time.sleep(3)", "print('nothing')"])
def test_a_plugin_that_hangs_or_gives_nothing_is_not_waited_for(
    kube_proxy: KubeProxy, tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 1.0 if "sleep" in script else 5.0
    monkeypatch.setattr(credentials, "LOAD_WITHIN", seconds)
    with KubeCluster(kubeconfig(exec_kubeconfig(kube_proxy, tmp_path, script))) as cluster:
        begin = time.monotonic()
        with pytest.raises(errors.Unavailable, match="Credentials"):
            cluster.list(CONFIG_MAPS, "default")
        assert time.monotonic() - begin < seconds + 1.0
    assert kube_proxy.calls() == []
    eventually(lambda: not any(one.name == "edl-kube-credentials" for one in threading.enumerate()), 5, "its end")


def test_no_kubeconfig_is_said(tmp_path: Path) -> None:
    with (
        KubeCluster(kubeconfig(tmp_path / "absent")) as cluster,
        pytest.raises(errors.Unavailable, match="Credentials"),
    ):
        cluster.list(CONFIG_MAPS)


# --- watches ---


def test_a_silent_watch_sees_the_stop_and_leaves_no_thread(cluster: KubeCluster, namespace: str) -> None:
    stop = threading.Event()
    version = cluster.list(CONFIG_MAPS, namespace).resource_version
    ended = threading.Event()

    def follow() -> None:
        for _ in cluster.watch(CONFIG_MAPS, namespace, version, stop):
            pass
        ended.set()

    threading.Thread(target=follow, name="edl-test-watch", daemon=True).start()
    assert not ended.wait(0.5)
    stop.set()
    assert ended.wait(2.0)
    eventually(lambda: not [one for one in threading.enumerate() if "stopper" in one.name], 2, "the stopper's end")


# --- decoding ---


def everything() -> dict[str, Any]:
    state = {"terminated": {"exitCode": 3, "reason": "Error", "finishedAt": "2026-12-01T00:05:18Z"}}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "ju", "controller": True}
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": 2}}
    status = {"name": "c", "ready": True, "started": True, "restartCount": 4, "image": "i", "lastState": state}
    return {
        "metadata": {
            "name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 2,
            "creationTimestamp": "2026-12-01T00:05:18Z", "deletionTimestamp": "2026-12-01T00:06:18Z",
            "deletionGracePeriodSeconds": 30, "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["f"],
            "ownerReferences": [owner],
        },
        "spec": {
            "containers": [{"name": "c", "resources": resources, "env": [{"name": "x"}]}],
            "initContainers": [{"name": "i", "restartPolicy": "Always"}], "nodeName": "node", "restartPolicy": "Never",
            "priority": 5, "terminationGracePeriodSeconds": 9, "nodeSelector": {"e": "f"},
            "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 300}],
            "affinity": {"nodeAffinity": {}}, "topologySpreadConstraints": [{"maxSkew": 1}],
            "schedulingGates": [{"name": "g"}], "readinessGates": [{"conditionType": "t"}], "overhead": {"cpu": "10m"},
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
        "status": {
            "phase": "Running", "reason": "r", "message": "m", "podIP": "10.0.0.1", "startTime": "2026-12-01T00:05:18Z",
            "conditions": [{"type": "Ready", "status": "False", "lastProbeTime": None, "message": "no"}],
            "containerStatuses": [status],
            "initContainerStatuses": [{"name": "i", "ready": False, "state": state, "image": "i", "imageID": "x"}],
        },
    }  # fmt: skip


def as_lean(pod: Pod) -> Pod:
    """A whole pod without what a lean one has not."""

    def containers(of: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(Container(name=one.name, resources=one.resources, restart_policy=one.restart_policy) for one in of)

    replace = msgspec.structs.replace
    spec = replace(
        pod.spec,
        containers=containers(pod.spec.containers),
        init_containers=containers(pod.spec.init_containers),
        **{
            name: getattr(PodSpec(), name)
            for name in ("volumes", "dns_policy", "scheduler_name", "security_context", "service_account_name")
        },
        enable_service_links=None,
    )
    statuses = {
        name: tuple(replace(one, image="", image_id="", container_id="") for one in getattr(pod.status, name))
        for name in ("container_statuses", "init_container_statuses")
    }
    status = replace(pod.status, qos_class="", host_ip="", observed_generation=0, **statuses)
    return replace(pod, spec=spec, status=status, metadata=replace(pod.metadata, generate_name=""))


def test_a_lean_pod_has_all_that_is_said_of_it() -> None:
    data = json.dumps({"type": "ADDED", "object": everything()}).encode()
    lean = LeanPods()
    line = lean.line(data)
    whole = WholeObjects(PODS).line(data).obj
    assert whole is not None
    assert line.obj == as_lean(whole)
    assert line.resource_version == "7"
    again = lean.line(data.replace(b'"7"', b'"8"')).obj
    assert line.obj is not None
    assert again is not None
    assert again.spec.containers is line.obj.spec.containers
    assert again.metadata.labels is line.obj.metadata.labels


def test_pods_of_the_real_server_are_the_same_lean_and_whole(
    connect: Connect, control_plane: KubeControlPlane, namespace: str
) -> None:
    spec = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}}]}
    for number in range(3):
        body = {"metadata": {"name": f"p{number}"}, "spec": {**spec, "nodeName": "" if number else "absent"}}
        control_plane.client.post(f"/api/v1/namespaces/{namespace}/pods", body)
    whole, lean = connect(), connect(lean_pods=True)
    pods = {one.metadata.uid: one for one in whole.list(PODS, namespace).items}
    listed = lean.list(PODS, namespace)
    assert len(listed.items) == 3
    for one in listed.items:
        meta = pods[one.metadata.uid].metadata
        if meta.resource_version == one.metadata.resource_version:
            assert one == as_lean(pods[one.metadata.uid])
    accounts = [Accounts(), Accounts()]
    for account, found in zip(accounts, (pods.values(), listed.items), strict=True):
        for pod in found:
            account.put_pod(pod)
    assert len(accounts[0].waiting()) == len(accounts[1].waiting()) == 2


def test_sharing_forgets_and_stays_right() -> None:
    lean = LeanPods()
    for number in range(5000):
        pod = everything()
        pod["metadata"]["labels"] = {"n": str(number)}
        pod["spec"]["containers"][0]["name"] = f"c{number}"
        line = lean.line(json.dumps({"type": "ADDED", "object": pod}).encode())
        assert line.obj is not None
        assert line.obj.metadata.labels == {"n": str(number)}
        assert line.obj.spec.containers[0].name == f"c{number}"


def test_whole_jobs_of_a_list_are_those_that_get_gives(cluster: KubeCluster, namespace: str) -> None:
    from tests.kube.test_adapter_faults import job

    made = cluster.create(job(namespace, "j"))
    assert cluster.list(JOBS, namespace, labels={"nobody": "has"}).items == ()
    listed = cluster.list(JOBS, namespace).items[0]
    assert (listed.metadata.uid, listed.spec) == (made.metadata.uid, made.spec)


@pytest.mark.parametrize(
    ("code", "body", "header", "kind", "wait"),
    [
        (429, {"reason": "TooManyRequests"}, "7", errors.Unavailable, 7.0),
        (429, {"reason": "TooManyRequests"}, "86400", errors.Unavailable, 60.0),
        (503, {"details": {"retryAfterSeconds": 3600}}, None, errors.Unavailable, 60.0),
        (503, {}, "Wed, 21 Oct 2026 07:28:00 GMT", errors.Unavailable, None),
        (403, {"message": "pods is forbidden"}, None, errors.Forbidden, None),
        (
            403,
            {"message": "jobs \"a\" is forbidden: cannot set blockOwnerDeletion in this case because cannot find "
             "RESTMapping for APIVersion paddlepaddle.org/v1 Kind TrainingJob: no matches for kind"},
            None,
            errors.Unavailable,
            None,
        ),
    ],
    ids=["as asked", "asks for a day", "the same in the body", "a date", "a refusal", "a kind it has not heard of yet"],
)  # fmt: skip
def test_what_passes_by_itself_is_tried_again_in_time(
    code: int, body: dict[str, object], header: str | None, kind: type[errors.ClusterError], wait: float | None
) -> None:
    status = json.dumps({"kind": "Status", "status": "Failure", "code": code, **body}).encode()
    error = error_of(code, status, asked="POST /x", retry_after=header)

    assert type(error) is kind
    assert getattr(error, "retry_after", None) == wait
