"""The client in programs with threads, forks, hooks that misbehave, and an end that comes at any moment."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from edl_agent import (
    ClientClosed,
    DeadlineExceeded,
    EdlAgentError,
    EtcdClient,
    LeaseLost,
    SessionState,
    Slot,
    UnknownOutcome,
)
from edl_agent.testing import spawn_bound_to_parent
from tests.bench.agent_process import ROOT
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never, resource_counts
from tests.conftest import SharedEtcd
from tests.etcd.client_room import Pserver, Room, side_by_side
from tests.etcd.slot_table import SlotTable


@pytest.fixture
def table(etcd: SharedEtcd, prefix: str) -> SlotTable:
    return SlotTable(etcd.client_url, prefix)


@pytest.fixture
def room(etcd: SharedEtcd, prefix: str, etcd_proxy: EtcdProxy, proxy: TcpProxy) -> Iterator[Room]:
    # The proxies are named here so that they outlive the clients: their shutdown needs the way to etcd.
    with Room(etcd.client_url, prefix) as room:
        yield room


# -- forks ---------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.fault("A39")
@pytest.mark.report("M04")
@pytest.mark.report("M11")
@pytest.mark.parametrize("rounds", [8, pytest.param(400, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
def test_forked_workers_cannot_use_and_cannot_hurt_the_parents_client(
    etcd: SharedEtcd, prefix: str, table: SlotTable, rounds: int
) -> None:
    """The data-loader pattern; 400 rounds are a minute of forking. A client of the child's own is refused as well: gRPC
    crashed one such child in 1,600 with the newest version, and the parent with older ones.
    """
    with spawn_bound_to_parent(
        [sys.executable, "-m", "tests.etcd.forking_trainer", etcd.client_url, prefix, "7000", str(rounds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as trainer:
        out, err = trainer.communicate(timeout=60 + rounds)
    assert trainer.returncode == 0, err[-4000:]
    told = json.loads(out)
    assert told["codes"] == [0] * (5 * rounds), err[-4000:]
    assert told["slowest"] < 10, "no hang"
    assert len(told["seen"]) == 4 * rounds
    for seen in told["seen"]:
        assert set(seen.values()) == {told["expected"]}, seen
    assert told["same"], "the parent has the same slot, lease and epoch"
    assert told["value"] == "parent"
    assert table.value("/k") == "parent again"
    assert table.read() == {}, "and has released it"


# -- threads -------------------------------------------------------------------------------------------------------


@pytest.mark.report("M04")
@pytest.mark.parametrize("calls", [40, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
def test_thirty_two_threads_share_one_client(room: Room, calls: int) -> None:
    one = room.pserver(7000, num_pservers=1)
    one.register()
    client = one.client

    def mixed(number: int) -> None:
        key, mine = f"/mixed/{number}", b""
        draw = random.Random(number)
        for count in range(calls):
            value = b"%d-%d" % (number, count)
            match draw.randrange(5):
                case 0:
                    client.put_key(key, value, timeout=30)
                    mine = value
                case 1:
                    assert (client.get_key(key, timeout=30) or b"") == mine
                case 2:
                    expected = mine or None
                    assert client.compare_and_set(key, value, expected=expected, timeout=30)
                    assert not client.compare_and_set(key, b"no", expected=b"never", timeout=30)
                    mine = value
                case 3:
                    pairs = {pair.key: pair.value for pair in client.get_prefix(key, timeout=30)}
                    assert pairs.get(key.encode(), b"") == mine
                case _:
                    assert client.delete_key(key, timeout=30) == bool(mine)
                    mine = b""

    results = side_by_side([partial(mixed, number) for number in range(32)], 60 + calls)
    assert results == [None] * 32
    assert one.losses == []
    assert one.index == 0


@pytest.mark.report("M13")
def test_shutdown_while_fifty_threads_read(room: Room, table: SlotTable) -> None:
    table.put("/k", "v")
    one = room.pserver(7000, num_pservers=1)
    one.register()
    errors: list[BaseException] = []
    reads = [0] * 50

    def read(place: int) -> None:
        try:
            while True:
                assert one.client.get_key("/k", timeout=5) == b"v"
                reads[place] += 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(place,), name=f"reader-{place}") for place in range(50)]
    for thread in threads:
        thread.start()
    eventually(lambda: all(reads), 10, "every thread has read")
    begun = time.monotonic()
    one.client.shutdown()
    assert time.monotonic() - begun < 3
    for thread in threads:
        thread.join(5)
    assert not any(thread.is_alive() for thread in threads), "nothing hangs"
    assert {type(error) for error in errors} == {ClientClosed}, set(map(repr, errors))
    assert table.read() == {}


@pytest.mark.report("M13")
def test_watch_carries_the_token(
    etcd_factory: Callable[..., EtcdCluster], etcd_proxy_factory: Callable[[str], EtcdProxy], prefix: str
) -> None:
    cluster = etcd_factory(auth_token=("simple", 60))
    cluster.enable_auth("agent", "agent-secret", prefix=prefix)
    way = etcd_proxy_factory(cluster.members[0].client_url)
    with EtcdClient(
        way.endpoint, 1, prefix=prefix, user="agent", password="agent-secret", unsafe_plaintext_password=True, ttl=3
    ) as client:
        client.register(7000, host="127.0.0.1", timeout=10)
        with client.watch_prefix("/w/") as watch:
            seen: list[bytes] = []
            reader = threading.Thread(target=lambda: seen.extend(event.value for event in watch), name="watch-reader")
            reader.start()
            client.put_key("/w/a", b"1", timeout=5)
            eventually(lambda: seen == [b"1"], 5, "the event")
        reader.join(5)
        assert not reader.is_alive()
        eventually(lambda: way.count("LeaseKeepAlive"), 5, "a renewal")
        for name in ("Watch", "LeaseKeepAlive", "LeaseGrant", "Txn", "Put", "Range"):
            assert all(call.metadata.get("token") for call in way.calls(name)), name
            assert way.count(name), name


# -- reading a slot that is not there ------------------------------------------------------------------------------


@pytest.mark.report("M30")
def test_reader_of_an_empty_slot(
    room: Room, table: SlotTable, proxy: TcpProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="edl_agent")
    client = room.pserver(7001).client
    assert client.get_key("/ps/0") is None
    # Waiting for it is a watch, and giving up is not an error.
    with client.watch_prefix("/ps/0") as watch:
        assert watch.snapshot == ()
        got: list[Any] = []

        def follow() -> None:
            try:
                got.extend(watch)
                got.append("end")
            except Exception as error:
                got.append(error)

        reader = threading.Thread(target=follow, name="follower")
        reader.start()
        never(lambda: got, 0.3, "news of an empty slot")
        watch.cancel()
        reader.join(2)
    assert got == ["end"]
    # And what is waited for does come.
    with client.watch_prefix("/ps/0") as watch:
        holder = room.pserver(7000, num_pservers=1)
        holder.register()
        event = next(iter(watch))
        assert (event.key, event.value) == (b"/ps/0", b"127.0.0.1:7000")
    # A read without an answer has a typed end at its own time.
    cut_off = room.pserver(7002, endpoints=proxy.endpoint).client
    assert cut_off.get_key("/ps/1", timeout=5) is None
    proxy.black_hole()
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        cut_off.get_key("/ps/0", timeout=0.4)
    assert time.monotonic() - begun < 1
    proxy.pass_all()
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == [], caplog.text


# -- the keepalive thread ------------------------------------------------------------------------------------------


def _keeper_thread(client: EtcdClient) -> threading.Thread:
    return client._keeper.thread


@pytest.mark.fault("A40")
@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), MemoryError(), SystemExit(1), KeyError("bug")])
def test_keepalive_thread_outlives_unexpected_errors(
    room: Room, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    ttl = 3
    one = room.pserver(7000, num_pservers=1, ttl=ttl)
    one.register()
    lease, epoch = one.client.session.lease_id, one.client.session.epoch
    keep_alive = one.client._leases.keep_alive
    raised: list[float] = []

    def broken(*args: Any, **options: Any) -> float:
        if len(raised) < 3:
            raised.append(time.monotonic())
            raise error
        return keep_alive(*args, **options)

    monkeypatch.setattr(one.client._leases, "keep_alive", broken)
    eventually(lambda: len(raised) == 3, ttl, "three failures in a row")
    before = one.client.session.deadline or 0
    eventually(lambda: (one.client.session.deadline or 0) > before, ttl, "the lease is renewed again")
    assert (one.client.session.lease_id, one.client.session.epoch, one.losses) == (lease, epoch, [])
    assert _keeper_thread(one.client).is_alive()
    assert raised[-1] - raised[0] < ttl / 3, "tried again at once"
    assert raised[-1] - raised[0] > 0.1, "but not in a hot loop"


@pytest.mark.fault("A40")
def test_keepalive_thread_outlives_errors_in_its_own_logging(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    ttl = 3
    one = room.pserver(7000, num_pservers=1, ttl=ttl)
    one.register()
    lease = one.client.session.lease_id
    keep_alive = one.client._leases.keep_alive
    told: list[logging.LogRecord] = []

    def broken(*args: Any, **options: Any) -> float:
        if len(told) < 2:
            raise MemoryError
        return keep_alive(*args, **options)

    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record)
            raise MemoryError

        def handle(self, record: logging.LogRecord) -> bool:
            self.emit(record)
            return True

    handler = Full(logging.ERROR)
    logging.getLogger("edl_agent.keeper").addHandler(handler)
    monkeypatch.setattr(one.client._leases, "keep_alive", broken)
    try:
        eventually(lambda: len(told) >= 2, ttl, "the log fails, too")
    finally:
        logging.getLogger("edl_agent.keeper").removeHandler(handler)
    before = one.client.session.deadline or 0
    eventually(lambda: (one.client.session.deadline or 0) > before, ttl, "the lease is renewed again")
    assert (one.client.session.lease_id, one.losses) == (lease, [])


@pytest.mark.fault("A41")
@pytest.mark.report("M03")
@pytest.mark.parametrize("leases", [3, pytest.param(10, marks=pytest.mark.soak)])
def test_lease_is_kept_while_hooks_block_and_raise_and_the_program_sleeps(
    room: Room, table: SlotTable, caplog: pytest.LogCaptureFixture, leases: int
) -> None:
    """M03 wants ten lease times of sleep; three in the short run."""
    ttl = 2
    one = room.pserver(7000, num_pservers=2, ttl=ttl)
    entered, left = threading.Event(), threading.Event()
    threads: list[str] = []

    @one.client.on_registered
    def bad(slot: Slot) -> None:
        raise RuntimeError("a fault of the program")

    @one.client.on_registered
    def slow(slot: Slot) -> None:
        threads.append(threading.current_thread().name)
        entered.set()
        time.sleep(leases * ttl)
        left.set()

    assert one.register() == 0, "register() does not wait for hooks"
    lease, epoch = one.client.session.lease_id, one.client.session.epoch
    assert entered.wait(1)
    assert left.wait(leases * ttl + 1)  # nothing else is done meanwhile by this program
    assert (one.index, one.client.session.lease_id, one.client.session.epoch) == (0, lease, epoch)
    assert one.client.session.state is SessionState.CONNECTED
    assert one.losses == []
    assert table.read()[0].lease == lease
    assert threads != [_keeper_thread(one.client).name]
    assert "a fault of the program" in caplog.text
    assert [record.exc_info is not None for record in caplog.records if record.levelno >= logging.ERROR] == [True]


@pytest.mark.fault("A41")
def test_hook_that_exits_does_not_silence_the_next(room: Room, table: SlotTable) -> None:
    one = room.pserver(7000, num_pservers=1)

    @one.client.on_lost
    def leave(loss: LeaseLost, slot: Slot | None) -> None:
        sys.exit(1)

    one.register()
    for count in (1, 2):
        table.delete("/ps/0")
        eventually(partial(_told, one, count, count + 1), 3, "told of each loss and each claim")
    assert one.index == 0


def _told(one: Pserver, losses: int, claims: int) -> bool:
    return len(one.losses) == losses and len(one.registered) == claims


@pytest.mark.fault("A41")
def test_hook_that_never_returns_holds_up_neither_a_new_claim_nor_shutdown(room: Room, table: SlotTable) -> None:
    client = room.pserver(7000, num_pservers=1, ttl=2).client
    release = threading.Event()
    client.on_lost(lambda loss, slot: release.wait(20))
    client.register(7000, host="127.0.0.1", timeout=5)
    epoch = client.session.epoch or 0
    table.delete("/ps/0")
    eventually(lambda: (client.session.epoch or 0) > epoch, 3, "claimed again")
    begun = time.monotonic()
    client.shutdown()
    assert time.monotonic() - begun < 2
    assert table.read() == {}
    release.set()


# -- shutdown ------------------------------------------------------------------------------------------------------


def _edl_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("edl-")]


@pytest.mark.smoke
@pytest.mark.fault("A43")
def test_shutdown_a_hundred_times_at_random_moments(
    etcd: SharedEtcd, prefix: str, table: SlotTable, tcp_proxy_factory: Callable[[str], TcpProxy]
) -> None:
    """Twice, from two threads, during registration and re-registration, and with the store away; eight at a time."""
    dial_timeout = 0.5
    proxies = [tcp_proxy_factory(etcd.client_url) for _ in range(8)]
    table.set_desired(8)
    slowest: list[float] = []
    before = resource_counts()

    def rounds(worker: int) -> None:
        draw = random.Random(4300 + worker)
        network = proxies[worker]
        for number in range(13 if worker < 4 else 12):
            client = EtcdClient(network.endpoint, prefix=prefix, ttl=5, dial_timeout=dial_timeout)
            outcome: list[object] = []

            def register(client: EtcdClient = client, outcome: list[object] = outcome) -> None:
                try:
                    outcome.append(client.register(7000 + worker, host="127.0.0.1"))
                except Exception as error:
                    outcome.append(error)

            registering = threading.Thread(target=register, name=f"registering-{worker}")
            registering.start()
            kind = number % 4
            if kind == 1:  # during re-registration
                eventually(lambda outcome=outcome: outcome, 10, "registered")  # type: ignore[misc]
                lease = client.session.lease_id
                if lease is not None:
                    table.revoke(lease)
            elif kind == 2:  # during an outage
                if draw.random() < 0.7:
                    eventually(lambda outcome=outcome: outcome, 10, "registered")  # type: ignore[misc]
                draw.choice([network.refuse, network.black_hole, network.reset])()
            time.sleep(draw.uniform(0, 0.05))
            begun = time.monotonic()
            ends = [threading.Thread(target=client.shutdown, name=f"end-{worker}-{n}") for n in range(2)]
            for end in ends:
                end.start()
            client.shutdown()
            for end in ends:
                end.join(10)
                assert not end.is_alive()
            slowest.append(time.monotonic() - begun)
            client.shutdown()
            registering.join(5)
            assert not registering.is_alive(), "register() hangs"
            assert len(outcome) == 1
            assert isinstance(outcome[0], int | ClientClosed), outcome
            assert client.session.state is SessionState.CLOSED
            with pytest.raises(ClientClosed):
                client.get_key("/k")
            with pytest.raises(ClientClosed):
                client.register(7000 + worker)
            network.pass_all()

    failures = [result for result in side_by_side([partial(rounds, n) for n in range(8)], 60) if result is not None]
    assert failures == []
    assert len(slowest) == 100
    assert max(slowest) < dial_timeout + 2
    eventually(lambda: not _edl_threads(), 2, lambda: f"the end of {_edl_threads()}")
    # Whoever was cut off could not give its slot back; all others did.
    for slot in table.read().values():
        table.revoke(slot.lease)
    eventually(lambda: resource_counts().python_threads == before.python_threads, 5, "the end of all other threads")
    after = resource_counts()
    # gRPC's own pool may have grown by its few threads; a hundred clients that each left one would be seen.
    assert after.threads <= before.threads + 12, (before, after)


@pytest.mark.fault("A43")
def test_shutdown_from_a_hook_and_as_context_manager(room: Room, table: SlotTable) -> None:
    one = room.pserver(7000, num_pservers=1)
    done = threading.Event()

    @one.client.on_lost
    def end(loss: LeaseLost, slot: Slot | None) -> None:
        one.client.shutdown()
        done.set()

    one.register()
    table.delete("/ps/0")
    assert done.wait(5)
    assert one.client.session.state is SessionState.CLOSED
    eventually(lambda: table.read() == {}, 1, "released")
    with room.pserver(7001, num_pservers=1).client as client:
        assert client.register(7001, host="127.0.0.1", timeout=5) == 0
    assert table.read() == {}
    never_used = room.pserver(7002).client
    never_used.shutdown()
    with pytest.raises(ClientClosed):
        never_used.open()


@pytest.mark.fault("A43")
@pytest.mark.parametrize("cut", ["refuse", "black_hole", "half_open"])
def test_shutdown_during_an_outage_is_bounded_and_ends_what_waits(
    room: Room, table: SlotTable, proxy: TcpProxy, cut: str
) -> None:
    one = room.pserver(7000, num_pservers=1, ttl=30, dial_timeout=1.0, endpoints=proxy.endpoint)
    one.register()
    watch = one.client.watch_prefix("/w/")
    results: list[BaseException] = []

    def call(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            results.append(error)

    work: list[Callable[[], object]] = [
        lambda: list(watch),
        lambda: one.client.get_key("/k", timeout=20),
        lambda: one.client.put_key("/k", b"x", timeout=20),
    ]
    getattr(proxy, cut)()
    threads = [threading.Thread(target=call, args=(one,), name=f"waits-{n}") for n, one in enumerate(work)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    begun = time.monotonic()
    one.client.shutdown()
    assert time.monotonic() - begun < 1.0 + 1.0
    for thread in threads:
        thread.join(3)
    assert not any(thread.is_alive() for thread in threads)
    assert len(results) == 3
    assert all(isinstance(error, ClientClosed | UnknownOutcome) for error in results), results
    assert all(isinstance(error, EdlAgentError) for error in results)
    proxy.pass_all()
    with contextlib.suppress(KeyError):
        table.revoke(table.read()[0].lease)
