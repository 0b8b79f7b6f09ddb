"""All watches of one cluster share one stream of etcd: what each gets, and how the stream is kept alive."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl_controller.api.kinds import ALL, CONFIG_MAPS, SECRETS, Kind
from edl_controller.cluster.local import LocalCluster, shared_watch
from edl_controller.errors import Gone
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.waiting import eventually
from tests.local.conftest import Watcher, config_map


def _now(cluster: LocalCluster) -> str:
    return cluster.list(CONFIG_MAPS).resource_version


def _names(watcher: Watcher) -> list[str]:
    return [name for _, name, _ in watcher.seen()]


@contextlib.contextmanager
def _watches_of_all_kinds(cluster: LocalCluster) -> Iterator[None]:
    """Follow every kind on a thread each, from now on."""
    version, stop = _now(cluster), threading.Event()

    def follow(kind: Kind[Any]) -> None:
        for _ in cluster.watch(kind, "", version, stop):
            pass

    threads = [threading.Thread(target=follow, args=(kind,), daemon=True) for kind in ALL]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(5.0)


def test_many_watches_are_one_stream(proxied: LocalCluster, etcd_proxy: EtcdProxy) -> None:
    with _watches_of_all_kinds(proxied), Watcher(proxied, _now(proxied)) as watcher:
        proxied.create(config_map("a"))
        eventually(lambda: watcher.changes, 10, "a change")
        assert etcd_proxy.open_streams("Watch") == 1

    eventually(lambda: etcd_proxy.open_streams("Watch") == 0, 5, "the end of the stream")
    with Watcher(proxied, _now(proxied)) as watcher:
        proxied.create(config_map("b"))
        eventually(lambda: _names(watcher) == ["b"], 10, "a change")


def test_each_watch_gets_its_own_range_from_its_own_version(cluster: LocalCluster) -> None:
    versions = [_now(cluster)]
    with Watcher(cluster, versions[0]) as first:
        for name in ("a", "b", "c"):
            versions.append(cluster.create(config_map(name)).metadata.resource_version)
        eventually(lambda: len(first.changes) == 3, 10, "three changes")
        with contextlib.ExitStack() as stack:
            later = [stack.enter_context(Watcher(cluster, version)) for version in versions]
            cluster.create(config_map("d"))
            for number, watcher in enumerate(later):
                wanted = ["a", "b", "c", "d"][number:]
                eventually(lambda watcher=watcher, wanted=wanted: _names(watcher) == wanted, 10)  # type: ignore[misc]


def test_a_watch_from_before_what_is_remembered_gets_a_stream_of_its_own(
    proxied: LocalCluster, etcd_proxy: EtcdProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_watch, "REMEMBERED", 5)
    oldest = _now(proxied)
    with Watcher(proxied, oldest) as first:
        for number in range(20):
            proxied.create(config_map(f"a-{number:02}"))
        eventually(lambda: len(first.changes) == 20, 10, "all changes")
        with Watcher(proxied, oldest) as late, Watcher(proxied, _now(proxied)) as latest:
            proxied.create(config_map("b"))
            eventually(lambda: len(late.changes) == 21 and len(latest.changes) == 1, 10, "all changes, once more")
            assert _names(late) == [*(f"a-{number:02}" for number in range(20)), "b"]
            assert etcd_proxy.open_streams("Watch") == 2
        eventually(lambda: etcd_proxy.open_streams("Watch") == 1, 5, "the end of its stream")


def test_watches_that_come_and_go_among_writes_miss_nothing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """List, watch a little, leave, watch on from there, again and again: as one unbroken watch would see it."""
    monkeypatch.setattr(shared_watch, "REMEMBERED", 20)
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            cluster.create(config_map(f"a-{number:05}"))

    version = _now(cluster)
    writer = threading.Thread(target=write, daemon=True)
    seen: list[str] = []
    with Watcher(cluster, version) as unbroken:
        writer.start()
        for _ in range(60):
            changes = cluster.watch(CONFIG_MAPS, "default", version, threading.Event())
            for change in itertools.islice(changes, 3):
                version = change.resource_version
                seen += [change.obj.metadata.name] if change.obj is not None else []
            changes.close()  # type: ignore[attr-defined]
        stop.set()
        writer.join(5.0)
        eventually(lambda: len(unbroken.changes) >= len(seen), 10, "the unbroken watch")

    assert seen == _names(unbroken)[: len(seen)]
    assert len(seen) > 100


def test_a_kind_without_news_is_told_how_far_its_watch_has_come(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_watch, "SIGN_OF_LIFE", 0.3)
    with Watcher(cluster, _now(cluster)):
        version = cluster.create(config_map("a")).metadata.resource_version
        changes = cluster.watch(SECRETS, "", version, threading.Event())
        newest = cluster.create(config_map("b")).metadata.resource_version
        reached = next(change for change in changes if int(change.resource_version) >= int(newest))
        assert (reached.type, reached.obj) == ("BOOKMARK", None)
        changes.close()  # type: ignore[attr-defined]


def test_a_stream_that_hangs_is_opened_anew_and_nothing_is_missed(
    proxied: LocalCluster, etcd_proxy: EtcdProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_watch, "SIGN_OF_LIFE", 0.5)
    with Watcher(proxied, _now(proxied)) as watcher:
        proxied.create(config_map("a"))
        eventually(lambda: _names(watcher) == ["a"], 10, "a change")
        hanging = etcd_proxy.swallow_answers("Watch", times=None)
        opened = etcd_proxy.count("Watch")
        proxied.create(config_map("b"))
        proxied.create(config_map("c"))
        eventually(lambda: etcd_proxy.count("Watch") > opened, 10, "another stream")
        assert _names(watcher) == ["a"]
        hanging.remove()

        eventually(lambda: _names(watcher) == ["a", "b", "c"], 10, lambda: str(watcher.seen()))


def test_data_lost_behind_a_quiet_watch_are_noticed(etcd_factory: Callable[..., EtcdCluster]) -> None:
    """The stream carried nothing of late; the revision that the watch began at came from a list."""
    etcd = etcd_factory()
    member = etcd.members[0]
    with LocalCluster(member.client_url) as cluster, Watcher(cluster, _now(cluster)) as quiet:
        for number in range(30):
            member.etcdctl("put", "/another/program", str(number))
        with Watcher(cluster, _now(cluster)) as young:
            time.sleep(0.2)
            member.wipe_and_restart()
            for number in range(10):
                member.etcdctl("put", "/another/program", str(number))
            eventually(lambda: quiet.error and young.error, 20, "both to notice")
        assert isinstance(quiet.error, Gone)
        assert isinstance(young.error, Gone)
