"""The work queue: client-go's semantics, priorities, no leak, with threads and against a model."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edl_controller.runtime.back_off import ItemBackOff, TokenBucket
from edl_controller.runtime.workqueue import FAIR_SHARE, Priority, QueueShutDown, WorkQueue
from tests.bench.clocks import FakeClock
from tests.bench.waiting import eventually


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queue(clock: FakeClock) -> WorkQueue[str]:
    return WorkQueue("test", clock=clock.monotonic)


def take_all(queue: WorkQueue[str]) -> list[str]:
    taken = []
    while len(queue):
        taken.append(queue.get())
        queue.done(taken[-1])
    return taken


def test_a_key_that_waits_is_not_added_twice(queue: WorkQueue[str]) -> None:
    for key in "abab":
        queue.add(key)
    assert take_all(queue) == ["a", "b"]


@pytest.mark.fault("K31")
def test_an_add_during_the_work_gives_one_more_pass(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0, "not handed out while it is being worked on"
    queue.done("a")
    assert take_all(queue) == ["a"]


@pytest.mark.fault("K31")
@pytest.mark.parametrize("delays", [(10.0, 1.0), (1.0, 10.0)])
def test_a_delayed_add_does_not_hide_an_earlier_one(
    queue: WorkQueue[str], clock: FakeClock, delays: tuple[float, float]
) -> None:
    for delay in delays:
        queue.add_after("a", delay)
    clock.advance(0.99)
    assert len(queue) == 0
    clock.advance(0.02)
    assert take_all(queue) == ["a"]
    clock.advance(100)
    assert take_all(queue) == [], "two delayed adds are one"


def test_an_add_now_is_handed_out_now_although_one_is_delayed(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add_after("a", 10)
    queue.add("a")
    assert take_all(queue) == ["a"]
    clock.advance(10)
    assert take_all(queue) == ["a"]


def test_no_delay_is_now(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 0)
    queue.add_after("b", -1)
    assert take_all(queue) == ["a", "b"]


def test_failures_double_the_delay_up_to_the_cap_and_are_forgotten(queue: WorkQueue[str]) -> None:
    delays = [queue.add_rate_limited("a") for _ in range(100)]
    assert delays[:4] == [0.005, 0.01, 0.02, 0.04]
    assert max(delays) == delays[-1] == 1000.0
    assert queue.add_rate_limited("b") == 0.005, "each key by itself"
    assert queue.failures("a") == 100
    queue.forget("a")
    assert queue.failures("a") == 0
    assert queue.add_rate_limited("a") == 0.005


def test_the_bucket_bounds_all_together(clock: FakeClock) -> None:
    bucket = TokenBucket(rate=10, burst=5, now=clock.monotonic())
    queue: WorkQueue[int] = WorkQueue(clock=clock.monotonic, bucket=bucket)
    delays = [queue.add_rate_limited(key) for key in range(10)]
    assert delays[:5] == [0.005] * 5
    assert delays[5:] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.mark.fault("K44")
def test_what_a_user_changed_overtakes_a_resync(queue: WorkQueue[str]) -> None:
    for number in range(5000):
        queue.add(f"old-{number}", Priority.RESYNC)
    queue.add("edited")
    queue.add("old-4000")
    assert [queue.get(), queue.get(), queue.get()] == ["edited", "old-4000", "old-0"]


def test_a_lower_priority_does_not_push_back_what_waits(queue: WorkQueue[str]) -> None:
    queue.add("x", Priority.RESYNC)
    queue.add("a")
    queue.add("a", Priority.RESYNC)
    assert queue.get() == "a"
    queue.add("a", Priority.RESYNC)
    queue.add("a")
    queue.done("a")
    assert queue.get() == "a", "the higher of both is kept while it is being worked on"


def test_a_change_storm_does_not_starve_the_resync(queue: WorkQueue[str]) -> None:
    queue.add("resync", Priority.RESYNC)
    taken = []
    for number in range(2 * FAIR_SHARE):
        queue.add(f"change-{number}")
        queue.add(f"change-{number}-b")
        taken.append(queue.get())
        queue.done(taken[-1])
    assert taken.index("resync") == FAIR_SHARE - 1


@pytest.mark.report("M65")
def test_get_after_shut_down_hands_out_what_is_left_and_then_ends(queue: WorkQueue[str]) -> None:
    queue.add("left")
    queue.add_after("delayed", 5)
    queue.shut_down()
    queue.add("late")
    queue.add_after("late", 1)
    queue.add_rate_limited("late")
    assert queue.get() == "left"
    with pytest.raises(QueueShutDown):
        queue.get()


@pytest.mark.report("M65")
def test_done_without_get_is_an_error_and_adds_nothing(queue: WorkQueue[str]) -> None:
    queue.add("a")
    for key in ("a", "never"):
        with pytest.raises(ValueError, match="not being worked on"):
            queue.done(key)
    assert len(queue) == 1


@pytest.mark.report("M65")
def test_a_hundred_thousand_keys_that_fail_once_leave_nothing(clock: FakeClock) -> None:
    queue: WorkQueue[int] = WorkQueue(clock=clock.monotonic)
    for key in range(100_000):
        queue.add(key)
    for _ in range(100_000):
        key = queue.get()
        queue.add_rate_limited(key)
        queue.done(key)
    clock.advance(1)
    for _ in range(100_000):
        key = queue.get()
        queue.forget(key)
        queue.done(key)
    assert set(queue.sizes().values()) == {0}


def test_ever_earlier_delays_do_not_fill_the_heap(queue: WorkQueue[str]) -> None:
    for number in range(10_000):
        queue.add_after("a", 10_000 - number)
    assert queue.sizes()["heap"] < 100
    assert queue.sizes()["delayed"] == 1


def test_metrics_see_every_step(clock: FakeClock) -> None:
    seen: list[tuple[str, float]] = []

    class Metrics:
        def depth(self, waiting: int) -> None:
            seen.append(("depth", waiting))

        def added(self) -> None:
            seen.append(("added", 1))

        def retried(self) -> None:
            seen.append(("retried", 1))

        def waited(self, seconds: float) -> None:
            seen.append(("waited", round(seconds, 3)))

        def worked(self, seconds: float) -> None:
            seen.append(("worked", round(seconds, 3)))

    queue: WorkQueue[str] = WorkQueue(clock=clock.monotonic, metrics=Metrics())
    queue.add("a")
    clock.advance(2)
    queue.get()
    clock.advance(3)
    assert queue.longest_work() == pytest.approx(3)
    queue.add_rate_limited("a")
    queue.done("a")
    assert seen == [("added", 1), ("depth", 1), ("waited", 2), ("depth", 0), ("retried", 1), ("worked", 3)]
    assert queue.longest_work() == 0


def test_get_wakes_up_for_a_delayed_key_and_for_an_earlier_one() -> None:
    queue: WorkQueue[str] = WorkQueue()
    taken: list[str] = []
    thread = threading.Thread(target=lambda: taken.append(queue.get()), name="edl-test-get")
    queue.add_after("late", 60)
    thread.start()
    queue.add_after("soon", 0.05)
    thread.join(5)
    assert taken == ["soon"]


def test_get_gives_up_at_its_timeout(queue: WorkQueue[str]) -> None:
    real: WorkQueue[str] = WorkQueue()
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        real.get(timeout=0.05)
    assert 0.05 <= time.monotonic() - started < 2


@pytest.mark.fault("K31")
def test_ten_workers_and_a_hundred_thousand_adds() -> None:
    """Never the same key twice at once; every key's last add is followed by a pass; all workers end."""
    queue: WorkQueue[int] = WorkQueue()
    keys, adds, workers = 97, 100_000, 10
    lock = threading.Lock()
    at_once: Counter[int] = Counter()
    twice: list[int] = []
    added = [0] * keys
    seen = [0] * keys

    def work() -> None:
        while True:
            try:
                key = queue.get()
            except QueueShutDown:
                return
            with lock:
                at_once[key] += 1
                if at_once[key] > 1:
                    twice.append(key)
            seen[key] = added[key]
            with lock:
                at_once[key] -= 1
            queue.done(key)

    threads = [threading.Thread(target=work, name=f"edl-test-worker-{n}") for n in range(workers)]
    for thread in threads:
        thread.start()

    def add(share: int) -> None:
        for number in range(share, adds, 4):
            key = number % keys
            with lock:
                added[key] += 1
            if number % 50 == 0:
                queue.add_after(key, 0.001)
            else:
                queue.add(key, Priority(number % 2))

    adders = [threading.Thread(target=add, args=(n,), name=f"edl-test-adder-{n}") for n in range(4)]
    for thread in adders:
        thread.start()
    for thread in adders:
        thread.join(60)
    eventually(lambda: set(queue.sizes().values()) == {0}, 20, "everything worked off")
    started = time.monotonic()
    assert queue.shut_down_with_drain(5)
    for thread in threads:
        thread.join(5)
    assert not any(thread.is_alive() for thread in threads)
    assert time.monotonic() - started < 5
    assert twice == []
    assert seen == added


@pytest.mark.fault("K31")
def test_drain_waits_for_what_is_in_work_and_gives_up_in_time() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    assert not queue.shut_down_with_drain(0.05)
    result: list[bool] = []
    thread = threading.Thread(target=lambda: result.append(queue.shut_down_with_drain(20)), name="edl-test-drain")
    thread.start()
    queue.done("a")
    assert queue.get() == "a", "its second pass is worked off too"
    queue.done("a")
    thread.join(10)
    assert result == [True]


class QueueModel(RuleBasedStateMachine):
    """The queue beside a slow, obvious model of it (one priority: order is first come, first served)."""

    keys = st.sampled_from("abcde")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.queue: WorkQueue[str] = WorkQueue(clock=self.clock.monotonic, back_off=ItemBackOff(1.0, 8.0))
        self.waiting: deque[str] = deque()
        self.working: set[str] = set()
        self.again: list[str] = []
        self.due: dict[str, float] = {}
        self.failures: Counter[str] = Counter()
        self.now = 0.0

    def _add(self, key: str) -> None:
        if key in self.working:
            if key not in self.again:
                self.again.append(key)
        elif key not in self.waiting:
            self.waiting.append(key)

    def _delay(self, key: str, seconds: float) -> None:
        self.due[key] = min(self.due.get(key, 1e9), self.now + seconds)

    @rule(key=keys)
    def add(self, key: str) -> None:
        self.queue.add(key)
        self._add(key)

    @rule(key=keys, seconds=st.integers(1, 9))
    def add_after(self, key: str, seconds: int) -> None:
        self.queue.add_after(key, seconds)
        self._delay(key, seconds)

    @rule(key=keys)
    def fail(self, key: str) -> None:
        expected = min(8.0, 2.0 ** self.failures[key])
        assert self.queue.add_rate_limited(key) == expected
        self.failures[key] += 1
        self._delay(key, expected)

    @rule(key=keys)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.failures.pop(key, None)

    @rule()
    def one_second_passes(self) -> None:
        """By single seconds: what is due at different times is then handed out in that order."""
        self.clock.advance(1.0000001)
        self.now += 1
        due = sorted((at, key) for key, at in self.due.items() if at <= self.now)
        assert all(at == self.now for at, _ in due)
        ready = [key for _, key in due]
        for key in ready:
            del self.due[key]
        # Of those due in the same second the order is that of their adds, which the model does not keep.
        before = list(self.waiting)
        for key in ready:
            self._add(key)
        self.loose = set(self.waiting) - set(before)
        len(self.queue)
        order = [key for key in self.queue._ready[0] if key in self.loose]
        self.waiting = deque([key for key in self.waiting if key not in self.loose] + order)

    @precondition(lambda self: self.waiting)
    @rule()
    def get(self) -> None:
        key = self.queue.get(timeout=0)
        assert key == self.waiting.popleft()
        assert key not in self.working
        self.working.add(key)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.queue.done(key)
        self.working.discard(key)
        if key in self.again:
            self.again.remove(key)
            self.waiting.append(key)

    @invariant()
    def sizes_agree(self) -> None:
        sizes = self.queue.sizes()
        assert sizes["waiting"] == len(self.waiting) == len(self.queue)
        assert sizes["working"] == len(self.working)
        assert sizes["again"] == len(self.again)
        assert sizes["delayed"] == len(self.due)
        assert sizes["failures"] == len(self.failures)


TestQueueModel = QueueModel.TestCase


def test_a_token_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(rate=1 / 300, burst=25, now=0.0)
    assert [bucket.take(0.0) for _ in range(26)] == [True] * 25 + [False]
    assert not bucket.take(299)
    assert bucket.take(300.1)
    assert not bucket.full(300.1)
    assert bucket.full(300.1 + 25 * 300)
    reserved = TokenBucket(rate=2, burst=1, now=0.0)
    waits = [reserved.reserve(0.0) for _ in range(5)]
    assert all(b - a == pytest.approx(0.5) for a, b in pairwise(waits))


def test_who_was_asked_to_wait_waits_at_least_so_long() -> None:
    now = 0.0
    queue: WorkQueue[str] = WorkQueue("t", clock=lambda: now)
    assert queue.add_rate_limited("a", at_least=7.0) == 7.0
    assert queue.add_rate_limited("b", at_least=0.0) < 1.0
    assert queue.failures("a") == 1


def test_a_key_that_is_not_at_fault_waits_no_longer_than_was_said() -> None:
    queue: WorkQueue[str] = WorkQueue()
    delays = [queue.add_rate_limited("a", at_most=15.0) for _ in range(30)]

    assert delays[0] == 0.005
    assert delays[-1] == 15.0
    assert queue.add_rate_limited("a", at_least=40.0, at_most=15.0) == 40.0, "who was asked to wait longer does"
