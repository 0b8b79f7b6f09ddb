"""The task queue against a real etcd: taking, finishing, waiting, passes, data sets."""

from __future__ import annotations

import functools
import time
from collections import Counter

import pytest

from edl_agent import ClientClosed, ConfigurationError, DatasetInUse, DeadlineExceeded, EtcdClient, LeaseLost, TaskLost
from edl_agent.tasks import Finished, Task, TaskQueue
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.waiting import eventually, never
from tests.etcd.client_room import side_by_side
from tests.tasks.trainers import Later, Trainers


@pytest.mark.smoke
@pytest.mark.parametrize("chunk_size", [1, 3, 7])
def test_one_trainer_does_everything_once_in_each_pass(trainers: Trainers, chunk_size: int) -> None:
    one = trainers.add()
    one.queue.set_dataset(7, passes=3, chunk_size=chunk_size)
    done = one.work()
    assert sorted(done) == [(number, index) for number in range(3) for index in range(7)]
    assert [number for number, _ in done] == sorted(number for number, _ in done), "a pass began before its time"
    assert one.queue.get_task() == Finished(3)
    progress = one.queue.progress()
    assert progress.current is None
    assert [(counts.pass_number, counts.finished, counts.failures) for counts in progress.history] == [
        (0, 7, 0),
        (1, 7, 0),
        (2, 7, 0),
    ]
    assert set(trainers.stored()) == {"dataset", "state"}, "a finished pass leaves keys behind"


def test_trainers_share_the_work_and_nobody_gets_a_task_of_another(trainers: Trainers) -> None:
    crowd = [trainers.add() for _ in range(6)]
    for one in crowd:
        one.queue.set_dataset(120, passes=2, chunk_size=3)  # equal: the first counts
    done = side_by_side([one.work for one in crowd], timeout=60)
    assert not [result for result in done if isinstance(result, BaseException)], done
    counts = Counter(task for result in done for task in result)
    assert counts == {(number, index): 1 for number in range(2) for index in range(120)}
    assert all(counts.finished == 120 for counts in crowd[0].queue.progress().history)


def test_specs_come_with_the_tasks(trainers: Trainers) -> None:
    specs = [{"file": f"part-{number}", "pad": "x" * 3000} for number in range(300)]  # several pages
    one = trainers.add()
    one.queue.set_dataset(specs, chunk_size=30)
    seen = {}
    while isinstance(task := one.queue.get_task(10), Task):
        seen[task.index] = task.spec
        one.queue.finish(task)
    assert seen == dict(enumerate(specs))
    pages = [key for key in trainers.stored() if "task-specs" in key]
    assert len(pages) >= 3
    one.queue.set_dataset(["a"], chunk_size=1)
    assert len([key for key in trainers.stored() if "task-specs" in key]) == 1, "old specs were left behind"


def test_a_million_tasks_are_2000_keys_at_most(trainers: Trainers) -> None:
    one = trainers.add()
    begin = time.monotonic()
    one.queue.set_dataset(1_000_000, passes=2)
    assert time.monotonic() - begin < 1.0
    first = one.get()
    one.queue.finish(first)
    # Every chunk gets a key when somebody takes it.
    for _ in range(60):
        one.queue.give_back(one.get())
    assert len(trainers.stored()) <= 2 + 60 + 1
    dataset = one.queue._board.dataset
    assert dataset is not None
    assert dataset.chunks <= 2000
    assert max(map(len, trainers.stored().values())) < 300


def test_within_a_chunk_a_task_costs_one_request(trainers: Trainers, etcd_proxy: EtcdProxy) -> None:
    one = trainers.add(endpoint=etcd_proxy.endpoint)
    one.queue.set_dataset(100, chunk_size=50)
    task = one.get()
    etcd_proxy.clear()
    for _ in range(40):
        one.queue.finish(task)
        task = one.get()
    assert etcd_proxy.count("KV/*") == 40
    etcd_proxy.clear()
    one.queue.finish(task)
    one.work()
    assert etcd_proxy.count("KV/*") <= 1 + 9 + 50 + 6


def test_no_hot_loop_while_waiting(trainers: Trainers, etcd_proxy: EtcdProxy) -> None:
    holder, waiter = trainers.add(), trainers.add(endpoint=etcd_proxy.endpoint)
    holder.queue.set_dataset(1, passes=2)
    task = holder.get()
    waiting = Later(waiter.get)
    eventually(lambda: etcd_proxy.open_streams("Watch/Watch"), 5, "the watch of the waiter")
    before = etcd_proxy.count("KV/*")
    never(lambda: not waiting.running, 0.7, "a task out of nothing")
    assert etcd_proxy.count("KV/*") == before
    holder.queue.finish(task)
    assert waiting.get().pass_number == 1
    eventually(lambda: not etcd_proxy.open_streams("Watch/Watch"), 5, "the end of the watch")


def test_finished_only_when_nothing_waits_and_nothing_is_held(trainers: Trainers) -> None:
    one, other = trainers.add(), trainers.add()
    one.queue.set_dataset(2, passes=1)
    first, second = one.get(), other.get()
    assert {first.index, second.index} == {0, 1}
    one.queue.finish(first)
    waiting = Later(one.queue.get_task)
    never(lambda: not waiting.running, 0.4, "an answer while the other still holds a task")
    with pytest.raises(DeadlineExceeded, match="held by others"):
        trainers.add().queue.get_task(0)
    other.queue.give_back(second)
    again = waiting.get()
    assert (again.index, again.failures) == (second.index, 0), "giving back is no failure"
    one.queue.finish(again)
    assert one.queue.get_task() == Finished(1)
    assert other.queue.get_task() == Finished(1)


def test_a_dead_trainers_task_comes_back_with_its_progress_and_one_failure(trainers: Trainers) -> None:
    one, other = trainers.add(), trainers.add()
    one.queue.set_dataset(4, chunk_size=4)
    for index in range(2):
        task = one.get()
        assert task.index == index
        one.queue.finish(task)
    in_hand = one.get()
    waiting = Later(other.get)
    never(lambda: not waiting.running, 0.3, "two holders")
    trainers.kill(one)
    assert waiting.get().index == 3, "the poisoned task must not block the rest"
    with pytest.raises(TaskLost):
        one.queue.finish(in_hand)
    other.queue.finish(waiting.get())
    retried = other.get()
    assert (retried.index, retried.failures) == (2, 1)
    other.queue.finish(retried)
    assert other.finished()
    history = other.queue.progress().history
    assert (history[0].finished, history[0].failures) == (4, 1)


def test_a_task_that_fails_too_often_is_set_aside_and_reported(
    trainers: Trainers, caplog: pytest.LogCaptureFixture
) -> None:
    one = trainers.add()
    one.queue.set_dataset(6, passes=2, chunk_size=3, max_failures=2)
    tried: Counter[tuple[int, int]] = Counter()
    while isinstance(task := one.queue.get_task(10), Task):
        tried[task.pass_number, task.index] += 1
        if task.index == 4:
            assert task.failures == tried[task.pass_number, 4] - 1
            one.queue.fail(task, "no such file: part-4")
        else:
            one.queue.finish(task)
    assert tried == {(number, index): 3 if index == 4 else 1 for number in range(2) for index in range(6)}
    for counts in one.queue.progress().history:
        assert (counts.finished, counts.set_aside, counts.failures) == (5, 1, 3)
        assert (counts.named, counts.reason) == ((4,), "no such file: part-4")
    assert [record.getMessage() for record in caplog.records if "aside" in record.getMessage()] == [
        f"Set task 4 of pass {number} aside: no such file: part-4" for number in range(2)
    ]


def test_a_task_that_kills_its_trainers_is_set_aside(trainers: Trainers) -> None:
    for number in range(3):
        victim = trainers.add(f"victim-{number}")
        victim.queue.set_dataset(1, max_failures=2)
        assert victim.get().failures == number
        trainers.kill(victim)
    survivor = trainers.add()
    assert isinstance(survivor.queue.get_task(10), Finished)
    counts = survivor.queue.progress().history[0]
    assert (counts.finished, counts.set_aside, counts.failures) == (0, 1, 3)
    assert "died" in counts.reason


def test_a_failed_task_goes_to_somebody_else_where_there_is_somebody(trainers: Trainers) -> None:
    one, other = trainers.add(), trainers.add()
    one.queue.set_dataset(1)
    waiting_for = one.get()
    waiting = Later(other.get)
    never(lambda: not waiting.running, 0.2)
    one.queue.fail(waiting_for, "my disk is full")
    assert waiting.get().failures == 1


def test_the_data_set_changes_between_passes_only(trainers: Trainers) -> None:
    one, other = trainers.add(), trainers.add()
    one.queue.set_dataset(["a", "b"], passes=2)
    one.queue.set_dataset(["x"], passes=5)  # nothing was taken yet
    one.queue.set_dataset(["a", "b"], passes=2)
    task = one.get()
    before = trainers.stored()
    with pytest.raises(DatasetInUse, match="pass 0"):
        other.queue.set_dataset(["c"], passes=1)
    assert trainers.stored() == before, "the refused data set left something behind"
    other.queue.set_dataset(["a", "b"], passes=2)  # the same is no change
    one.queue.give_back(task)
    with pytest.raises(DatasetInUse):
        other.queue.set_dataset(3)
    one.work(2)
    # Between the passes: the last task of pass 0 is finished, none of pass 1 is taken.
    other.queue.set_dataset(["c"], passes=1)
    assert one.work() == [(1, 0)], "pass numbers are counted on"
    assert [counts.tasks for counts in one.queue.progress().history] == [2, 1]
    assert isinstance(other.queue.get_task(), Finished)
    other.queue.set_dataset(["c"], passes=1)
    assert other.finished(), "the same data set again starts nothing"


def test_a_take_and_a_change_of_the_data_set_exclude_each_other(trainers: Trainers) -> None:
    one, other = trainers.add(), trainers.add()
    for round_ in range(10):
        one.queue.set_dataset(5, passes=1, timeout=1000 + round_)
        one.queue.progress()
        results = side_by_side([one.get, functools.partial(other.queue.set_dataset, 6, timeout=2000 + round_)])
        task, change = results
        assert isinstance(task, Task), task
        now = other.queue.progress().current
        assert now is not None
        assert now.tasks == (5 if isinstance(change, DatasetInUse) else 6), results
        assert now.tasks == one.queue._hold.dataset.tasks  # type: ignore[union-attr]
        one.queue.finish(task)
        one.work()


def test_trainers_may_come_before_the_data_set(trainers: Trainers) -> None:
    one = trainers.add()
    with pytest.raises(DeadlineExceeded, match="no data set"):
        one.queue.get_task(0.2)
    waiting = Later(one.get)
    never(lambda: not waiting.running, 0.3)
    trainers.add().queue.set_dataset(3)
    one.queue.finish(waiting.get())


def test_misuse_is_told(trainers: Trainers) -> None:
    one = trainers.add()
    one.queue.set_dataset(5)
    task = one.get()
    with pytest.raises(ConfigurationError, match="in hand"):
        one.queue.get_task()
    one.queue.finish(task)
    one.queue.finish(task)  # twice is once
    for use in (one.queue.fail, one.queue.renew):
        with pytest.raises(TaskLost):
            use(task)
    one.queue.give_back(task)  # nothing to give back
    with pytest.raises(TaskLost):
        one.queue.finish(Task(0, 4))
    with pytest.raises(LeaseLost, match="open"):
        TaskQueue(trainers.admin).get_task(1)
    with pytest.raises(ConfigurationError):
        TaskQueue(trainers.admin, "bad name")


def test_close_gives_back_and_ends_the_wait(trainers: Trainers) -> None:
    one, other, third = trainers.add(), trainers.add(), trainers.add()
    one.queue.set_dataset(1)
    one.get()
    waiting = Later(third.queue.get_task)
    never(lambda: not waiting.running, 0.2)
    third.queue.close()
    with pytest.raises(ClientClosed):
        waiting.get(3)
    begin = time.monotonic()
    one.client.shutdown()  # closes the queue, too
    assert time.monotonic() - begin < 2
    assert other.get(2).failures == 0
    with pytest.raises(ClientClosed):
        one.queue.get_task()
    with pytest.raises(ClientClosed):
        third.queue.set_dataset(3)


def test_two_queues_of_one_client_hold_two_tasks(trainers: Trainers) -> None:
    one = trainers.add()
    second = TaskQueue(one.client, "second")
    one.queue.set_dataset(2)
    first_task, second_task = one.get(), second.get_task(5)
    assert isinstance(second_task, Task)
    assert first_task.index != second_task.index
    one.queue.finish(first_task)
    second.finish(second_task)
    assert one.finished()
    assert isinstance(second.get_task(5), Finished)


def test_progress_says_who_holds_what(trainers: Trainers) -> None:
    one, other = trainers.add("anna"), trainers.add("bert")
    assert one.queue.progress().current is None
    one.queue.set_dataset(10, passes=4)
    one.queue.finish(one.get())
    one.get()
    other.get()
    progress = TaskQueue(trainers.admin).progress()  # needs no session
    assert progress.current is not None
    assert (progress.current.finished, progress.current.tasks, progress.passes) == (1, 10, 4)
    assert (progress.held, progress.holders) == (2, ("anna", "bert"))


def test_a_queue_survives_the_loss_of_its_lease(trainers: Trainers) -> None:
    one = trainers.add()
    one.queue.set_dataset(3, chunk_size=3)
    one.queue.finish(one.get())
    task = one.get()
    lease = one.client.session.lease_id
    trainers.kill(one)
    eventually(lambda: one.client.session.lease_id not in (None, lease), 10, "a new lease")
    with pytest.raises(TaskLost):
        one.queue.finish(task)
    assert sorted(one.work()) == [(0, 1), (0, 2)]


def test_the_root_layout_needs_no_prefix(etcd_factory) -> None:  # type: ignore[no-untyped-def]
    server = etcd_factory()
    with EtcdClient(server.endpoints) as client, TaskQueue(client) as queue:
        client.open(timeout=10)
        queue.set_dataset(2)
        task = queue.get_task(5)
        assert isinstance(task, Task)
        keys = [pair.key.decode() for pair in client.get_prefix("/edl/")]
        assert keys == sorted(
            ["/edl/tasks/dataset", "/edl/tasks/state", f"/edl/tasks/0/{task.index}", f"/edl/tasks/0/held/{task.index}"]
        )
