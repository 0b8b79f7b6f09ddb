"""The live view of the pservers against a real etcd: complete or marked, fresh or marked, through breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from edl_agent import ClientClosed, ConfigurationError, DeadlineExceeded, EtcdClient, Unavailable
from edl_agent.membership import Members, Membership
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never

HOST = "127.0.0.1"
Make = Callable[..., EtcdClient]


def pserver(client_of: Make, port: int, **options: object) -> EtcdClient:
    client = client_of(**{"num_pservers": 2} | options)
    client.register(port, host=HOST, timeout=10)
    return client


def seen(membership: Membership) -> list[tuple[int, str]]:
    return [(one.index, one.address) for one in membership.members().pservers]


# -- complete ------------------------------------------------------------------------------------------------------


def test_waits_until_every_index_is_held_and_then_gives_addresses_and_epochs(client_of: Make) -> None:
    with Membership(client_of()) as membership:
        first = pserver(client_of, 7164)
        with pytest.raises(DeadlineExceeded, match="missing pserver 1"):
            membership.wait_complete(timeout=0.3)
        second = pserver(client_of, 7165)
        members = membership.wait_complete(timeout=5)
        assert members.addresses == (f"{HOST}:7164", f"{HOST}:7165")
        assert [one.epoch for one in members.pservers] == [first.session.epoch, second.session.epoch]
        assert (members.complete, members.desired) == (True, 2)
        assert members.revision >= (second.session.epoch or 0)
        assert members.age < 5


def test_incomplete_list_is_marked_and_gives_no_addresses(client_of: Make) -> None:
    membership = Membership(client_of())
    members = membership.members()
    assert (members.pservers, members.desired, members.complete) == ((), None, False)
    assert members.missing_text == "/ps_desired"
    pserver(client_of, 7164)
    eventually(lambda: seen(membership) == [(0, f"{HOST}:7164")], 3)
    members = membership.members()
    assert not members.complete
    with pytest.raises(Unavailable, match="pserver 1"):
        _ = members.addresses


def test_keys_without_a_lease_and_keys_that_are_no_slots_do_not_count(client_of: Make) -> None:
    pserver(client_of, 7164)
    writer = client_of()
    for key in ("/ps/1", "/ps/01", "/ps/x", "/ps/-1", "/ps0"):
        writer.put_key(key, b"10.0.0.9:7164", timeout=5)
    membership = Membership(client_of())
    assert seen(membership) == [(0, f"{HOST}:7164")]
    with pytest.raises(DeadlineExceeded, match="missing pserver 1"):
        membership.wait_complete(timeout=0.3)
    writer.delete_key("/ps/1", timeout=5)
    pserver(client_of, 7165)
    assert membership.wait_complete(timeout=5).desired == 2


def test_raised_count_makes_it_incomplete_lowered_count_drops_those_above(client_of: Make) -> None:
    for port in (7164, 7165):
        pserver(client_of, port)
    writer = client_of()
    membership = Membership(client_of())
    membership.wait_complete(timeout=5)
    writer.put_key("/ps_desired", b"3", timeout=5)
    eventually(lambda: membership.members().desired == 3, 3)
    assert not membership.members().complete
    pserver(client_of, 7166)
    assert len(membership.wait_complete(timeout=5).pservers) == 3
    writer.put_key("/ps_desired", b"1", timeout=5)
    eventually(lambda: membership.members().desired == 1, 3)
    members = membership.members()
    assert members.complete
    assert [one.index for one in members.pservers] == [0]
    for unusable in (b"0", b"many", b""):
        writer.put_key("/ps_desired", unusable, timeout=5)
        eventually(lambda: membership.members().desired is None, 3)
        assert not membership.members().complete
        writer.put_key("/ps_desired", b"1", timeout=5)
        eventually(lambda: membership.members().complete, 3)


def test_without_a_count_nothing_is_complete(client_of: Make) -> None:
    pserver(client_of, 7164, num_pservers=1)  # holds its slot, so that nobody waits and creates the count anew
    membership = Membership(client_of())
    membership.wait_complete(timeout=5)
    client_of().delete_key("/ps_desired", timeout=5)
    eventually(lambda: membership.members().desired is None, 3)
    assert not membership.members().complete
    assert seen(membership) == [(0, f"{HOST}:7164")]


def test_pserver_that_dies_and_comes_back_has_another_epoch(client_of: Make) -> None:
    pserver(client_of, 7164)
    dying = pserver(client_of, 7165)
    membership = Membership(client_of())
    before = membership.wait_complete(timeout=5).pservers[1]
    dying.shutdown()
    eventually(lambda: not membership.members().complete, 3)
    pserver(client_of, 7165)
    after = membership.wait_complete(timeout=5).pservers[1]
    assert after.address == before.address
    assert after.epoch > before.epoch


# -- told of changes -----------------------------------------------------------------------------------------------


def test_callback_gets_the_present_view_and_every_change_in_order(client_of: Make) -> None:
    first = pserver(client_of, 7164)
    membership = Membership(client_of())
    membership.members()
    told: list[Members] = []
    threads: set[str] = set()

    def callback(members: Members) -> None:
        told.append(members)
        threads.add(threading.current_thread().name)
        if len(told) == 1:
            raise RuntimeError("a callback may fail")
        time.sleep(0.05)

    membership.on_change(callback)
    second = pserver(client_of, 7165)
    first.shutdown()
    third = pserver(client_of, 7166)
    eventually(lambda: told and told[-1].complete and len(told) >= 4, 5, lambda: f"{told}")
    assert [[one.address[-4:] for one in members.pservers] for members in told] == [
        ["7164"],
        ["7164", "7165"],
        ["7165"],
        ["7166", "7165"],
    ]
    assert [members.revision for members in told] == sorted(members.revision for members in told)
    assert threads == {"edl-hooks"}
    assert second.session.index == 1
    assert third.session.index == 0


def test_callback_that_blocks_holds_up_neither_the_view_nor_the_close(client_of: Make) -> None:
    release = threading.Event()
    membership = Membership(client_of())
    membership.on_change(lambda members: release.wait(10))
    try:
        for port in (7164, 7165):
            pserver(client_of, port)
        assert membership.wait_complete(timeout=5).complete
        begun = time.monotonic()
        membership.close()
        assert time.monotonic() - begun < 2
    finally:
        release.set()


# -- age -----------------------------------------------------------------------------------------------------------


def test_age_grows_while_etcd_is_away_and_an_old_view_is_not_handed_out_as_fresh(
    proxy: TcpProxy, client_of: Make
) -> None:
    for port in (7164, 7165):
        pserver(client_of, port)
    membership = Membership(client_of(proxy.endpoint, dial_timeout=0.5), fresh_every=0.5)
    membership.wait_complete(timeout=5)
    proxy.black_hole()
    begun = time.monotonic()
    eventually(lambda: membership.members().age > 1.5, 5)
    assert membership.members().age <= time.monotonic() - begun + 1.0
    assert membership.members(max_age=60).complete, "any age that is asked for is fine"
    with pytest.raises(Unavailable, match="old"):
        membership.members(max_age=1.0)
    with pytest.raises(DeadlineExceeded):
        membership.wait_complete(timeout=0.2)
    proxy.pass_all()
    assert membership.wait_complete(timeout=10).age <= 1.0
    assert membership.members(max_age=1.0).complete


def test_at_rest_the_view_stays_fresh_by_reads(client_of: Make) -> None:
    for port in (7164, 7165):
        pserver(client_of, port)
    membership = Membership(client_of(), fresh_every=0.3)
    membership.wait_complete(timeout=5)
    never(lambda: membership.members().age > 1.5, 2.0)


@pytest.mark.report("M18")
def test_watch_that_falls_silent_is_noticed(etcd_proxy: EtcdProxy, client_of: Make) -> None:
    """The member answers pings and reads, and delivers no event: no error ever comes."""
    membership = Membership(client_of(etcd_proxy.endpoint), fresh_every=0.5)
    membership.members()
    eventually(lambda: etcd_proxy.open_streams("Watch"), 3)
    silent = etcd_proxy.swallow_answers("Watch", nth=2, times=None)
    for port in (7164, 7165):
        pserver(client_of, port)
    assert membership.wait_complete(timeout=5).complete
    assert silent.fired


def test_asking_for_a_fresh_view_reads_and_sees_what_the_watch_has_not_told(
    etcd_proxy: EtcdProxy, client_of: Make
) -> None:
    membership = Membership(client_of(etcd_proxy.endpoint), fresh_every=60)
    membership.members()
    eventually(lambda: etcd_proxy.open_streams("Watch"), 3)
    etcd_proxy.swallow_answers("Watch", nth=2, times=None)
    for port in (7164, 7165):
        pserver(client_of, port)
    time.sleep(0.2)
    assert not membership.members().complete
    assert membership.members(max_age=0).complete


# -- breaks --------------------------------------------------------------------------------------------------------


def test_changes_during_a_break_are_seen_after_it(proxy: TcpProxy, client_of: Make) -> None:
    first = pserver(client_of, 7164)
    pserver(client_of, 7165)
    membership = Membership(client_of(proxy.endpoint))
    membership.wait_complete(timeout=5)
    proxy.refuse()
    proxy.drop_connections()
    first.shutdown()
    pserver(client_of, 7170)
    assert membership.members().pservers[0].address == f"{HOST}:7164"
    proxy.pass_all()
    eventually(lambda: seen(membership)[0] == (0, f"{HOST}:7170"), 5)
    assert membership.wait_complete(timeout=5).complete


def test_compaction_during_a_break_is_survived(
    etcd_factory: Callable[..., EtcdCluster], tcp_proxy_factory: Callable[[str], TcpProxy], client_of: Make
) -> None:
    cluster = etcd_factory()
    proxy = tcp_proxy_factory(cluster.endpoints[0])
    first = pserver(client_of, 7164, endpoint=cluster.endpoints)
    pserver(client_of, 7165, endpoint=cluster.endpoints)
    membership = Membership(client_of(proxy.endpoint))
    membership.wait_complete(timeout=5)
    proxy.refuse()
    proxy.drop_connections()
    first.shutdown()
    again = pserver(client_of, 7170, endpoint=cluster.endpoints)
    cluster.etcdctl("compact", str(again.session.epoch))
    proxy.pass_all()
    eventually(lambda: seen(membership)[0] == (0, f"{HOST}:7170"), 5)
    again.shutdown()
    eventually(lambda: not membership.members().complete, 5, "the watch goes on after the compaction")


def test_wiped_etcd_is_read_afresh(etcd_factory: Callable[..., EtcdCluster], client_of: Make) -> None:
    cluster = etcd_factory()
    for number in range(20):
        cluster.etcdctl("put", f"/other/{number}", "x")
    for port in (7164, 7165):
        pserver(client_of, port, endpoint=cluster.endpoints)
    membership = Membership(client_of(cluster.endpoints), fresh_every=1.0)
    epochs = [one.epoch for one in membership.wait_complete(timeout=5).pservers]
    cluster.members[0].wipe_and_restart()
    eventually(
        lambda: (
            (now := membership.members(max_age=2.0)).complete and all(one.epoch not in epochs for one in now.pservers)
        ),
        15,
        "both registered anew, with the new store's epochs",
    )


def test_starts_before_etcd_is_there(proxy: TcpProxy, client_of: Make) -> None:
    proxy.refuse()
    for port in (7164, 7165):
        pserver(client_of, port)
    membership = Membership(client_of(proxy.endpoint, dial_timeout=0.5))
    with pytest.raises(Unavailable, match="never read"):
        membership.members()
    threading.Timer(0.3, proxy.pass_all).start()
    assert membership.wait_complete(timeout=10).complete


# -- end -----------------------------------------------------------------------------------------------------------


def test_closed_view_is_not_handed_out_and_waiters_are_told(client_of: Make) -> None:
    client = client_of()
    membership = Membership(client)
    membership.members()
    threading.Timer(0.3, client.shutdown).start()
    with pytest.raises(ClientClosed):
        membership.wait_complete(timeout=10)
    with pytest.raises(ClientClosed):
        membership.members()
    with pytest.raises(ClientClosed):
        Membership(client)
    other = Membership(client_of())
    other.close()
    other.close()
    with pytest.raises(ClientClosed):
        other.members()
    with pytest.raises(ConfigurationError):
        Membership(client_of(), fresh_every=0)
