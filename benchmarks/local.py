"""Writes and lists of `cluster/local` against the same bytes sent raw to etcd, in one process, one after the other."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import msgspec

from benchmarks.ground import etcd_in_memory, say
from benchmarks.table import Row, ratio
from edl_agent.etcd import kv as parts
from edl_agent.etcd.kv import Kv
from edl_controller.api.kinds import PODS
from edl_controller.api.meta import ObjectMeta
from edl_controller.api.pods import Pod
from edl_controller.cluster.local import LocalCluster

NAME = "local"
NS = "default"
LATENCY = {"must": 3.0, "moonshot": 1.5}


def run(quick: bool) -> Iterator[Row]:
    """Three rows: create, patch of a status, list."""
    pairs, many = (50, 200) if quick else (2_000, 5_000)
    with etcd_in_memory() as etcd, LocalCluster(etcd.client_url, prefix="/bench") as cluster:
        kv = Kv(cluster._connection)
        note = f"p50 of {pairs} pods, alternating"
        say(f"create and patch: {pairs} interleaved pairs each")
        yield ratio(NAME, "create a pod, to its transaction", "us", *_create(cluster, kv, pairs), note=note, **LATENCY)
        what = "patch the status of a pod, to a read and its transaction"
        yield ratio(NAME, what, "us", *_patch(cluster, kv, pairs), note=note, **LATENCY)
        say(f"list of {many} pods")
        note = "median of 5, alternating; the raw read decodes nothing"
        yield ratio(NAME, f"list {many:,} pods, to raw pages", "ms", *_list(cluster, kv, many), note=note)


def _create(cluster: LocalCluster, kv: Kv, pairs: int) -> tuple[float, float]:
    numbers = itertools.count()

    def raw() -> None:
        key = f"/raw/{next(numbers)}".encode()
        assert kv.txn([parts.absent(key)], [parts.put_op(key, stored)], [], _deadline()).succeeded

    stored = PODS.encode(cluster.create(_pod("as-it-is-stored")))
    raw_times, ours = _alternate(raw, lambda: cluster.create(_pod(f"a-{next(numbers)}")), pairs)
    return raw_times * 1e6, ours * 1e6


def _patch(cluster: LocalCluster, kv: Kv, pairs: int) -> tuple[float, float]:
    numbers = itertools.count()

    def raw() -> None:
        found, _ = kv.range(key, b"", _deadline())
        put = parts.put_op(key, found[0].value)
        assert kv.txn([parts.modified_at(key, found[0].mod_revision)], [put], [], _deadline()).succeeded

    cluster.create(_pod("b"))
    key = b"/raw/b"
    kv.put(key, PODS.encode(cluster.get(PODS, NS, "b")), _deadline())

    def ours() -> None:
        patch = {"status": {"phase": "Running", "message": f"turn {next(numbers)}"}}
        cluster.patch(PODS, NS, "b", patch, subresource="status")

    raw_times, our_times = _alternate(raw, ours, pairs)
    return raw_times * 1e6, our_times * 1e6


def _list(cluster: LocalCluster, kv: Kv, many: int) -> tuple[float, float]:
    for number in range(many - len(cluster.list(PODS, NS).items)):
        cluster.create(_pod(f"c-{number}"))
    start, end = cluster._keys.range(PODS, NS)
    found = _alternate(lambda: list(kv.pages(start, end, _deadline())), lambda: cluster.list(PODS, NS), 5, warm=1)
    return found[0] * 1e3, found[1] * 1e3


def _alternate(
    raw: Callable[[], object], ours: Callable[[], object], pairs: int, warm: int = 20
) -> tuple[float, float]:
    """p50 in seconds of both, taking turns, who goes first changing."""
    for _ in range(warm):
        raw(), ours()
    times: tuple[list[float], list[float]] = ([], [])
    both = ((raw, times[0]), (ours, times[1]))
    for number in range(pairs):
        for call, taken in both if number % 2 else both[::-1]:
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def _pod(name: str) -> Pod:
    """A trainer's pod, as large as they are."""
    env = [{"name": f"EDL_VARIABLE_{number}", "value": f"value-{number}"} for number in range(25)]
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    container = {"name": "trainer", "image": "example.com/digits:1", "env": env, "resources": resources}
    pod = PODS.from_json({"spec": {"containers": [container], "restartPolicy": "Never"}})
    return msgspec.structs.replace(pod, metadata=ObjectMeta(name=name, namespace=NS, labels={"job": "digits"}))


def _deadline() -> float:
    return time.monotonic() + 10.0
