"""The resource's schema and CEL rules agree with `validate` on one table, here and on a real API server."""

import copy
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import cel
import jsonschema
import pytest
import yaml

from edl_controller.api import crd, submission
from edl_controller.api.kinds import TRAINING_JOBS, without_nulls
from edl_controller.api.validation import validate
from edl_controller.errors import InvalidTrainingJob
from tests.api.resource_cases import BY_THE_SERVER, CASES, Case
from tests.api.write_crd import CRD_FILE
from tests.bench.waiting import eventually

if TYPE_CHECKING:
    from tests.bench.kube_control_plane import KubeControlPlane

SCHEMA = crd.schema()
CHECKER = jsonschema.Draft202012Validator(SCHEMA)
table = pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JOBS = "/apis/paddlepaddle.org/v1/namespaces/default/trainingjobs"


def rules(schema: Any, value: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """Every CEL rule that concerns a value: its place, its text, and the value as CEL sees it."""
    if isinstance(value, dict):
        for one in schema.get("x-kubernetes-validations", ()):
            yield path, one["rule"], escaped(value)
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
            if isinstance(inner, dict):
                yield from rules(inner, item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from rules(schema.get("items", {}), item, f"{path}[{index}]")


def escaped(value: Any) -> Any:
    """Names as CEL spells them; only fields of structs have dashes that matter here."""
    if isinstance(value, dict):
        return {
            key.replace("-", "__dash__") if key.endswith("-instance") else key: escaped(item)
            for key, item in value.items()
        }
    return [escaped(item) for item in value] if isinstance(value, list) else value


def strangers(schema: Any, value: Any, path: str = "") -> Iterator[str]:
    """Fields that the schema does not know, entries of keyed lists that are there twice."""
    if isinstance(value, dict) and "properties" in schema and path != ".metadata":
        for key, item in value.items():
            if key in schema["properties"]:
                yield from strangers(schema["properties"][key], item, f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from strangers(schema.get("items", {}), item, f"{path}[{index}]")
        for name in schema.get("x-kubernetes-list-map-keys", ()):
            keys = [item.get(name) for item in value]
            if len(set(keys)) < len(keys):
                yield path


def refusals(document: Any) -> list[str]:
    """What an API server with our definition would say."""
    document = without_nulls(document)
    found = [error.json_path for error in CHECKER.iter_errors(document)]
    found += strangers({"properties": {"spec": SCHEMA["properties"]["spec"]}}, {"spec": document["spec"]})
    if not found:  # rules are only asked about values of the right shape
        found = [
            f"{path}: {rule}"
            for path, rule, value in rules(SCHEMA, document)
            if not cel.evaluate(rule, {"self": value})
        ]
    return found


def test_the_shipped_file_says_what_the_types_say() -> None:
    assert CRD_FILE.read_text() == crd.render(), "run: python -m tests.api.write_crd"
    assert yaml.safe_load(CRD_FILE.read_text()) == crd.manifest()
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_table_is_worth_something() -> None:
    assert len(CASES) >= 60
    assert len({case.what for case in CASES}) == len(CASES)
    refused = [case for case in CASES if case.faults]
    assert len(refused) > 30
    assert sum(1 for case in refused if not case.only_here) > 30


@table
def test_validation_names_exactly_these_faults(case: Case) -> None:
    if case.faults:
        with pytest.raises(InvalidTrainingJob) as caught:
            submission.read_document(case.document)
        assert tuple(fault.path for fault in caught.value.faults) == case.faults, caught.value
        assert all(fault.message and fault.reason for fault in caught.value.faults)
        return
    job = submission.read_document(case.document)
    # What is printed and stored is read as the same job.
    assert TRAINING_JOBS.decode(TRAINING_JOBS.encode(job)) == job
    assert validate(job) == ()


@table
def test_schema_and_rules_agree_with_validation(case: Case) -> None:
    found = refusals(case.document)
    assert bool(found) is (bool(case.faults) and not case.only_here), found


def test_each_rule_is_broken_by_some_case() -> None:
    """So that no rule is there that can never say no."""
    everything = {one["rule"] for one in every_rule(SCHEMA)}
    broken = set()
    for case in CASES:
        document = without_nulls(case.document)
        if next(CHECKER.iter_errors(document), None) is None:
            broken |= {rule for _, rule, value in rules(SCHEMA, document) if not cel.evaluate(rule, {"self": value})}
    assert everything - broken == set()


def every_rule(schema: Any) -> Iterator[dict[str, str]]:
    if isinstance(schema, dict):
        yield from schema.get("x-kubernetes-validations", ())
        for part in schema.values():
            yield from every_rule(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from every_rule(part)


def test_every_part_of_the_schema_is_structural_and_bounded() -> None:
    def walk(schema: Any, path: str) -> None:
        keeps = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string")
        assert "type" in schema or keeps, path
        assert not {"$ref", "oneOf", "allOf", "definitions", "additionalItems"} & schema.keys(), path
        assert not ("properties" in schema and "additionalProperties" in schema), path
        for name, part in schema.get("properties", {}).items():
            walk(part, f"{path}.{name}")
        for key in ("items", "additionalProperties"):
            if key in schema:
                walk(schema[key], f"{path}.{key}")

    walk(SCHEMA, "")


@pytest.fixture(scope="module")
def resource(control_plane: "KubeControlPlane") -> "KubeControlPlane":
    """The control plane, which knows TrainingJobs."""
    client = control_plane.client
    there = client.call("POST", DEFINITIONS, crd.manifest())
    assert there.status in (201, 409), there.body
    eventually(lambda: client.call("GET", JOBS).status == 200, 20, "the resource is served")
    return control_plane


def test_a_real_api_server_agrees_with_the_whole_table(resource: "KubeControlPlane") -> None:
    wrong = {}
    for case in CASES:
        answer = resource.client.call("POST", f"{JOBS}?dryRun=All&fieldValidation=Strict", case.document)
        wanted = bool(case.faults) and (not case.only_here or case.only_here == BY_THE_SERVER)
        if (answer.status >= 400) is not wanted:
            wrong[case.what] = answer.status, answer.body.get("message", "")
    assert wrong == {}


def test_a_real_api_server_finds_no_violation_in_the_definition(resource: "KubeControlPlane") -> None:
    found = resource.client.get(f"{DEFINITIONS}/trainingjobs.paddlepaddle.org")
    statuses = {one["type"]: one["status"] for one in found["status"]["conditions"]}
    assert statuses.get("NonStructuralSchema", "False") == "False"
    assert statuses["NamesAccepted"] == statuses["Established"] == "True"


numbers = itertools.count()


def test_scale_reads_and_writes_the_smallest_number_of_trainers(resource: "KubeControlPlane") -> None:
    client, name = resource.client, f"scaled-{next(numbers)}"
    document = copy.deepcopy(CASES[0].document)
    document["metadata"]["name"] = name
    client.post(JOBS, document)
    try:
        path = f"{JOBS}/{name}"
        status = {"trainers": 1, "trainerSelector": "paddle-job=x", "phase": "running", "pservers": 2}
        client.patch(f"{path}/status", {"status": status})
        scale = client.get(f"{path}/scale")
        assert (scale["spec"]["replicas"], scale["status"]) == (1, {"replicas": 1, "selector": "paddle-job=x"})
        assert (
            client.call(
                "PATCH", f"{path}/scale", {"spec": {"replicas": 3}}, content_type="application/merge-patch+json"
            ).status
            == 200
        )
        job = client.get(path)
        assert job["spec"]["trainer"]["min-instance"] == 3
        beyond = client.call(
            "PATCH", f"{path}/scale", {"spec": {"replicas": 5}}, content_type="application/merge-patch+json"
        )
        assert beyond.status == 422
        assert "at most max-instance" in beyond.body["message"]
        # Status and spec are apart.
        client.patch(path, {"spec": {"passes": 2}, "status": {"phase": "failed"}})
        read = TRAINING_JOBS.from_json(client.get(path))
        assert (read.status.phase, read.spec.passes, read.metadata.generation) == ("running", 2, 3)
    finally:
        client.delete(f"{JOBS}/{name}")


def test_kubectl_shows_the_columns(resource: "KubeControlPlane") -> None:
    client, name = resource.client, f"shown-{next(numbers)}"
    document = copy.deepcopy(CASES[0].document)
    document["metadata"]["name"] = name
    client.post(JOBS, document)
    try:
        client.patch(f"{JOBS}/{name}/status", {"status": {"phase": "running", "trainers": 2, "reason": "Ready"}})
        answer = client.call(
            "GET", f"{JOBS}/{name}", headers={"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
        )
        columns = {one["name"]: one["priority"] for one in answer.body["columnDefinitions"]}
        assert columns == {"Name": 0, "State": 0, "Trainers": 0, "Desired": 0, "PServers": 0, "Reason": 1, "Age": 0}
        assert answer.body["rows"][0]["cells"][1:3] == ["running", 2]
    finally:
        client.delete(f"{JOBS}/{name}")
