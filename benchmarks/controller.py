"""The controller on `cluster/local`: from submit to all children, many jobs at once, a resync with nothing to do."""

import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from benchmarks.ground import etcd_in_memory, say
from benchmarks.table import Row, ratio, value
from edl_agent.etcd import kv as parts
from edl_agent.etcd import wire
from edl_agent.etcd.kv import Kv
from edl_controller.api.kinds import JOBS, PODS, REPLICA_SETS, TRAINING_JOBS
from edl_controller.api.v1 import TrainingJob
from edl_controller.cluster.local import LocalCluster
from edl_controller.controller import Controller
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.semantics.new_pod import new_pod
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.reflector import Delta

NAME = "controller"
NS = "default"
READY = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


def run(quick: bool) -> Iterator[Row]:
    """One row for a single job, two for many, two for the resync."""
    yield _one_at_a_time(5 if quick else 60)
    yield from _many(*((5, 10) if quick else (250, 500)))
    yield from _resync(50 if quick else 5_000)


def _job(name: str) -> TrainingJob:
    body = {
        "image": "example.com/digits:1",
        "fault_tolerant": True,
        "trainer": {"entrypoint": "python t.py", "min-instance": 1, "max-instance": 4},
        "pserver": {"entrypoint": "python p.py", "min-instance": 1},
    }
    return TRAINING_JOBS.from_json({"metadata": {"name": name, "namespace": NS}, "spec": body})


class _Ground:
    """A controller on a local cluster of its own; pservers are ready at once, nothing else is played."""

    def __init__(self, stack: ExitStack, workers: int = 4) -> None:
        self.etcd = stack.enter_context(etcd_in_memory())
        self.cluster = stack.enter_context(LocalCluster(self.etcd.client_url, prefix="/bench"))
        # No agents take part: that they are silent is no news here, and is not to be written about.
        settings = JobSettings(etcd_endpoints=(self.etcd.client_url,), agents_stale=1e6)
        self.controller = Controller(self.cluster, settings=settings, autoscale=False, workers=workers, resync=0)
        self.children = threading.Semaphore(0)
        player = Informers(self.cluster, resync=0)
        player.of(REPLICA_SETS).add_handler(self._play)
        player.of(JOBS).add_handler(lambda delta: self.children.release() if delta.type == "added" else None)
        stack.enter_context(_running(player.run))
        stack.enter_context(_running(self.controller.run))
        _wait(lambda: self.controller.ready and player.has_synced)

    def _play(self, delta: Delta[Any]) -> None:
        if delta.type == "added":
            replica_set = delta.obj
            pod = self.cluster.create(new_pod(REPLICA_SETS, replica_set.metadata, replica_set.spec.template))
            self.cluster.patch(PODS, NS, pod.metadata.name, READY, subresource="status")

    def idle(self) -> bool:
        sizes = self.controller.queue.sizes()
        return not (sizes["waiting"] or sizes["working"] or sizes["again"])


@contextmanager
def _running(work: Callable[[threading.Event], None]) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def _wait(condition: Callable[[], object], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come to rest"
        time.sleep(0.005)


def _one_at_a_time(count: int) -> Row:
    """Submit one job after the other; the writes that it took are then made once more, raw."""
    with ExitStack() as stack:
        ground = _Ground(stack)
        ours, raw, writes = [], [], []
        kv = Kv(ground.cluster._connection)
        for number in range(count):
            revision = _revision(kv)
            begin = time.perf_counter()
            ground.cluster.create(_job(f"tj-{number}"))
            assert ground.children.acquire(timeout=30)
            ours.append(time.perf_counter() - begin)
            _wait(ground.idle)
            puts = _puts(ground, kv, revision)
            writes.append(len(puts))
            begin = time.perf_counter()
            for put in puts:
                kv.txn([], [parts.put_op(b"/raw" + put[0], put[1])], [], time.monotonic() + 5)
            raw.append(time.perf_counter() - begin)
    note = f"median of {count}; {median(writes):.0f} writes, one after the other, over the same connection"
    return ratio(
        NAME,
        "from submit to all children",
        "ms",
        1e3 * median(raw),
        1e3 * median(ours),
        must=3.0,
        moonshot=1.5,
        note=note,
    )


def _revision(kv: Kv) -> int:
    return kv.range(b"/bench", b"", time.monotonic() + 5)[1]


def _puts(ground: _Ground, kv: Kv, after: int) -> list[tuple[bytes, bytes]]:
    """The writes of one job up to its last child, with their sizes; what came after that is left out."""
    found = []
    deadline = time.monotonic() + 5
    for revision in range(after + 1, _revision(kv) + 1):
        request = wire.RangeRequest(key=b"/bench/", range_end=b"/bench0", revision=revision, min_mod_revision=revision)
        found += [(pair.key, pair.value) for pair in kv._connection.call(wire.RANGE, request, deadline).kvs]
        if found and found[-1][0].startswith(b"/bench/jobs/"):
            break
    return found


def _many(half: int, all_of_them: int) -> Iterator[Row]:
    seconds, memory = {}, {}
    for count in (half, all_of_them):
        with ExitStack() as stack:
            ground = _Ground(stack)
            before, begin = _rss(), time.perf_counter()
            for number in range(count):
                ground.cluster.create(_job(f"tj-{number}"))
            for _ in range(count):
                assert ground.children.acquire(timeout=300)
            _wait(ground.idle)
            seconds[count], memory[count] = time.perf_counter() - begin, _rss() - before
            say(f"{count} jobs: {seconds[count]:.1f} s, {memory[count] / 2**20:.1f} MiB")
    note = f"half as many: {seconds[half]:.3g} s; memory {memory[all_of_them] / 2**20:.0f} MiB"
    what = f"{all_of_them} jobs to all children"
    yield ratio(NAME, f"{what}, to half as many", "s", seconds[half], seconds[all_of_them], must=2.3, note=note)
    yield value(NAME, what, "jobs/s", all_of_them / seconds[all_of_them], note="one client submits them")


def _rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _resync(count: int) -> Iterator[Row]:
    with ExitStack() as stack:
        ground = _Ground(stack)
        say(f"{count} jobs are made first")
        for number in range(count):
            ground.cluster.create(_job(f"tj-{number}"))
        for _ in range(count):
            assert ground.children.acquire(timeout=600)
        kv = Kv(ground.cluster._connection)
        # Nothing is written any more: also the agents' etcd has been looked at for each of them.
        quiet, since = _revision(kv), time.monotonic()
        while time.monotonic() - since < 3.0:
            time.sleep(0.2)
            if (now := _revision(kv)) != quiet:
                quiet, since = now, time.monotonic()
        _wait(ground.idle)
        ground.controller.agents.close()  # its looks are not the resync's
        begin, wall = time.process_time(), time.perf_counter()
        for number in range(count):
            ground.controller._on_job(_routine(ground, number))
        _wait(ground.idle)
        passes, wall = time.process_time() - begin, time.perf_counter() - wall
        begin = time.process_time()
        for informer in ground.controller.informers.all():
            for reflector in informer._reflectors:
                reflector._list(resync=True)
        _wait(ground.idle)
        whole = time.process_time() - begin
        written = _revision(kv) - quiet
    assert written == 0, f"{written} writes in a resync of unchanged jobs"
    note = f"no write; {wall:.2g} s by the clock"
    yield value(NAME, f"looking at {count:,} unchanged jobs", "s of CPU", passes, must=1.0, moonshot=0.3, note=note)
    note = "lists of jobs, children and pods anew, with reading them"
    yield value(NAME, f"a whole resync of {count:,} unchanged jobs", "s of CPU", whole, note=note)


def _routine(ground: _Ground, number: int) -> Delta[TrainingJob]:
    job = ground.controller._jobs.get(NS, f"tj-{number}")
    assert job is not None
    return Delta("updated", job, job, "resync")
