"""What becomes of slots when the count changes, and when somebody reaches into etcd by hand."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from edl_agent import LeaseLost, SessionState, SlotsFull, SlotWithdrawn
from tests.bench.agent_process import AgentProcess
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.etcd_versions import VERSIONS
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd
from tests.etcd.client_room import Room
from tests.etcd.slot_table import SlotTable


@pytest.fixture
def table(etcd: SharedEtcd, prefix: str) -> SlotTable:
    return SlotTable(etcd.client_url, prefix)


@pytest.fixture
def room(etcd: SharedEtcd, prefix: str, etcd_proxy: EtcdProxy) -> Iterator[Room]:
    # The proxy is named here so that it outlives the clients: their shutdown needs the way to etcd.
    with Room(etcd.client_url, prefix) as room:
        yield room


# -- more agents than desired --------------------------------------------------------------------------------------


@pytest.mark.fault("A29")
@pytest.mark.fault("I5")
def test_surplus_agents_wait_without_polling_and_take_the_slots_of_the_dead(
    etcd: SharedEtcd,
    etcd_proxy: EtcdProxy,
    prefix: str,
    room: Room,
    table: SlotTable,
    agent_factory: Callable[..., AgentProcess],
) -> None:
    ttl = 2
    table.set_desired(10)
    doomed = [
        agent_factory(etcd.endpoints, 7000 + n, num_pservers=None, ttl=ttl, host="127.0.0.9", prefix=prefix)
        for n in range(3)
    ]
    for agent in doomed:
        agent.wait_event("registered")
    holders = [room.pserver(7100 + n, ttl=ttl).begin() for n in range(7)]
    for one in holders:
        assert isinstance(one.join(), int)
    waiters = [room.pserver(7200 + n, ttl=ttl, endpoints=etcd_proxy.endpoint).begin() for n in range(10)]
    eventually(lambda: etcd_proxy.open_streams("Watch") >= 10, 10, "all ten waiters watch")
    with pytest.raises(SlotsFull):
        room.pserver(7300).register(wait=False)

    # Waiting is watching: renewals of the lease go on, nothing else is asked.
    etcd_proxy.clear()
    time.sleep(ttl)
    assert [call.name for call in etcd_proxy.calls() if call.name not in ("LeaseKeepAlive", "Watch")] == []
    assert etcd_proxy.count("LeaseKeepAlive") >= 10
    assert all(one.result is None for one in waiters)
    assert all("a free slot" in one.client.waiting_for for one in waiters)

    epochs = {one.address: one.client.session.epoch for one in holders}
    freed = {agent.index for agent in doomed}
    died = time.monotonic()
    for agent in doomed:
        agent.kill()
    eventually(lambda: sum(one.result is not None for one in waiters) == 3, 2 * ttl + 3, "three waiters hold a slot")
    assert time.monotonic() - died <= 2 * ttl + 3
    assert {one.index for one in waiters if one.result is not None} == freed
    assert epochs == {one.address: one.client.session.epoch for one in holders}
    room.all.pop().client.shutdown()  # the one that did not want to wait
    table.settle(room.held(), 10, 2)
    # A clean leave hands the slot on at once.
    left = time.monotonic()
    holders[0].client.shutdown()
    eventually(lambda: sum(one.result is not None for one in waiters) == 4, 2, "the fourth waiter")
    assert time.monotonic() - left < 1.5


# -- the count changes ---------------------------------------------------------------------------------------------


@pytest.mark.fault("A31")
@pytest.mark.fault("I2")
@pytest.mark.fault("I5")
def test_count_raised_and_lowered_under_load(room: Room, table: SlotTable) -> None:
    table.set_desired(4)
    first = [room.pserver(7000 + n).begin() for n in range(4)]
    assert sorted(int(str(one.join())) for one in first) == [0, 1, 2, 3]
    rest = [room.pserver(7100 + n).begin() for n in range(6)]
    end = threading.Event()
    failures: list[BaseException] = []

    def load() -> None:
        while not end.is_set():
            try:
                first[0].client.put_key("/load", b"x", timeout=3)
                assert first[0].client.get_key("/load", timeout=3) == b"x"
            except Exception as error:
                failures.append(error)

    load_thread = threading.Thread(target=load, name="load")
    load_thread.start()
    try:
        never(lambda: any(one.result is not None for one in rest), 0.5, "a fifth slot of four")
        epochs = {one.address: one.client.session.epoch for one in first}

        table.set_desired(8)
        table.settle(room.held(), 8, 3)
        assert epochs == {one.address: one.client.session.epoch for one in first}, "nobody is renumbered"
        eventually(lambda: all(8 in one.counts for one in first), 2, "holders are told of the new count")

        stay = [one for one in room.all if one.index in (0, 1)]
        leave = [one for one in room.all if one.index is not None and one.index >= 2]
        assert (len(stay), len(leave)) == (2, 6)
        lowered = time.monotonic()
        table.set_desired(2)
        table.settle(room.held(), 2, 3)
        for one in leave:
            at, loss, slot = eventually(partial(getattr, one, "losses"), 2, "a holder above the count is told")[0]
            assert isinstance(loss, SlotWithdrawn)
            assert slot is not None
            assert slot.index >= 2
            assert at - lowered < 2
            assert 2 in one.counts
        assert [one.losses for one in stay] == [[], []]
        assert all(epochs[one.address] == one.client.session.epoch for one in stay if one.address in epochs)

        table.set_desired(10)
        table.settle(room.held(), 10, 3)
    finally:
        end.set()
        load_thread.join()
    assert failures == []


# -- by hand -------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.fault("A34")
@pytest.mark.parametrize("version", VERSIONS)
def test_slot_key_deleted_by_hand(etcd_factory: Callable[..., EtcdCluster], version: str, prefix: str) -> None:
    cluster = etcd_factory(version=version)
    table = SlotTable(cluster.members[0].client_url, prefix)
    with Room(cluster.endpoints, prefix) as room:
        one, other = room.pserver(7000, num_pservers=2), room.pserver(7001, num_pservers=2)
        assert (one.register(), other.register()) == (0, 1)
        old_epoch, old_lease = one.client.session.epoch, one.client.session.lease_id
        gone = one.client.session.lost
        deleted = time.monotonic()
        table.delete("/ps/0")
        assert gone.wait(1.0), "noticed within 1 s"
        # The rule of any lost slot: told, and claimed again with a higher epoch and a new lease.
        eventually(lambda: len(one.registered) == 2, 3, "the slot is claimed again")
        at, loss, slot = one.losses[0]
        assert at - deleted < 1
        assert "deleted" in str(loss)
        assert slot is not None
        assert (slot.index, slot.epoch) == (0, old_epoch)
        assert one.index == 0
        assert (one.client.session.epoch or 0) > (old_epoch or 0)
        assert old_lease is not None
        eventually(lambda: not table.lease_lives(old_lease), 3, "the old lease is given back")
        assert len(one.losses) == 1
        assert other.losses == []
        table.settle(room.held(), 2, 2)


@pytest.mark.fault("A34")
def test_slot_key_deleted_by_hand_is_reported_where_nothing_is_reclaimed(room: Room, table: SlotTable) -> None:
    one = room.pserver(7000, num_pservers=1, reclaim="never")
    one.register()
    table.delete("/ps/0")
    eventually(lambda: one.losses, 1, "told of the loss")
    assert one.client.session.state is SessionState.LOST
    never(lambda: table.read(), 0.5, "a slot claimed again in spite of reclaim=never")
    assert one.register() == 0


@pytest.mark.fault("A35")
def test_lease_revoked_by_hand(room: Room, table: SlotTable, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="edl_agent")
    one = room.pserver(7000, num_pservers=2)
    one.register()
    lease, epoch = one.client.session.lease_id, one.client.session.epoch
    assert lease is not None
    revoked = time.monotonic()
    table.revoke(lease)
    eventually(lambda: len(one.registered) == 2, 3, "registered again")
    assert one.losses[0][0] - revoked < 3 / 3 + 0.5, "lost within one keepalive"
    assert one.index == 0, "the same index, since it is free"
    assert one.client.session.lease_id != lease
    assert (one.client.session.epoch or 0) > (epoch or 0)
    assert len(one.losses) == 1
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1, caplog.text
    assert len([r for r in caplog.records if r.getMessage().startswith("Registered as")]) == 2


@pytest.mark.fault("A35")
def test_revoked_lease_is_noticed_by_the_keepalive_alone(room: Room, table: SlotTable) -> None:
    ttl = 3
    one = room.pserver(7000, ttl=ttl)  # without a slot there is no key to watch
    one.client.open(timeout=5)
    lease, gone = one.client.session.lease_id, one.client.session.lost
    assert lease is not None
    revoked = time.monotonic()
    table.revoke(lease)
    assert gone.wait(ttl)
    assert time.monotonic() - revoked < ttl / 3 + 0.5
    eventually(lambda: one.client.session.state is SessionState.CONNECTED, 3, "a new session")
    assert one.client.session.lease_id != lease


@pytest.mark.fault("A35")
def test_revoked_lease_whose_slot_was_taken_meanwhile(room: Room, table: SlotTable, etcd_proxy: EtcdProxy) -> None:
    table.set_desired(1)
    one = room.pserver(7000, endpoints=etcd_proxy.endpoint)
    one.register()
    waiter = room.pserver(7001).begin()
    eventually(lambda: "free slot" in waiter.client.waiting_for, 5, "the waiter waits")
    # The loser's next grant is slow, so that the waiter is first.
    delay = etcd_proxy.delay("LeaseGrant", 0.7)
    lease = one.client.session.lease_id
    assert lease is not None
    table.revoke(lease)
    assert waiter.join() == 0
    delay.wait_fired()
    never(lambda: one.index is not None, 1, "two holders of one slot")
    delay.remove()
    waiter.client.shutdown()
    eventually(lambda: one.index == 0, 3, "the first has it again")


@pytest.mark.fault("A36")
@pytest.mark.fault("I3")
def test_slot_overwritten_by_somebody_else_is_not_written_back(room: Room, table: SlotTable) -> None:
    one = room.pserver(7000, num_pservers=2)
    one.register()
    epoch = one.client.session.epoch
    put = time.monotonic()
    foreign = table.put("/ps/0", "10.9.9.9:1")
    eventually(lambda: one.losses, 1, "told of the loss")
    at, loss, slot = one.losses[0]
    assert at - put < 1
    assert "overwritten" in str(loss)
    assert slot is not None
    assert slot.epoch == epoch
    eventually(lambda: one.index == 1, 3, "another slot is claimed")
    found = table.read()[0]
    assert (found.address, found.epoch, found.lease) == ("10.9.9.9:1", foreign, 0)

    # With no other slot left the loser waits, says why, and takes the slot as soon as it is freed by hand.
    second = room.pserver(7001).begin()
    eventually(lambda: "never expire" in second.client.waiting_for, 3, "the waiter names the stuck key")
    assert "[0]" in second.client.waiting_for
    never(lambda: table.read()[0].epoch != foreign, 0.5, "a write over the foreign key")
    table.delete("/ps/0")
    assert second.join() == 0
    assert table.broken_rules(2) == []


@pytest.mark.fault("A36")
@pytest.mark.fault("I1")
def test_no_guarded_write_commits_after_the_slot_was_overwritten(
    room: Room, table: SlotTable, etcd_proxy: EtcdProxy
) -> None:
    one = room.pserver(7000, num_pservers=1, endpoints=etcd_proxy.endpoint, reclaim="never")
    one.register()
    one.client.guarded_put("/checkpoints/0", b"mine")
    # News of the loss do not arrive, so that only the transaction itself stands between the old holder and the key.
    etcd_proxy.swallow_answers("Watch", times=None)
    table.put("/ps/0", "10.9.9.9:1")
    assert one.index == 0
    with pytest.raises(LeaseLost):
        one.client.guarded_put("/checkpoints/0", b"late")
    assert table.value("/checkpoints/0") == "mine"
    assert one.client.session.state is SessionState.LOST, "the refusal is news of the loss"
    assert len(eventually(lambda: one.losses, 1)) == 1


# -- writes under a lease that is gone -----------------------------------------------------------------------------


@pytest.mark.fault("A42")
def test_put_with_lease_after_the_loss(room: Room, table: SlotTable, etcd_proxy: EtcdProxy) -> None:
    one = room.pserver(7000, num_pservers=1, endpoints=etcd_proxy.endpoint, reclaim="never", ttl=30)
    one.register()
    lease = one.client.session.lease_id
    assert lease is not None
    one.client.put_key("/edl/agents/a", b"alive", with_lease=True)
    # The client cannot hear of the loss before it writes.
    etcd_proxy.swallow_answers("Watch", times=None)
    table.revoke(lease)
    assert table.value("/edl/agents/a") is None
    assert one.client.session.lease_id == lease
    with pytest.raises(LeaseLost):
        one.client.put_key("/edl/agents/a", b"late", with_lease=True)
    assert one.client.session.state is SessionState.LOST
    assert table.value("/edl/agents/a") is None

    # Now the client knows, and sends nothing.
    before = etcd_proxy.count("Put") + etcd_proxy.count("Txn")
    with pytest.raises(LeaseLost):
        one.client.put_key("/edl/agents/a", b"later", with_lease=True)
    with pytest.raises(LeaseLost):
        one.client.compare_and_set("/edl/agents/a", b"later", guarded=False, with_lease=True)
    with pytest.raises(LeaseLost):
        one.client.guarded_put("/edl/agents/a", b"later")
    assert etcd_proxy.count("Put") + etcd_proxy.count("Txn") == before
    assert table.value("/edl/agents/a") is None
    one.client.put_key("/plain", b"x")  # needs no lease
    assert table.value("/plain") == "x"


@pytest.mark.fault("A42")
def test_put_with_lease_goes_under_the_new_lease_after_a_new_claim(room: Room, table: SlotTable) -> None:
    one = room.pserver(7000, num_pservers=1)
    one.register()
    lease = one.client.session.lease_id
    assert lease is not None
    table.revoke(lease)
    eventually(lambda: len(one.registered) == 2, 3, "registered again")
    one.client.put_key("/edl/agents/a", b"again", with_lease=True)
    one.client.shutdown()
    assert table.value("/edl/agents/a") is None, "the key went with the session"
