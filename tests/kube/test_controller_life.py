"""The life of a TrainingJob on a real API server, and what the controller wrote for it (invariants C1, C2, C5)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.bench.waiting import eventually
from tests.kube.controller_bench import DEADLINE, ControllerBench


@pytest.mark.fault("C1")
@pytest.mark.fault("C2")
@pytest.mark.fault("C5")
def test_a_job_comes_up_scales_succeeds_and_goes(bench: ControllerBench) -> None:
    bench.start()
    bench.create("tj", trainers=1, most=1)
    bench.wait_phase("tj", "running")
    bench.wait_trainers("tj", 1)
    bench.scale("tj", max=3)
    bench.wait_trainers("tj", 3)
    bench.finish("tj")
    bench.wait_phase("tj", "succeeded")
    bench.wait_rest()
    bench.delete("tj")
    bench.wait_gone("tj")
    bench.assert_invariants()


@pytest.mark.fault("C3")
def test_elastic_jobs_share_what_there_is_and_no_more(bench: ControllerBench) -> None:
    """The node has 64 CPUs; trainers of 9, masters of 1.1 and pservers of 0.01 may fill 0.97 of them: 6 trainers."""
    nodes = bench.client.get("/api/v1/nodes")["items"]
    assert [node["metadata"]["name"] for node in nodes] == [f"{bench.namespace}-node"]
    bench.start()
    trainer: dict[str, Any] = {"entrypoint": "python t.py", "min-instance": 1, "max-instance": 1}
    trainer["resources"] = {"requests": {"cpu": "9", "memory": "1Mi"}}
    for name in ("a", "b", "c"):
        bench.create(name, trainer=trainer, autoscaling={"scaleUpCooldownSeconds": 0})
    for name in ("a", "b", "c"):  # a minimum is without question, and may be more than there is
        bench.wait_phase(name, "running")
    for name in ("a", "b", "c"):
        bench.scale(name, max=5)
    eventually(lambda: sum(bench.trainer(name)["spec"]["parallelism"] for name in "abc") == 6, DEADLINE, "six trainers")
    bench.wait_rest(2.0)
    sizes: Counter[str] = Counter()
    for call in bench.proxy.writes("jobs"):
        if (parallelism := call.json["spec"].get("parallelism")) is not None:
            sizes[call.name or call.json["metadata"]["name"]] = parallelism
            assert 9 * sizes.total() + 3 * 1.11 <= 0.97 * 64
    assert sizes.total() == 6
    bench.assert_invariants()


@pytest.mark.fault("C2")
def test_without_a_look_at_the_nodes_jobs_follow_what_users_set(bench: ControllerBench) -> None:
    """In one namespace, where no node may be listed, `kubectl scale` works nevertheless."""
    bench.start(autoscale=False)
    bench.create("tj", trainers=1, most=4)
    bench.wait_phase("tj", "running")
    bench.client.patch(f"{bench.training_jobs_path}/tj/scale", {"spec": {"replicas": 3}})
    bench.wait_trainers("tj", 3)
    bench.scale("tj", min=1, max=2)
    bench.wait_trainers("tj", 2)
    assert not bench.proxy.calls("list", "nodes")
    bench.wait_rest()
    bench.assert_invariants()
