"""The schedule of the random test: the same for a seed, and within its own rules for every seed."""

from __future__ import annotations

import pytest

from tests.soak import schedule
from tests.soak.schedule import Plan, Step, make_schedule

PLAN = Plan(agents=8, ttl=2.0, chaos=20.0, away=5.0, rounds=2)


def test_a_seed_says_everything() -> None:
    assert make_schedule(7, PLAN) == make_schedule(7, PLAN)
    assert make_schedule(7, PLAN) != make_schedule(8, PLAN)


def test_every_kind_of_action_is_drawn() -> None:
    actions = [step.action for seed in range(50) for step in make_schedule(seed, PLAN)]
    kinds = {kind.__name__ for kind in schedule.Action.__subclasses__()}
    assert {type(action).__name__ for action in actions} == kinds
    assert {action.mode for action in actions if isinstance(action, schedule.Cut)} == set(schedule.CUT_MODES)


@pytest.mark.parametrize("seed", range(50))
def test_rules_of_a_round(seed: int) -> None:
    steps = make_schedule(seed, PLAN)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    members_down = 0
    store_away = False
    busy: dict[int, Step] = {}
    for step in steps:
        action = step.action
        if isinstance(action, schedule.MemberDown | schedule.StoreAway):
            members_down += 1
        elif isinstance(action, schedule.MemberUp | schedule.StoreBack):
            members_down -= 1
        elif isinstance(action, schedule.Kill | schedule.Stop | schedule.Pause | schedule.Cut):
            assert action.agent not in busy, "one agent suffers one thing at a time"
            busy[action.agent] = step
        elif isinstance(action, schedule.Start | schedule.Resume | schedule.Mend):
            assert busy.pop(action.agent).at <= step.at
        elif isinstance(action, schedule.Desire):
            assert PLAN.least_desired <= action.value <= PLAN.most_desired
        assert members_down in (0, 1), "there is a quorum"
        if isinstance(action, schedule.StoreAway):
            store_away = True
            assert not busy, "everything else is over before the outage"
        elif store_away:
            assert isinstance(action, schedule.StoreBack)
            store_away = False
    assert not busy
    assert members_down == 0
    assert isinstance(steps[-1].action, schedule.Settle), "the last word is a calm"
