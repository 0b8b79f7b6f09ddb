"""What goes wrong between a controller and the API server, and that its jobs come right (rows K1 to K8, K14, K15, K37).

What the adapter does by itself is in ``test_adapter_faults.py``; here the whole controller is judged, by its jobs and
by the record of all that it wrote.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from edl_controller.runtime.reflector import Reflector
from tests.bench.kube_proxy import Call, KubeProxy
from tests.bench.waiting import eventually, never
from tests.kube.controller_bench import DEADLINE, ControllerBench, show

KINDS = ("trainingjobs", "replicasets", "jobs", "pods", "nodes")


@pytest.fixture(autouse=True)
def _nothing_goes_wrong_inside(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What a cluster does is no error of the program."""
    yield
    errors = [one for when in ("setup", "call") for one in caplog.get_records(when) if one.levelno >= logging.ERROR]
    assert not [one.getMessage() for one in errors if one.name.startswith("edl_controller")]


def running(bench: ControllerBench, name: str = "tj", **job: Any) -> None:
    """A job at rest, with one trainer that may become more."""
    bench.create(name, **{"trainers": 1, "most": 1} | job)
    bench.wait_phase(name, "running")
    bench.wait_rest()


# --- K1 ---


@pytest.mark.fault("K1")
@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.soak)])
def test_an_api_server_that_is_away_costs_nothing_but_time(bench: ControllerBench, seconds: float) -> None:
    life = bench.start()
    running(bench)
    away = bench.proxy.refuse()
    begin = time.monotonic()
    bench.scale("tj", max=3)
    bench.create("new", trainers=1)
    never(lambda: bench.written(begin), seconds, "a write through a proxy that refuses")
    assert len(bench.proxy.calls()) < 5000
    away.remove()
    back = time.monotonic()
    bench.wait_trainers("tj", 3)
    bench.wait_phase("new", "running")
    assert time.monotonic() - back < 30 + 5
    assert life.alive
    bench.wait_rest()
    bench.assert_invariants(slack=seconds + 5)


# --- K2, M41, M42, M70: watches that cannot go on ---


@pytest.mark.fault("K2")
@pytest.mark.report("M42")
def test_after_410_everywhere_nothing_is_written_and_the_next_edit_counts(bench: ControllerBench) -> None:
    bench.start()
    for number in range(3):
        running(bench, f"tj-{number}")
    bench.proxy.clear()
    begin = time.monotonic()
    for kind in KINDS:
        bench.proxy.error_event(kind, 410, reason="Expired", message="too old resource version: 1 (2)")
    for kind in KINDS:
        eventually(lambda kind=kind: bench.proxy.calls("list", kind), 20, f"a new list of {kind}")  # type: ignore[misc]
        assert all(call.query.get("resourceVersion", "") in ("", "0") for call in bench.proxy.calls("list", kind))
    never(lambda: bench.written(begin), 1.5, "unchanged objects are written")
    bench.scale("tj-1", max=2)
    bench.wait_trainers("tj-1", 2)
    bench.assert_invariants()


@pytest.mark.report("M70")
def test_a_version_that_the_server_does_not_have_yet_is_not_asked_for_again(bench: ControllerBench) -> None:
    bench.start()
    running(bench)
    begin = time.monotonic()
    text = "Timeout: Too large resource version: 99999999, current: 227"
    refusing = bench.proxy.fail(504, "watch", "trainingjobs", reason="Timeout", message=text, times=3)
    bench.proxy.end_watches("trainingjobs")
    refusing.wait_fired(DEADLINE)
    eventually(lambda: [c for c in bench.proxy.calls("list", "trainingjobs") if c.time > begin], 20, "a new list")
    bench.scale("tj", max=2)
    bench.wait_trainers("tj", 2)


def nobody_answers(bench: ControllerBench, name: str) -> bool:
    """Whether the job shows why nothing is known of its agents."""
    conditions = bench.job(name).get("status", {}).get("conditions", [])
    return any("not reached" in one.get("message", "") for one in conditions if one["type"] == "AgentStateKnown")


@pytest.mark.report("M41")
@pytest.mark.report("M46")
def test_watches_that_end_are_taken_up_where_they_were_by_the_same_threads(bench: ControllerBench) -> None:
    import threading

    life = bench.start()
    for number in range(3):
        running(bench, f"tj-{number}")
        # Nobody is at its etcd; until that is found the last thing about it is not written.
        eventually(partial(nobody_answers, bench, f"tj-{number}"), 30, "nothing is known of its agents")

    def threads() -> list[str]:
        return sorted(one.name for one in threading.enumerate() if one.name.startswith("edl-"))

    before, begin = threads(), time.monotonic()
    bench.proxy.clear()
    for number in range(10):
        note = {"metadata": {"annotations": {"example.com/n": str(number)}}}
        bench.client.patch(f"{bench.training_jobs_path}/tj-0", note)
        time.sleep(0.1)
        bench.proxy.end_watches("trainingjobs")
        eventually(lambda number=number: len(bench.proxy.calls("watch", "trainingjobs")) > number, 20)  # type: ignore[misc]
    versions = [int(call.query["resourceVersion"]) for call in bench.proxy.calls("watch", "trainingjobs")]
    assert versions == sorted(versions)
    assert len(set(versions)) > 5, "each goes on from the last news"
    assert bench.proxy.calls("list", "trainingjobs") == []
    assert threads() == before
    assert [call.body for call in bench.written(begin)] == []
    begin = time.monotonic()
    life.stop()
    assert time.monotonic() - begin < 5


# --- K3, M38 to M40, M48: silence ---


@pytest.mark.fault("K3")
@pytest.mark.report("M38")
@pytest.mark.report("M39")
@pytest.mark.report("M40")
@pytest.mark.report("M48")
@pytest.mark.parametrize("found_by", ["the read limit", "the reflector"])
@pytest.mark.parametrize("new_ones", ["are well", "are silent too"])
def test_silent_watches_are_found_and_nothing_is_missed(
    bench: ControllerBench, monkeypatch: pytest.MonkeyPatch, found_by: str, new_ones: str
) -> None:
    by_limit = found_by == "the read limit"
    defaults = Reflector.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "silence", 90.0 if by_limit else 1.0)
    bench.start(silence=1.0 if by_limit else 90.0)
    running(bench)
    stalled = bench.proxy.stall_open() if new_ones == "are well" else bench.proxy.stall()
    bench.scale("tj", max=2)
    if new_ones != "are well":
        time.sleep(2)
        assert bench.trainer("tj")["spec"]["parallelism"] == 1, "nobody could know"
        stalled.remove()
    bench.wait_trainers("tj", 2)
    bench.assert_invariants(slack=10)


@pytest.mark.soak
@pytest.mark.fault("K3")
@pytest.mark.report("M38")
@pytest.mark.report("M40")
@pytest.mark.report("M48")
def test_silent_watches_are_found_with_the_limits_that_are_shipped(bench: ControllerBench) -> None:
    bench.start()
    running(bench)
    for number in (2, 3):
        time.sleep(60)
        stalled = bench.proxy.stall_open()
        bench.scale("tj", max=number)
        bench.wait_trainers("tj", number, timeout=90)
        stalled.remove()
        stalled = bench.proxy.stall()
        time.sleep(300)
        stalled.remove()
    bench.assert_invariants(slack=310)


def test_a_quiet_cluster_is_one_that_answers(bench: ControllerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The autoscaler plans nothing for a cluster that says nothing; the server's bookmarks are a minute apart."""
    monkeypatch.setitem(Reflector.__init__.__kwdefaults__ or {}, "silence", 1.0)
    life = bench.start()
    running(bench)
    assert life.controller.autoscaler is not None
    view: Any = life.controller.autoscaler._cluster
    never(lambda: view.silence() > 3, 4)


# --- K4 ---


DAMAGES: dict[str, Callable[[KubeProxy, str], Any]] = {
    "half a line": lambda proxy, kind: proxy.cut_answer("watch", kind),
    "no UTF-8": lambda proxy, kind: proxy.inject(kind, b'{"type":"ADDED","object":{"a":"\xff\xfe"}}\n'),
    "no JSON": lambda proxy, kind: proxy.inject(kind, b"<html>\n", times=2),
    "an object of another kind": lambda proxy, kind: proxy.inject(
        kind,
        b'{"type":"MODIFIED","object":{"metadata":{"name":"x","namespace":"y","resourceVersion":"1"},"spec":[7]}}\n',
    ),
    "ERROR 500": lambda proxy, kind: proxy.error_event(kind, 500, message="etcdserver: no leader"),
    "refusals": lambda proxy, kind: (proxy.fail(500, "watch", kind, times=2), proxy.end_watches(kind)),
}


@pytest.mark.fault("K4")
@pytest.mark.report("M43")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_watches_end_no_controller(bench: ControllerBench, damage: str) -> None:
    life = bench.start()
    running(bench)
    for kind in KINDS:
        DAMAGES[damage](bench.proxy, kind)
    bench.scale("tj", max=2)
    bench.wait_trainers("tj", 2)
    assert life.alive
    bench.assert_invariants(slack=10)


# --- K5 ---


@pytest.mark.fault("K5")
def test_who_is_asked_to_wait_waits_and_the_others_go_on(bench: ControllerBench) -> None:
    wait = 4

    def of_a(call: Call) -> bool:
        return bool(call.json["metadata"]["name"].startswith("a-"))

    busy = bench.proxy.fail(429, "create", "replicasets", retry_after=wait, reason="TooManyRequests", when=of_a)
    bench.start()
    bench.create("a")
    busy.wait_fired(DEADLINE)
    bench.create("b")
    bench.wait_phase("b", "running")
    bench.wait_phase("a", "running")
    first, second, *_ = [call.time for call in bench.proxy.calls("create", "replicasets") if of_a(call)]
    assert second - first >= wait
    bench.assert_invariants()


# --- K6 ---


@pytest.mark.fault("K6")
def test_what_a_user_writes_between_read_and_write_survives(bench: ControllerBench) -> None:
    bench.start()
    held = bench.proxy.hold("patch", "trainingjobs/status")
    bench.create("tj", trainers=1, most=1)
    held.wait_fired(DEADLINE)
    bench.client.patch(f"{bench.training_jobs_path}/tj", {"metadata": {"labels": {"example.com/mine": "yes"}}})
    held.remove()
    bench.wait_phase("tj", "running")
    bench.wait_rest()
    assert 409 in {call.status for call in bench.proxy.calls("patch", "trainingjobs/status")}
    assert bench.job("tj")["metadata"]["labels"] == {"example.com/mine": "yes"}

    held = bench.proxy.hold("patch", "jobs")
    bench.scale("tj", max=3)
    held.wait_fired(DEADLINE)
    bench.client.patch(f"{bench.jobs_path}/tj-trainer", {"metadata": {"annotations": {"example.com/mine": "yes"}}})
    held.remove()
    bench.wait_trainers("tj", 3)
    statuses = [call.status for call in bench.proxy.calls("patch", "jobs")]
    assert statuses[0] == 409
    assert len(statuses) <= 5
    assert bench.trainer("tj")["metadata"]["annotations"]["example.com/mine"] == "yes"
    bench.assert_invariants()


# --- K7, K8, K14, K15: children ---


@pytest.mark.fault("K7")
def test_lost_answers_of_creates_make_no_second_child(bench: ControllerBench) -> None:
    sets = bench.proxy.lose_answer("create", "replicasets", times=2)
    jobs = bench.proxy.lose_answer("create", "jobs")
    bench.start()
    bench.create("tj")
    bench.wait_phase("tj", "running")
    assert (sets.fired, jobs.fired) == (2, 1)
    assert len(bench.children()) == 3
    assert len(bench.proxy.writes("replicasets")) == 2
    bench.assert_invariants()


@pytest.mark.fault("K8")
def test_a_stranger_with_a_childs_name_is_left_alone_and_named(bench: ControllerBench) -> None:
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "example.com/other:1"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "x"}}, "template": template}
    bench.client.post(bench.sets_path, {"metadata": {"name": "tj-pserver"}, "spec": spec})
    eventually(lambda: bench.replica_set("tj")["status"].get("observedGeneration"), 20, "the stranger is settled")
    before = bench.replica_set("tj")
    bench.start()
    bench.create("tj")
    eventually(lambda: bench.condition("tj", "Created") == ("False", "NameTaken"), DEADLINE)
    bench.wait_rest()
    warnings = eventually(lambda: [e for e in bench.events("tj") if e["type"] == "Warning"], 20, "a warning")
    assert any("name of the pserver's child" in one["note"] for one in warnings), warnings
    assert bench.replica_set("tj") == before
    quiet = len([call for call in bench.proxy.calls() if call.verb != "watch"])
    never(lambda: len([call for call in bench.proxy.calls() if call.verb != "watch"]) > quiet + 3, 3, "a hot loop")


@pytest.mark.fault("K14")
def test_who_does_not_see_its_own_creates_makes_nothing_twice(bench: ControllerBench) -> None:
    bench.start()
    rules = [bench.proxy.delay_events(kind, 3.0) for kind in ("jobs", "replicasets")]
    bench.create("tj")
    until = time.monotonic() + 4
    while time.monotonic() < until:  # each edit means one more pass over old news
        note = {"metadata": {"annotations": {"example.com/at": str(time.monotonic())}}}
        bench.client.patch(f"{bench.training_jobs_path}/tj", note)
        time.sleep(0.05)
    bench.wait_phase("tj", "running")
    for rule in rules:
        rule.remove()
    creates = [call.json["metadata"]["name"] for call in bench.written() if call.verb == "create"]
    assert sorted(creates) == ["tj-master", "tj-pserver", "tj-trainer"]
    bench.assert_invariants()


@pytest.mark.fault("K15")
@pytest.mark.parametrize("resource", ["replicasets", "jobs"])
@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_what_is_made_for_a_job_that_is_deleted_meanwhile_goes_too(
    bench: ControllerBench, resource: str, propagation: str
) -> None:
    bench.start()
    held = bench.proxy.hold("create", resource)
    bench.create("tj")
    held.wait_fired(DEADLINE)
    bench.delete("tj", propagation=propagation)
    held.remove()
    bench.wait_gone("tj")
    bench.wait_rest()
    bench.wait_gone("tj", timeout=5)
    bench.assert_invariants()


# --- K37 ---


@pytest.mark.fault("K37")
def test_events_that_are_refused_slow_nothing(bench: ControllerBench) -> None:
    bench.start()
    refused = bench.proxy.fail(500, "*", "events", times=None)
    running(bench)
    refused.remove()
    first = bench.proxy.calls("*", "events")
    by_event: dict[str, int] = {}
    for call in first:
        name = call.json["metadata"]["name"]
        by_event[name] = by_event.get(name, 0) + 1
    assert first
    assert max(by_event.values()) <= 3, by_event
    held = bench.proxy.hold("*", "events")
    bench.scale("tj", max=3)
    bench.wait_trainers("tj", 3)
    held.remove()
    bench.assert_invariants()
    assert [show(call) for call in bench.proxy.writes("pods") if call.verb == "delete"] == []
