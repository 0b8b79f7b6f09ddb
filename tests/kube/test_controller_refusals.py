"""What an API server refuses the controller: webhooks, policies, quotas, rights, old tokens, namespaces that go (rows
K9, K22, K29, K40, K41): said on the job, tried again rarely, and right again without a restart.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edl_controller import controller as controller_module
from edl_controller.cluster.kube import KubeCluster, kubeconfig
from edl_controller.controller import Controller
from edl_controller.core.job_settings import JobSettings
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_http import Json, KubeHttpClient
from tests.bench.kube_proxy import Call
from tests.bench.waiting import eventually, never
from tests.kube.controller_bench import DEADLINE, ControllerBench, RunningController, show

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture(autouse=True)
def _nothing_goes_wrong_inside(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Refusals are no errors of the program: none comes with a traceback."""
    yield
    records = [one for when in ("setup", "call") for one in caplog.get_records(when)]
    assert not [one.getMessage() for one in records if one.name.startswith("edl_controller") and one.exc_info]


@pytest.fixture
def cleaned(control_plane: KubeControlPlane) -> Iterator[Callable[[str, Json], str]]:
    """``cleaned(path, document)``: create something outside of namespaces; deleted after the test. Returns its path."""
    made: list[str] = []

    def create(path: str, document: Json) -> str:
        control_plane.client.post(path, document)
        made.append(f"{path}/{document['metadata']['name']}")
        return made[-1]

    yield create
    for path in reversed(made):
        control_plane.client.call("DELETE", path)


def synced(bench: ControllerBench, name: str = "tj") -> tuple[str, str]:
    return bench.condition(name, "Synced")


def said(bench: ControllerBench, kind: str, name: str = "tj") -> str:
    conditions = bench.job(name).get("status", {}).get("conditions", [])
    return next((str(one.get("message", "")) for one in conditions if one["type"] == kind), "")


def tries(bench: ControllerBench, resource: str, since: float = 0.0) -> list[float]:
    return [call.time for call in bench.proxy.calls("create", resource) if call.time >= since]


# --- K9, M69: admission ---


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of an address at which somebody listens and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}/"


def webhook(namespace: str, url: str, ca: Path, seconds: int, policy: str = "Fail") -> Json:
    return {
        "metadata": {"name": f"{namespace}.example.com"},
        "webhooks": [
            {
                "name": f"{namespace}.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "timeoutSeconds": seconds,
                "failurePolicy": policy,
                "clientConfig": {"url": url, "caBundle": base64.b64encode(ca.read_bytes()).decode()},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [
                    {
                        "apiGroups": ["apps", "batch"],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["replicasets", "jobs"],
                    }
                ],
            }
        ],
    }


@pytest.mark.fault("K9")
@pytest.mark.report("M69")
def test_a_webhook_that_never_answers_costs_time_and_makes_no_child_twice(
    bench: ControllerBench, control_plane: KubeControlPlane, cleaned: Callable[[str, Json], str], silent: str
) -> None:
    hook = webhook(bench.namespace, silent, control_plane.ca, 1)
    path = cleaned(f"{ADMISSION}/validatingwebhookconfigurations", hook)
    time.sleep(1.0)  # the API server learns of it by a watch
    life = bench.start()
    begin = time.monotonic()
    bench.create("tj", trainers=1, most=1)
    eventually(lambda: len(tries(bench, "replicasets")) >= 3, DEADLINE, "it is tried again")
    assert len(tries(bench, "replicasets")) <= (time.monotonic() - begin) + 3, "each try takes its second"
    assert not bench.children()
    bench.client.delete(path)
    removed = time.monotonic()
    bench.wait_phase("tj", "running")
    assert time.monotonic() - removed < 15 + DEADLINE
    assert life.alive
    bench.wait_rest()
    bench.assert_invariants()


@pytest.mark.fault("K9")
def test_a_child_that_is_made_after_the_controller_gave_up_is_taken_as_it_is(
    bench: ControllerBench, control_plane: KubeControlPlane, cleaned: Callable[[str, Json], str], silent: str
) -> None:
    """The webhook may be ignored, but only after its time, and the controller's request is over before."""
    cleaned(
        f"{ADMISSION}/validatingwebhookconfigurations", webhook(bench.namespace, silent, control_plane.ca, 2, "Ignore")
    )
    time.sleep(1.0)
    cluster = KubeCluster(kubeconfig(bench.source), answer_within=1.0)
    settings = JobSettings(etcd_endpoints=(bench.etcd,))
    life = RunningController(Controller(cluster, settings=settings, namespaces=[bench.namespace]), cluster)
    try:
        bench.create("tj", trainers=1, most=1)
        bench.wait_phase("tj", "running", 3 * DEADLINE)
        bench.wait_rest()
        bench.assert_invariants()
    finally:
        life.stop()


def policy(namespace: str, resource: str, group: str, text: str) -> tuple[Json, Json]:
    name = f"{namespace}-{resource}.example.com"
    rules = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rules]},
        "validations": [{"expression": "false", "message": text}],
    }
    chosen = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": chosen}
    return {"metadata": {"name": name}, "spec": spec}, {"metadata": {"name": name}, "spec": binding}


@pytest.mark.fault("K9")
def test_what_a_policy_denies_is_said_and_not_tried_faster_than_once_a_minute(
    bench: ControllerBench, cleaned: Callable[[str, Json], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    denying, binding = policy(bench.namespace, "replicasets", "apps", "no pservers on a Sunday")
    cleaned(f"{ADMISSION}/validatingadmissionpolicies", denying)
    bound = cleaned(f"{ADMISSION}/validatingadmissionpolicybindings", binding)
    probe = {
        "metadata": {"name": "probe"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    }
    dry = f"{bench.sets_path}?dryRun=All"
    eventually(lambda: bench.client.call("POST", dry, probe).status == 422, DEADLINE, "the policy", interval=0.2)
    bench.start()
    bench.create("tj", trainers=1, most=1)
    eventually(lambda: synced(bench) == ("False", "Refused"), DEADLINE)
    assert "no pservers on a Sunday" in said(bench, "Synced")
    for number in range(5):  # news of the job is no reason to ask again
        note = {"metadata": {"labels": {"example.com/n": str(number)}}}
        bench.client.patch(f"{bench.training_jobs_path}/tj", note)
    never(lambda: len(tries(bench, "replicasets")) > 1, 3.0, "tried again within the minute")
    assert 1 <= len([one for one in bench.events("tj") if one["reason"] == "Refused"]) <= 2
    # An edit is a reason; so is a minute, shortened here.
    monkeypatch.setattr(controller_module, "REFUSED_RETRY", 1.0)
    bench.client.delete(bound)
    eventually(lambda: bench.client.call("POST", dry, probe).status == 201, DEADLINE, "no policy", interval=0.2)
    bench.edit("tj", {"image": "example.com/digits:2"})
    bench.wait_phase("tj", "running")
    eventually(lambda: synced(bench)[0] == "True", DEADLINE)
    bench.wait_rest()
    bench.assert_invariants()


# --- K41: quotas ---


@pytest.mark.fault("K41")
def test_a_quota_of_pods_is_quoted_in_the_condition(bench: ControllerBench) -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}}
    bench.client.post(f"{bench.core}/resourcequotas", quota)
    path = f"{bench.core}/resourcequotas/few"
    eventually(lambda: bench.client.get(path).get("status", {}).get("hard"), DEADLINE, "the quota counts")
    bench.start(autoscale=False)
    bench.create("tj", trainers=1, most=1, pservers=3)
    eventually(lambda: "exceeded quota: few" in said(bench, "Running"), DEADLINE, lambda: said(bench, "Running"))
    bench.wait_rest(quiet=2.0)
    assert re.search(r"[12] of 3 pservers are refused: .*limited: pods=2$", said(bench, "Running"))
    assert len([one for one in bench.events("tj") if one["type"] == "Warning"]) <= 3
    begin = time.monotonic()
    never(lambda: bench.written(begin), 3.0, "writes while the quota holds")
    bench.client.delete(path)
    bench.wait_phase("tj", "running", 3 * DEADLINE)
    eventually(lambda: "quota" not in said(bench, "Running"), DEADLINE)


@pytest.mark.fault("K41")
def test_a_quota_of_children_is_quoted_and_not_asked_again_for_a_minute(bench: ControllerBench) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/replicasets.apps": "0"}}}
    bench.client.post(f"{bench.core}/resourcequotas", quota)
    path = f"{bench.core}/resourcequotas/none"
    eventually(lambda: bench.client.get(path).get("status", {}).get("hard"), DEADLINE, "the quota counts")
    bench.start()
    bench.create("tj", trainers=1, most=1)
    eventually(lambda: synced(bench) == ("False", "Refused"), DEADLINE)
    assert "exceeded quota: none" in said(bench, "Synced")
    never(lambda: len(tries(bench, "replicasets")) > 1, 3.0, "tried again within the minute")
    bench.client.delete(path)
    bench.edit("tj", {"passes": 3})
    bench.wait_phase("tj", "running")


@pytest.mark.fault("K41")
def test_a_quota_that_stops_the_trainers_is_pointed_at(bench: ControllerBench) -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}}
    bench.client.post(f"{bench.core}/resourcequotas", quota)
    path = f"{bench.core}/resourcequotas/few"
    eventually(lambda: bench.client.get(path).get("status", {}).get("hard"), DEADLINE, "the quota counts")
    bench.start(autoscale=False)
    bench.create("tj", trainers=3, most=3, pservers=1)
    wanted = r"[23] of 3 trainers are not created \(if for long, see the Events of Job tj-trainer\)"
    eventually(lambda: re.search(wanted, said(bench, "Running")), DEADLINE, lambda: said(bench, "Running"))
    bench.wait_rest(quiet=2.0)
    begin = time.monotonic()
    never(lambda: bench.written(begin), 3.0, "writes while the quota holds")


# --- K22: rights, by real accounts and roles ---

RULES = [
    {"apiGroups": ["paddlepaddle.org"], "resources": ["trainingjobs"], "verbs": ["get", "list", "watch", "delete"]},
    {"apiGroups": ["paddlepaddle.org"], "resources": ["trainingjobs/status"], "verbs": ["patch"]},
    {"apiGroups": ["paddlepaddle.org"], "resources": ["trainingjobs/finalizers"], "verbs": ["update"]},
    {
        "apiGroups": ["batch"],
        "resources": ["jobs"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {
        "apiGroups": ["apps"],
        "resources": ["replicasets"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
]
"""Those of ``deploy/namespaced/role.yaml``; that they are enough is tested in ``tests/deploy``."""


def token_of(client: KubeHttpClient, namespace: str, account: str, seconds: int = 3600) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return str(client.post(path, {"spec": {"expirationSeconds": seconds}})["status"]["token"])


def grant(client: KubeHttpClient, namespace: str, account_namespace: str, rules: list[Json] = RULES) -> None:
    """Role and binding for the controller's account in a namespace."""
    where = f"{RBAC}/namespaces/{namespace}"
    client.call("POST", f"{where}/roles", {"metadata": {"name": "edl"}, "rules": rules})
    client.patch(f"{where}/roles/edl", {"rules": rules})
    subject = {"kind": "ServiceAccount", "name": "edl", "namespace": account_namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "edl"}
    binding = {"metadata": {"name": "edl"}, "roleRef": reference, "subjects": [subject]}
    client.call("POST", f"{where}/rolebindings", binding)


@pytest.fixture
def accounted(bench: ControllerBench) -> Iterator[tuple[ControllerBench, str]]:
    """The bench with a controller account that may work in the bench's namespace and in a second one."""
    client, second = bench.client, f"{bench.namespace}-second"
    client.post("/api/v1/namespaces", {"metadata": {"name": second}})
    account = f"/api/v1/namespaces/{second}/serviceaccounts/default"
    eventually(lambda: client.call("GET", account).status == 200, 30, "the namespace's service account")
    client.post(f"{bench.core}/serviceaccounts", {"metadata": {"name": "edl"}})
    for namespace in (bench.namespace, second):
        grant(client, namespace, bench.namespace)
    write_token(bench, token_of(client, bench.namespace, "edl"))
    yield bench, second
    bench.close()
    client.delete(f"/api/v1/namespaces/{second}")


def write_token(bench: ControllerBench, token: str) -> None:
    import json

    path = bench.source
    config = json.loads(path.read_text())
    config["users"][0]["user"] = {"token": token}
    path.write_text(json.dumps(config))


@pytest.mark.fault("K22")
def test_rights_that_go_in_one_namespace_are_missed_there_only(
    accounted: tuple[ControllerBench, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, second = accounted
    life = bench.start(namespaces=[bench.namespace, second], autoscale=False)
    bench.create("tj", trainers=1, most=1)
    bench.wait_phase("tj", "running")
    jobs = f"/apis/paddlepaddle.org/v1/namespaces/{second}/trainingjobs"
    role = f"{RBAC}/namespaces/{second}/roles/edl"
    # All writes of one kind are taken away first: said on the job.
    without = [rule for rule in RULES if rule["resources"] != ["replicasets"]]
    reading = {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["get", "list", "watch"]}
    bench.client.patch(role, {"rules": [*without, reading]})
    time.sleep(1.0)  # the authorizer learns of it by a watch
    document = bench.job("tj") | {"metadata": {"name": "other"}}
    document.pop("status")
    bench.client.post(jobs, document)

    def refused() -> bool:
        conditions = bench.client.get(f"{jobs}/other").get("status", {}).get("conditions", [])
        found: Json = next((one for one in conditions if one["type"] == "Synced"), {})
        return found.get("reason") == "Refused" and "replicasets" in found["message"]

    eventually(refused, DEADLINE, "a condition")
    begin = time.monotonic()
    bench.create("here", trainers=1, most=1)
    bench.wait_phase("here", "running")
    never(lambda: [t for t in tries(bench, "replicasets", begin) if t], 0.0)

    def in_second(verb: str, resource: str, since: float) -> int:
        calls = bench.proxy.calls(verb, resource)
        return len([call for call in calls if call.namespace == second and call.time >= since])

    assert in_second("create", "replicasets", 0.0) == 1, "at most once a minute"
    # Then everything.
    bench.client.delete(role)
    gone = time.monotonic()
    bench.proxy.end_watches("*", times=8)
    bench.scale("here", max=2, min=2)
    eventually(lambda: [call for call in bench.proxy.calls("watch") if call.status == 403], DEADLINE, "it is refused")
    bench.create("later", trainers=1, most=1)
    bench.wait_phase("later", "running")
    assert life.alive
    assert life.controller.ready
    elapsed = time.monotonic() - gone
    asked = sum(in_second(verb, kind, gone) for verb in ("list", "watch") for kind in ("pods", "jobs"))
    assert asked < 2 * (8 + elapsed / 2), "it backs off"
    # And back: it recovers by itself (a minute, where it has been refused for long).
    grant(bench.client, second, bench.namespace)
    bench.client.patch(f"{jobs}/other", {"spec": {"passes": 9}})
    path = f"/apis/apps/v1/namespaces/{second}/replicasets/other-pserver"
    eventually(lambda: bench.client.call("GET", path).status == 200, 60 + DEADLINE, "a child", interval=0.2)
    bench.assert_invariants()


# --- K29, M44: tokens that are renewed ---


@pytest.mark.fault("K29")
@pytest.mark.report("M44")
@pytest.mark.parametrize("rotations", [1, pytest.param(5, marks=pytest.mark.soak)])
@pytest.mark.parametrize("how", ["rename", "in place"])
def test_a_renewed_token_is_used_and_at_most_one_request_fails(
    accounted: tuple[ControllerBench, str], control_plane: KubeControlPlane, how: str, rotations: int
) -> None:
    bench, second = accounted
    client = bench.client
    # A token lives as long as what it is bound to: deleting that object revokes it.
    secrets = f"{bench.core}/secrets"

    def bound_token(number: int) -> str:
        secret = client.post(secrets, {"metadata": {"name": f"bound-{number}"}})
        reference = {"apiVersion": "v1", "kind": "Secret", "name": f"bound-{number}", "uid": secret["metadata"]["uid"]}
        path = f"{bench.core}/serviceaccounts/edl/token"
        body = {"spec": {"expirationSeconds": 600, "boundObjectRef": reference}}
        return str(client.post(path, body)["status"]["token"])

    file = bench.source.parent / "token"
    file.write_text(bound_token(0))
    import json

    config = json.loads(bench.source.read_text())
    config["users"][0]["user"] = {"tokenFile": str(file)}
    bench.source.write_text(json.dumps(config))
    life = bench.start(namespaces=[bench.namespace], autoscale=False)
    bench.create("tj", trainers=1, most=1)
    bench.wait_phase("tj", "running")

    def accepted(token: str) -> bool:
        return control_plane.client_for(token).call("GET", bench.training_jobs_path).status == 200

    for number in range(1, rotations + 1):
        begin = time.monotonic()
        old, new = file.read_text(), bound_token(number)
        if how == "rename":
            beside = file.with_suffix(".new")
            beside.write_text(new)
            os.replace(beside, file)
        else:
            file.write_text(new)
        client.delete(f"{secrets}/bound-{number - 1}")
        # The API server remembers good tokens for some seconds.
        eventually(lambda old=old: not accepted(old), DEADLINE, "the old one is refused", interval=0.5)  # type: ignore[misc]
        bench.proxy.end_watches("*", times=None).remove()
        bench.proxy.drop_connections()
        bench.create(f"tj-{number}", trainers=1, most=1)
        bench.wait_phase(f"tj-{number}", "running")
        denied = [show(call) for call in bench.proxy.calls() if call.status == 401 and call.time >= begin]
        # One for each thread that has a request under way at that moment (four watches, workers).
        assert len(denied) <= 6, denied
        assert synced(bench, f"tj-{number}")[0] in ("", "True")
    assert life.alive
    assert second
    bench.wait_rest()
    bench.assert_invariants()


# --- K40: a namespace that goes while jobs come ---


@pytest.mark.fault("K40")
def test_a_namespace_that_goes_is_not_written_to(bench: ControllerBench, caplog: pytest.LogCaptureFixture) -> None:
    client, name = bench.client, f"{bench.namespace}-going"
    client.post("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    eventually(lambda: client.call("GET", account).status == 200, 30, "the service account")
    jobs = f"/apis/paddlepaddle.org/v1/namespaces/{name}/trainingjobs"
    template = bench.create("tj", trainers=1, most=1)
    held = bench.proxy.hold("create", "replicasets", when=lambda call: call.namespace == name)
    bench.start(namespaces=[bench.namespace, name], autoscale=False)
    bench.wait_phase("tj", "running")
    for number in range(3):
        # The finalizer keeps the namespace in its state of going.
        meta = {"name": f"tj-{number}", "finalizers": ["example.com/hold"]}
        client.post(jobs, {**template, "metadata": meta, "status": None})
    held.wait_fired(DEADLINE)
    client.delete(f"/api/v1/namespaces/{name}")
    eventually(
        lambda: client.get(f"/api/v1/namespaces/{name}")["status"]["phase"] == "Terminating", DEADLINE, "its end begins"
    )
    held.remove()

    def refused() -> list[Call]:
        calls = bench.proxy.calls("create", "replicasets")
        return [call for call in calls if call.namespace == name and call.status == 403]

    eventually(refused, DEADLINE, "a refusal")
    begin = time.monotonic()
    never(lambda: len([c for c in refused() if c.time >= begin]) > 3, 3.0, "it goes on trying")
    assert len(refused()) <= 6
    for number in range(3):
        client.patch(f"{jobs}/tj-{number}", {"metadata": {"finalizers": None}})
    eventually(lambda: client.call("GET", f"/api/v1/namespaces/{name}").status == 404, 2 * DEADLINE, "its end")
    # It is back, and so is everything.
    client.post("/api/v1/namespaces", {"metadata": {"name": name}})
    eventually(lambda: client.call("GET", account).status == 200, 30, "the service account")
    client.post(jobs, {**template, "metadata": {"name": "tj-0"}, "status": None})
    eventually(
        lambda: client.get(f"{jobs}/tj-0").get("status", {}).get("phase") == "running", DEADLINE, "a job in the new one"
    )
    client.delete(f"/api/v1/namespaces/{name}")
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR and one.name.startswith("edl_controller")]
