"""get and put, one caller and a hundred, against ready bytes through the same channel from the same kind of threads."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator

from benchmarks.ground import at_once, connection_of, etcd_in_memory, raw_calls, say
from benchmarks.table import Row, ratio
from edl_agent import EtcdClient
from edl_agent.etcd import wire

NAME = "calls"
VALUE = b"v" * 256
CALLERS = 100
Call = Callable[[], object]
LATENCY = {"must": 1.10, "moonshot": 1.03}
THROUGHPUT = {"must": 0.85, "moonshot": 0.95, "higher_is_better": True}


def run(quick: bool) -> Iterator[Row]:
    """Six rows."""
    pairs, rounds, seconds = (200, 1, 0.3) if quick else (3_000, 9, 1.5)
    with etcd_in_memory() as etcd, EtcdClient(etcd.client_url) as client:
        client.put_key("/bench", VALUE, timeout=10.0)
        connection = connection_of(client)
        raw_get, raw_put = raw_calls(connection, wire.RANGE), raw_calls(connection, wire.PUT)
        get = wire.RangeRequest(key=b"/bench").SerializeToString()
        put = wire.PutRequest(key=b"/bench", value=VALUE).SerializeToString()
        works: dict[str, tuple[Call, Call]] = {
            "get": (lambda: raw_get(get), lambda: client.get_key("/bench", timeout=10.0)),
            "put": (lambda: raw_put(put), lambda: client.put_key("/bench", VALUE, timeout=10.0)),
        }
        for name, (raw, ours) in works.items():
            say(f"{name}: one caller, {pairs} interleaved pairs")
            baseline, subject = _alternate(raw, ours, pairs)
            note = f"p50 of {pairs} calls each, alternating"
            yield ratio(NAME, f"{name} of 256 B, one caller", "us", baseline, subject, note=note, **LATENCY)
        for name, (raw, ours) in works.items():
            say(f"{name}: {CALLERS} callers, {rounds} interleaved pairs of {seconds} s")
            blocks = [(_block(raw, seconds), _block(ours, seconds)) for _ in range(rounds)]
            rates = [statistics.median(block[side][0] for block in blocks) for side in (0, 1)]
            p50 = [statistics.median(block[side][1] for block in blocks) for side in (0, 1)]
            note = f"median of {rounds} blocks of {seconds} s each, alternating"
            what = f"{name} of 256 B, {CALLERS} callers"
            yield ratio(NAME, f"{what}: latency", "us", *p50, note=f"p50; {note}", **LATENCY)
            yield ratio(NAME, f"{what}: throughput", "calls/s", *rates, note=note, **THROUGHPUT)


def _alternate(raw: Call, ours: Call, pairs: int) -> tuple[float, float]:
    """p50 in microseconds of both, calls taking turns, who goes first changing."""
    for _ in range(50):
        raw(), ours()
    times: tuple[list[int], list[int]] = ([], [])
    clock = time.perf_counter_ns
    both = ((raw, times[0]), (ours, times[1]))
    for number in range(pairs):
        for call, taken in both if number % 2 else both[::-1]:
            start = clock()
            call()
            taken.append(clock() - start)
    return statistics.median(times[0]) / 1e3, statistics.median(times[1]) / 1e3


def _block(call: Call, seconds: float) -> tuple[float, float]:
    """Calls per second and p50 in microseconds with all callers at work."""
    done: list[list[int]] = [[] for _ in range(CALLERS)]
    stop = threading.Event()

    def caller(taken: list[int]) -> None:
        clock, ended = time.perf_counter_ns, stop.is_set
        while not ended():
            start = clock()
            call()
            taken.append(clock() - start)

    timer = threading.Timer(seconds, stop.set)
    timer.start()
    wall = at_once([lambda taken=taken: caller(taken) for taken in done])  # type: ignore[misc]
    everything = [one for taken in done for one in taken]
    return len(everything) / wall, statistics.median(everything) / 1e3
