"""The rule of 2017, compared with the unit tests of the original (another file of this form: EDL_PLANNER_CASES)."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from edl_controller.api import quantity
from edl_controller.api.pods import Container, PodSpec, ResourceRequirements
from edl_controller.core.capacity import ClusterResource, Nodes, add_resource_list
from edl_controller.core.planner.original_rule import (
    OriginalJob,
    elastic,
    fulfilment,
    scale_all_dry_run,
    scale_dry_run,
    sorted_jobs,
    trainer_requests,
    wants_gpu,
)

FILE = Path(os.environ.get("EDL_PLANNER_CASES") or Path(__file__).parent.parent / "data/original-planner-cases.json")
CASES: list[dict[str, Any]] = json.loads(FILE.read_text())["cases"]
FILTERS = {"elastic": (elastic,), "gpu": (wants_gpu,), "": ()}


def trainer(value: dict[str, Any]) -> PodSpec:
    requests = {"cpu": value["cpu_request"], "memory": value["memory_request"]}
    limits = {"cpu": value["cpu_limit"], "memory": value["memory_limit"], "nvidia.com/gpu": value["gpu_limit"]}
    return PodSpec(containers=(Container(name="t", resources=ResourceRequirements(requests=requests, limits=limits)),))


def job(value: dict[str, Any]) -> OriginalJob:
    found = trainer_requests(trainer(value))
    if derived := value.get("derived"):
        assert found == tuple(derived[name] for name in ("cpu_request_milli", "memory_request_mega", "gpu_limit"))
    return OriginalJob(
        value["name"], *found, value.get("min_instance", 0), value.get("max_instance", 0), value.get("parallelism", 0)
    )


def cluster(value: dict[str, Any]) -> ClusterResource:
    nodes = value["nodes"]
    return ClusterResource(
        **{name: amount for name, amount in value.items() if name != "nodes"},
        nodes=Nodes(
            {name: node["cpu_idle_milli"] for name, node in nodes.items()},
            {name: node["memory_free_mega"] for name, node in nodes.items()},
        ),
    )


def check(case: dict[str, Any]) -> None:
    match case["function"]:
        case "trainer_requests":
            keys = ("cpu_request_milli", "memory_request_mega", "gpu_limit")
            assert dict(zip(keys, trainer_requests(trainer(case["job"])), strict=True)) == case["expected"]
        case "scale_dry_run":
            shared = cluster(case["cluster"])
            for step in case["steps"]:
                resource = shared if case.get("steps_share_cluster") else cluster(case["cluster"])
                arguments = (resource, job(case["job"]), step["current_diff"], step["max_load_desired"])
                assert scale_dry_run(*arguments, scale_down=step["scale_down"]) == step["expected_additional"]
        case "scale_all_dry_run":
            jobs = [job(one) for one in case["jobs"]]
            diff = scale_all_dry_run(jobs, cluster(case["cluster"]), case["max_load_desired"])
            assert {name: diff.get(name, 0) for name in case["expected_diff"]} == case["expected_diff"]
        case "fulfillment":
            one = job(case["job"])
            assert fulfilment(one.minimum, one.maximum, one.parallelism) == case["expected"]
        case "sorted_jobs":
            order = sorted_jobs([job(one) for one in case["jobs"]], *FILTERS[case.get("filter", "")])
            assert [one.name for one in order] == case["expected_order"]
        case "add_resource_list":
            total = dict(case["a"])
            add_resource_list(total, case["b"])
            assert {name: quantity.parse(value) for name, value in total.items()} == {
                name: quantity.parse(value) for name, value in case["expected"].items()
            }
        case "elastic":
            for step in case["steps"]:
                one = OriginalJob("name", 0, 0, 0, step["min_instance"], step["max_instance"], 0)
                assert elastic(one) is step["expected"]
        case unknown:
            pytest.fail(f"the file has a function that is not known here: {unknown}")


@pytest.mark.parametrize("case", CASES, ids=[f"{case['id']}-{case['test']}" for case in CASES])
def test_as_the_original(case: dict[str, Any]) -> None:
    check(case)


def test_every_function_of_the_file_is_compared() -> None:
    assert len({case["function"] for case in CASES}) >= 7
    assert len(CASES) >= 18


def test_a_plan_that_would_never_end_in_the_original_ends() -> None:
    """One free GPU and a load limit below one: added and removed in every round."""
    resource = ClusterResource(
        gpu_total=10,
        gpu_limit=9,
        cpu_total_milli=10_000,
        memory_total_mega=1_000,
        nodes=Nodes({"n": 9_999}, {"n": 999}),
    )
    greedy = OriginalJob("greedy", 1_000, 1, 1, 1, 3, 1)
    assert scale_all_dry_run([greedy], resource, 0.97) == {"greedy": 0}
