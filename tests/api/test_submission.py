"""Text of users: what is read, and how every fault of it is named."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edl_controller.api import documents, submission
from edl_controller.api.aliases import ROLE_ALIASES, SPEC_ALIASES
from edl_controller.api.example import EXAMPLE
from edl_controller.api.kinds import TRAINING_JOBS
from edl_controller.api.v1 import TrainingJob
from edl_controller.errors import Fault, InvalidTrainingJob

CLASSIC = sorted((Path(__file__).parent / "classic").glob("*.yaml"))
HEAD = "apiVersion: paddlepaddle.org/v1\nkind: TrainingJob\nmetadata: {name: j}\n"


def faults_of(text: str | bytes) -> tuple[Fault, ...]:
    with pytest.raises(InvalidTrainingJob) as caught:
        submission.read(text)
    assert caught.value.faults
    assert all(fault.message in str(caught.value) for fault in caught.value.faults)
    return caught.value.faults


def paths_of(spec: str) -> list[str]:
    return [fault.path for fault in faults_of(f"{HEAD}spec: {spec}")]


def test_the_example_is_accepted() -> None:
    (job,) = submission.read(EXAMPLE)
    assert job.metadata.name == "digits"
    assert (job.spec.trainer.min_instance, job.spec.trainer.max_instance) == (1, 8)
    assert all(len(line) <= 120 for line in EXAMPLE.splitlines())


def test_what_the_example_shows_in_comments_is_accepted_too() -> None:
    lines = EXAMPLE.splitlines()
    start = lines.index("  # etcd:")
    for index in (
        *range(start, start + 4),
        *(i for i, line in enumerate(lines) if "# activeDead" in line or "# backoff" in line),
    ):
        lines[index] = lines[index].replace("# ", "", 1)
    (job,) = submission.read("\n".join(lines))
    assert job.spec.etcd.tls is not None
    assert job.spec.backoff_limit == 100


@pytest.mark.parametrize("path", CLASSIC, ids=lambda path: path.stem)
def test_files_of_the_original_are_accepted(path: Path) -> None:
    (job,) = submission.read(path.read_bytes())
    assert job.spec.trainer.entrypoint
    # And so is the same thing as JSON, and as a stored object.
    document = yaml.safe_load(path.read_text())
    assert submission.read(json.dumps(document)) == [job]
    stored = TRAINING_JOBS.decode(json.dumps(document).encode())
    assert stored.spec == job.spec


def test_several_documents() -> None:
    second = HEAD.replace("name: j", "name: k") + "spec: {trainer: {entrypoint: b}}\n"
    jobs = submission.read(f"{HEAD}spec: {{trainer: {{entrypoint: a}}}}\n---\n---\n{second}---\n")
    assert [job.metadata.name for job in jobs] == ["j", "k"]


@pytest.mark.parametrize("kind", ["List", "TrainingJobList"])
def test_a_list_is_what_is_in_it(kind: str) -> None:
    """As `kubectl get -o yaml` and `edl get -o yaml` print several objects."""
    job = yaml.safe_load(f"{HEAD}spec: {{trainer: {{entrypoint: a}}}}\n")
    other = {**job, "metadata": {"name": "k"}}
    jobs = submission.read(json.dumps({"apiVersion": "v1", "kind": kind, "items": [job, other]}))
    assert [job.metadata.name for job in jobs] == ["j", "k"]
    for nothing in (None, "x", 3):
        (fault,) = faults_of(json.dumps({"apiVersion": "v1", "kind": kind, "items": nothing}))
        assert fault.message == "there is no document in it"


def test_the_faults_of_all_documents_are_named_with_their_number() -> None:
    good = f"{HEAD}spec: {{trainer: {{entrypoint: a}}}}\n"
    faults = faults_of(f"{good}---\n{HEAD}spec: {{port: x}}\n---\nkind: Pod\n---\n{HEAD}spec: {{passes: -1}}\n")
    assert [fault.path for fault in faults] == [
        *("document 2: spec.port", "document 3: apiVersion", "document 3: kind"),
        *("document 4: spec.passes", "document 4: spec.trainer.entrypoint"),
    ]


def test_two_documents_of_one_name_are_refused() -> None:
    good = f"{HEAD}spec: {{trainer: {{entrypoint: a}}}}\n"
    assert [fault.reason for fault in faults_of(f"{good}---\n{good}")] == ["Duplicate"]


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        ("{trainer: {entrypoint: a, min-instances: 1}}", ["spec.trainer.min-instances"]),
        ("{traner: {entrypoint: a}}", ["spec.traner"]),
        ("{trainer: {entrypoint: [a]}}", ["spec.trainer.entrypoint"]),
        ("{trainer: a}", ["spec.trainer"]),
        ("[]", ["spec"]),
        ("{port: 3.0}", ["spec.port"]),
        ("{port: '3'}", ["spec.port"]),
        ("{port: true}", ["spec.port"]),
        ("{port: 99999999999999999999}", ["spec.port"]),
        ("{env: [{value: a}, {name: A, vale: b}]}", ["spec.env[0].name", "spec.env[1].vale"]),
        ("{template: {labels: {a: 1, b: 2026-12-01}}}", ["spec.template.labels[a]", "spec.template.labels[b]"]),
        ("{template: {affinity: {nodeAffinity: [2026-12-01]}}}", ["spec.template.affinity[nodeAffinity][0]"]),
        ("{trainer: {resources: {limits: {cpu: [1]}}}}", ["spec.trainer.resources.limits[cpu]"]),
        ("{volumes: [{name: a, hostpath: {path: /}}]}", ["spec.volumes[0].hostpath"]),
        ("{image: 1, port: a, bad: 1}", ["spec.image", "spec.port", "spec.bad"]),
    ],
)
def test_unknown_fields_and_wrong_types_are_named_by_their_path(spec: str, paths: list[str]) -> None:
    assert paths_of(spec) == paths


def test_a_misspelled_field_gets_a_hint() -> None:
    (fault,) = faults_of(f"{HEAD}spec: {{trainer: {{entrypoint: a, min-instanse: 1}}}}")
    assert "did you mean min-instance?" in fault.message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Required"),
        ("---\n---\n", "Required"),
        ("# nothing\n", "Required"),
        ("just text", "TypeInvalid"),
        ("[1, 2]", "TypeInvalid"),
        ("a: [", "Invalid"),
        ("a: b: c", "Invalid"),
        ("{'a': 1, 'a': 2}", "Invalid"),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "Duplicate"),
        ("a: 1\na: 1\n", "Invalid"),
        ("1: a", "Invalid"),
        ("true: a", "Invalid"),
        ("? [a]\n: b", "Invalid"),
        ("{a: !!python/object/apply:os.system ['false']}", "Invalid"),
        ("!!python/name:os.system", "Invalid"),
        (b"\xff\xfe", "Invalid"),
        (b"a: \x00", "Invalid"),
        ('{"a": NaN}', "Invalid"),
        ('{"a": 1e999}', "Required"),
        ("a: " + "9" * 5000, "Invalid"),
        ('{"a": ' + "9" * 5000 + "}", "Invalid"),
        ("[" * 100_000, "TooLong"),
        ("{" * 100_000, "Invalid"),
        ('{"a":' * 100_000, "TooLong"),
        ("- " * 100_000, "TooLong"),
        ("a: &a [*a]", "TooLong"),
        ("a: &a {b: *a}", "TooLong"),
        ("x" * (documents.TEXT_LIMIT + 1), "TooLong"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_text_that_is_no_job_is_refused_with_a_reason(text: str | bytes, reason: str) -> None:
    start = time.perf_counter()
    assert faults_of(text)[0].reason == reason
    assert time.perf_counter() - start < 2


@pytest.mark.security(19)
def test_an_alias_bomb_is_refused_before_it_goes_off() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    start = time.perf_counter()
    (fault,) = faults_of("\n".join(levels))
    assert fault.reason == "TooLong"
    assert time.perf_counter() - start < 1


def test_an_honest_alias_is_fine() -> None:
    (job,) = submission.read(
        f"{HEAD}spec: {{trainer: {{entrypoint: a, resources: &r {{limits: {{cpu: 1}}}}}}, master: {{resources: *r}}}}"
    )
    assert job.spec.master.resources == job.spec.trainer.resources


@pytest.mark.security(16)
def test_a_spec_above_the_limit_is_refused() -> None:
    big = "x" * 300_000
    assert [fault.path for fault in faults_of(f"{HEAD}spec: {{trainer: {{entrypoint: a, workspace: {big}}}}}")] == [
        "spec"
    ]


@pytest.mark.parametrize("alias", sorted(SPEC_ALIASES))
def test_modern_names_are_understood(alias: str) -> None:
    values: dict[str, Any] = {"volumeMounts": [], "nodeSelector": {"a": "b"}, "portsNum": 3, "portsNumForSparse": 3}
    value = values.get(alias, False)
    classic, modern = ({"spec": {"trainer": {"entrypoint": "a"}, name: value}} for name in (SPEC_ALIASES[alias], alias))
    head = {"apiVersion": "paddlepaddle.org/v1", "kind": "TrainingJob", "metadata": {"name": "j"}}
    assert submission.read(json.dumps(head | modern)) == submission.read(json.dumps(head | classic))
    assert TRAINING_JOBS.decode(json.dumps(head | modern).encode()) == TRAINING_JOBS.decode(
        json.dumps(head | classic).encode()
    )


@pytest.mark.parametrize("alias", sorted(ROLE_ALIASES))
def test_a_modern_name_may_repeat_the_classic_one_but_not_contradict_it(alias: str) -> None:
    same, other = ("e:1", "e:2") if alias == "etcdEndpoint" else (1, 2)
    name = ROLE_ALIASES[alias]
    (job,) = submission.read(f"{HEAD}spec: {{trainer: {{entrypoint: a, {alias}: {same!r}, {name}: {same!r}}}}}")
    assert getattr(job.spec.trainer, name.replace("-", "_")) == same
    (fault,) = faults_of(f"{HEAD}spec: {{trainer: {{entrypoint: a, {alias}: {other!r}, {name}: {same!r}}}}}")
    assert fault.path == f"spec.trainer.{alias}"
    # A stored object is read all the same: the classic name counts.
    stored = {"spec": {"trainer": {alias: other, name: same}}}
    assert getattr(TRAINING_JOBS.from_json(stored).spec.trainer, name.replace("-", "_")) == same


def test_a_printed_job_can_be_submitted_again() -> None:
    (job,) = submission.read(EXAMPLE)
    printed = TRAINING_JOBS.to_json(job)
    printed["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 2, "managedFields": [{}]}
    printed["metadata"]["creationTimestamp"] = "2026-12-01T00:00:00Z"
    printed["status"] = {"phase": "running", "whatever": 1}
    assert submission.read(json.dumps(printed)) == [job]


@given(st.text(max_size=200) | st.binary(max_size=200))
@pytest.mark.security(19)
def test_any_text_is_jobs_or_typed_faults(text: str | bytes) -> None:
    with contextlib.suppress(InvalidTrainingJob):
        assert submission.read(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)
fields = st.sampled_from([field.encode_name for field in msgspec.structs.fields(type(TrainingJob().spec))])


@given(st.dictionaries(fields, json_values, max_size=4))
def test_any_values_in_known_fields_are_a_job_or_typed_faults(spec: dict[str, Any]) -> None:
    head = {"apiVersion": "paddlepaddle.org/v1", "kind": "TrainingJob", "metadata": {"name": "j"}}
    with contextlib.suppress(InvalidTrainingJob):
        assert submission.read_document({**head, "spec": spec}).metadata.name == "j"
