"""Checkpoints with their metadata in etcd: who may commit, what is found by it, and what comes of etcd's troubles."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from edl_agent import ConfigurationError, EtcdClient, InvalidDesiredCount, LeaseLost, SlotTakenOver, Unavailable
from edl_agent.checkpoints import CheckpointStore
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.waiting import eventually
from tests.conftest import SharedEtcd

Pserver = Callable[..., EtcdClient]


@pytest.fixture
def pserver(etcd: SharedEtcd, prefix: str) -> Iterator[Pserver]:
    """``pserver(port=7001, count=1, endpoint=None)``: a client that holds a slot."""
    clients: list[EtcdClient] = []

    def make(port: int = 7001, count: int = 1, endpoint: str | None = None, ttl: float = 5) -> EtcdClient:
        client = EtcdClient(endpoint or etcd.client_url, count, prefix=prefix, ttl=ttl, host="127.0.0.1")
        clients.append(client)
        client.register(port, timeout=10)
        return client

    yield make
    for client in clients:
        client.shutdown()


def metadata(client: EtcdClient, index: int = 0) -> dict[str, object]:
    raw = client.get_key(f"/checkpoints/{index}")
    assert raw is not None
    found: dict[str, object] = json.loads(raw)
    return found


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# --- what stands in etcd ---


def test_metadata_are_what_the_originals_pserver_reads(tmp_path: Path, pserver: Pserver) -> None:
    client = pserver()
    store = CheckpointStore(client, tmp_path, 0)
    assert store.restore() is None
    for step in (1, 2, 3):
        made = store.save(step, b"state %d" % step)
    found = metadata(client)
    # As LoadCheckpoint of its Go code does: read the file at path, compare the crc32.
    assert zlib.crc32(Path(str(found["path"])).read_bytes()) == found["crc32"]
    assert found["uuid"] == made.uuid
    assert isinstance(found["timestamp"], int)
    assert abs(found["timestamp"] / 1e9 - made.time) < 1
    assert (found["step"], found["epoch"]) == (3, client.session.epoch)
    previous = found["previous"]
    assert isinstance(previous, list)
    assert [one["step"] for one in previous] == [2]
    assert made.committed
    assert store.restore() == made
    assert len(names(tmp_path)) == 4


@pytest.mark.parametrize("form", ["path", "uuid and md5", "another mount"])
def test_the_originals_checkpoint_is_restored(tmp_path: Path, pserver: Pserver, form: str) -> None:
    client = pserver()
    name = str(uuid.uuid4())
    (tmp_path / name).write_bytes(b"gob")
    fields: dict[str, object] = {"uuid": name, "path": f"{tmp_path}/{name}", "crc32": zlib.crc32(b"gob")}
    if form == "uuid and md5":
        fields = {"uuid": name, "md5": hashlib.md5(b"gob").hexdigest(), "timestamp": "1500000000"}
    elif form == "another mount":
        fields["path"] = f"/elsewhere/{name}"
    client.put_key("/checkpoints/0", json.dumps(fields).encode())
    store = CheckpointStore(client, tmp_path, 0)
    found = store.restore()
    assert found is not None
    assert found.path == tmp_path / name
    assert (found.step, found.shards, found.committed) == (0, 0, True)
    # Ours follow it; its file is not ours to delete, and is found again when ours are damaged.
    made = [store.save(step, b"ours") for step in (1, 2, 3)]
    assert store.restore() == made[-1]
    assert name in names(tmp_path)


def test_a_damaged_original_is_no_crash_loop(tmp_path: Path, pserver: Pserver) -> None:
    client = pserver()
    store = CheckpointStore(client, tmp_path, 0)
    for value in (
        b"",
        b"uuid md5 1500000000",
        b'{"uuid":"a-1","path":"/etc/passwd","crc32":1}',
        b'{"uuid":"a-1","path":"../../etc/passwd"}',
        b'{"uuid":"a-1","path":"/checkpoints/..","crc32":1}',
        b"[]",
        b"\xff",
    ):
        client.put_key("/checkpoints/0", value)
        assert store.restore() is None
    (tmp_path / "a-1").write_bytes(b"damaged")
    client.put_key("/checkpoints/0", b'{"uuid":"a-1","path":"/checkpoints/a-1","crc32":1}')
    assert store.restore() is None
    assert [one.reason for one in store.skipped] == ["its crc32 is wrong"]
    made = store.save(1, b"ours")
    assert store.restore() == made


def test_found_by_etcd_where_the_manifest_is_lost_and_by_manifest_where_etcd_is(
    tmp_path: Path, etcd: SharedEtcd, pserver: Pserver
) -> None:
    client = pserver()
    made = CheckpointStore(client, tmp_path, 0).save(1, b"state")
    [manifest] = tmp_path.glob("*.json")
    content = manifest.read_bytes()
    manifest.unlink()
    assert CheckpointStore(client, tmp_path, 0).restore() == made
    client.shutdown()
    again = pserver(7002)
    kept = CheckpointStore(again, tmp_path, 0, keep=1)
    assert kept.restore() == made
    manifest.write_bytes(content)
    again.delete_key("/checkpoints/0")
    found = kept.restore()
    assert found is not None
    assert (found.path, found.committed) == (made.path, False)


# --- who may commit ---


def test_only_the_holder_of_the_slot_saves(tmp_path: Path, etcd: SharedEtcd, prefix: str, pserver: Pserver) -> None:
    client = pserver(count=2)
    with pytest.raises(LeaseLost, match="slot 0"):
        CheckpointStore(client, tmp_path, 1).save(1, b"x")
    with EtcdClient(etcd.client_url, prefix=prefix) as trainer:
        with pytest.raises(LeaseLost):
            CheckpointStore(trainer, tmp_path, 0).save(1, b"x")
        trainer.register_trainer("trainer-0", timeout=5)
        with pytest.raises(LeaseLost, match="trainer"):
            CheckpointStore(trainer, tmp_path, 0).save(1, b"x")
    assert names(tmp_path) == []


@pytest.mark.parametrize("moment", ["file opened", "manifest verified"])
def test_a_slot_lost_while_saving(tmp_path: Path, pserver: Pserver, moment: str) -> None:
    """It is claimed again by itself: what was begun before belongs to the epoch before."""

    class Losing(CheckpointStore):
        def _passed(self, step: str) -> None:
            passed.append(step)
            if step == moment and epoch is not None:
                client.delete_key("/ps/0")
                eventually(lambda: client.session.epoch not in (None, epoch), 10, "a new epoch")

    client, epoch = pserver(), None
    passed: list[str] = []
    store = Losing(client, tmp_path, 0)
    good = store.save(1, b"state")
    before = names(tmp_path)
    passed.clear()
    epoch = client.session.epoch
    with pytest.raises(LeaseLost):
        store.save(2, b"state")
    assert ("manifest opened" in passed) == (moment == "manifest verified")
    assert names(tmp_path) == before
    assert metadata(client)["step"] == 1
    assert store.restore() == good
    epoch = None
    assert store.save(2, b"again").epoch == client.session.epoch


@pytest.mark.parametrize("end", ["refused", "killed"])
def test_a_late_commit_of_a_fenced_incarnation(
    tmp_path: Path, etcd_proxy: EtcdProxy, pserver: Pserver, end: str
) -> None:
    old = pserver(endpoint=etcd_proxy.endpoint)
    old_store = CheckpointStore(old, tmp_path, 0)
    old_store.save(10, b"old 10")
    hold = etcd_proxy.hold("Txn", when=lambda data, metadata: b"/checkpoints/0" in data)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(old_store.save, 20, b"old 20", timeout=20.0)
        hold.wait_held()
        # The same address: the newer process takes the slot over, and restores and saves while the old one hangs.
        new = pserver()
        assert new.session.epoch is not None
        store = CheckpointStore(new, tmp_path, 0)
        restored = store.restore()
        assert restored is not None
        assert restored.step == 20, "whole, in the folder, and of the last incarnation that saved"
        made = store.save(15, b"new 15")
        if end == "refused":
            hold.release()
        else:
            hold.drop()
        with pytest.raises(LeaseLost):
            late.result(30)
    assert metadata(new)["step"] == 15
    for searching in (CheckpointStore(new, tmp_path, 0), CheckpointStore(None, tmp_path, 0, shards=1)):
        found = searching.restore()
        assert found is not None
        assert (found.step, found.path) == (15, made.path)
    with pytest.raises((LeaseLost, SlotTakenOver)):
        old_store.save(30, b"old 30")
    assert store.save(16, b"new 16") == store.restore()


def test_what_a_fenced_incarnation_leaves_is_never_chosen(tmp_path: Path, pserver: Pserver) -> None:
    """It was killed between manifest and commit; the one after it had saved before."""
    old = pserver()
    old_store = CheckpointStore(old, tmp_path, 0)
    old_store.save(10, b"old 10")
    old_store.save(99, b"old 99")
    taken = {path.name: path.read_bytes() for path in tmp_path.glob("*step-000000000099*")}
    old.shutdown()
    new = pserver(7002)
    store = CheckpointStore(new, tmp_path, 0, keep=1)
    made = store.save(15, b"new 15")
    for name, content in taken.items():
        (tmp_path / name).write_bytes(content)
    for searching in (store, CheckpointStore(None, tmp_path, 0, shards=1)):
        found = searching.restore()
        assert found is not None
        assert found.path == made.path
    store.save(16, b"new 16")
    assert not [name for name in names(tmp_path) if "step-000000000099" in name]


def test_an_incarnation_that_does_not_know_that_it_is_fenced_off(
    tmp_path: Path, etcd_proxy: EtcdProxy, pserver: Pserver
) -> None:
    """It begins to save when the one after it has saved: it is not even let into the folder."""
    old = pserver(endpoint=etcd_proxy.endpoint, ttl=20)
    etcd_proxy.swallow_answers("Watch", times=None)
    etcd_proxy.swallow_answers("LeaseKeepAlive", times=None)
    new = pserver()
    made = CheckpointStore(new, tmp_path, 0).save(1, b"new")
    before = names(tmp_path)
    assert old.session.epoch is not None, "the test is about one that does not know"
    with pytest.raises(LeaseLost, match="later incarnation"):
        CheckpointStore(old, tmp_path, 0).save(2, b"old")
    assert names(tmp_path) == before
    assert CheckpointStore(new, tmp_path, 0).restore() == made


def test_after_etcd_has_lost_its_data(tmp_path: Path, etcd_factory: Callable[..., EtcdCluster]) -> None:
    """Epochs and revisions begin again, under the same cluster id: what is saved then is the newest all the same."""
    cluster = etcd_factory()

    def register() -> EtcdClient:
        client = EtcdClient(cluster.endpoint_string, 1, ttl=3, host="127.0.0.1")
        client.register(7001, timeout=20)
        return client

    with register() as client:
        for number in range(20):
            client.put_key("/other", b"%d" % number)
        client.delete_key("/ps/0")
        eventually(lambda: (client.session.epoch or 0) > 20, 10, "a high epoch")
        store = CheckpointStore(client, tmp_path, 0)
        old = [store.save(step, b"old") for step in (80, 100)]
    cluster.wipe_all()
    cluster.start()
    with register() as client:
        assert client.session.epoch is not None
        assert client.session.epoch < old[0].epoch
        store = CheckpointStore(client, tmp_path, 0)
        assert store.restore() is not None
        assert client.get_key("/checkpoints/0") is None
        made = store.save(90, b"new")
        assert store.restore() == made
        assert metadata(client)["step"] == 90
        assert CheckpointStore(None, tmp_path, 0, shards=1).restore() is not None
        following = store.save(91, b"new")
        assert store.restore() == following
        assert not [name for name in names(tmp_path) if f"epoch-{old[0].epoch}" in name]


# --- etcd's troubles ---


def test_a_lost_answer_is_found_out(tmp_path: Path, etcd_proxy: EtcdProxy, pserver: Pserver) -> None:
    client = pserver(endpoint=etcd_proxy.endpoint)
    store = CheckpointStore(client, tmp_path, 0)
    store.save(1, b"state")
    rule = etcd_proxy.lose_answer("Txn")
    made = store.save(2, b"state")
    assert rule.fired
    assert (metadata(client)["step"], metadata(client)["uuid"]) == (2, made.uuid)
    assert store.restore() == made
    # The older one is named once: the put was not made twice.
    previous = metadata(client)["previous"]
    assert isinstance(previous, list)
    assert [one["step"] for one in previous] == [1]


def test_refused_for_a_while_is_tried_again(tmp_path: Path, etcd_proxy: EtcdProxy, pserver: Pserver) -> None:
    client = pserver(endpoint=etcd_proxy.endpoint)
    store = CheckpointStore(client, tmp_path, 0)
    etcd_proxy.fail("Txn", grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader", times=3)
    assert store.save(1, b"state") == store.restore()


def test_without_etcd_the_file_stays_and_is_found(tmp_path: Path, etcd_proxy: EtcdProxy, pserver: Pserver) -> None:
    client = pserver(endpoint=etcd_proxy.endpoint, ttl=20)
    store = CheckpointStore(client, tmp_path, 0, shards=1, keep=1)
    store.save(1, b"state 1")
    rules = [etcd_proxy.fail(method, grpc.StatusCode.UNAVAILABLE, "away", times=None) for method in ("Txn", "Range")]
    with pytest.raises((Unavailable, TimeoutError)):
        store.save(2, b"state 2", timeout=1.0)
    # Neither was deleted: the old one is what etcd names, the new one is whole.
    assert len(names(tmp_path)) == 4
    found = store.restore(timeout=1.0)
    assert found is not None
    assert (found.step, found.committed) == (2, False)
    for rule in rules:
        rule.remove()
    made = store.save(3, b"state 3")
    assert [name for name in names(tmp_path) if name.endswith(".ckpt")] == [made.path.name if made.path else ""]


def test_the_number_of_shards_comes_from_etcd(tmp_path: Path, pserver: Pserver, etcd: SharedEtcd, prefix: str) -> None:
    client = pserver(count=3)
    assert CheckpointStore(client, tmp_path, 0).save(1, b"x").shards == 3
    with EtcdClient(etcd.client_url, prefix=prefix + "-empty") as other, pytest.raises(InvalidDesiredCount):
        CheckpointStore(other, tmp_path, 0).restore()
    with pytest.raises(LeaseLost):
        CheckpointStore(client, tmp_path, 3).restore()


# --- sets and URIs by etcd ---


def test_sets_of_folders_that_are_not_shared(tmp_path: Path, pserver: Pserver) -> None:
    clients = [pserver(7001 + index, count=2) for index in range(2)]
    stores = [
        CheckpointStore(client, tmp_path / str(index), index, shared=False) for index, client in enumerate(clients)
    ]
    for store in stores:
        store.save(80, b"at 80")
    for step in (90, 100):
        stores[0].save(step, b"ahead")
    steps = []
    for store in stores:
        newest, of_set = store.restore("newest"), store.restore("complete_set")
        assert newest is not None
        assert of_set is not None
        steps.append((newest.step, of_set.step))
    assert steps == [(100, 80), (80, 80)]
    stores[1].save(100, b"at 100")
    assert [found.step for store in stores if (found := store.restore("complete_set"))] == [100, 100]
    # Its own files are verified in any case.
    for path in (tmp_path / "0").glob("*step-000000000100*.ckpt"):
        path.write_bytes(b"damaged")
    found = stores[0].restore("complete_set")
    assert found is not None
    assert found.step == 80


def test_uris_without_a_folder(pserver: Pserver) -> None:
    clients = [pserver(7001 + index, count=2) for index in range(2)]
    stores = [CheckpointStore(client, None, index) for index, client in enumerate(clients)]
    assert stores[0].restore() is None
    for step in (1, 2):
        for index, store in enumerate(stores):
            store.commit(f"s3://bucket/{step}/{index}", step, crc32=7, size=100)
    ahead = stores[1].commit("s3://bucket/3/1", 3)
    assert stores[1].restore() == ahead
    found = [store.restore("complete_set") for store in stores]
    assert [one and one.uri for one in found] == ["s3://bucket/2/0", "s3://bucket/2/1"]
    assert metadata(clients[0])["path"] == "s3://bucket/2/0"
    with pytest.raises(ConfigurationError, match="directory"):
        stores[0].save(4, b"x")
    with pytest.raises(ConfigurationError):
        stores[0].commit("/somewhere/file", 4)


def test_pservers_of_one_folder_at_once(tmp_path: Path, pserver: Pserver) -> None:
    clients = [pserver(7001 + index, count=3) for index in range(3)]
    failures: list[BaseException] = []

    def work(client: EtcdClient) -> None:
        try:
            index = client.session.index
            assert index is not None
            store = CheckpointStore(client, tmp_path, index)
            for step in range(1, 9):
                store.save(step, b"%d at %d" % (index, step))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    for client in clients:
        index = client.session.index
        assert index is not None
        found = CheckpointStore(client, tmp_path, index).restore("complete_set")
        assert found is not None
        assert found.step == 8
        with found.open() as file:
            assert file.read() == b"%d at 8" % index
    assert not [name for name in names(tmp_path) if name.endswith((".tmp", ".corrupt"))]


def test_the_state_of_an_earlier_incarnation_is_not_saved_for_a_later_one(tmp_path: Path, pserver: Pserver) -> None:
    client = pserver()
    store, begun = CheckpointStore(client, tmp_path, 0), client.session.epoch
    made = store.save(1, b"state", epoch=begun)
    client.delete_key("/ps/0")
    eventually(lambda: client.session.epoch not in (None, begun), 5.0, "claimed again")
    with pytest.raises(LeaseLost, match=f"belongs to epoch {begun}"):
        store.save(2, b"old state", epoch=begun)
    assert store.restore() == made
    assert store.save(2, b"new state", epoch=client.session.epoch).step == 2
