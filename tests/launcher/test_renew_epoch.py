"""`EtcdClient.renew_epoch`: the same slot with a higher epoch, also where answers are lost and writes come late."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from edl_agent import DeadlineExceeded, EtcdClient, LeaseLost, SlotTakenOver
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd


@pytest.fixture
def client(etcd_proxy: EtcdProxy, prefix: str) -> Iterator[EtcdClient]:
    with EtcdClient(etcd_proxy.endpoint, 1, ttl=5.0, prefix=prefix, host="127.0.0.1") as client:
        client.register(7164)
        yield client


def test_the_epoch_rises_and_everything_else_stays(client: EtcdClient, prefix: str, etcd: SharedEtcd) -> None:
    told: list[object] = []
    client.on_registered(told.append)
    client.on_lost(lambda loss, slot: told.append(loss))
    before = client.session.view().slot
    lost = client.session.lost
    assert before is not None
    epochs = [before.epoch]
    for _ in range(5):
        slot = client.renew_epoch()
        assert slot == client.session.view().slot
        assert (slot.index, slot.address, slot.lease_id) == (before.index, before.address, before.lease_id)
        epochs.append(slot.epoch)
    assert epochs == sorted(set(epochs))
    # The watch has seen its own puts and takes them for what they are.
    never(lambda: bool(told) or lost.is_set(), 0.5)
    assert client.session.epoch == epochs[-1]
    client.guarded_put("/k", b"new", epoch=epochs[-1])
    with pytest.raises(LeaseLost):
        client.guarded_put("/k", b"old", epoch=epochs[0])
    assert client.get_key("/k") == b"new"
    assert not lost.is_set()


def test_a_lost_answer(client: EtcdClient, etcd_proxy: EtcdProxy) -> None:
    before = client.session.epoch
    etcd_proxy.lose_answer("Txn")
    slot = client.renew_epoch(timeout=5.0)
    assert before is not None
    assert slot.epoch > before
    never(lambda: client.session.index is None, 0.5)
    client.guarded_put("/k", b"v", epoch=slot.epoch)


def test_a_write_that_comes_late_does_nothing(client: EtcdClient, etcd_proxy: EtcdProxy) -> None:
    held = etcd_proxy.hold("Txn")
    with pytest.raises(DeadlineExceeded):
        client.renew_epoch(timeout=0.5)
    held.wait_held()
    slot = client.renew_epoch(timeout=5.0)
    held.release()
    held.wait_delivered()
    never(lambda: client.session.epoch != slot.epoch, 0.5)
    client.guarded_put("/k", b"v", epoch=slot.epoch)


def test_a_late_write_that_comes_first_is_noticed(client: EtcdClient, etcd_proxy: EtcdProxy) -> None:
    before = client.session.epoch
    held = etcd_proxy.hold("Txn")
    with pytest.raises(DeadlineExceeded):
        client.renew_epoch(timeout=0.5)
    held.wait_held()
    held.release()
    held.wait_delivered()
    # The program that was started before is not the holder of this epoch: its writes are refused.
    eventually(lambda: client.session.epoch != before, 5.0, "the watch's news")
    with pytest.raises(LeaseLost):
        client.guarded_put("/k", b"v", epoch=before)
    assert client.session.index == 0


def test_renewals_and_guarded_writes_at_once(client: EtcdClient) -> None:
    stop = threading.Event()
    failures: list[Exception] = []

    def write() -> None:
        while not stop.is_set():
            try:
                client.guarded_put("/k", b"v")
            except LeaseLost:
                continue  # of the epoch before; the slot is held all the same
            except Exception as error:
                failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(30):
        client.renew_epoch()
    stop.set()
    writer.join()
    assert failures == []
    assert client.session.index == 0


def test_a_slot_that_is_gone(client: EtcdClient, etcd: SharedEtcd, prefix: str) -> None:
    etcd.etcdctl("put", f"{prefix}/ps/0", "10.9.9.9:1")
    with pytest.raises(LeaseLost):
        client.renew_epoch()


def test_a_newer_process_with_the_address(client: EtcdClient, etcd: SharedEtcd, prefix: str) -> None:
    with EtcdClient(etcd.client_url, 1, ttl=5.0, prefix=prefix, host="127.0.0.1") as newer:
        newer.register(7164)
        with pytest.raises(SlotTakenOver):
            client.renew_epoch()
        newer.renew_epoch()
        assert newer.session.index == 0


def test_without_a_slot(etcd: SharedEtcd, prefix: str) -> None:
    with EtcdClient(etcd.client_url, prefix=prefix) as client:
        client.open(timeout=5.0)
        with pytest.raises(LeaseLost):
            client.renew_epoch()
