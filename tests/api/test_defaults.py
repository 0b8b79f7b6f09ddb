"""What a TrainingJob means where it says nothing."""

from typing import Any

import pytest

from edl_controller.api.defaults import GPU, has_master, is_elastic, with_defaults
from edl_controller.api.kinds import TRAINING_JOBS
from edl_controller.api.settings import Settings
from edl_controller.api.v1 import TrainingJob


def read(**spec: Any) -> TrainingJob:
    return TRAINING_JOBS.from_json({"metadata": {"name": "j"}, "spec": spec})


def test_an_empty_job_gets_the_originals_defaults() -> None:
    spec = with_defaults(TrainingJob()).spec
    assert (spec.image, spec.port, spec.ports_num, spec.ports_num_for_sparse, spec.passes) == (
        *("paddlepaddle/paddlecloud-job", 7164, 1, 1, 1),
    )
    assert (spec.fault_tolerant, spec.host_network, spec.clean_pod_policy) == (False, False, "Running")
    assert (spec.trainer.min_instance, spec.trainer.max_instance) == (1, 1)
    assert (spec.pserver.min_instance, spec.pserver.max_instance) == (0, 0)
    assert spec.trainer.image == spec.pserver.image == spec.master.image == spec.image
    assert spec.agent.ttl_seconds == 10
    assert spec.autoscaling.enabled is True


def test_zero_is_not_given_for_the_fields_where_the_original_took_it_so() -> None:
    spec = with_defaults(read(port=0, ports_num=0, ports_num_for_sparse=0, passes=0)).spec
    assert (spec.port, spec.ports_num, spec.ports_num_for_sparse, spec.passes) == (7164, 1, 1, 1)


@pytest.mark.parametrize(
    ("bounds", "filled"),
    [
        ({}, (1, 1)),
        ({"min-instance": 3}, (3, 3)),
        ({"max-instance": 3}, (3, 3)),
        ({"min-instance": 0}, (0, 0)),
        ({"min-instance": 0, "max-instance": 0}, (0, 0)),
        ({"min-instance": 5, "max-instance": 2}, (5, 2)),
        ({"min-instance": -1}, (-1, -1)),
    ],
)
def test_bounds_of_the_trainers(bounds: dict[str, int], filled: tuple[int, int]) -> None:
    spec = with_defaults(read(trainer=bounds)).spec
    assert (spec.trainer.min_instance, spec.trainer.max_instance) == filled
    assert is_elastic(spec) is (filled[0] < filled[1])


@pytest.mark.parametrize(
    ("pserver", "mode"),
    [
        ({"min-instance": 2}, "Classic"),
        ({"min-instance": 2, "entrypoint": "python ps.py"}, "Launcher"),
        ({"min-instance": 2, "command": ["python", "ps.py"]}, "Launcher"),
        ({"min-instance": 0}, "Launcher"),
        ({}, "Launcher"),
    ],
)
def test_without_a_command_of_its_own_a_pserver_is_started_as_in_the_original(
    pserver: dict[str, Any], mode: str
) -> None:
    assert with_defaults(read(pserver=pserver)).spec.agent.mode == mode
    assert with_defaults(read(pserver=pserver, agent={"mode": "Library"})).spec.agent.mode == "Library"


def test_where_the_agents_meet() -> None:
    own = with_defaults(TrainingJob()).spec
    assert own.etcd.mode == "Master"
    assert has_master(own)
    assert own.master.resources.requests == {"cpu": "1", "memory": "500Mi"}
    outside = with_defaults(TrainingJob(), Settings(external_etcd=True)).spec
    assert outside.etcd.mode == "External"
    assert not has_master(outside)
    assert outside.master.resources.requests == {}
    assert with_defaults(read(etcd={"endpoints": ["e:2379"]})).spec.etcd.mode == "External"
    assert has_master(with_defaults(read(master={"command": ["m"]}), Settings(external_etcd=True)).spec)


def test_gpus_under_the_originals_name_are_counted_under_the_present_one() -> None:
    job = read(trainer={"resources": {"limits": {"alpha.kubernetes.io/nvidia-gpu": 2, "cpu": 1}}})
    assert with_defaults(job).spec.trainer.resources.limits == {GPU: 2, "cpu": 1}
    both = read(trainer={"resources": {"limits": {"alpha.kubernetes.io/nvidia-gpu": 2, GPU: 3}}})
    assert with_defaults(both).spec.trainer.resources.limits == {GPU: 3}


def test_a_fault_tolerant_job_survives_its_trainers_and_a_strict_one_does_not() -> None:
    assert with_defaults(read(fault_tolerant=True)).spec.backoff_limit == 1_000_000
    assert with_defaults(read()).spec.backoff_limit == 0
    assert with_defaults(read(fault_tolerant=True, backoffLimit=3)).spec.backoff_limit == 3


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"trainer": {"image": "t", "max-instance": 9}, "pserver": {"min-instance": 1}, "fault_tolerant": True},
        {"autoscaling": {"enabled": False, "drainSeconds": 0}, "agent": {"ttlSeconds": 5}, "backoffLimit": 0},
        {"trainer": {"resources": {"limits": {"alpha.kubernetes.io/nvidia-gpu": 1}}}},
    ],
)
def test_filling_in_twice_changes_nothing_more(spec: dict[str, Any]) -> None:
    once = with_defaults(read(**spec))
    assert with_defaults(once) == once
    assert once.metadata.name == "j"
