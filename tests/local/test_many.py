"""The cluster of one machine with many writers, many objects, many watches."""

from __future__ import annotations

import concurrent.futures
import threading
import time

import pytest

from edl_controller.api.kinds import CONFIG_MAPS, PODS
from edl_controller.cluster.local import LocalCluster
from edl_controller.errors import Unavailable
from tests.bench.waiting import eventually
from tests.local.conftest import Watcher, config_map


def test_twenty_writers_of_one_object_all_get_their_turn(cluster: LocalCluster) -> None:
    made = cluster.create(config_map("a"))

    def write(writer: int) -> list[str]:
        return [
            cluster.patch(CONFIG_MAPS, "default", "a", {"data": {f"w{writer}": str(turn)}}).metadata.resource_version
            for turn in range(20)
        ]

    with Watcher(cluster, made.metadata.resource_version) as watcher:
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            versions = [version for done in pool.map(write, range(20)) for version in done]
        eventually(lambda: len(watcher.changes) == 400, 10, "all changes")

    assert len(set(versions)) == 400, "each write is one version"
    assert cluster.get(CONFIG_MAPS, "default", "a").data == {f"w{writer}": "19" for writer in range(20)}
    assert {change.resource_version for change in watcher.changes} == set(versions)


def test_of_twenty_who_assume_the_same_version_one_wins(cluster: LocalCluster) -> None:
    version = cluster.create(config_map("a")).metadata.resource_version

    def write(writer: int) -> bool:
        patch = {"data": {"winner": str(writer)}}
        try:
            cluster.patch(CONFIG_MAPS, "default", "a", patch, resource_version=version)
        except Exception as error:
            return type(error).__name__ != "Conflict"
        return True

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(write, range(20))) == 1


def test_five_thousand_objects_are_listed_as_they_are_at_one_moment(cluster: LocalCluster) -> None:
    def make(number: int) -> None:
        cluster.create(config_map(f"a-{number:04}", payload="x" * 1000))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(5000)))
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            for name in ("a-0000", "a-4999"):
                cluster.patch(CONFIG_MAPS, "default", name, {"data": {"at": str(time.monotonic_ns())}})

    changer = threading.Thread(target=change, daemon=True)
    changer.start()
    try:
        begin = time.process_time()
        listing = cluster.list(CONFIG_MAPS, "default")
        spent = time.process_time() - begin
    finally:
        stop.set()
        changer.join(5.0)

    assert [item.metadata.name for item in listing.items] == [f"a-{number:04}" for number in range(5000)]
    newest = max(int(item.metadata.resource_version) for item in listing.items)
    assert newest <= int(listing.resource_version), "no page is newer than the list says"
    assert spent < 3.0, f"{spent:.2f} s of CPU"


def test_watches_end_soon_after_they_are_told_to(cluster: LocalCluster) -> None:
    version = cluster.list(PODS).resource_version
    stop = threading.Event()
    watches = [
        threading.Thread(target=lambda: list(cluster.watch(PODS, "", version, stop)), name=f"edl-test-{number}")
        for number in range(10)
    ]
    for watch in watches:
        watch.start()

    begin = time.monotonic()
    stop.set()
    for watch in watches:
        watch.join(5.0)

    assert not any(watch.is_alive() for watch in watches)
    assert time.monotonic() - begin < 1.0
    eventually(lambda: not _watch_threads(), 2.0, lambda: f"end of {_watch_threads()}")


def test_closing_the_cluster_ends_calls_and_watches(cluster: LocalCluster) -> None:
    version = cluster.list(CONFIG_MAPS).resource_version
    began, ended = threading.Event(), threading.Event()

    def follow() -> None:
        try:
            for _ in cluster.watch(CONFIG_MAPS, "", version, threading.Event()):
                began.set()
        except Unavailable:
            pass
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    cluster.create(config_map("a"))
    assert began.wait(10.0)

    cluster.close()

    assert ended.wait(1.0)
    with pytest.raises(Unavailable):
        cluster.list(CONFIG_MAPS)
    with pytest.raises(Unavailable):
        list(cluster.watch(CONFIG_MAPS, "", version, threading.Event()))
    eventually(lambda: not _watch_threads(), 2.0, lambda: f"end of {_watch_threads()}")
    cluster.close()


def test_a_watch_that_nobody_reads_any_more_leaves_nothing(cluster: LocalCluster) -> None:
    version = cluster.list(CONFIG_MAPS).resource_version
    changes = cluster.watch(CONFIG_MAPS, "", version, threading.Event())
    cluster.create(config_map("a"))
    assert any(change.type == "ADDED" for change in changes)

    changes.close()  # type: ignore[attr-defined]

    eventually(lambda: not _watch_threads(), 2.0, lambda: f"end of {_watch_threads()}")


def _watch_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("edl-watch")]
