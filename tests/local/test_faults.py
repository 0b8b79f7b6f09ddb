"""The cluster of one machine when its etcd restarts, forgets, or an answer is lost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import grpc
import pytest

from edl_agent.testing import EtcdServer
from edl_controller.api.configuration import ConfigMap
from edl_controller.api.kinds import CONFIG_MAPS, TRAINING_JOBS
from edl_controller.api.meta import ObjectMeta
from edl_controller.api.v1 import TrainingJob
from edl_controller.cluster.local import LocalCluster
from edl_controller.errors import AlreadyExists, Conflict, Gone, Invalid, NotFound, Unavailable
from edl_controller.runtime.informer import Informer
from edl_controller.runtime.reflector import Delta
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.waiting import eventually
from tests.conftest import SharedEtcd
from tests.local.conftest import Watcher, config_map

# -- etcd goes and comes back ------------------------------------------------------------------------------------------


def test_a_restart_of_etcd_loses_and_doubles_nothing(etcd_factory: Callable[..., EtcdCluster]) -> None:
    member = etcd_factory().members[0]
    with LocalCluster(member.client_url) as cluster, Watcher(cluster, _now(cluster)) as watcher:
        answered: dict[str, str] = {}
        lost: list[int] = []
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    made = cluster.create(config_map(f"a-{number}", number=str(number)))
                    answered[made.metadata.name] = made.metadata.resource_version
                except Unavailable:
                    lost.append(number)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        for _ in range(2):
            before = len(answered)
            eventually(lambda before=before: len(answered) > before + 50, 20, "writes")  # type: ignore[misc]
            member.kill()
            member.start()
        before = len(answered)
        eventually(lambda: len(answered) > before + 50, 20, "writes after the restarts")
        stop.set()
        writer.join(15.0)
        assert not writer.is_alive()
        stored = {obj.metadata.name: obj.metadata.resource_version for obj in cluster.list(CONFIG_MAPS).items}
        eventually(lambda: len(watcher.changes) >= len(stored), 10, "all changes")

    assert lost, "no write met a restart"
    assert answered.items() <= stored.items(), "what was answered is there"
    seen = [(change.obj.metadata.name, change.resource_version) for change in watcher.changes if change.obj]
    assert dict(seen) == stored
    assert len(seen) == len(stored), "nothing was told twice"
    assert [int(version) for _, version in seen] == sorted(int(version) for _, version in seen)


def test_an_etcd_that_lost_its_data_means_a_new_list(etcd_factory: Callable[..., EtcdCluster]) -> None:
    member = etcd_factory().members[0]
    with LocalCluster(member.client_url) as cluster:
        for number in range(5):
            cluster.create(config_map(f"a-{number}"))
        with Watcher(cluster, _now(cluster)) as watcher:
            cluster.create(config_map("b"))
            eventually(lambda: watcher.changes, 10, "a change")
            member.wipe_and_restart()
            eventually(lambda: watcher.error, 20, "the watch to notice")
        assert isinstance(watcher.error, Gone)


def test_without_etcd_calls_say_so_within_their_time(
    etcd_factory: Callable[..., EtcdCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl_controller.cluster.local.cluster.CALL_DEADLINE", 0.5)
    member = etcd_factory().members[0]
    with LocalCluster(member.client_url) as cluster:
        cluster.create(config_map("a"))
        member.kill()
        begin = time.monotonic()
        with pytest.raises(Unavailable):
            cluster.get(CONFIG_MAPS, "default", "a")
        with pytest.raises(Unavailable):
            cluster.list(CONFIG_MAPS)
        with pytest.raises(Unavailable):
            cluster.create(config_map("b"))
        with pytest.raises(Unavailable):
            cluster.patch(CONFIG_MAPS, "default", "a", {"data": {"x": "1"}})
        assert time.monotonic() - begin < 4.0


# -- etcd forgets ------------------------------------------------------------------------------------------------------


def test_a_watch_from_a_forgotten_version_is_gone(cluster: LocalCluster, etcd: EtcdServer) -> None:
    old = _now(cluster)
    cluster.create(config_map("a"))
    cluster.create(config_map("b"))
    etcd.etcdctl("compact", _now(cluster))

    with pytest.raises(Gone):
        list(cluster.watch(CONFIG_MAPS, "", old, threading.Event()))


def test_what_was_forgotten_while_the_watch_was_broken_is_listed(
    cluster: LocalCluster, proxied: LocalCluster, etcd: EtcdServer, etcd_proxy: EtcdProxy
) -> None:
    """Three changes while the watch cannot be opened, then a compaction: a new list brings the differences."""
    for name in ("stays", "changes", "goes"):
        cluster.create(config_map(name, x="1"))
    informer = Informer(proxied, CONFIG_MAPS)
    heard: list[Delta[ConfigMap]] = []
    informer.add_handler(heard.append)
    stop = threading.Event()
    thread = threading.Thread(target=informer.run, args=(stop,), daemon=True)
    thread.start()
    try:
        assert informer.wait_synced(10.0)
        outage = etcd_proxy.fail("Watch", grpc.StatusCode.UNAVAILABLE, times=None)
        etcd_proxy.break_streams("Watch")
        cluster.patch(CONFIG_MAPS, "default", "changes", {"data": {"x": "2"}})
        cluster.delete(CONFIG_MAPS, "default", "goes")
        cluster.create(config_map("comes"))
        etcd.etcdctl("compact", _now(cluster))
        outage.remove()

        eventually(lambda: {one.metadata.name for one in informer.cache.all()} == {"stays", "changes", "comes"}, 20)
        eventually(lambda: len(heard) == 6, 10, lambda: str(heard))
    finally:
        stop.set()
        thread.join(5.0)
    assert {(delta.type, delta.obj.metadata.name) for delta in heard[3:]} == {
        ("updated", "changes"),
        ("deleted", "goes"),
        ("added", "comes"),
    }


def test_a_list_that_is_overtaken_by_a_compaction_begins_anew(
    cluster: LocalCluster, proxied: LocalCluster, etcd: EtcdServer, etcd_proxy: EtcdProxy
) -> None:
    for number in range(600):
        cluster.create(config_map(f"a-{number:03}"))
    second_page = etcd_proxy.hold("Range", nth=2)
    found: list[str] = []
    reader = threading.Thread(
        target=lambda: found.extend(one.metadata.name for one in proxied.list(CONFIG_MAPS).items), daemon=True
    )
    reader.start()
    second_page.wait_held()
    cluster.delete(CONFIG_MAPS, "default", "a-000")
    etcd.etcdctl("compact", _now(cluster))
    second_page.release()
    reader.join(10.0)

    assert found == [f"a-{number:03}" for number in range(1, 600)]


# -- answers that are lost ---------------------------------------------------------------------------------------------


def test_a_create_whose_answer_was_lost_may_be_there(proxied: LocalCluster, etcd_proxy: EtcdProxy) -> None:
    etcd_proxy.lose_answer("Txn")

    with pytest.raises(Unavailable):
        proxied.create(config_map("a", x="1"))

    with pytest.raises(AlreadyExists):
        proxied.create(config_map("a", x="1"))
    assert proxied.get(CONFIG_MAPS, "default", "a").data == {"x": "1"}


def test_a_patch_whose_answer_was_lost_is_applied_once(proxied: LocalCluster, etcd_proxy: EtcdProxy) -> None:
    made = proxied.create(config_map("a", x="1"))
    version = made.metadata.resource_version
    etcd_proxy.lose_answer("Txn")

    with pytest.raises(Unavailable):
        proxied.patch(CONFIG_MAPS, "default", "a", {"data": {"x": "2"}}, resource_version=version)

    with pytest.raises(Conflict):
        proxied.patch(CONFIG_MAPS, "default", "a", {"data": {"x": "2"}}, resource_version=version)
    applied = proxied.get(CONFIG_MAPS, "default", "a")
    assert applied.data == {"x": "2"}
    assert proxied.patch(CONFIG_MAPS, "default", "a", {"data": {"x": "2"}}) == applied


def test_a_deletion_whose_answer_was_lost_hits_no_other_object(proxied: LocalCluster, etcd_proxy: EtcdProxy) -> None:
    made = proxied.create(config_map("a"))
    etcd_proxy.lose_answer("Txn")
    with pytest.raises(Unavailable):
        proxied.delete(CONFIG_MAPS, "default", "a", uid=made.metadata.uid)
    with pytest.raises(NotFound):
        proxied.delete(CONFIG_MAPS, "default", "a", uid=made.metadata.uid)
    proxied.create(config_map("a"))

    with pytest.raises(Conflict):
        proxied.delete(CONFIG_MAPS, "default", "a", uid=made.metadata.uid)


def test_a_read_whose_answer_was_lost_is_repeated(proxied: LocalCluster, etcd_proxy: EtcdProxy) -> None:
    made = proxied.create(config_map("a"))
    lost = etcd_proxy.lose_answer("Range")

    assert proxied.get(CONFIG_MAPS, "default", "a") == made
    lost.wait_fired()


def _now(cluster: LocalCluster) -> str:
    return cluster.list(CONFIG_MAPS).resource_version


# -- objects that cannot be read ---------------------------------------------------------------------------------------


def test_an_object_that_cannot_be_read_can_still_say_so(etcd: SharedEtcd, prefix: str) -> None:
    """Its status alone is patched; what the user wrote stays, odd as it is."""
    with LocalCluster(etcd.client_url, prefix=prefix) as cluster:
        made = cluster.create(TrainingJob(metadata=ObjectMeta(name="odd", namespace="ns")))
        key = next(
            one for one in etcd.etcdctl("get", prefix, "--prefix", "--keys-only").split() if one.endswith("/odd")
        )
        document = json.loads(etcd.etcdctl("get", key, "--print-value-only"))
        spec = {"image": 7, "of a newer version": [None, {"x": 1.5}]}
        etcd.etcdctl("put", key, json.dumps(document | {"spec": spec}))
        patch = {"status": {"conditions": [{"type": "Invalid", "status": "True"}]}}
        with pytest.raises(Conflict):
            cluster.patch(TRAINING_JOBS, "ns", "odd", patch, subresource="status", uid="another")
        cluster.patch(TRAINING_JOBS, "ns", "odd", patch, subresource="status", uid=made.metadata.uid)
        stored = json.loads(etcd.etcdctl("get", key, "--print-value-only"))
        assert stored["spec"] == spec
        assert stored["status"]["conditions"] == patch["status"]["conditions"]
        (listed,) = cluster.list(TRAINING_JOBS, "ns").items
        again = cluster.patch(TRAINING_JOBS, "ns", "odd", patch, subresource="status")
        assert again.metadata.resource_version == listed.metadata.resource_version, "nothing has changed"
        with pytest.raises(Invalid):
            cluster.patch(TRAINING_JOBS, "ns", "odd", {"metadata": {"labels": {"a": "b"}}})
        with pytest.raises(NotFound):
            cluster.patch(TRAINING_JOBS, "ns", "nobody", patch, subresource="status")
