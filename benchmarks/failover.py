"""etcd's leader is killed: time to the first put that succeeds, beside a raw client on a survivor, on the same kill."""

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from benchmarks.ground import raw_on_channel, say
from benchmarks.table import Row, difference, value
from edl_agent import EdlAgentError, EtcdClient
from edl_agent.etcd import wire
from tests.bench.etcd_cluster import EtcdCluster, Member
from tests.bench.waiting import eventually

NAME = "failover"
SESSIONS = 3
HASTE, PAUSE = 0.2, 0.01
"""Seconds that one put may take, and between two. A put lost with the leader is noticed only when its time is over, so
both sides are given the same; what the product's own default of 1 s makes of it is a row of its own."""


def run(quick: bool) -> Iterator[Row]:
    """The delay with equal haste, with the default timeout, and what became of the sessions."""
    rounds = 5 if quick else 30
    seconds: dict[str, list[float]] = {"raw": [], "ours": [], "default": []}
    with EtcdCluster(3) as cluster, contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(EtcdClient(cluster.endpoints, SESSIONS, ttl=5.0, host="127.0.0.1"))
            for _ in range(SESSIONS)
        ]
        held = [client.register(7000 + number, timeout=30.0) for number, client in enumerate(clients)]
        epochs = [client.session.epoch for client in clients]
        losses: list[object] = []
        for client in clients:
            client.on_lost(lambda *loss: losses.append(loss))
        for number in range(rounds):
            leader = cluster.members[cluster.leader()]
            survivor = next(member for member in cluster.members if member is not leader)
            say(f"kill {number + 1} of {rounds}")
            hasty, patient = clients[number % SESSIONS], clients[(number + 1) % SESSIONS]
            for name, one in _one_kill(leader, survivor, hasty, patient).items():
                seconds[name].append(one)
            leader.start()
            eventually(lambda: cluster.leader() is not None, 10.0, "a leader")
        changed = sum(
            (client.session.index, client.session.epoch) != (index, epoch)
            for client, index, epoch in zip(clients, held, epochs, strict=True)
        )
        duplicates = SESSIONS - len({client.session.index for client in clients})
    for name, what, limits in (
        ("ours", f"time limit {HASTE} s a put", {"must": 0.5, "moonshot": 0.1}),
        ("default", "default time limit of 1 s", {}),
    ):
        yield _row(f"leader killed: first put that succeeds, {what}", seconds["raw"], seconds[name], rounds, limits)
    note = f"{SESSIONS} sessions of TTL 5 s over {rounds} kills; losses, changed epochs and duplicate indices"
    failures = float(max(len(losses), changed) + duplicates)
    yield value(NAME, "leader killed: registrations lost or doubled", "", failures, must=0.0, note=note)


def _row(what: str, raw: list[float], ours: list[float], rounds: int, limits: dict[str, float]) -> Row:
    pairs = [mine - floor for floor, mine in zip(raw, ours, strict=True)]
    note = (
        f"medians of {rounds} kills; of the paired differences: median {statistics.median(pairs):+.2f}, "
        f"worst {max(pairs):+.2f}; ours {min(ours):.2f} to {max(ours):.2f}, raw {min(raw):.2f} to {max(raw):.2f}"
    )
    return difference(NAME, what, "s", statistics.median(raw), statistics.median(ours), note=note, **limits)


def _one_kill(leader: Member, survivor: Member, hasty: EtcdClient, patient: EtcdClient) -> dict[str, float]:
    """Seconds from the signal to the first success of each."""
    put = wire.PutRequest(key=b"/bench/raw", value=b"v").SerializeToString()
    ends: dict[str, float] = {}
    killed = threading.Event()
    ready = threading.Semaphore(0)

    def until_success(name: str, attempt: Callable[[], object]) -> None:
        attempt()  # connected and warm before the kill
        ready.release()
        killed.wait()
        while True:
            try:
                attempt()
                break
            except (grpc.RpcError, EdlAgentError):
                time.sleep(PAUSE)
        ends[name] = time.monotonic()

    with grpc.insecure_channel(survivor.endpoint) as channel:
        send = raw_on_channel(channel, wire.PUT, HASTE)
        works: dict[str, Callable[[], object]] = {
            "raw": lambda: send(put),
            "ours": lambda: hasty.put_key("/bench/ours", b"v", timeout=HASTE),
            "default": lambda: patient.put_key("/bench/default", b"v"),
        }
        threads = [threading.Thread(target=until_success, args=work) for work in works.items()]
        for thread in threads:
            thread.start()
        for _ in threads:
            ready.acquire()
        start = time.monotonic()
        leader.kill()
        killed.set()
        for thread in threads:
            thread.join()
    return {name: end - start for name, end in ends.items()}
