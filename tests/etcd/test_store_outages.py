"""The store is away, slow, silent, emptied or exchanged: what the agent says meanwhile, and how it comes back."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import pytest

from edl_agent import EdlAgentError, SessionState
from edl_agent.testing import LOOPBACK, PortReservation, spawn_bound_to_parent
from tests.bench.agent_process import AgentProcess
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never, resource_counts
from tests.etcd.observed_client import Observed, Watching, both_versions, product_lines, traffic

NOISE = 0.7
"""Seconds that a busy machine with two cores may add to a time."""


def wait_for_renewal(agent: Observed, timeout: float = 10.0) -> None:
    """Wait until a keepalive has just been answered."""
    before = agent.client.session.deadline or 0.0
    eventually(lambda: (agent.client.session.deadline or 0.0) > before, timeout, "a renewal", interval=0.005)


def slots(cluster: EtcdCluster) -> dict[str, tuple[str, int]]:
    """Slot key -> (address, lease), as etcdctl reads them."""
    found = json.loads(cluster.etcdctl("get", "/ps/", "--prefix", "-w", "json", "--hex=false"))
    return {
        base64.b64decode(kv["key"]).decode(): (base64.b64decode(kv["value"]).decode(), int(kv.get("lease", 0)))
        for kv in found.get("kvs", [])
    }


def own_threads(pid: int) -> int:
    """Threads of a process without gRPC's pool, which grows by a few at its first trouble and keeps them."""
    count = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):  # it has just ended
            count += Path(f"/proc/{pid}/task/{task}/comm").read_text().strip() != "event_engine"
    return count


@pytest.mark.fault("A6")
@pytest.mark.parametrize("members", [pytest.param(1, marks=pytest.mark.soak), 3])
def test_an_outage_of_half_the_lease_time_is_two_log_lines(
    etcd_factory: Callable[..., EtcdCluster], caplog: pytest.LogCaptureFixture, members: int
) -> None:
    cluster = etcd_factory(members, heartbeat_ms=20, election_ms=200)  # so that coming back takes no second
    ttl = 6.0
    with Observed(cluster.endpoints, ttl=ttl, dial_timeout=5) as agent:
        agent.register()
        lease = agent.client.session.lease_id
        wait_for_renewal(agent)
        caplog.clear()
        with caplog.at_level(logging.INFO, "edl_agent"):
            gone = time.monotonic()
            cluster.kill_all()
            never(
                lambda: agent.client.session.state is not SessionState.CONNECTED,
                ttl / 2 - (time.monotonic() - gone),
                "a change of state in an outage of T/2",
            )
            cluster.start()
            before = agent.client.session.deadline or 0.0
            eventually(lambda: (agent.client.session.deadline or 0.0) > before, 5.0, "a renewal after the outage")
            eventually(lambda: any("answered again" in line for line in product_lines(caplog)), 2.0, "the line")
        agent.assert_undisturbed(lease)
        lines = product_lines(caplog)
        assert [line.split()[0] for line in lines] == ["WARNING", "INFO"], lines
        assert "not answered" in lines[0]
        assert "answered again" in lines[1]
        assert agent.client.get_key("/ps_desired") == b"1"


@pytest.mark.fault("A7")
@pytest.mark.fault("I4")
@pytest.mark.parametrize(
    ("members", "ttl", "away"), [(1, 2, 3.5), (3, 2, 3.5), pytest.param(3, 5, 12, marks=pytest.mark.soak)]
)
def test_after_an_outage_longer_than_the_lease_each_agent_has_its_one_slot_again(
    etcd_factory: Callable[..., EtcdCluster], members: int, ttl: int, away: float
) -> None:
    cluster = etcd_factory(members)
    with (
        Observed(cluster.endpoints, ttl=ttl, dial_timeout=ttl, num_pservers=2, port=7001) as first,
        Observed(cluster.endpoints, ttl=ttl, dial_timeout=ttl, num_pservers=2, port=7002) as second,
    ):
        agents = (first, second)
        assert [agent.register() for agent in agents] == [0, 1]
        incarnations = [agent.client.session.lost for agent in agents]
        gone = time.monotonic()
        cluster.kill_all()
        deadlines = [agent.client.session.deadline or 0.0 for agent in agents]
        for agent, deadline, lost in zip(agents, deadlines, incarnations, strict=True):
            eventually(partial(agent.named, "lost"), ttl + 2.0, "lost")
            assert lost.wait(1.0)
            assert agent.client.session.index is None
            assert 0 <= agent.times("lost")[0] - deadline < NOISE
            # Suspended comes first: at 5/6 of the lease time without an answer.
            assert -ttl / 6 <= agent.times("suspended")[0] - deadline < -ttl / 6 + NOISE
        never(lambda: any(agent.client.session.index is not None for agent in agents), away - (time.monotonic() - gone))
        cluster.start()
        started = time.monotonic()
        eventually(lambda: all(agent.client.session.index is not None for agent in agents), 2 * ttl + 5, "registered")
        assert time.monotonic() - started < 2 * ttl + 5
        # The old keys are still there (a store that is away expires nothing): each takes its own one over, same index.
        assert [agent.client.session.index for agent in agents] == [0, 1]
        eventually(lambda: len(cluster.leases()) == 2, 5.0, "the old leases are given back")
        assert slots(cluster) == {
            f"/ps/{index}": (f"127.0.0.1:{agent.port}", agent.client.session.lease_id)
            for index, agent in enumerate(agents)
        }
        for agent in agents:
            eventually(lambda: all(len(one.named("registered")) == 2 for one in agents), 2.0, "the hooks")
            assert [len(agent.named(name)) for name in ("registered", "suspended", "lost")] == [2, 1, 1]
            before, after = (arguments[0] for _, arguments in agent.named("registered"))
            assert after.epoch > before.epoch


@pytest.mark.fault("A8")
@both_versions
def test_an_emptied_store_with_the_same_identity_is_noticed_at_once(
    etcd_factory: Callable[..., EtcdCluster], version: str
) -> None:
    cluster = etcd_factory(1, version=version)
    with (
        Observed(cluster.endpoints, ttl=5, port=7001) as creator,
        Observed(cluster.endpoints, ttl=5, port=7002, num_pservers=None, prefix="/job") as waiter,
    ):
        cluster.etcdctl("put", "/job/ps_desired", "1")
        assert (creator.register(), waiter.register()) == (0, 0)
        for number in range(20):  # so that the watch is far ahead of what the empty store will have
            creator.client.put_key("/w/key", b"%d" % number)
        with Watching(creator.client) as watching:
            old = creator.client.session.lease_id
            cluster.members[0].wipe()
            cluster.members[0].start()
            # "No such lease" from the new store: far before the deadline.
            for agent in (creator, waiter):
                eventually(partial(agent.named, "lost"), 5 / 3 + 5 / 4 + NOISE, "lost")
                # By the keepalive's answer or by the watch, whose revisions the empty store does not have.
                assert any(text in str(agent.named("lost")[0][1][0]) for text in ("no longer knows", "was deleted"))
            eventually(lambda: creator.client.session.index == 0, 5.0, "registered anew, the count made again")
            assert creator.client.session.lease_id != old
            assert cluster.etcdctl("get", "/ps_desired", "--print-value-only").strip() == "1"
            # Whoever did not bring a count waits for it, and says so.
            eventually(lambda: "/ps_desired" in waiter.client.waiting_for, 5.0, "the waiter says what it waits for")
            never(lambda: waiter.client.session.index is not None, 0.5)
            cluster.etcdctl("put", "/job/ps_desired", "1")
            eventually(lambda: waiter.client.session.index == 0, 2.0, "registered after the count came")
            # The watch hears that the key is gone, and goes on with the new store's revisions.
            eventually(lambda: watching.state == {}, 5.0, "the old key is reported as deleted")
            creator.client.put_key("/w/key", b"new")
            watching.wait_value("/w/key", b"new", 3.0)
        eventually(lambda: len(creator.named("registered")) == len(waiter.named("registered")) == 2, 2.0, "the hooks")
        assert len(creator.named("lost")) == len(waiter.named("lost")) == 1


@pytest.mark.fault("A8")
@pytest.mark.fault("A46")
@pytest.mark.parametrize("members", [pytest.param(1, marks=pytest.mark.soak), 3])
def test_an_emptied_store_with_a_new_identity_is_joined_after_the_loss(
    etcd_factory: Callable[..., EtcdCluster], members: int
) -> None:
    cluster = etcd_factory(members)
    with Observed(cluster.endpoints, ttl=3, dial_timeout=2) as agent, Observed(cluster.endpoints) as reader:
        agent.register()
        reader.client.put_key("/w/key", b"old")
        with Watching(agent.client) as watching, Watching(reader.client) as reading:
            deadline = agent.client.session.deadline or 0.0
            cluster.wipe_all(new_identity=True)
            cluster.start()
            # While the old session may still be alive, the stranger is not spoken to.
            while time.monotonic() < deadline - 0.3:
                with pytest.raises(EdlAgentError):
                    agent.client.put_key("/w/stranger", b"x", timeout=0.2)
            assert cluster.keys("/w/") == []
            eventually(lambda: agent.named("lost"), 2.0, "lost at the deadline")
            assert abs(agent.times("lost")[0] - (agent.client.session.deadline or deadline)) < 3.5
            eventually(lambda: agent.client.session.index == 0, 2 * 3 + 5, "registered with the new cluster")
            eventually(lambda: len(agent.named("registered")) == 2, 2.0, "the hook")
            assert len(agent.named("lost")) == 1
            # A client that holds nothing has nothing to lose and goes over as well.
            eventually(lambda: reader.client.get_key("/ps_desired", timeout=1.0) == b"1", 5.0, "the reader goes over")
            for one in (watching, reading):
                eventually(one.is_empty, 5.0, "the old key is reported as deleted")
            reader.client.put_key("/w/key", b"new")
            for one in (watching, reading):
                one.wait_value("/w/key", b"new", 5.0)


@pytest.mark.fault("A46")
@pytest.mark.parametrize("kind", ["slot", "lease only", "no session"])
def test_an_endpoint_that_leads_to_another_cluster_is_refused(
    etcd_factory: Callable[..., EtcdCluster], tcp_proxy_factory: Callable[[str], TcpProxy], kind: str
) -> None:
    mine, foreign = etcd_factory(1), etcd_factory(1)
    first, second = (tcp_proxy_factory(mine.members[0].client_url) for _ in range(2))
    with Observed([first.endpoint, second.endpoint], ttl=6, dial_timeout=2) as agent:
        if kind == "slot":
            agent.register()
        elif kind == "lease only":
            agent.client.open(timeout=5.0)
        lease = agent.client.session.lease_id
        agent.client.put_key("/w/home", b"here")
        agent.use(first.endpoint)
        first.retarget(foreign.members[0].client_url)
        eventually(lambda: not agent.connected, 2.0, "the news of the reset has reached the client's side")
        # One of two endpoints is a stranger: all goes through the other, nothing reaches the stranger.
        for number in range(5):
            agent.client.put_key(f"/w/{number}", b"x", timeout=1.0)
            assert agent.client.get_key("/w/home", timeout=2.0) == b"here"
        assert foreign.keys("") == []
        if lease is not None:
            wait_for_renewal(agent)
            assert agent.client.session.lease_id == lease
            # Both are strangers: nothing is reached, the lease is not mistaken for lost, nothing is written there.
            second.retarget(foreign.members[0].client_url)
            wait = (agent.client.session.deadline or 0.0) - time.monotonic() - 3.0
            begun = time.monotonic()
            while time.monotonic() - begun < wait:
                with pytest.raises(EdlAgentError):
                    agent.client.get_key("/w/home", timeout=0.3)
                assert agent.client.session.lease_id == lease
            assert foreign.keys("") == []
            first.retarget(mine.members[0].client_url)
            second.retarget(mine.members[0].client_url)
            wait_for_renewal(agent)
            assert agent.client.session.lease_id == lease
            assert not agent.named("lost")


@pytest.mark.fault("A46")
def test_an_idle_connection_that_comes_back_to_another_cluster_writes_nothing_as_if_it_were_home(
    etcd_factory: Callable[..., EtcdCluster], tcp_proxy_factory: Callable[[str], TcpProxy]
) -> None:
    mine, foreign = etcd_factory(1), etcd_factory(1)
    proxy = tcp_proxy_factory(mine.members[0].client_url)
    other = tcp_proxy_factory(mine.members[0].client_url)
    with Observed([proxy.endpoint, other.endpoint], ttl=3, dial_timeout=2) as agent:
        agent.client.open(timeout=5.0)
        lease = agent.client.session.lease_id
        agent.client.put_key("/w/home", b"here")
        for write in (False, True):
            proxy.retarget(mine.members[0].client_url)
            agent.use(proxy.endpoint)
            wait_for_renewal(agent)
            # No call or stream is open now, so nobody notices that the connection is exchanged underneath.
            proxy.retarget(foreign.members[0].client_url)
            eventually(lambda: not agent.connected, 2.0, "the news of the reset has reached the client's side")
            if write:
                agent.client.put_key("/w/other", b"there", timeout=2.0)
                assert mine.etcdctl("get", "/w/other", "--print-value-only").strip() == "there"
            else:
                assert agent.client.get_key("/w/home", timeout=2.0) == b"here"
        wait_for_renewal(agent)
        assert agent.client.session.lease_id == lease
        assert not agent.named("lost")
        assert foreign.keys("") == []


@pytest.mark.fault("A10")
@pytest.mark.parametrize(("ttl", "late"), [(6, 1.3), pytest.param(9, 2.0, marks=pytest.mark.soak)])
def test_a_slow_store_costs_time_and_nothing_else(
    etcd: object,
    tcp_proxy_factory: Callable[[str], TcpProxy],
    etcd_proxy: EtcdProxy,
    prefix: str,
    ttl: int,
    late: float,
) -> None:
    # Every answer comes later than the program's own calls allow (1 s). A renewal may take a quarter of the lease time.
    slow = tcp_proxy_factory(etcd_proxy.endpoint)
    with Observed(slow.endpoint, prefix=prefix, ttl=ttl, dial_timeout=5) as agent:
        agent.register()
        lease = agent.client.session.lease_id
        etcd_proxy.clear()
        slow.delay(late)
        begun = time.monotonic()
        with traffic(lambda _: agent.client.get_key("/anything"), pause=0.05) as gets:
            wait_for_renewal(agent)
            wait_for_renewal(agent)
            lasted = time.monotonic() - begun
        assert gets.longest < 1.0 + NOISE
        assert etcd_proxy.count_messages("*") / lasted < 5, "a storm of retries"
        agent.assert_undisturbed(lease)
        assert agent.client.get_key("/ps_desired", timeout=5.0) == b"1"


@pytest.mark.fault("A10")
def test_a_store_that_stops_for_moments_is_not_noticed(etcd_factory: Callable[..., EtcdCluster], prefix: str) -> None:
    cluster = etcd_factory(1)
    with Observed(cluster.endpoints, prefix=prefix, ttl=3, dial_timeout=2) as agent:
        agent.register()
        lease = agent.client.session.lease_id
        with traffic(lambda n: agent.client.put_key("/traffic", b"%d" % n)) as puts:
            for _ in range(8):
                cluster.members[0].pause()
                time.sleep(0.3)
                cluster.members[0].resume()
                time.sleep(0.1)
        assert not puts.failed, [call.error for call in puts.failed]
        assert puts.longest < 0.3 * 2 + NOISE
        agent.assert_undisturbed(lease)


@pytest.mark.fault("I6")
@pytest.mark.parametrize("how", ["killed", "hangs", "says unavailable"])
def test_while_the_store_is_away_the_agent_stays_small_and_quiet(
    etcd_factory: Callable[..., EtcdCluster],
    etcd_proxy_factory: Callable[[str], EtcdProxy],
    tcp_proxy_factory: Callable[[str], TcpProxy],
    agent_factory: Callable[..., AgentProcess],
    how: str,
) -> None:
    cluster = etcd_factory(1)
    counted = etcd_proxy_factory(cluster.members[0].client_url)
    outer = tcp_proxy_factory(counted.endpoint)
    agent = agent_factory(outer.endpoint, 7001, ttl=2)
    agent.wait_event("registered")
    eventually(lambda: counted.count("LeaseKeepAlive") >= 2, 5.0, "the agent at rest")
    calm, threads = resource_counts(agent.pid), own_threads(agent.pid)
    counted.clear()
    connections = outer.connections
    begun = time.monotonic()
    if how == "says unavailable":
        counted.fail("*", grpc.StatusCode.UNAVAILABLE, times=None, break_open=True)
    elif how == "hangs":
        cluster.members[0].pause()
    else:
        outer.reset()
    agent.wait_event("lost", 5.0)
    early = resource_counts(agent.pid)
    # The first second has the discovery of the outage in it; from then on it is a steady state.
    counted_from, connected_from = counted.count(), outer.connections
    from_moment = time.monotonic()
    never(lambda: agent.index is not None, 4.0)
    lasted = time.monotonic() - from_moment
    late = resource_counts(agent.pid)
    calls = counted.count() - counted_from
    attempts = outer.connections - connected_from
    assert max(calls, attempts) / lasted <= 5, (calls, attempts, lasted)
    assert max(counted.count(), outer.connections - connections) / (time.monotonic() - begun) <= 5 + NOISE
    assert own_threads(agent.pid) <= threads + 1, "more threads than before, but for one that sends a request"
    assert late.threads <= early.threads + 1, (calm, early, late)
    assert late.fds <= max(calm.fds, early.fds) + 2, (calm, early, late)
    assert late.rss - early.rss < 4 * 2**20, (calm, early, late)
    counted.clear()
    cluster.heal()
    outer.pass_all()
    agent.wait_event("registered", 2 * 2 + 5, nth=2)
    # Back at rest it holds what it held.
    eventually(lambda: own_threads(agent.pid) <= threads, 5.0, "as many threads as before")
    eventually(lambda: resource_counts(agent.pid).fds <= calm.fds + 1, 10.0, "as many descriptors as before")
    assert len(agent.named("lost")) == 1


@pytest.mark.report("M02")
@pytest.mark.parametrize(
    ("ttl", "lasts"), [(3, 4), pytest.param(5, 60, marks=[pytest.mark.soak, pytest.mark.timeout(180)])]
)
@both_versions
def test_the_lease_is_kept_through_a_grpc_proxy(
    etcd_factory: Callable[..., EtcdCluster], ttl: int, lasts: float, version: str
) -> None:
    cluster = etcd_factory(1, version=version)
    port = PortReservation()
    process = spawn_bound_to_parent(
        [
            str(cluster.binaries.etcd),
            "grpc-proxy",
            "start",
            f"--endpoints={cluster.members[0].endpoint}",
            f"--listen-addr={LOOPBACK}:{port.port}",
            f"--advertise-client-url={LOOPBACK}:{port.port}",  # 3.6 ends after 5 s where it does not reach itself there
        ]
    )
    try:
        with Observed(f"http://{LOOPBACK}:{port.port}", ttl=ttl, dial_timeout=3) as agent:
            agent.register()
            lease = agent.client.session.lease_id
            with (
                Watching(agent.client) as watching,
                traffic(lambda n: agent.client.put_key("/w/n", b"%d" % n), 0.2) as puts,
            ):
                never(lambda: agent.client.session.lease_id != lease, lasts)
            assert not puts.failed, [call.error for call in puts.failed]
            watching.wait_value("/w/n", b"%d" % (len(puts.calls) - 1), 3.0)
            agent.assert_undisturbed(lease)
            assert slots(cluster) == {"/ps/0": (f"127.0.0.1:{agent.port}", lease)}
        assert slots(cluster) == {}
    finally:
        process.kill()
        process.wait(10.0)
        port.close()


@pytest.mark.report("M12")
@pytest.mark.parametrize("good", [3, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(300)])])
def test_one_swallowed_keepalive_answer_means_nothing(etcd_proxy: EtcdProxy, prefix: str, good: int) -> None:
    ttl = 3
    with Observed(etcd_proxy.endpoint, prefix=prefix, ttl=ttl, dial_timeout=2) as agent:
        agent.register()
        lease = agent.client.session.lease_id
        swallowed = etcd_proxy.swallow_answers("LeaseKeepAlive", nth=good + 1)
        swallowed.wait_fired(good * ttl / 3 + ttl)
        wait_for_renewal(agent)
        wait_for_renewal(agent)
        agent.assert_undisturbed(lease)


@pytest.mark.report("M16")
@pytest.mark.parametrize(
    ("ttl", "lasts"), [(2, 5), pytest.param(9, 60, marks=[pytest.mark.soak, pytest.mark.timeout(180)])]
)
def test_the_lease_is_renewed_three_times_in_its_time(
    etcd_proxy: EtcdProxy, prefix: str, ttl: int, lasts: float
) -> None:
    with Observed(etcd_proxy.endpoint, prefix=prefix, ttl=ttl, dial_timeout=2) as agent:
        agent.register()
        wait_for_renewal(agent)
        before = etcd_proxy.count_messages("LeaseKeepAlive")
        never(lambda: agent.client.session.index is None, lasts)
        renewals = etcd_proxy.count_messages("LeaseKeepAlive") - before
        # 15 to 30 in 60 s with T = 9: 2.25 to 4.5 in each T.
        assert 2.25 * lasts / ttl <= renewals + 1, renewals
        assert renewals <= 4.5 * lasts / ttl, renewals
        # And at rest it does nothing else.
        assert etcd_proxy.count("KV/*") + etcd_proxy.count("Maintenance/*") < 10


@pytest.mark.report("M18")
@both_versions
def test_a_store_that_hangs_is_noticed_and_taken_up_again(
    etcd_factory: Callable[..., EtcdCluster], version: str
) -> None:
    cluster = etcd_factory(1, version=version)
    ttl = 3
    with Observed(cluster.endpoints, ttl=ttl, dial_timeout=2) as agent:
        agent.register()
        agent.client.put_key("/w/key", b"before")
        with Watching(agent.client) as watching:
            cluster.members[0].pause()
            paused = time.monotonic()
            eventually(lambda: agent.named("lost"), ttl + NOISE, "the loss is reported within T")
            assert agent.times("lost")[0] - paused < ttl + NOISE
            cluster.members[0].resume()
            cluster.etcdctl("put", "/w/key", "after")
            watching.wait_value("/w/key", b"after", 5.0)
            assert watching.error is None
            eventually(lambda: len(agent.named("registered")) == 2, 2 * ttl + 5, "registered again")
        assert agent.client.session.index == 0
        assert len(agent.named("lost")) == 1


@pytest.mark.report("M32")
@pytest.mark.parametrize("agents", [30, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_many_agents_at_once_on_a_slow_store_are_all_registered(
    etcd: object,
    etcd_proxy: EtcdProxy,
    tcp_proxy_factory: Callable[[str], TcpProxy],
    prefix: str,
    agents: int,
) -> None:
    slow = tcp_proxy_factory(etcd_proxy.endpoint)
    slow.delay(0.5)
    with contextlib.ExitStack() as stack:
        observed = [
            stack.enter_context(
                Observed(slow.endpoint, prefix=prefix, ttl=10, dial_timeout=5, num_pservers=agents, port=7000 + number)
            )
            for number in range(agents)
        ]
        with ThreadPoolExecutor(agents) as pool:
            begun = time.monotonic()
            indexes = list(pool.map(lambda one: one.register(60.0 + agents), observed))
            lasted = time.monotonic() - begun
        assert sorted(indexes) == list(range(agents))
        slow.pass_all()
        never(lambda: any(bool(one.named("lost")) for one in observed), 0.5)
        assert all(len(one.named("registered")) == 1 for one in observed)
        # No storm: each agent stays below what it may ask of a store that is away (invariant I6).
        assert etcd_proxy.count_messages("*") / agents / lasted <= 5, (etcd_proxy.count_messages("*"), lasted)
