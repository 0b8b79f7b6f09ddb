"""What users of other controllers have reported, tried on this one before a real API server (M34 to M71)."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from edl_controller.controller import Controller
from tests.bench.kube_http import Json, UnexpectedAnswerError
from tests.bench.waiting import eventually
from tests.kube.controller_bench import DEADLINE, ControllerBench

AT_ONCE: dict[str, Any] = {"autoscaling": {"scaleUpCooldownSeconds": 0}}
"""A job that may grow again right after a change."""


@pytest.fixture(autouse=True)
def _nothing_goes_wrong_inside(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What a cluster does is no error of the program."""
    yield
    errors = [one for when in ("setup", "call") for one in caplog.get_records(when) if one.levelno >= logging.ERROR]
    assert not [one.getMessage() for one in errors if one.name.startswith("edl_controller")]


def uids(pods: list[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def alive(bench: ControllerBench, name: str = "tj") -> list[Json]:
    """The trainers that run and are not asked to end."""
    return [pod for pod in bench.pods(name, "trainer") if pod["status"].get("phase") == "Running"]


def wait_alive(bench: ControllerBench, count: int, name: str = "tj", timeout: float = DEADLINE) -> set[str]:
    """Wait for so many trainers, and for the status to say so; returns their uids."""
    eventually(lambda: len(alive(bench, name)) == count, timeout, f"{count} trainers of {name} run")
    bench.wait_trainers(name, count, timeout)
    return uids(alive(bench, name))


# --- pods that end ---


@pytest.mark.report("M34")
@pytest.mark.parametrize(
    ("times", "pause"), [(8, 0.5), pytest.param(60, 10.0, marks=pytest.mark.soak, id="10 minutes")]
)
def test_pods_that_are_killed_for_long_do_not_tire_the_scaling(
    bench: ControllerBench, times: int, pause: float
) -> None:
    life = bench.start()
    bench.create("tj", trainers=2, most=3, **AT_ONCE)
    bench.create("other", trainers=1, most=1)
    wait_alive(bench, 3)
    wait_alive(bench, 1, "other")
    for number in range(times):
        victims = bench.pods("tj", "trainer" if number % 3 else "pserver")
        for pod in victims[:1]:
            with contextlib.suppress(UnexpectedAnswerError):
                bench.client.delete(f"{bench.core}/pods/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
        time.sleep(pause)
    # After so many failures the Job controller waits before it makes pods, and who has no pods yet does not grow. But
    # the scaling goes on: of others, and back.
    bench.scale("other", max=3)
    wait_alive(bench, 3, "other", timeout=20)
    bench.scale("tj", max=2)
    eventually(lambda: bench.trainer("tj")["spec"]["parallelism"] == 2, 20, "the next shrinking")
    assert life.alive
    bench.assert_invariants()


@pytest.mark.report("M56")
def test_thirty_pods_that_end_at_once_are_one_jobs_matter(bench: ControllerBench) -> None:
    """Pservers: they come back at once, while the Job controller waits before it replaces trainers that failed."""
    bench.start()
    bench.create("big", trainers=1, pservers=30)
    others = [f"other-{number}" for number in range(9)]
    for name in others:
        bench.create(name, trainers=1)
    for name in ("big", *others):
        bench.wait_phase(name, "running", 60)
    bench.wait_rest()
    first = uids(bench.pods("big", "pserver"))
    assert len(first) == 30
    bench.client.delete(f"{bench.core}/pods?labelSelector=paddle-job-pserver%3Dbig", {"gracePeriodSeconds": 0})
    begin = time.monotonic()
    bench.scale("other-4", max=2)
    wait_alive(bench, 2, "other-4", timeout=15)
    eventually(lambda: bench.job("big")["status"].get("pservers") == 30, 30, "30 pservers are ready")
    eventually(lambda: not first & uids(bench.pods("big", "pserver")), 20, "others than before")
    eventually(lambda: bench.phase("big") == "running", 20, "it runs on")
    assert time.monotonic() - begin < 30
    bench.wait_rest()
    touched = {call.name for call in bench.written(begin)}
    assert not {name for name in others if name != "other-4"} & touched
    bench.assert_invariants()


@pytest.mark.report("M59")
def test_news_of_a_pod_that_never_came_is_made_good_by_the_resync(bench: ControllerBench) -> None:
    bench.start(resync=2.0)
    bench.create("tj", trainers=1)
    bench.wait_phase("tj", "running")
    (pod,) = bench.pods("tj", "pserver")
    name = pod["metadata"]["name"]

    def without(line: bytes) -> bytes:
        return b"" if f'"name":"{name}"'.encode() in line else line

    lost = bench.proxy.rewrite("watch", "pods", without)
    bench.proxy.rewrite("watch", "replicasets", lambda line: b"" if b'"name":"tj-pserver"' in line else line)
    begin = time.monotonic()
    bench.nodes.set_ready(bench.namespace, name, False)
    eventually(
        lambda: not bench.job("tj")["status"].get("pservers"), 20, "the pserver that is not ready is not counted"
    )
    assert lost.fired
    assert [call for call in bench.proxy.calls("list", "pods") if call.time > begin], "by a list"


@pytest.mark.report("M71")
@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.soak)])
def test_one_trainer_less_is_one_pod_less_and_one_patch(bench: ControllerBench, rounds: int) -> None:
    bench.start()
    bench.create("tj", trainers=2, most=6, **AT_ONCE)
    before = wait_alive(bench, 6)
    for _ in range(rounds):
        bench.wait_rest(0.3)
        bench.proxy.clear()
        bench.scale("tj", max=5)
        wait_alive(bench, 5)
        bench.wait_rest(0.7)
        after = uids(alive(bench))
        assert len(before - after) == 1
        assert after < before
        (patch,) = bench.proxy.writes("jobs")
        assert patch.json["spec"] == {"parallelism": 5}
        bench.scale("tj", max=6)
        before = wait_alive(bench, 6)
        assert after < before


# --- edits ---


@pytest.mark.report("M50")
def test_the_last_of_many_edits_counts(bench: ControllerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Controller._pass

    def slow(self: Controller, *args: Any) -> float | None:
        time.sleep(0.25)
        return real(self, *args)

    monkeypatch.setattr(Controller, "_pass", slow)
    bench.start()
    bench.create("tj", trainers=1, most=1, **AT_ONCE)
    bench.wait_phase("tj", "running")
    for number in range(60):
        bench.scale("tj", max=1 + number % 5)
        time.sleep(0.05)
    bench.scale("tj", max=4)
    wait_alive(bench, 4, timeout=15)
    job = eventually(
        lambda: (job := bench.job("tj"))["status"]["observedGeneration"] == job["metadata"]["generation"] and job, 15
    )
    assert job
    assert bench.trainer("tj")["spec"]["parallelism"] == 4
    bench.assert_invariants()


@pytest.mark.report("M67")
def test_a_limit_that_is_lowered_while_the_growth_is_on_its_way_holds(bench: ControllerBench) -> None:
    bench.start()
    bench.create("tj", trainers=1, most=1, **AT_ONCE)
    bench.wait_phase("tj", "running")
    held = bench.proxy.hold("patch", "jobs")
    bench.scale("tj", max=4)
    held.wait_fired(DEADLINE)
    time.sleep(1.0)
    bench.scale("tj", max=2)
    held.remove()
    eventually(lambda: bench.trainer("tj")["spec"]["parallelism"] == 2, 20, "the last limit")
    wait_alive(bench, 2)
    bench.wait_rest()
    assert bench.trainer("tj")["spec"]["parallelism"] == 2
    bench.assert_invariants()


@pytest.mark.report("M68")
def test_an_edit_that_grows_one_part_and_shrinks_another_follows_a_stated_rule(bench: ControllerBench) -> None:
    """The number of pservers is fixed once they are there: an edit of it is shown as not applied, never half done."""
    bench.start()
    bench.create("tj", trainers=2, most=2, pservers=2, **AT_ONCE)
    wait_alive(bench, 2)
    for trainers, pservers in ((4, 1), (2, 4)):
        trainer = {"min-instance": 2, "max-instance": trainers}
        bench.edit("tj", {"trainer": trainer, "pserver": {"min-instance": pservers}})
        wait_alive(bench, trainers)
        eventually(lambda: bench.condition("tj", "SpecApplied") == ("False", "PserverCountFixed"), DEADLINE)
        assert bench.replica_set("tj")["spec"]["replicas"] == 2
    bench.edit("tj", {"pserver": {"min-instance": 2}})
    eventually(lambda: bench.condition("tj", "SpecApplied")[0] == "True", DEADLINE)
    bench.wait_rest()
    bench.assert_invariants()


@pytest.mark.report("M63")
def test_a_job_made_anew_while_its_old_children_are_held_gets_its_own(bench: ControllerBench) -> None:
    bench.start()
    old = bench.create("tj", trainers=1)
    bench.wait_phase("tj", "running")
    paths = [f"{bench.sets_path}/tj-pserver", f"{bench.jobs_path}/tj-trainer", f"{bench.sets_path}/tj-master"]
    for path in paths:
        bench.client.patch(path, {"metadata": {"finalizers": ["example.com/hold"]}})
    bench.delete("tj")
    eventually(lambda: not bench.phase("tj"), DEADLINE, "it is gone")
    new = bench.create("tj", trainers=1)
    eventually(
        lambda: all("deletionTimestamp" in bench.client.get(path)["metadata"] for path in paths),
        DEADLINE,
        "the old children are being deleted",
    )
    bench.wait_rest()
    assert bench.phase("tj") != "running"
    for path in paths:
        bench.client.patch(path, {"metadata": {"finalizers": None}})
    begin = time.monotonic()
    bench.wait_phase("tj", "running", 20)
    assert time.monotonic() - begin < 20
    owners = {one["metadata"]["ownerReferences"][0]["uid"] for one in bench.children()}
    assert owners == {new["metadata"]["uid"]} != {old["metadata"]["uid"]}
    bench.assert_invariants()


# --- rest ---


@pytest.mark.fault("C6")
@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.soak)])
def test_without_input_nothing_is_written(bench: ControllerBench, seconds: float) -> None:
    bench.start(resync=2.0)
    for number in range(3):
        bench.create(f"tj-{number}", trainers=1, most=2)
    for number in range(3):
        bench.wait_phase(f"tj-{number}", "running")
        bench.wait_trainers(f"tj-{number}", 2)
    bench.wait_rest(2.0)
    begin = time.monotonic()
    threading.Event().wait(seconds)
    assert [call for call in bench.proxy.writes() if call.time > begin] == []
    assert [call for call in bench.proxy.calls("list", "pods") if call.time > begin], "it looked"
