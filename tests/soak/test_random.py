"""The random test: agents, an etcd of three members, faults drawn from a seed; afterwards the checker reads the
history.

The short run is part of `make test`. By hand: `EDL_SOAK_SEED=7 make test PYTEST_ARGS=tests/soak`, or the long one with
`make soak` (`EDL_SOAK_MINUTES`, default 10).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.soak.checker import check
from tests.soak.runner import RunFailed, Runner
from tests.soak.schedule import Plan

DEFAULT_SEED = 20171
TTL = 2.0
"""Seconds: the smallest that etcd grants with its default election timeout; faults are drawn in parts of it."""
SHORT = Plan(agents=8, ttl=TTL, chaos=18.0, away=4.0, most_desired=7)
DESIRED = 6
ROUND = SHORT.chaos + SHORT.away + 2 * TTL + (2 * TTL + 5) + 5
"""Seconds that a round takes, about."""


def seed() -> int:
    return int(os.environ.get("EDL_SOAK_SEED", DEFAULT_SEED))


def play(folder: Path, number: int, plan: Plan) -> None:
    """Run, check, and fail with everything that is needed to look into it."""
    runner = Runner(folder, number, plan, desired=DESIRED, ttl=TTL)
    hint = f"EDL_SOAK_SEED={number}; history: python -m tests.soak {folder} --ttl {TTL:g}"
    print(hint)
    try:
        runner.run()
    except RunFailed as error:
        pytest.fail(f"the run went wrong: {error}\n{hint}")
    verdict = check(runner.records(), runner.limits)
    print(f"performed {runner.performed}, skipped {runner.skipped}, examined {verdict.examined}")
    if verdict.violations:
        lines = "\n".join(str(violation) for violation in verdict.violations[:40])
        pytest.fail(f"{len(verdict.violations)} violations:\n{lines}\n{hint}")
    # A run in which nothing happened proves nothing.
    assert verdict.examined["tenures"] > plan.agents, verdict.examined
    assert verdict.examined["writes"] > plan.chaos, verdict.examined
    assert verdict.examined["calm_snapshots"] >= 2 * plan.rounds, verdict.examined
    assert verdict.examined["away_agents"] >= plan.rounds * plan.agents // 2, verdict.examined


@pytest.mark.fault("I1")
@pytest.mark.fault("I2")
@pytest.mark.fault("I3")
@pytest.mark.fault("I4")
@pytest.mark.fault("I5")
@pytest.mark.fault("I6")
def test_invariants_hold_under_random_faults(tmp_path: Path) -> None:
    play(tmp_path, seed(), SHORT)


@pytest.mark.soak
def test_invariants_hold_under_random_faults_for_long(tmp_path: Path) -> None:
    minutes = float(os.environ.get("EDL_SOAK_MINUTES", "10"))
    rounds = max(1, round(minutes * 60 / ROUND))
    plan = Plan(agents=10, ttl=TTL, chaos=SHORT.chaos, away=SHORT.away, rounds=rounds, most_desired=12)
    sys.stdout.write(f"{rounds} rounds\n")
    play(tmp_path, seed(), plan)


@pytest.mark.soak
@pytest.mark.parametrize(("mistake", "caught"), [("none", set()), ("deaf", {"I1"})])
def test_the_random_test_can_fail(tmp_path: Path, mistake: str, caught: set[str]) -> None:
    """The same run with a small agent of the test's own passes when it is right, and fails when it is careless."""
    runner = Runner(tmp_path, 2, SHORT, desired=DESIRED, ttl=TTL, program=("tests.soak.careless", "--mistake", mistake))
    runner.run()
    verdict = check(runner.records(), runner.limits)
    found = {violation.invariant for violation in verdict.violations}
    assert caught <= found, verdict
    if not caught:
        assert not found, [str(violation) for violation in verdict.violations]
