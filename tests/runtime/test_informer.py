"""Informers: the cache is true to the cluster, every difference is told, and nothing runs hot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_controller.api.kinds import PODS
from edl_controller.api.meta import ObjectMeta, OwnerReference
from edl_controller.api.pods import Container, Pod, PodSpec
from edl_controller.cluster.port import Change, Listing, Stop
from edl_controller.errors import AlreadyExists, Gone, Invalid, NotFound, Unavailable
from edl_controller.runtime.back_off import JitteredBackOff
from edl_controller.runtime.cache import Cache, by_label
from edl_controller.runtime.informer import Informer
from edl_controller.runtime.reflector import Delta, Reflector
from tests.bench.waiting import eventually, never
from tests.runtime.memory_cluster import MemoryCluster


def pod(
    name: str, *, namespace: str = "default", owner: str = "", version: str = "", uid: str = "", **labels: str
) -> Pod:
    owners = (OwnerReference(api_version="v1", kind="X", name="x", uid=owner, controller=True),) if owner else ()
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=uid or f"uid-{name}",
            resource_version=version,
            labels=labels,
            owner_references=owners,
        ),
        spec=PodSpec(containers=(Container(name="main", image="i"),)),
    )


class Running:
    """An informer in its thread, with all deltas it told."""

    def __init__(self, cluster: MemoryCluster, **options: Any) -> None:
        self.informer: Informer[Pod] = Informer(cluster, PODS, **options)
        self.deltas: list[Delta[Pod]] = []
        self.informer.add_handler(self.deltas.append)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.informer.run, args=(self.stop,), name="edl-test-informer")

    def start(self) -> Running:
        self.thread.start()
        return self

    def close(self) -> None:
        self.stop.set()
        if self.thread.ident is not None:
            self.thread.join(10)
        assert not self.thread.is_alive()

    def told(self) -> list[tuple[str, str, str]]:
        return [(delta.type, delta.obj.metadata.name, delta.origin) for delta in self.deltas]


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def follow(cluster: MemoryCluster) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def make(**options: Any) -> Running:
        made.append(Running(cluster, **options))
        return made[-1].start()

    yield make
    for one in made:
        one.close()


def label(cluster: MemoryCluster, name: str, value: str) -> Pod:
    patched: Pod = cluster.patch(PODS, "default", name, {"metadata": {"labels": {"l": value}}})
    return patched


def test_it_lists_then_watches_and_tells_every_difference(
    cluster: MemoryCluster, follow: Callable[..., Running]
) -> None:
    cluster.create(pod("old"))
    one = follow()
    assert one.informer.wait_synced(5)
    assert one.told() == [("added", "old", "list")]
    cluster.create(pod("new"))
    label(cluster, "new", "x")
    cluster.delete(PODS, "default", "old")
    eventually(lambda: len(one.deltas) == 4)
    assert one.told()[1:] == [("added", "new", "watch"), ("updated", "new", "watch"), ("deleted", "old", "watch")]
    update = one.deltas[2]
    assert update.old is not None
    assert (update.old.metadata.labels, update.obj.metadata.labels) == ({}, {"l": "x"})
    assert [found.metadata.name for found in one.informer.cache.all()] == ["new"]


def test_several_namespaces_and_no_other(cluster: MemoryCluster, follow: Callable[..., Running]) -> None:
    for namespace in ("a", "b", "c"):
        cluster.create(pod("p", namespace=namespace))
    one = follow(namespaces=["a", "b"])
    assert one.informer.wait_synced(5)
    cluster.create(pod("q", namespace="c"))
    cluster.create(pod("q", namespace="b"))
    eventually(lambda: len(one.deltas) == 3)
    assert {found.metadata.namespace for found in one.informer.cache.all()} == {"a", "b"}
    assert len(one.informer.cache.all("b")) == 2


def test_a_lost_watch_is_taken_up_where_it_ended(cluster: MemoryCluster, follow: Callable[..., Running]) -> None:
    cluster.create(pod("a"))
    one = follow(chance=lambda: 0.0)
    assert one.informer.wait_synced(5)
    cluster.fail("stream", PODS, Unavailable("cut"))
    eventually(lambda: not cluster.faults[0].times)
    label(cluster, "a", "while-away")
    eventually(lambda: len(one.deltas) == 2)
    assert one.told() == [("added", "a", "list"), ("updated", "a", "watch")]
    assert cluster.count("list", PODS) == 1


def test_after_gone_only_the_differences_are_told_with_tombstones(
    cluster: MemoryCluster, follow: Callable[..., Running]
) -> None:
    for name in ("same", "changed", "gone", "again"):
        cluster.create(pod(name))
    one = follow(chance=lambda: 0.0)
    assert one.informer.wait_synced(5)
    one.deltas.clear()
    cluster.hold(PODS)
    label(cluster, "changed", "x")
    cluster.delete(PODS, "default", "gone")
    cluster.delete(PODS, "default", "again")
    cluster.create(pod("again"))
    cluster.create(pod("new"))
    cluster.compact()
    cluster.release(PODS)
    eventually(lambda: len(one.deltas) == 5)
    never(lambda: len(one.deltas) > 5, 0.2)
    assert sorted(one.told()) == [
        ("added", "again", "list"),
        ("added", "new", "list"),
        ("deleted", "again", "list"),
        ("deleted", "gone", "list"),
        ("updated", "changed", "list"),
    ]
    assert one.told().index(("deleted", "again", "list")) < one.told().index(("added", "again", "list"))


@pytest.mark.report("M59")
def test_an_event_that_is_lost_for_good_is_made_good_by_the_resync(
    cluster: MemoryCluster, follow: Callable[..., Running]
) -> None:
    cluster.create(pod("killed"))
    cluster.create(pod("other"))
    one = follow(resync=0.5)
    assert one.informer.wait_synced(5)
    cluster.lost = lambda change: change.type == "DELETED"
    cluster.delete(PODS, "default", "killed")
    eventually(lambda: ("deleted", "killed", "list") in one.told(), 5)
    assert one.informer.cache.get("default", "killed") is None
    assert ("updated", "other", "resync") in one.told()


def test_resync_is_told_as_such_and_old_is_new(cluster: MemoryCluster, follow: Callable[..., Running]) -> None:
    cluster.create(pod("a"))
    one = follow(resync=0.2)
    eventually(lambda: len(one.deltas) >= 3)
    assert {delta.origin for delta in one.deltas[1:]} == {"resync"}
    assert one.deltas[1].old is one.deltas[1].obj or one.deltas[1].old == one.deltas[1].obj


def test_a_handler_that_raises_hinders_nobody(
    cluster: MemoryCluster, follow: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    one = Running(cluster)

    def broken(delta: Delta[Pod]) -> None:
        raise RuntimeError("handler is broken")

    good: list[str] = []
    one.informer.add_handler(broken)
    one.informer.add_handler(lambda delta: good.append(delta.obj.metadata.name))
    one.start()
    try:
        cluster.create(pod("a"))
        cluster.create(pod("b"))
        eventually(lambda: good == ["a", "b"])
        assert "Handler failed for Pod default/a" in caplog.text
    finally:
        one.close()


def test_a_slow_handler_does_not_hold_up_the_cache(cluster: MemoryCluster) -> None:
    one = Running(cluster)
    free = threading.Event()

    def slow(delta: Delta[Pod]) -> None:
        free.wait(10)

    one.informer.add_handler(slow)
    cluster.create(pod("p0"))  # of the first list: it is not through before its handlers are
    one.start()
    try:
        for number in range(1, 20):
            cluster.create(pod(f"p{number}"))
        eventually(lambda: len(one.informer.cache) == 20, 5)
        assert len(one.deltas) <= 1
        assert not one.informer.has_synced
    finally:
        free.set()
        one.close()


class ScriptedReader:
    """Raises what it is told, and notes when it was asked."""

    def __init__(self, clock: Callable[[], float], on_list: list[Exception | None], on_watch: Exception | None) -> None:
        self._clock, self._on_list, self._on_watch = clock, on_list, on_watch
        self.asked: list[tuple[str, float]] = []

    def list(self, kind: Any, namespace: str = "", *, labels: Any = None) -> Listing[Any]:
        self.asked.append(("list", self._clock()))
        error = self._on_list.pop(0) if self._on_list else None
        if error is not None:
            raise error
        return Listing((), "7")

    def watch(self, kind: Any, namespace: str, resource_version: str, stop: Stop) -> Iterator[Change[Any]]:
        self.asked.append(("watch", self._clock()))
        if self._on_watch is not None:
            raise self._on_watch
        yield from ()

    def get(self, kind: Any, namespace: str, name: str) -> Any:
        raise NotFound(name)


class VirtualStop:
    """A stop whose waits turn the clock, and which is set after a time."""

    def __init__(self, end: float) -> None:
        self.now, self._end = 0.0, end

    def clock(self) -> float:
        return self.now

    def is_set(self) -> bool:
        return self.now >= self._end

    def wait(self, timeout: float | None = None) -> bool:
        self.now += 1.0 if timeout is None else timeout
        return self.is_set()


@pytest.mark.report("M42")
def test_a_version_that_is_refused_is_not_asked_for_again() -> None:
    stop = VirtualStop(10)
    reader = ScriptedReader(stop.clock, [], Invalid("invalid resource version"))
    Reflector(reader, PODS, Cache(), lambda delta: None, clock=stop.clock, chance=lambda: 0.5).run(stop)
    asked = [what for what, _ in reader.asked]
    assert asked == ["list", "watch"] * (len(asked) // 2)


@pytest.mark.parametrize(
    ("on_list", "on_watch"),
    [
        pytest.param([Unavailable("refused")] * 1000, None, id="list refused"),
        pytest.param([RuntimeError("a bug")] * 1000, None, id="a bug in the adapter"),
        pytest.param([], Unavailable("cut"), id="watch refused"),
        pytest.param([], Gone("always"), id="410 for ever"),
        pytest.param([], Invalid("invalid resource version"), id="a version that is refused for ever"),
        pytest.param([], None, id="watch ends at once, for ever"),
    ],
)
def test_never_a_hot_loop(on_list: list[Exception | None], on_watch: Exception | None) -> None:
    stop = VirtualStop(600)
    reader = ScriptedReader(stop.clock, on_list, on_watch)
    Reflector(reader, PODS, Cache(), lambda delta: None, clock=stop.clock, chance=lambda: 0.5).run(stop)
    rounds = [at for what, at in reader.asked if what == ("list" if on_list else "watch")]
    assert sum(at < 1.0 for at in rounds) < 3
    assert len(rounds) < 35, "0.8 s, doubling, then 30 s"
    assert max(b - a for a, b in pairwise(rounds)) <= 30.001


def test_the_cluster_may_ask_for_a_longer_rest() -> None:
    stop = VirtualStop(60)
    reader = ScriptedReader(stop.clock, [Unavailable("429", retry_after=7.0)], None)
    Reflector(reader, PODS, Cache(), lambda delta: None, clock=stop.clock, chance=lambda: 0.0).run(stop)
    assert [at for what, at in reader.asked if what == "list"] == [0.0, 7.0]


def test_a_silent_watch_is_opened_anew_and_nothing_is_listed_for_it() -> None:
    stop = VirtualStop(100)

    class Silent(ScriptedReader):
        def watch(self, kind: Any, namespace: str, resource_version: str, stop: Stop) -> Iterator[Change[Any]]:
            self.asked.append((f"watch from {resource_version}", self._clock()))
            yield Change("BOOKMARK", None, "9")
            while not stop.wait(1.0):
                pass

    reader = Silent(stop.clock, [], None)
    reflector = Reflector(reader, PODS, Cache(), lambda delta: None, clock=stop.clock, silence=15.0)
    reflector.run(stop)
    assert [what for what, _ in reader.asked] == ["list", "watch from 7", *["watch from 9"] * 6]
    assert reflector.last_contact is not None
    assert reflector.last_contact >= 90


def test_back_off_grows_from_its_base_to_its_cap_and_begins_anew() -> None:
    back_off = JitteredBackOff(chance=lambda: 0.5)
    assert [round(back_off.failed(), 2) for _ in range(7)] == [1.2, 2.4, 4.8, 9.6, 19.2, 30.0, 30.0]
    back_off.reset()
    assert back_off.rested
    assert back_off.failed() == pytest.approx(1.2)


# --- the cache ---


def test_indexes_follow_the_objects() -> None:
    cache: Cache[Pod] = Cache({"app": by_label("app")})
    cache.put(pod("a", owner="u1", version="1", app="x"))
    cache.put(pod("b", owner="u1", version="2", app="y"))
    cache.put(pod("a", owner="u2", version="3", app="y"))
    assert [found.metadata.name for found in cache.owned_by("u1")] == ["b"]
    assert cache.by_index("app", "x") == []
    assert {found.metadata.name for found in cache.by_index("app", "y")} == {"a", "b"}
    for name in ("a", "b"):
        cache.remove(pod(name), "9")
    assert all(not entries for entries in cache._indexes.values()), "no empty entry is left behind"
    with pytest.raises(KeyError):
        cache.by_index("nonsense", "x")


@pytest.mark.fault("K14")
def test_what_was_written_is_seen_at_once_and_never_comes_back() -> None:
    cache: Cache[Pod] = Cache()
    cache.reach("10")
    cache.observe(pod("own", version="11"))
    assert cache.get("default", "own") is not None, "read your own writes"
    assert cache.put(pod("own", version="11")) is None, "the watch tells of it for the first time"
    cache.remove(pod("own", version="11"), "12")
    cache.observe(pod("own", version="11"))
    assert cache.get("default", "own") is None, "the answer came after the news of its end"


def test_an_own_write_is_not_undone_by_older_news() -> None:
    cache: Cache[Pod] = Cache()
    cache.put(pod("a", version="1", l="1"))
    cache.observe(pod("a", version="5", l="5"))
    old = cache.put(pod("a", version="3", l="3"))
    assert old is not None
    assert old.metadata.labels == {"l": "1"}, "what the watch had said before"
    found = cache.get("default", "a")
    assert found is not None
    assert found.metadata.labels == {"l": "5"}
    old = cache.put(pod("a", version="5", l="5"))
    assert old is not None
    assert old.metadata.labels == {"l": "3"}
    assert not cache._overtaken


def test_a_list_made_before_an_own_write_does_not_remove_it() -> None:
    cache: Cache[Pod] = Cache()
    cache.put(pod("old", version="4"))
    cache.observe(pod("own", version="8"))
    assert [found.metadata.name for found in cache.missing(set(), "6")] == ["old"]
    assert {found.metadata.name for found in cache.missing(set(), "9")} == {"old", "own"}


def test_an_own_successor_outlives_the_news_of_the_end_of_its_predecessor() -> None:
    cache: Cache[Pod] = Cache()
    cache.put(pod("a", version="1", uid="first"))
    cache.observe(pod("a", version="5", uid="second"))
    cache.remove(pod("a", version="1", uid="first"), "4")
    found = cache.get("default", "a")
    assert found is not None
    assert found.metadata.uid == "second"
    assert cache.put(pod("a", version="5", uid="second")) is None


@given(
    st.lists(st.tuples(st.sampled_from(["create", "label", "delete"]), st.sampled_from("abc")), max_size=25), st.data()
)
def test_any_interleaving_of_own_writes_and_news_ends_at_the_truth(
    steps: list[tuple[str, str]], data: st.DataObject
) -> None:
    """A writer whose answers are observed at any later moment; the watch lags behind; in the end both agree."""
    cluster = MemoryCluster(now=lambda: 0.0)
    cache: Cache[Pod] = Cache()
    answers: list[Pod] = []
    delivered = 0

    def catch_up(count: int) -> None:
        nonlocal delivered
        for _, _, change in cluster._log[delivered : delivered + count]:
            delivered += 1
            assert change.obj is not None
            if change.type == "DELETED":
                cache.remove(change.obj, change.resource_version)
            else:
                cache.put(change.obj)

    for verb, name in steps:
        try:
            if verb == "create":
                answers.append(cluster.create(pod(name)))
            elif verb == "label":
                answers.append(label(cluster, name, str(len(answers))))
            else:
                cluster.delete(PODS, "default", name)
        except (NotFound, AlreadyExists):
            pass
        for _ in range(data.draw(st.integers(0, 2))):
            catch_up(data.draw(st.integers(0, 2)))
            if bool(answers) and data.draw(st.integers(0, 1)):
                cache.observe(answers.pop(data.draw(st.integers(0, len(answers) - 1))))
    catch_up(10**6)
    for answer in answers:
        cache.observe(answer)
    assert {found.metadata.name: found for found in cache.all()} == {
        found.metadata.name: found for found in cluster.list(PODS).items
    }
    assert not cache._overtaken


def test_stop_ends_everything_at_once(cluster: MemoryCluster) -> None:
    cluster.fail("list", PODS, Unavailable("down"), times=None)
    one = Running(cluster).start()
    eventually(lambda: cluster.count("list", PODS) >= 1)
    started = time.monotonic()
    one.close()
    assert time.monotonic() - started < 2
    assert not one.informer.has_synced
    assert one.informer.silence() == float("inf")
