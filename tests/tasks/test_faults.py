"""The task queue when answers get lost, writes come late, holders hang, etcd goes away, processes die in between."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from edl_agent import DeadlineExceeded, EtcdClient, TaskLost, UnknownOutcome
from edl_agent.etcd import wire
from edl_agent.etcd.kv import Kv, delete_op
from edl_agent.keys import prefix_end
from edl_agent.tasks import Finished, Task, TaskQueue
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.waiting import eventually, never
from tests.tasks.trainers import Later, Trainer, Trainers


def test_a_hung_holder_loses_its_chunk_and_its_finish_is_refused(trainers: Trainers) -> None:
    hung, other = trainers.add("hung"), trainers.add()
    hung.queue.set_dataset(1, timeout=1.0, max_failures=5)
    task = hung.get()
    begin = time.monotonic()
    taken = other.get()
    assert time.monotonic() - begin >= 1.0, "the holder was not given its time"
    assert taken.failures == 1
    assert hung.client.session.state.value == "connected", "the holder was to be alive"
    with pytest.raises(TaskLost, match="no longer held here: now held by trainer-1"):
        hung.queue.finish(task)
    now = other.queue.progress().current
    assert now is not None
    assert (now.finished, now.failures) == (0, 1)
    assert "hung was silent" in now.reason
    other.queue.finish(taken)
    assert hung.finished()


def test_renewing_and_finishing_both_count_as_signs_of_life(trainers: Trainers) -> None:
    slow, other = trainers.add(), trainers.add()
    slow.queue.set_dataset(3, chunk_size=3, timeout=1.0)
    task: Any = slow.get()
    waiting = Later(other.queue.get_task)
    for index in range(3):
        assert task.index == index
        for _ in range(2):
            never(lambda: not waiting.running, 0.6, "a broken hold, although the holder lives")
            slow.queue.renew(task)
        never(lambda: not waiting.running, 0.6, "a broken hold, although the holder lives")
        slow.queue.finish(task)
        task = slow.queue.get_task()
    assert isinstance(task, Finished)
    assert isinstance(waiting.get(), Finished)
    assert slow.queue.progress().history[0].failures == 0


def test_renew_tells_who_lost_its_task(trainers: Trainers) -> None:
    hung, other = trainers.add(), trainers.add()
    hung.queue.set_dataset(2, chunk_size=2, timeout=0.5, max_failures=9)
    task = hung.get()
    taken = other.get()
    with pytest.raises(TaskLost):
        hung.queue.renew(task)
    other.queue.finish(taken)
    other.queue.finish(other.get())


def test_after_a_long_pause_between_tasks_the_hold_is_renewed_before_another_is_handed_out(trainers: Trainers) -> None:
    idle, other = trainers.add(), trainers.add()
    idle.queue.set_dataset(4, chunk_size=4, timeout=0.8, max_failures=9)
    idle.queue.finish(idle.get())
    taken = other.get()  # by the timeout: idle had its chance
    assert taken.index == 2, "task 1 counts as the one that hung"
    waiting = Later(idle.queue.get_task)
    never(lambda: not waiting.running, 0.3, "a task of a chunk that another holds")
    other.queue.finish(taken)
    assert other.work() == [(0, 3), (0, 1)]
    assert isinstance(waiting.get(), Finished)


def test_a_late_finish_is_refused_after_another_took_the_chunk(trainers: Trainers, etcd_proxy: EtcdProxy) -> None:
    one = trainers.add(endpoint=etcd_proxy.endpoint)
    other = trainers.add()
    one.queue.set_dataset(2, chunk_size=2)
    task = one.get()
    held = etcd_proxy.hold("KV/Txn")
    finishing = Later(one.queue.finish, task)
    held.wait_held()
    trainers.kill(one)
    taken = other.get()  # task 1; task 0 counts a failure
    held.release()
    delivery = held.wait_delivered()
    assert not wire.TXN.answer.FromString(delivery.answer).succeeded
    with pytest.raises(TaskLost):
        finishing.get()
    other.queue.finish(taken)
    again = other.get()
    assert (again.index, again.failures) == (0, 1)
    other.queue.finish(again)
    assert other.finished()


@pytest.mark.parametrize("chunk_size", [1, 2])
@pytest.mark.parametrize("applied", [True, False])
def test_a_finish_whose_answer_is_lost_is_settled(
    trainers: Trainers, etcd_proxy: EtcdProxy, applied: bool, chunk_size: int
) -> None:
    one = trainers.add(endpoint=etcd_proxy.endpoint)
    one.queue.set_dataset(2, chunk_size=chunk_size)
    task = one.get()
    rule = etcd_proxy.lose_answer("KV/Txn") if applied else etcd_proxy.fail("KV/Txn", details="connection reset")
    one.queue.finish(task)
    assert rule.fired == 1
    assert one.work() == [(0, 1 - task.index)]
    counts = one.queue.progress().history[0]
    assert (counts.finished, counts.failures) == (2, 0)


def test_a_finish_that_stays_unknown_can_be_called_again(trainers: Trainers, etcd_proxy: EtcdProxy) -> None:
    one = trainers.add(endpoint=etcd_proxy.endpoint)
    one.queue.set_dataset(3, chunk_size=3)
    one.queue._call_timeout = 0.4
    task = one.get()
    rule = etcd_proxy.lose_answer("KV/Txn", silent=True, times=None)
    with pytest.raises(UnknownOutcome):
        one.queue.finish(task)
    rule.remove()
    one.queue.finish(task)
    second = one.get()
    assert second.index == 1
    rule = etcd_proxy.ignore("KV/Txn")
    with pytest.raises(UnknownOutcome):
        one.queue.finish(second)
    rule.remove()
    # Or the next task is asked for: it settles the question, and the same task comes again, since it was not recorded.
    assert one.get() == second
    one.queue.finish(second)
    assert one.work() == [(0, 2)]
    assert one.queue.progress().history[0].failures == 0


def test_a_fail_whose_answer_is_lost_counts_once(trainers: Trainers, etcd_proxy: EtcdProxy) -> None:
    one = trainers.add(endpoint=etcd_proxy.endpoint)
    one.queue.set_dataset(3, chunk_size=3)
    rule = None
    for _ in range(2):
        task = one.get()
        rule = etcd_proxy.lose_answer("KV/Txn")
        one.queue.fail(task, "bad")
        assert rule.fired == 1
    one.work()
    assert one.queue.progress().history[0].failures == 2


@pytest.mark.parametrize("applied", [True, False])
def test_a_take_whose_answer_is_lost_leaves_no_chunk_stuck(
    trainers: Trainers, etcd_proxy: EtcdProxy, applied: bool
) -> None:
    one = trainers.add(endpoint=etcd_proxy.endpoint)
    one.queue.set_dataset(3, chunk_size=1)
    one.queue.progress()
    etcd_proxy.clear()
    rule = etcd_proxy.lose_answer("KV/Txn") if applied else etcd_proxy.fail("KV/Txn", details="connection reset")
    task = one.get()
    assert rule.fired == 1
    one.queue.finish(task)
    assert len(one.work()) == 2
    assert one.queue.progress().history[0].failures == 0


def test_a_take_that_arrives_late_is_found_and_used(trainers: Trainers, etcd_proxy: EtcdProxy) -> None:
    one = trainers.add(endpoint=etcd_proxy.endpoint)
    one.queue.set_dataset(2, chunk_size=1)
    one.queue._call_timeout = 0.3
    held = etcd_proxy.hold("KV/Txn")
    first = one.get()  # the take in hand is given up and made again, of whatever chunk
    held.release()
    held.wait_delivered()
    one.queue._call_timeout = 5.0
    one.queue.finish(first)
    one.work()
    counts = one.queue.progress().history[0]
    assert (counts.finished, counts.failures) == (2, 0)


def test_the_end_of_a_pass_happens_once_also_when_its_answer_is_lost(trainers: Trainers, etcd_proxy: EtcdProxy) -> None:
    one = trainers.add(endpoint=etcd_proxy.endpoint)
    one.queue.set_dataset(1, passes=3)
    for number in range(3):
        task = one.get()
        assert task.pass_number == number
        one.queue.finish(task)
        rule = etcd_proxy.lose_answer("KV/Txn", when=lambda data, metadata: b"/edl/tasks/state" in data)
    assert one.finished()
    assert rule.fired == 1
    assert [counts.pass_number for counts in one.queue.progress().history] == [0, 1, 2]


def test_a_pass_is_not_ended_by_an_old_view_of_it(trainers: Trainers) -> None:
    one, late = trainers.add(), trainers.add()
    one.queue.set_dataset(1, passes=3)
    one.queue.finish(one.get())
    late.queue._store.look(late.queue._board, time.monotonic() + 5)
    assert late.queue._board.complete, "the view was to show the whole pass done"
    one.queue.finish(one.get())
    task = one.get()
    assert task.pass_number == 2
    before = trainers.stored()
    late.queue._store.end_pass(late.queue._board, time.monotonic() + 5)
    assert trainers.stored() == before
    one.queue.finish(task)
    assert one.finished()


def test_an_outage_of_etcd_is_waited_for(etcd_factory: Any, prefix: str) -> None:
    server = etcd_factory()
    with Trainers(server.endpoint_string, prefix) as trainers:
        one = trainers.add(ttl=30)
        one.queue.set_dataset(20, chunk_size=1, passes=1)
        task = one.get()
        server.members[0].kill()
        one.queue._call_timeout = 0.5
        with pytest.raises((UnknownOutcome, DeadlineExceeded)):
            one.queue.finish(task)

        def go_on() -> list[tuple[int, int]]:
            while True:
                try:
                    one.queue.finish(task)
                    return one.work()
                except (UnknownOutcome, DeadlineExceeded):
                    continue

        waiting = Later(go_on)
        never(lambda: not waiting.running, 0.7)
        server.members[0].start()
        done = waiting.get(15)
        assert sorted([*done, (0, task.index)]) == [(0, index) for index in range(20)]


def test_a_store_wiped_under_a_queue_is_noticed(trainers: Trainers) -> None:
    one, other = trainers.add(), trainers.add()
    one.queue.set_dataset(5)
    task = one.get()
    trainers.admin._kv.txn([], [_delete_all(trainers)], [], time.monotonic() + 5)
    with pytest.raises((TaskLost, UnknownOutcome)):
        one.queue.finish(task)
    waiting = Later(one.work)
    never(lambda: not waiting.running, 0.3)
    other.queue.set_dataset(3)
    assert sorted(waiting.get()) == [(0, 0), (0, 1), (0, 2)]


def _delete_all(trainers: Trainers) -> Any:
    key = f"{trainers.prefix}/edl/".encode()
    return delete_op(key, prefix_end(key))


# --- a crash after each single write ---


class Crash(BaseException):
    """The process ends here."""


class CrashingKv(Kv):
    """Ends the process after (or instead of) the write with a given number; afterwards nothing is sent any more."""

    def __init__(self, inner: Kv, at: int, *, before: bool) -> None:
        super().__init__(inner._connection)
        self.left, self.before = at, before
        self.dead = False

    def _step(self, send: Any) -> Any:
        if self.dead:
            raise Crash
        self.left -= 1
        if self.left == 0 and self.before:
            self.dead = True
            raise Crash
        result = send()
        if self.left == 0:
            self.dead = True
            raise Crash
        return result

    def txn(self, *arguments: Any, **options: Any) -> Any:
        return self._step(lambda: super(CrashingKv, self).txn(*arguments, **options))

    def put(self, *arguments: Any, **options: Any) -> Any:
        return self._step(lambda: super(CrashingKv, self).put(*arguments, **options))


def _life(trainer: Trainer, done: Counter[tuple[int, int]]) -> None:
    """Everything that writes: specs, data set, takes, finishes, failures, giving back, renewals, ends of passes."""
    queue = trainer.queue
    queue.set_dataset(["a", "b", "c", "d", "e"], passes=2, chunk_size=2, max_failures=1000)
    steps = 0
    while isinstance(task := queue.get_task(10), Task):
        steps += 1
        if steps == 2:
            queue.fail(task, "bad")
        elif steps == 4:
            queue.give_back(task)
        else:
            if steps == 3:
                queue.renew(task)
            queue.finish(task)
            done[task.pass_number, task.index] += 1


@pytest.mark.parametrize("before", [False, True], ids=["applied, then dead", "dead before it is sent"])
def test_a_crash_after_each_single_write_loses_nothing(trainers: Trainers, before: bool) -> None:
    at = 0
    crashed = True
    while crashed:
        at += 1
        prefix = f"{trainers.prefix}/{at}-{before}"
        with Trainers(trainers.endpoint, prefix) as room:
            done: Counter[tuple[int, int]] = Counter()
            victim = room.add("victim")
            kv = CrashingKv(victim.client._kv, at, before=before)
            for part in (victim.queue._store, victim.queue._datasets):
                part._kv = kv
            try:
                _life(victim, done)
                crashed = False
            except Crash:
                victim.queue._closed.set()  # the dead give nothing back
                room.kill(victim)
            survivor = room.add("survivor")
            _life(survivor, done)
            if crashed:
                # The write that killed the victim may have recorded a finish that the victim did not live to count.
                everything = {(number, index) for number in range(2) for index in range(5)}
                assert len(everything - set(done)) <= 1, f"write {at}"
            history = survivor.queue.progress().history
            assert [(counts.pass_number, counts.finished, counts.set_aside) for counts in history] == [
                (0, 5, 0),
                (1, 5, 0),
            ], f"write {at}"
            assert {key for key in room.stored() if "specs" not in key} == {"dataset", "state"}
    assert at > 20, "the script was to have more writes than that"


def test_a_queue_whose_client_is_shut_down_during_a_call_ends(trainers: Trainers, etcd_proxy: EtcdProxy) -> None:
    one = trainers.add(endpoint=etcd_proxy.endpoint)
    one.queue.set_dataset(1)
    task = one.get()
    held = etcd_proxy.hold("KV/Txn")
    finishing = Later(one.queue.finish, task)
    held.wait_held()
    begin = time.monotonic()
    one.client.shutdown()
    assert time.monotonic() - begin < 4
    held.drop()
    finishing_error: BaseException | None = None
    try:
        finishing.get()
    except Exception as error:
        finishing_error = error
    assert finishing_error is not None
    other = trainers.add()
    eventually(lambda: isinstance(other.queue.get_task(0), Task), 5, "the chunk of the one that was shut down")


def test_reading_needs_no_lease_and_changes_nothing(trainers: Trainers) -> None:
    trainers.add().queue.set_dataset(3)
    before = trainers.stored()
    with EtcdClient(trainers.endpoint, prefix=trainers.prefix) as client:
        assert TaskQueue(client).progress().passes == 1
    assert trainers.stored() == before


@pytest.mark.parametrize("fault", ["answers are lost", "requests are lost", "no connection"])
@pytest.mark.parametrize("what", ["finish", "fail", "renew", "give_back"])
def test_with_a_timeout_an_outage_is_waited_for_and_nothing_is_counted_twice(
    trainers: Trainers, etcd_proxy: EtcdProxy, fault: str, what: str
) -> None:
    one = trainers.add(endpoint=etcd_proxy.endpoint, ttl=15)
    one.queue.set_dataset(3, chunk_size=3)
    one.queue._call_timeout = 0.3
    task = one.get()
    if fault == "answers are lost":
        rule = etcd_proxy.lose_answer("KV/Txn", silent=True, times=None)
    elif fault == "requests are lost":
        rule = etcd_proxy.ignore("KV/Txn", times=None)
    else:
        rule = etcd_proxy.fail("KV/Txn", details="connection reset", times=None)
    call = Later(lambda: getattr(one.queue, what)(task, timeout=15.0))
    never(lambda: not call.running, 0.8, f"an end of {what} while etcd is away")
    assert rule.fired >= 2
    rule.remove()
    call.get()
    counts = one.queue.progress().current
    assert counts is not None
    assert (counts.finished, counts.failures) == {"finish": (1, 0), "fail": (0, 1)}.get(what, (0, 0))
    if what == "renew":
        one.queue.finish(task)
    assert len(one.work()) == 3 - (what in ("finish", "renew"))
    assert one.queue.progress().history[0].finished == 3


def test_the_timeout_of_a_finish_is_kept(trainers: Trainers, etcd_proxy: EtcdProxy) -> None:
    one = trainers.add(endpoint=etcd_proxy.endpoint)
    one.queue.set_dataset(1)
    one.queue._call_timeout = 0.2
    task = one.get()
    rule = etcd_proxy.ignore("KV/Txn", times=None)
    begin = time.monotonic()
    with pytest.raises(UnknownOutcome):
        one.queue.finish(task, timeout=0.7)
    assert 0.7 <= time.monotonic() - begin < 3.0
    rule.remove()
    one.queue.finish(task, timeout=5.0)
    assert one.finished()


def test_a_finish_in_doubt_whose_lease_ends_meanwhile_is_not_called_unrecorded(
    trainers: Trainers, etcd_proxy: EtcdProxy
) -> None:
    one = trainers.add(endpoint=etcd_proxy.endpoint, reclaim="never")
    one.queue.set_dataset(2, chunk_size=2)
    one.queue._call_timeout = 0.3
    task = one.get()
    rule = etcd_proxy.lose_answer("KV/Txn", silent=True, times=None)
    call = Later(lambda: one.queue.finish(task, timeout=15.0))
    eventually(lambda: rule.fired >= 2, 5.0, "a second round")
    trainers.kill(one)
    with pytest.raises(UnknownOutcome):
        call.get()
