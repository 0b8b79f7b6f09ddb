"""Watches across breaks, compaction and silence; what is refused; what a watch leaves behind; long prefixes."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from edl_agent import (
    ClientClosed,
    ConfigurationError,
    EdlAgentError,
    EventType,
    RequestRefused,
    WatchCompacted,
    WatchEnded,
)
from edl_agent.clock import SystemClock
from edl_agent.etcd import kv
from edl_agent.etcd.watch import WatchStream
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never, resource_counts
from tests.conftest import SharedEtcd
from tests.etcd.observed_client import Observed, Watching, both_versions

NOISE = 0.7
"""Seconds that a busy machine with two cores may add to a time."""

PING_FINDS = 6 + 5
"""Seconds after which HTTP/2 pings have found a silent connection: the interval and the wait for the answer."""


@pytest.mark.fault("A11")
@both_versions
def test_compaction_while_the_watch_is_down_loses_and_doubles_nothing(
    etcd_factory: Callable[..., EtcdCluster], tcp_proxy_factory: Callable[[str], TcpProxy], version: str
) -> None:
    cluster = etcd_factory(1, version=version)
    proxy = tcp_proxy_factory(cluster.members[0].client_url)
    chance = random.Random(11)
    with Observed(proxy.endpoint) as watcher, Observed(cluster.endpoints) as writer:
        for number in range(20):
            writer.client.put_key(f"/w/{number:02}", b"first")
        with Watching(watcher.client) as watching:
            assert len(watching.watch.snapshot) == 20
            writer.client.put_key("/w/00", b"second")
            watching.wait_value("/w/00", b"second")
            proxy.refuse()
            for number in range(100):
                key = f"/w/{chance.randrange(30):02}"
                if chance.random() < 0.3:
                    writer.client.delete_key(key)
                else:
                    writer.client.put_key(key, b"%d" % number)
            writer.client.put_key("/w/last", b"last")
            revision = writer.client.watch_prefix("/w/").revision
            cluster.etcdctl("compact", str(revision))
            proxy.pass_all()
            watching.wait_value("/w/last", b"last", 10.0)
            # And it goes on live, from the read's revision + 1.
            writer.client.put_key("/w/last", b"live")
            writer.client.delete_key("/w/00")
            watching.wait_value("/w/last", b"live", 3.0)
            eventually(lambda: b"/w/00" not in watching.state, 3.0, "the live delete")
            assert watching.state == {pair.key: pair.value for pair in writer.client.get_prefix("/w/")}
            puts = Counter((event.key, event.mod_revision) for event in watching.events if event.type is EventType.PUT)
            assert max(puts.values()) == 1, "an event was delivered twice"
            revisions = [event.mod_revision for event in watching.events if event.type is EventType.PUT]
            assert revisions == sorted(revisions)


@pytest.mark.fault("A11")
def test_a_watch_from_a_revision_that_is_compacted_while_it_is_down_ends_with_that_error(
    etcd_factory: Callable[..., EtcdCluster], tcp_proxy_factory: Callable[[str], TcpProxy]
) -> None:
    cluster = etcd_factory(1)
    proxy = tcp_proxy_factory(cluster.members[0].client_url)
    # Without a read of its own there is nothing to compare a fresh one with: the program must begin again.
    with (
        Observed(proxy.endpoint) as watcher,
        Observed(cluster.endpoints) as writer,
        Watching(watcher.client, start_revision=1) as watching,
    ):
        writer.client.put_key("/w/a", b"1")
        watching.wait_value("/w/a", b"1")
        proxy.refuse()
        for number in range(5):
            writer.client.put_key("/w/a", b"%d" % number)
        cluster.etcdctl("compact", str(writer.client.watch_prefix("/w/").revision))
        proxy.pass_all()
        eventually(lambda: watching.ended, 10.0, "the end of the watch")
        assert isinstance(watching.error, WatchCompacted)


@pytest.mark.fault("A13")
@pytest.mark.parametrize("session", ["with a session", "without a session"])
def test_a_silent_watch_is_found_and_goes_on_elsewhere(
    etcd: SharedEtcd, tcp_proxy_factory: Callable[[str], TcpProxy], prefix: str, session: str
) -> None:
    silent, good = tcp_proxy_factory(etcd.client_url), tcp_proxy_factory(etcd.client_url)
    ttl = 3
    with Observed([silent.endpoint, good.endpoint], prefix=prefix, ttl=ttl, dial_timeout=2) as agent:
        if session == "with a session":
            agent.register()
        lease = agent.client.session.lease_id
        agent.use(silent.endpoint)
        with Watching(agent.client) as watching:
            etcd.etcdctl("put", f"{prefix}/w/key", "before")
            watching.wait_value("/w/key", b"before")
            silent.half_open()
            begun = time.monotonic()
            etcd.etcdctl("put", f"{prefix}/w/key", "meanwhile")
            # With a session the next keepalive finds it; else the ping does, within twice its interval.
            limit = ttl * (1 / 3 + 1 / 4) + 1.0 if session == "with a session" else 2 * 6
            seen = watching.wait_value("/w/key", b"meanwhile", limit + NOISE)
            assert seen - begun < limit + NOISE
            assert [event.value for event in watching.events] == [b"before", b"meanwhile"]
        if lease is not None:
            agent.assert_undisturbed(lease)


@pytest.mark.fault("A13")
@pytest.mark.soak
@pytest.mark.timeout(180)
def test_a_watch_that_was_silent_for_a_minute_has_missed_nothing(
    etcd: SharedEtcd, proxy: TcpProxy, prefix: str
) -> None:
    with Observed(proxy.endpoint, prefix=prefix) as agent, Watching(agent.client) as watching:
        proxy.half_open()
        begun = time.monotonic()
        written = 0
        while time.monotonic() - begun < 60:
            etcd.etcdctl("put", f"{prefix}/w/key", str(written))
            written += 1
            time.sleep(1.0)
        assert watching.events == []
        proxy.pass_all()
        watching.wait_value("/w/key", b"%d" % (written - 1), 2 * PING_FINDS)
        assert [event.value for event in watching.events] == [b"%d" % number for number in range(written)]


@pytest.mark.report("M01")
def test_a_slot_that_is_freed_between_the_look_and_the_watch_is_not_missed(
    etcd: SharedEtcd, etcd_proxy: EtcdProxy, prefix: str
) -> None:
    delay = 2.0
    with Observed(etcd.endpoints, prefix=prefix, ttl=10, port=7001) as holder:
        assert holder.register() == 0
        with Observed(etcd_proxy.endpoint, prefix=prefix, ttl=10, port=7002) as waiter:
            delayed = etcd_proxy.delay("Watch", delay)
            index: list[int] = []
            thread = threading.Thread(target=lambda: index.append(waiter.register(30.0)), daemon=True)
            thread.start()
            delayed.wait_fired(5.0)
            fired = time.monotonic()
            holder.client.shutdown()
            assert time.monotonic() - fired < delay - 0.5, "the holder did not leave in time for the test"
            thread.join(delay + 1.0 + NOISE)
            assert index == [0]
            assert time.monotonic() - fired < delay + 1.0 + NOISE


@pytest.mark.report("M05")
def test_watches_survive_a_killed_store_and_end_typed_at_the_shutdown(
    etcd_factory: Callable[..., EtcdCluster],
) -> None:
    cluster = etcd_factory(1, heartbeat_ms=20, election_ms=200)
    agent = Observed(cluster.endpoints, ttl=5, dial_timeout=2)
    with agent:
        watches = [Watching(agent.client, f"/w{number}/") for number in range(3)]
        for number, watching in enumerate(watches):
            agent.client.put_key(f"/w{number}/key", b"before")
            watching.wait_value(f"/w{number}/key", b"before")
        cluster.kill_all()
        with pytest.raises(EdlAgentError):
            agent.client.get_key("/w0/key", timeout=0.3)
        never(lambda: any(watching.ended for watching in watches), 1.0)
        cluster.start()
        for number, watching in enumerate(watches):
            eventually(lambda: _put(agent, f"/w{watches.index(watching)}/key"), 5.0, "a put")  # noqa: B023
            watching.wait_value(f"/w{number}/key", b"after", 5.0)
            assert [event.value for event in watching.events] == [b"before", b"after"]
        cluster.kill_all()
    for watching in watches:
        eventually(lambda: watching.ended, 3.0, "the end of the watch")  # noqa: B023
        assert watching.error is None or isinstance(watching.error, ClientClosed), watching.error


def _put(agent: Observed, key: str) -> bool:
    try:
        agent.client.put_key(key, b"after")
    except EdlAgentError:
        return False
    return True


@pytest.mark.report("M06")
def test_an_invalid_watch_is_refused_within_a_second(etcd_factory: Callable[..., EtcdCluster]) -> None:
    cluster = etcd_factory(1)
    with Observed(cluster.endpoints) as agent:
        for number in range(5):
            agent.client.put_key("/w/key", b"%d" % number)
        cluster.etcdctl("compact", "5")
        with pytest.raises(ConfigurationError, match="empty"):
            agent.client.watch_prefix("")
        for revision in (-1, 0):
            with pytest.raises(ConfigurationError, match=str(revision)):
                agent.client.watch_prefix("/w/", start_revision=revision)
        begun = time.monotonic()
        with pytest.raises(WatchCompacted):
            next(iter(agent.client.watch_prefix("/w/", start_revision=2)))
        assert time.monotonic() - begun < 1.0
        # An end before the start cannot be asked for by a prefix; the server's refusal is told all the same.
        begun = time.monotonic()
        stream = WatchStream(agent.client._connection, [(b"/w/b", b"/w/a")], 1, SystemClock())
        with pytest.raises(WatchEnded):
            next(stream.steps())
        assert time.monotonic() - begun < 1.0
        # None of it harms the next.
        with Watching(agent.client) as watching:
            agent.client.put_key("/w/key", b"fine")
            watching.wait_value("/w/key", b"fine", 1.0)


def test_a_revision_in_the_future_is_not_called_compacted(etcd: SharedEtcd, prefix: str) -> None:
    with Observed(etcd.client_url, prefix=prefix) as agent:
        agent.client.put_key("/w/key", b"1")
        revision = agent.client.watch_prefix("/w/").revision
        with pytest.raises(RequestRefused, match=f"{revision + 1_000} is in the future: etcd is at revision"):
            next(iter(agent.client.watch_prefix("/w/", start_revision=revision + 1_000)))


@pytest.mark.report("M15")
def test_two_hundred_watches_leave_nothing_behind(etcd: SharedEtcd, etcd_proxy: EtcdProxy, prefix: str) -> None:
    with Observed(etcd_proxy.endpoint, prefix=prefix) as agent:

        def one_round(number: int) -> None:
            with agent.client.watch_prefix("/w/") as watch:
                agent.client.put_key("/w/key", b"%d" % number)
                assert b"%d" % number in (event.value for event in watch)

        # Eight at a time: etcd begins a watch on a past revision up to 0.1 s late.
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one_round, range(16)))
            before = resource_counts()
            list(pool.map(one_round, range(200)))
        eventually(lambda: etcd_proxy.open_streams("Watch") == 0, 5.0, "the streams are closed")
        eventually(
            lambda: len(resource_counts().python_threads) <= len(before.python_threads) + 1,  # one is grpc.aio's own
            5.0,
            lambda: f"the end of threads: {resource_counts().python_threads}",
        )
        after = resource_counts()
        assert after.fds <= before.fds + 1, (before, after)
        assert after.threads <= before.threads + 4, (before, after)  # gRPC's pool comes and goes
        assert len({call.peer for call in etcd_proxy.calls("Watch")}) == 1, "a connection for each watch"


@pytest.mark.fault("A47")
@pytest.mark.report("M07")
def test_a_prefix_of_ten_megabytes_is_read_in_pages(
    etcd_factory: Callable[..., EtcdCluster], etcd_proxy_factory: Callable[[str], EtcdProxy]
) -> None:
    cluster = etcd_factory(1)
    proxy = etcd_proxy_factory(cluster.members[0].client_url)
    keys, size = 5000, 2048
    with Observed(cluster.endpoints) as writer, Observed(proxy.endpoint) as reader:
        for first in range(0, keys, 100):
            operations = [kv.put_op(b"/w/%05d" % n, b"%05d" % n + b"x" * (size - 5)) for n in range(first, first + 100)]
            writer.client._kv.txn([], operations, [], time.monotonic() + 10)
        writer.client.put_key("/wz", b"not below the prefix")
        reader.client.get_key("/wz")
        before = resource_counts()
        pairs = reader.client.get_prefix("/w/", timeout=10.0)
        assert [pair.key for pair in pairs] == [b"/w/%05d" % n for n in range(keys)]
        assert all(pair.value[:5] == pair.key[3:] and len(pair.value) == size for pair in pairs)
        answers = [len(call.answers[0].data) for call in proxy.calls("Range")]
        assert max(answers) < 4 * 2**20, "an answer above gRPC's limit of others"
        assert len(answers) >= 3
        # The pairs themselves are 10 MiB; the bench's record of the answers is as much again.
        assert resource_counts().rss - before.rss < (2 * 10 + 25) * 2**20
        # And one answer above 4 MiB, where a page of large values makes one, is no error either.
        for number in range(6):
            writer.client.put_key(f"/big/{number}", b"y" * 1_000_000)
        assert sum(len(pair.value) for pair in reader.client.get_prefix("/big/")) == 6_000_000
        with Watching(reader.client, "/w/") as watching:
            assert len(watching.watch.snapshot) == keys
