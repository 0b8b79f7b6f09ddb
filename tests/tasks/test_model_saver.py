"""Exactly one trainer is told to save the model."""

from __future__ import annotations

import time

import pytest

from edl_agent import ConfigurationError
from edl_agent.tasks import Task
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.waiting import eventually
from tests.etcd.client_room import side_by_side
from tests.tasks.trainers import Trainers


def test_exactly_one_is_told_after_each_pass(trainers: Trainers) -> None:
    crowd = [trainers.add() for _ in range(6)]

    def ask() -> list[bool]:
        answers = side_by_side([one.queue.should_save_model for one in crowd])
        assert set(map(type, answers)) == {bool}, answers
        return answers

    assert ask().count(True) == 0, "no data set, no model"
    crowd[0].queue.set_dataset(1, passes=3)
    for _ in range(3):
        task = crowd[0].get()
        assert ask().count(True) == 0, "the pass is not over"
        crowd[0].queue.finish(task)
        # Whoever asks for work next ends the pass.
        following = crowd[1].queue.get_task(5)
        if isinstance(following, Task):
            crowd[1].queue.give_back(following)
        assert ask().count(True) == 1
        assert ask().count(True) == 0


def test_exactly_one_is_told_per_interval(trainers: Trainers) -> None:
    crowd = [trainers.add() for _ in range(4)]
    answers = side_by_side([lambda one=one: one.queue.should_save_model(1.0) for one in crowd])  # type: ignore[misc]
    assert sorted(answers) == [False, False, False, True]
    begin = time.monotonic()
    eventually(lambda: crowd[0].queue.should_save_model(1.0), 10, "the next interval")
    assert time.monotonic() - begin >= 0.5
    assert not crowd[1].queue.should_save_model(1.0)
    with pytest.raises(ConfigurationError):
        crowd[0].queue.should_save_model(0)


@pytest.mark.parametrize("interval", [None, 30.0])
def test_a_lost_answer_tells_nobody_else(trainers: Trainers, etcd_proxy: EtcdProxy, interval: float | None) -> None:
    one, other = trainers.add(endpoint=etcd_proxy.endpoint), trainers.add()
    one.queue.set_dataset(1)
    one.work()
    rule = etcd_proxy.lose_answer("KV/Txn")
    assert one.queue.should_save_model(interval)
    assert rule.fired == 1
    assert not other.queue.should_save_model(interval)
