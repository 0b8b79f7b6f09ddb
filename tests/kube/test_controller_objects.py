"""Odd objects before a real API server: bad jobs, edited children, strange pods, odd names (rows K10 to K12, K24 to
K26, K36, K38, K39 and reports of other operators).

One odd object costs nobody else anything, raises nothing, and says what is wrong with it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edl_controller.api import crd
from edl_controller.core.names import ROLE_LABEL
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_http import STRATEGIC_PATCH, Json
from tests.bench.kube_proxy import KubeProxy
from tests.bench.waiting import eventually, never
from tests.kube.conftest import DEFINITIONS
from tests.kube.controller_bench import DEADLINE, RESOURCES, ControllerBench, show

SERVED = "/apis/paddlepaddle.org/v1/trainingjobs"


@pytest.fixture(autouse=True)
def _nothing_goes_wrong_inside(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What a user writes is no error of the program."""
    yield
    errors = [one for when in ("setup", "call") for one in caplog.get_records(when) if one.levelno >= logging.ERROR]
    assert not [one.getMessage() for one in errors if one.name.startswith("edl_controller")]


def running(bench: ControllerBench, name: str = "tj", **job: Any) -> Json:
    """A job at rest."""
    bench.create(name, **{"trainers": 1, "most": 1} | job)
    bench.wait_phase(name, "running")
    bench.wait_rest()
    return bench.job(name)


def message(bench: ControllerBench, name: str, kind: str) -> str:
    """Of a condition; empty where it is not there."""
    conditions = bench.job(name).get("status", {}).get("conditions", [])
    return next((str(one.get("message", "")) for one in conditions if one["type"] == kind), "")


def wait_condition(bench: ControllerBench, name: str, kind: str, wanted: tuple[str, str]) -> None:
    eventually(
        lambda: bench.condition(name, kind) == wanted,
        DEADLINE,
        lambda: f"{kind} of {name} is {wanted}, but {bench.condition(name, kind)} {message(bench, name, kind)}",
    )


def image_of(child: Json) -> str:
    return str(child["spec"]["template"]["spec"]["containers"][0]["image"])


# --- K36: a user's hand on the children ---


@pytest.mark.fault("K36")
def test_what_a_user_does_to_children_is_set_back_but_the_parallelism(bench: ControllerBench) -> None:
    bench.start(autoscale=False)
    running(bench, trainers=1, most=3)
    sets, jobs = f"{bench.sets_path}/tj-pserver", f"{bench.jobs_path}/tj-trainer"
    before = bench.replica_set("tj")
    bench.client.patch(jobs, {"spec": {"parallelism": 2}})
    bench.client.patch(sets, {"spec": {"replicas": 0}})
    eventually(lambda: bench.replica_set("tj")["spec"]["replicas"] == 1, 10 + DEADLINE)
    bench.wait_rest()
    # Foreign marks stay, the children's own come back, and so does what the pods are made of.
    for path in (sets, jobs):
        bench.client.patch(path, {"metadata": {"labels": {ROLE_LABEL: "other", "example.com/mine": "1"}}})
    for path, role in ((sets, "pserver"), (jobs, "trainer")):
        eventually(
            lambda path=path, role=role: bench.client.get(path)["metadata"]["labels"][ROLE_LABEL] == role,  # type: ignore[misc]
            DEADLINE,
        )
        assert bench.client.get(path)["metadata"]["labels"]["example.com/mine"] == "1"
    edit = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "example.com/other:9"}]
    bench.client.patch(sets, edit, "application/json-patch+json")
    eventually(lambda: image_of(bench.replica_set("tj")) == image_of(before), DEADLINE)
    bench.client.delete(sets, {"propagationPolicy": "Background"})
    eventually(lambda: bench.replica_set("tj")["metadata"]["uid"] != before["metadata"]["uid"], DEADLINE)
    bench.wait_phase("tj", "running")
    assert bench.trainer("tj")["spec"]["parallelism"] == 2, "an edited parallelism is the present state"
    assert all("parallelism" not in call.json.get("spec", {}) for call in bench.written() if call.verb == "patch")
    bench.wait_rest()
    bench.assert_invariants(again=["tj-pserver"])


@pytest.mark.fault("K36")
def test_two_hands_on_one_child_end_in_rest(bench: ControllerBench) -> None:
    bench.start(autoscale=False)
    running(bench)
    for _ in range(10):
        bench.client.patch(f"{bench.sets_path}/tj-pserver", {"spec": {"replicas": 3}})
        time.sleep(0.05)
    eventually(lambda: bench.replica_set("tj")["spec"]["replicas"] == 1, DEADLINE)
    bench.wait_rest()
    assert len([call for call in bench.written() if call.resource == "replicasets"]) <= 12


# --- M60, M61, K25: bad jobs among good ones ---

_TRAINER: Json = {"entrypoint": "t", "min-instance": 1, "resources": RESOURCES}
BAD: dict[str, Json] = {
    "no-trainer": {"trainer": None},
    "quantity": {"trainer": {**_TRAINER, "resources": {"requests": {"cpu": "many"}}}},
    "unknown-volume": {"VolumeMounts": [{"name": "unknown", "mountPath": "/x"}]},
    "backwards": {"trainer": {**_TRAINER, "min-instance": 5, "max-instance": 2}},
    "empty": {"trainer": {}, "pserver": {}},
}


@pytest.mark.report("M60")
@pytest.mark.report("M61")
def test_bad_jobs_say_so_and_good_ones_run(bench: ControllerBench) -> None:
    life = bench.start()
    refused = []
    for name, spec in BAD.items():
        answer = bench.client.call("POST", bench.training_jobs_path, document(name, **spec))
        if answer.status == 422:
            refused.append(name)  # by the schema; what was stored before there was one is K25
    for number in range(5):
        bench.create(f"good-{number}", trainers=1, most=1)
    for number in range(5):
        bench.wait_phase(f"good-{number}", "running")
    for name in BAD.keys() - refused:
        eventually(lambda name=name: bench.condition(name, "Invalid")[0] == "True", DEADLINE, name)  # type: ignore[misc]
    owners = {one["metadata"]["ownerReferences"][0]["name"] for one in bench.children()}
    assert owners == {f"good-{number}" for number in range(5)}
    assert life.alive
    bench.wait_rest()
    bench.assert_invariants()


def document(name: str, **spec: Any) -> Json:
    """A job as a user might have written it; a null part is left out."""
    body: Json = {
        "image": "example.com/digits:1",
        "fault_tolerant": True,
        "trainer": dict(_TRAINER),
        "pserver": dict(_TRAINER),
        "agent": {"mode": "Classic"},
    }
    body = {key: value for key, value in (body | spec).items() if value is not None}
    return {
        "apiVersion": "paddlepaddle.org/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": body,
    }


DEEP = (60, 300, 930, 980, 1500, 9000)


@pytest.fixture
def deep_jobs(bench: ControllerBench) -> Iterator[Callable[[], None]]:
    """Makes jobs that are so many levels deep; they go with the test, since this program cannot read them either."""

    def make() -> None:
        for depth in DEEP:
            claim = {"name": "v", "persistentVolumeClaim": {"claimName": "c", "deep": "DEEP"}}
            body = json.dumps(document(f"deep-{depth}", volumes=[claim])).replace('"DEEP"', "[" * depth + "]" * depth)
            with contextlib.suppress(RecursionError):
                assert bench.client.call("POST", bench.training_jobs_path, body.encode()).status == 201

    yield make
    for depth in DEEP:
        with contextlib.suppress(RecursionError):
            bench.client.delete(f"{bench.training_jobs_path}/deep-{depth}")


@pytest.mark.security(16)
@pytest.mark.parametrize("there_before", [True, False])
def test_jobs_nested_too_deep_to_be_read_harm_nobody_else(
    bench: ControllerBench, deep_jobs: Callable[[], None], there_before: bool
) -> None:
    """An API server stores what is ten thousand levels deep; readers that call themselves for each do not get there."""
    life = None if there_before else bench.start()
    deep_jobs()
    life = life or bench.start()
    bench.create("good", trainers=1, most=1)
    bench.wait_phase("good", "running")
    for depth in DEEP:
        eventually(
            lambda depth=depth: [  # type: ignore[misc]
                call
                for call in bench.proxy.calls("patch", "trainingjobs/status")
                if (call.name, call.status) == (f"deep-{depth}", 200) and "nested" in str(call.json)
            ],
            DEADLINE,
            f"what is wrong with deep-{depth} is said",
        )
    assert life.alive
    assert {one["metadata"]["ownerReferences"][0]["name"] for one in bench.children()} == {"good"}


def bad_objects() -> list[Json]:
    """Thirty objects as they could be stored before rules existed."""
    specs: list[Any] = [
        *BAD.values(),
        {"image": 7},
        {"image": ["a"]},
        {"port": "seven"},
        {"ports_num": [1]},
        {"fault_tolerant": "yes"},
        {"passes": {"count": 1}},
        {"trainer": []},
        {"trainer": "one"},
        {"pserver": 3},
        {"trainer": {**_TRAINER, "min-instance": "two"}},
        {"trainer": {**_TRAINER, "min-instance": -1}},
        {"trainer": {**_TRAINER, "max-instance": "9"}},
        {"trainer": {**_TRAINER, "entrypoint": ["a", "b"]}},
        {"trainer": {**_TRAINER, "resources": "much"}},
        {"trainer": {**_TRAINER, "resources": {"requests": ["cpu"]}}},
        {"trainer": {**_TRAINER, "env": {"A": "b"}}},
        {"trainer": {**_TRAINER, "env": [{"value": "without a name"}]}},
        {"volumes": {"name": "x"}},
        {"volumes": [{"name": 5}]},
        {"agent": {"mode": "Sometimes"}},
        {"agent": "Classic"},
        {"etcd": "here"},
        {"cleanPodPolicy": "Perhaps"},
        {"ttlSecondsAfterFinished": "soon"},
        {"autoscaling": {"priority": "high"}},
    ]
    made = [document("x", **one) for one in specs]
    made[0].pop("spec")
    for number, one in enumerate(made):
        one["metadata"]["name"] = f"bad-{number}"
    return made


@pytest.fixture
def own_plane(tmp_path: Any) -> Iterator[KubeControlPlane]:
    """A control plane of the test's own, whose CRD it may change."""
    from tests.bench.kube_control_plane import control_plane_missing

    if (reason := control_plane_missing()) is not None:
        pytest.skip(reason)
    folder = tmp_path / "kube"
    folder.mkdir()
    with KubeControlPlane(folder) as plane:
        yield plane


@pytest.mark.fault("K25")
@pytest.mark.report("M61")
def test_jobs_stored_before_there_were_rules_each_say_what_is_wrong(
    own_plane: KubeControlPlane, etcd: Any, tmp_path: Any
) -> None:
    client = own_plane.client
    open_schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    manifest = crd.manifest()
    versions = [
        {
            "name": one["name"],
            "served": True,
            "storage": one["storage"],
            "schema": open_schema,
            "subresources": {"status": {}},
        }
        for one in manifest["spec"]["versions"]
    ]
    client.post(DEFINITIONS, manifest | {"spec": manifest["spec"] | {"versions": versions}})
    eventually(lambda: client.call("GET", SERVED).status == 200, 30, "the resource is served")
    jobs = "/apis/paddlepaddle.org/v1/namespaces/default/trainingjobs"
    bad = bad_objects()
    assert len(bad) == 30
    for one in bad:
        client.post(jobs, one)
    name = manifest["metadata"]["name"]
    client.patch(f"{DEFINITIONS}/{name}", {"spec": manifest["spec"]})

    def enforced() -> bool:
        return client.call("POST", f"{jobs}?dryRun=All", document("t", image=7)).status == 422

    eventually(enforced, 30, "the new rules")
    from tests.bench.kube_test_node import KubeTestNodes

    with KubeProxy(own_plane.url, own_plane.ca) as proxy, KubeTestNodes(client) as nodes:
        nodes.add("n", cpu="64", memory="256Gi", pods=500)
        bench = ControllerBench(own_plane, nodes, proxy, "default", etcd.client_url, tmp_path)
        try:
            life = bench.start()
            for number in range(5):
                bench.create(f"good-{number}", trainers=1, most=1)
            for number in range(5):
                bench.wait_phase(f"good-{number}", "running")
            missing = [one["metadata"]["name"] for one in bad]

            def has_said(one: str) -> bool:
                # The API server lets nobody write the status of an object that breaks its schema in a type: an Event.
                return bench.condition(one, "Invalid")[0] == "True" or any(
                    event["type"] == "Warning" and event["reason"] in ("Invalid", "Refused")
                    for event in bench.events(one)
                )

            def all_said() -> bool:
                missing[:] = [one for one in missing if not has_said(one)]
                return not missing

            eventually(all_said, DEADLINE, lambda: f"no condition on {missing}", interval=0.2)
            owners = {one["metadata"]["ownerReferences"][0]["name"] for one in bench.children()}
            assert owners == {f"good-{number}" for number in range(5)}
            bench.wait_rest()
            begin = time.monotonic()
            never(lambda: bench.written(begin), 2.0, "bad objects are written again")
            bench.assert_invariants()
            # What is mended runs.
            client.patch(f"{jobs}/bad-12", {"spec": document("x")["spec"]})
            bench.wait_phase("bad-12", "running")
            assert life.alive
        finally:
            bench.close()


# --- K39, M62: names ---


@pytest.mark.fault("K39")
@pytest.mark.report("M62")
def test_names_of_any_length_run_under_short_stable_names(bench: ControllerBench) -> None:
    bench.start()
    names = [
        start + last
        for length in (40, 63, 64, 253)
        for last in "xy"
        for start in (("a-" * 127)[: length - 1].rstrip("-").ljust(length - 1, "a"),)
    ]
    names.append("with.dots." + "b" * 60)
    for name in names:
        bench.create(name, trainers=1, most=1)
    for name in names:
        eventually(
            lambda name=name: bench.phase(name) == "running" or bench.condition(name, "Invalid")[0] == "True",  # type: ignore[misc]
            DEADLINE,
            lambda name=name: f"{name}: {bench.job(name).get('status')}",  # type: ignore[misc]
        )
    children = bench.children()
    assert len({(one["kind"], one["metadata"]["name"]) for one in children}) == len(children) >= 2 * len(names)
    assert all(len(one["metadata"]["name"]) <= 63 for one in children)
    for one in children:
        for value in one["metadata"]["labels"].values():
            assert len(value) <= 63, one["metadata"]["labels"]
    refused = [show(call) for call in bench.proxy.calls() if call.status == 422]
    assert not refused
    bench.wait_rest()
    bench.assert_invariants()


# --- M52, M66: what a user may put into a job ---


@pytest.mark.report("M52")
def test_a_job_with_200_kib_of_env_has_no_copy_of_it_in_metadata(bench: ControllerBench) -> None:
    bench.start()
    env = [{"name": f"BIG_{number}", "value": "v" * 1000} for number in range(200)]
    trainer = {"entrypoint": "t", "min-instance": 1, "max-instance": 1, "resources": RESOURCES, "env": env}
    bench.create("big", trainer=trainer)
    bench.wait_phase("big", "running")
    for one in [bench.job("big"), *bench.children(), *bench.pods("big")]:
        meta = {key: value for key, value in one["metadata"].items() if key != "managedFields"}
        assert len(json.dumps(meta)) < 4000
    containers = bench.trainer("big")["spec"]["template"]["spec"]["containers"]
    found = {one["name"]: one.get("value") for one in containers[0]["env"]}
    assert all(found[one["name"]] == one["value"] for one in env)
    bench.client.patch(f"{bench.training_jobs_path}/big", {"spec": {"passes": 7}})
    eventually(
        lambda: bench.job("big")["status"]["observedGeneration"] == bench.job("big")["metadata"]["generation"], DEADLINE
    )
    bench.wait_rest()
    bench.assert_invariants()


INJECTIONS = (
    "; touch marker",
    "$(touch marker)",
    "`touch marker`",
    "a\ntouch marker",
    "'\"; touch marker; \"'",
    "${IFS}touch${IFS}marker",
    "|| touch marker #",
    "\\$(touch marker)",
    "ünïcode \u202e ; touch marker",
)


@pytest.mark.report("M66")
def test_what_looks_like_shell_is_the_same_bytes_in_the_pod(bench: ControllerBench) -> None:
    bench.start()
    env = [{"name": f"V{number}", "value": value} for number, value in enumerate(INJECTIONS)]
    command = ["python", "t.py", *INJECTIONS]
    trainer = {"command": command, "min-instance": 1, "max-instance": 1, "resources": RESOURCES, "env": env}
    bench.create("odd", trainer=trainer, agent={"mode": "Launcher"})
    bench.wait_phase("odd", "running")
    pod = bench.pods("odd", "trainer")[0]
    found = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    for one in env:
        # Kubernetes itself expands $(NAME); what stands for the same text there is $$(NAME).
        assert found[one["name"]].replace("$$(", "$(") == one["value"]
        assert "$(" not in found[one["name"]].replace("$$(", ""), "would be expanded where such a variable exists"
    container = pod["spec"]["containers"][0]
    words = [*container.get("command", []), *container.get("args", [])]
    texts = [word.replace("$$(", "$(") for word in words]
    for value in INJECTIONS:
        assert value in texts, f"{value!r} is not one word of {words}"
    assert not {"sh", "bash", "-c"} & set(words)


# --- M33, M36: what pods are told ---

_REFERENCE = re.compile(r"(?<!\$)\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@pytest.mark.report("M36")
def test_every_variable_that_a_pod_refers_to_is_defined(bench: ControllerBench) -> None:
    bench.start()
    for mode in ("Classic", "Launcher"):
        running(bench, mode.lower(), agent={"mode": mode}, pservers=1)
    for pod in bench.pods():
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            missing = undefined(container)
            assert not missing, f"{pod['metadata']['name']}/{container['name']}: {missing}"
    # The check can fail: without one of its variables a pod's command is not whole.
    container = {"env": [{"name": "A", "value": "$(POD_IP)"}], "command": ["x", "$(A)"]}
    assert undefined(container) == {"POD_IP"}


def undefined(container: Json) -> set[str]:
    """Variables that are referred to without, or before, being defined."""
    known: set[str] = set()
    missing: set[str] = set()
    for one in container.get("env", []):
        missing |= set(_REFERENCE.findall(one.get("value", ""))) - known
        known.add(one["name"])
    for word in [*container.get("command", []), *container.get("args", [])]:
        missing |= set(_REFERENCE.findall(word)) - known
    return missing


@pytest.mark.report("M33")
def test_no_pod_carries_a_count_that_scaling_makes_wrong(bench: ControllerBench) -> None:
    bench.start()
    bench.create("tj", trainers=2, most=2)
    bench.wait_trainers("tj", 2)
    counts = []
    for most in (5, 3):
        bench.scale("tj", max=most)
        bench.wait_trainers("tj", most)
        counts.append({pod["metadata"]["name"]: told(pod) for pod in bench.pods("tj", "trainer")})
    # Old and new trainers were told the same, so nothing of it is the number of the moment.
    assert len({json.dumps(one, sort_keys=True) for one in counts[0].values()}) == 1
    assert set(map(json.dumps, counts[0].values())) == set(map(json.dumps, counts[1].values()))


def told(pod: Json) -> Json:
    return {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"] if "value" in one}


# --- K10, K11, K12: nodes and pods that go, and pods too many ---


@pytest.mark.fault("K10")
def test_a_node_that_is_deleted_takes_its_pods_out_of_the_counts(bench: ControllerBench) -> None:
    life = bench.start()
    running(bench, trainers=2, most=4)
    bench.wait_trainers("tj", 4)
    node = f"{bench.namespace}-node"
    gone = {pod["metadata"]["uid"] for pod in bench.pods()}
    bench.nodes.remove(node)
    for pod in bench.pods():
        bench.client.call("DELETE", f"{bench.core}/pods/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
    autoscaler = life.controller.autoscaler
    assert autoscaler is not None

    def nobody_is_counted() -> bool:
        rooms = autoscaler._cluster.nodes()
        assert all(amount >= 0 for room in rooms for amount in room.room.values()), rooms
        status = bench.job("tj")["status"]
        return not status.get("trainers") and not status.get("pservers") and node not in {r.facts.name for r in rooms}

    eventually(nobody_is_counted, DEADLINE)
    assert not gone & {pod["metadata"]["uid"] for pod in bench.pods()}
    bench.nodes.add(node, cpu="64", memory="256Gi", pods=2000)
    # Trainers come back when the Job's own back-off is over.
    eventually(lambda: bench.job("tj")["status"]["pservers"] == 1, DEADLINE)
    bench.wait_rest()
    bench.assert_invariants()


@pytest.mark.fault("K11")
@pytest.mark.parametrize("reason", ["Evicted", "OOMKilled"])
def test_a_pod_that_is_evicted_or_out_of_memory_is_counted_once_and_replaced(
    bench: ControllerBench, reason: str
) -> None:
    bench.start()
    running(bench, trainers=2, most=2)
    for role, child in (("trainer", "jobs"), ("pserver", "replicasets")):
        victim = bench.pods("tj", role)[0]
        name = victim["metadata"]["name"]
        begin = time.monotonic()
        ended = {"exitCode": 137, "reason": reason, "startedAt": "2026-01-01T00:00:00Z"}
        container = victim["spec"]["containers"][0]["name"]
        status: Json = {"phase": "Failed", "reason": reason if reason == "Evicted" else "", "conditions": [
            {"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "False"}
        ]}  # fmt: skip
        status["containerStatuses"] = [
            {"name": container, "ready": False, "restartCount": 0, "image": "i", "imageID": "",
             "state": {"terminated": {**ended, "finishedAt": "2026-01-01T00:00:01Z"}, "running": None}}
        ]  # fmt: skip
        bench.client.patch(f"{bench.core}/pods/{name}/status", {"status": status}, STRATEGIC_PATCH)
        count = 2 if role == "trainer" else 1

        def replaced(name: str = name, role: str = role, count: int = count) -> bool:
            others = [pod for pod in bench.pods("tj", role) if pod["metadata"]["name"] != name]
            return sum(pod["status"]["phase"] == "Running" for pod in others) == count

        eventually(replaced, DEADLINE, "a new pod")
        eventually(lambda role=role, count=count: bench.job("tj")["status"][f"{role}s"] == count, DEADLINE)  # type: ignore[misc]
        bench.wait_rest()
        touched = [show(call) for call in bench.written(begin) if call.resource in (child, "pods")]
        assert not touched, "the replacement is the Job's and the ReplicaSet's"
    failed = {one["training_resource_type"]: one["resource_states"].get("failed", 0) for one in statuses(bench)}
    assert failed["trainer"] == 1
    bench.wait_phase("tj", "running")
    bench.assert_invariants()


def statuses(bench: ControllerBench) -> list[Json]:
    return list(bench.job("tj")["status"]["replica_statuses"])


@pytest.mark.fault("K12")
def test_more_pods_than_wanted_are_the_jobs_business(bench: ControllerBench) -> None:
    life = bench.start(autoscale=False)
    job = running(bench, trainers=2, most=2)
    begin = time.monotonic()
    template = bench.pods("tj", "trainer")[0]
    # The Job controller adopts nothing while it is away: the extra pods stay.
    meta = template["metadata"]
    for number in range(2):
        extra = {
            "metadata": {
                "name": f"tj-trainer-extra-{number}",
                "labels": meta["labels"],
                "annotations": meta.get("annotations", {}),
                "ownerReferences": meta["ownerReferences"],
                "finalizers": meta.get("finalizers", []),
            },
            "spec": {
                "containers": [{"name": "c", "image": "i"}],
                "restartPolicy": "Never",
            },
        }
        bench.client.post(f"{bench.core}/pods", extra)
    eventually(
        lambda: len(bench.pods("tj", "trainer")) == 2, DEADLINE, "the Job controller takes back what is too much"
    )
    bench.wait_rest()
    bench.wait_trainers("tj", 2)
    deeds = [show(call) for call in bench.written(begin) if call.resource != "trainingjobs/status"]
    assert not deeds, "pods of a Job are its own"
    assert life.alive
    assert bench.job("tj")["metadata"]["uid"] == job["metadata"]["uid"]


# --- K38, M47: answers with nulls and with what is not known ---


@pytest.mark.fault("K38")
@pytest.mark.report("M47")
def test_nulls_for_lists_and_unknown_fields_and_values_hinder_nothing(bench: ControllerBench) -> None:
    def odd(value: Any) -> Any:
        """Every empty list and map is null; every object has more than is known; enums have new values."""
        if isinstance(value, dict):
            changed = {key: odd(member) for key, member in value.items()}
            if "phase" in changed and changed.get("phase") == "Pending":
                changed["phase"] = "Dreaming"
            if {"restartPolicy", "containers"} <= changed.keys():
                changed["restartPolicy"] = "Sometimes"
            for key in ("conditions", "containerStatuses", "finalizers", "tolerations", "volumes", "ownerReferences"):
                changed[key] = changed.get(key) or None
            if any(isinstance(member, (dict, list)) for member in value.values()):  # else it may be a map of texts
                changed["aNewField"] = {"deep": [1, None, {"x": None}]}
            return changed
        if isinstance(value, list):
            return [odd(member) for member in value]
        return value

    def rewrite(body: bytes) -> bytes:
        return json.dumps(odd(json.loads(body))).encode()

    for verb in ("list", "watch", "get", "create", "patch"):
        for kind in ("pods", "jobs", "replicasets", "nodes", "trainingjobs", "trainingjobs/status"):
            bench.proxy.rewrite(verb, kind, rewrite)
    bench.start()
    bench.create("tj", trainers=1, most=3)
    # What a newer schema would have, and a newer controller or another program wrote.
    bench.client.patch(f"{bench.training_jobs_path}/tj", {"metadata": {"annotations": {"example.com/mine": "kept"}}})
    eventually(lambda: bench.phase("tj") == "running", DEADLINE, lambda: str(bench.job("tj")["status"]))
    bench.wait_trainers("tj", 3)
    bench.client.patch(
        f"{bench.sets_path}/tj-pserver",
        {"metadata": {"annotations": {"example.com/mine": "kept"}}, "spec": {"minReadySeconds": 1}},
    )
    bench.edit("tj", {"image": "example.com/digits:2"})
    eventually(lambda: image_of(bench.replica_set("tj")).endswith(":2"), DEADLINE)
    assert bench.replica_set("tj")["metadata"]["annotations"]["example.com/mine"] == "kept"
    assert bench.replica_set("tj")["spec"]["minReadySeconds"] == 1
    assert bench.job("tj")["metadata"]["annotations"]["example.com/mine"] == "kept"
    bench.wait_trainers("tj", 3)
    bench.wait_rest()
    bench.assert_invariants()


# --- M57: no room ---


@pytest.mark.report("M57")
def test_with_room_for_some_a_job_runs_and_says_how_many_wait_and_why(bench: ControllerBench) -> None:
    bench.start(autoscale=False)
    small = f"{bench.namespace}-small"
    bench.nodes.add(small, cpu="7", memory="8Gi", pods=100)
    bench.client.patch(f"/api/v1/nodes/{bench.namespace}-node", {"spec": {"unschedulable": True}})
    trainer = {
        "entrypoint": "t",
        "min-instance": 5,
        "max-instance": 8,
        "resources": {"requests": {"cpu": "1", "memory": "1Mi"}},
    }
    bench.create("tj", trainer=trainer)
    eventually(lambda: bench.phase("tj") == "running", DEADLINE, lambda: str((bench.job("tj"), bench.pods())))
    bench.client.patch(f"{bench.jobs_path}/tj-trainer", {"spec": {"parallelism": 7}})
    waiting = r"2 of 7 trainers wait for a node: .*Insufficient cpu"
    eventually(
        lambda: re.search(waiting, message(bench, "tj", "Running")),
        DEADLINE,
        lambda: f"it says who waits, but {message(bench, 'tj', 'Running')!r}",
    )
    assert bench.phase("tj") in ("running", "scaling")
    assert bench.condition("tj", "Running")[0] == "True"
    uids = {pod["metadata"]["uid"] for pod in bench.pods("tj", "trainer")}
    never(lambda: {pod["metadata"]["uid"] for pod in bench.pods("tj", "trainer")} != uids, 2, "trainers restart")
    bench.wait_rest(quiet=2.0)
    bench.client.patch(f"/api/v1/nodes/{bench.namespace}-node", {"spec": {"unschedulable": False}})
    bench.wait_trainers("tj", 7)
    eventually(lambda: "wait" not in message(bench, "tj", "Running"), DEADLINE)
    bench.nodes.remove(small)


# --- K26, M53: namespaces that go ---


@pytest.mark.fault("K26")
@pytest.mark.report("M53")
def test_a_namespace_goes_without_the_controller(bench: ControllerBench, control_plane: KubeControlPlane) -> None:
    client, name = bench.client, f"{bench.namespace}-gone"
    client.post("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    eventually(lambda: client.call("GET", account).status == 200, 30, "the service account")
    life = bench.start(namespaces=[bench.namespace, name])
    path = f"/apis/paddlepaddle.org/v1/namespaces/{name}/trainingjobs"
    for number in range(20):
        client.post(path, document(f"tj-{number}"))

    def all_have_children() -> bool:
        return len(client.get(f"/apis/batch/v1/namespaces/{name}/jobs")["items"]) == 20

    eventually(all_have_children, 2 * DEADLINE, interval=0.2)
    assert all(not job["metadata"].get("finalizers") for job in client.get(path)["items"]), "no finalizer of ours"
    life.stop()
    client.delete(f"/api/v1/namespaces/{name}")
    # Foreign finalizers are for their owners; ours would be missing here.
    eventually(lambda: client.call("GET", f"/api/v1/namespaces/{name}").status == 404, 60 + DEADLINE, "the end of it")
    again = bench.start(namespaces=[bench.namespace, name])
    bench.create("tj", trainers=1, most=1)
    bench.wait_phase("tj", "running")
    assert again.alive


@pytest.mark.fault("K26")
def test_a_job_that_a_strangers_finalizer_holds_is_left_alone(bench: ControllerBench) -> None:
    bench.start()
    running(bench)
    path = f"{bench.training_jobs_path}/tj"
    bench.client.patch(path, {"metadata": {"finalizers": ["example.com/hold"]}})
    bench.wait_rest()
    begin = time.monotonic()
    bench.delete("tj")
    never(lambda: bench.written(begin), 2.0, "a job that goes is written")
    bench.client.patch(path, {"metadata": {"finalizers": None}})
    bench.wait_gone("tj")


# --- K24: many ---


@pytest.mark.fault("K24")
@pytest.mark.parametrize(
    ("jobs", "pods"), [(200, 2000), pytest.param(5000, 50_000, marks=pytest.mark.soak)], ids=["scaled", "full"]
)
def test_many_jobs_and_pods_are_read_in_pages_and_worked_through(bench: ControllerBench, jobs: int, pods: int) -> None:
    foreign = [
        {"metadata": {"name": f"p-{number}"}, "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "none"}}
        for number in range(pods)
    ]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda pod: bench.client.post(f"{bench.core}/pods", pod), foreign))
        list(pool.map(lambda n: bench.create(f"tj-{n}", trainers=0, most=0, pservers=0, suspend=True), range(jobs)))
    blobs = [{"name": f"BLOB_{number}", "value": "x" * 30_000} for number in range(30)]
    trainer = {"entrypoint": "t", "min-instance": 1, "resources": RESOURCES, "env": blobs}
    answer = bench.client.call("POST", bench.training_jobs_path, document("huge", trainer=trainer))
    assert answer.status == 201, answer.body["message"]
    begin = time.monotonic()
    bench.start(workers=8)
    assert time.monotonic() - begin < 30 + pods / 500, "the first lists"
    listed = bench.proxy.calls("list", "pods")
    assert all(int(call.query.get("limit", "0")) > 0 for call in listed)

    def all_seen() -> bool:
        found = bench.client.get(bench.training_jobs_path)["items"]
        return all(
            one.get("status", {}).get("observedGeneration") or one["metadata"]["name"] == "huge" for one in found
        )

    eventually(all_seen, DEADLINE + jobs / 10, interval=0.5)
    by_object: dict[str, int] = {}
    for call in bench.proxy.calls("create", "events"):
        about = call.json["regarding"]["name"]
        by_object[about] = by_object.get(about, 0) + 1
    assert max(by_object.values(), default=0) <= 25, "events of an object are bounded"
    bench.wait_rest(timeout=DEADLINE + jobs / 10)
