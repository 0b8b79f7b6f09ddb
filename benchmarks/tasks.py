"""Tasks taken and finished per second, against raw transactions (one comparison, one put of the same size) through the
same channel from the same number of threads."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks.ground import RawCall, at_once, connection_of, etcd_in_memory, raw_calls, say
from benchmarks.table import Row, ratio
from edl_agent import EtcdClient
from edl_agent.etcd import wire
from edl_agent.tasks import Task, TaskQueue

NAME = "tasks"
LIMITS = {"must": 0.3, "moonshot": 0.6, "higher_is_better": True}
CASES = ((20_000, 1), (2_000, 1), (20_000, 8))
"""Tasks in the data set (of 20,000 a trainer takes 10 at a time, of 2,000 one), and trainers."""


def run(quick: bool) -> Iterator[Row]:
    """One row per case."""
    rounds, seconds = (1, 0.3) if quick else (7, 1.5)
    for tasks, trainers in CASES:
        with etcd_in_memory() as etcd, ExitStack() as stack:
            clients = [stack.enter_context(EtcdClient(etcd.client_url)) for _ in range(trainers)]
            for client in clients:
                client.open(timeout=10)
            queues = [TaskQueue(client, f"bench-{number}") for number, client in enumerate(clients)]
            queues[0].set_dataset(tasks, passes=1_000_000)
            raws = [raw_calls(connection_of(client), wire.TXN) for client in clients]
            what = f"take + finish of {tasks:,} tasks, {trainers} trainer{'s' * (trainers > 1)}"
            say(f"{what}: {rounds} interleaved pairs of {seconds} s")
            blocks = [
                (
                    _rate([_raw(raw, number) for number, raw in enumerate(raws)], seconds),
                    _rate([_task(queue) for queue in queues], seconds),
                )
                for _ in range(rounds)
            ]
            raw, ours = (statistics.median(block[side] for block in blocks) for side in (0, 1))
            note = f"median of {rounds} blocks, alternating; baseline: raw transactions"
            yield ratio(NAME, what, "1/s", raw, ours, note=note, **LIMITS)


def _raw(call: RawCall, number: int) -> Callable[[], object]:
    key = b"/bench/%d" % number
    request = wire.TxnRequest(
        compare=[wire.Compare(result="GREATER", target="MOD", key=key, mod_revision=-1)],
        success=[wire.RequestOp(request_put=wire.PutRequest(key=key, value=b'{"v":1,"tried":5,"open":1}'))],
    ).SerializeToString()
    return lambda: call(request)


def _task(queue: TaskQueue) -> Callable[[], object]:
    def once() -> None:
        task = queue.get_task(10)
        assert isinstance(task, Task)
        queue.finish(task)

    return once


def _rate(calls: list[Callable[[], object]], seconds: float) -> float:
    done = [0] * len(calls)
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        while time.perf_counter() < end:
            calls[number]()
            done[number] += 1

    wall = at_once([lambda number=number: work(number) for number in range(len(calls))])  # type: ignore[misc]
    return sum(done) / wall
