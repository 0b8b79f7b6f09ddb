"""Stored objects are read even where a submission would be refused: servers and other clients write them, too."""

import json
from typing import Any

import pytest

from edl_controller.api.kinds import TRAINING_JOBS
from edl_controller.api.v1 import TrainingJob, TrainingJobSpec


def decode(spec: Any, **others: Any) -> TrainingJob:
    return TRAINING_JOBS.decode(json.dumps({"spec": spec, **others}).encode())


@pytest.mark.parametrize(
    "spec",
    [
        {"trainer": None, "env": None, "volumes": None, "template": None, "port": None, "suspend": None},
        {"a field of the future": {"x": [1]}, "trainer": {"unknown": 1}},
        {"trainer": {"passes": 10}},
        None,
    ],
)
def test_null_and_unknown_fields_count_as_absent(spec: Any) -> None:
    assert decode(spec).spec == TrainingJobSpec()


def test_whole_numbers_may_be_written_with_a_fraction_of_nothing() -> None:
    spec = decode(
        {"port": 7164.0, "trainer": {"min-instance": 1e1, "resources": {"limits": {"cpu": 2.0, "x": 0.5}}}}
    ).spec
    assert (spec.port, spec.trainer.min_instance) == (7164, 10)
    assert spec.trainer.resources.limits == {"cpu": 2, "x": 0.5}


def test_a_null_inside_a_list_or_a_list_of_nulls_is_no_crash_of_another_kind() -> None:
    assert decode({"env": [{"name": "A", "value": None, "valueFrom": None}]}).spec.env[0].value == ""


def test_reading_what_was_written_gives_the_same_job() -> None:
    job = decode({"minInstance": 1, "trainer": {"minInstance": 2, "entrypoint": "a"}, "nodeSelector": {"a": "b"}})
    assert job.spec.trainer.min_instance == 2
    assert job.spec.node_selector == {"a": "b"}
    written = json.loads(TRAINING_JOBS.encode(job))
    assert written["spec"] == {"trainer": {"min-instance": 2, "entrypoint": "a"}, "NodeSelector": {"a": "b"}}
    assert TRAINING_JOBS.decode(TRAINING_JOBS.encode(job)) == job
