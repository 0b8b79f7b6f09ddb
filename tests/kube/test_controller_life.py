"""The life of a TrainingJob on a real API server, and what the controller wrote for it (invariants C1, C2, C5)."""

from __future__ import annotations

import pytest

from tests.kube.controller_bench import ControllerBench


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
