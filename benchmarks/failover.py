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
RAW_TIMEOUT, PAUSE = 0.2, 0.01


def run(quick: bool) -> Iterator[Row]:
    """Two rows: the delay, and what became of the sessions."""
    rounds = 5 if quick else 30
    raws, ours, lost = [], [], 0
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
            raw, mine = _one_kill(leader, survivor, clients[number % SESSIONS])
            raws.append(raw)
            ours.append(mine)
            leader.start()
            eventually(lambda: cluster.leader() is not None, 10.0, "a leader")
        lost = len(losses) + sum(
            (client.session.index, client.session.epoch) != (index, epoch)
            for client, index, epoch in zip(clients, held, epochs, strict=True)
        )
        duplicates = SESSIONS - len(set(held))
    pairs = [mine - raw for raw, mine in zip(raws, ours, strict=True)]
    note = (
        f"medians of {rounds} kills; median of the paired differences {statistics.median(pairs):+.2f}, "
        f"worst {max(pairs):+.2f}; ours {min(ours):.2f} to {max(ours):.2f}, raw {min(raws):.2f} to {max(raws):.2f}"
    )
    baseline, subject = statistics.median(raws), statistics.median(ours)
    yield difference(
        NAME, "leader killed: first put that succeeds", "s", baseline, subject, must=0.5, moonshot=0.1, note=note
    )
    note = f"{SESSIONS} sessions of TTL 5 s over {rounds} kills; duplicate indices: {duplicates}"
    yield value(NAME, "leader killed: registrations lost", "", float(lost + duplicates), must=0.0, note=note)


def _one_kill(leader: Member, survivor: Member, client: EtcdClient) -> tuple[float, float]:
    """Seconds from the signal to the first success of each."""
    put = wire.PutRequest(key=b"/bench/raw", value=b"v").SerializeToString()
    ends = {}
    killed = threading.Event()

    def until_success(name: str, attempt: Callable[[], object], errors: type[Exception]) -> None:
        attempt()  # connected and warm before the kill
        ready.release()
        killed.wait()
        while True:
            try:
                attempt()
                break
            except errors:
                time.sleep(PAUSE)
        ends[name] = time.monotonic()

    ready = threading.Semaphore(0)
    with grpc.insecure_channel(survivor.endpoint) as channel:
        send = raw_on_channel(channel, wire.PUT, RAW_TIMEOUT)
        threads = [
            threading.Thread(target=until_success, args=("raw", lambda: send(put), grpc.RpcError)),
            threading.Thread(
                target=until_success, args=("ours", lambda: client.put_key("/bench/ours", b"v"), EdlAgentError)
            ),
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            ready.acquire()
        start = time.monotonic()
        leader.kill()
        killed.set()
        for thread in threads:
            thread.join()
    return ends["raw"] - start, ends["ours"] - start
