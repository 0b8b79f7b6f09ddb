"""The Controller over a store that does as it is told, and over a real etcd: whatever goes wrong, jobs come right."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from edl_controller.api.kinds import EVENTS, JOBS, PODS, REPLICA_SETS, TRAINING_JOBS, UNREADABLE
from edl_controller.api.meta import ObjectMeta, find_condition, is_true
from edl_controller.api.v1 import TrainingJob
from edl_controller.controller import Controller
from edl_controller.core.job_settings import JobSettings
from edl_controller.errors import Forbidden, NotFound, Unavailable
from edl_controller.job_status import SYNCED
from edl_controller.machine.loops import Loops
from edl_controller.runtime.reconciler import Reconciler
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd
from tests.controller.conftest import Start, drive
from tests.controller.light_node import LightNodes
from tests.runtime.memory_cluster import MemoryCluster

NS = "default"
Driven = tuple[Any, Loops, LightNodes]


def training_job(name: str, *, trainers: int = 2, most: int = 2, pservers: int = 1, **spec: Any) -> TrainingJob:
    resources = {"requests": {"cpu": "10m", "memory": "1Mi"}}
    body = {
        "image": "example.com/digits:1",
        "fault_tolerant": True,
        "trainer": {
            "entrypoint": "python t.py",
            "min-instance": trainers,
            "max-instance": most,
            "resources": resources,
        },
        "pserver": {"entrypoint": "python p.py", "min-instance": pservers, "resources": resources},
    } | spec
    return TRAINING_JOBS.from_json({"metadata": {"name": name, "namespace": NS}, "spec": body})


@pytest.fixture
def settings(etcd: SharedEtcd) -> JobSettings:
    return JobSettings(etcd_endpoints=(etcd.client_url,))


Begin = Callable[..., Controller]


@pytest.fixture
def begin(start: Start, settings: JobSettings) -> Begin:
    """``begin(cluster, **options)``: a controller at work until the end of the test."""

    def make(cluster: Any, **options: Any) -> Controller:
        given: dict[str, Any] = {"settings": settings, "autoscale": False} | options
        controller = Controller(cluster, **given)
        start(controller.run)
        eventually(lambda: controller.ready, 10, "the controller is ready")
        return controller

    return make


def get(cluster: Any, name: str) -> TrainingJob:
    job: TrainingJob = cluster.get(TRAINING_JOBS, NS, name)
    return job


def phase(cluster: Any, name: str) -> str:
    return get(cluster, name).status.phase


def condition(cluster: Any, name: str, kind: str) -> tuple[str, str]:
    found = find_condition(get(cluster, name).status.conditions, kind)
    return (found.status, found.reason) if found else ("", "")


def is_running(cluster: Any, name: str) -> bool:
    return phase(cluster, name) == "running"


def is_invalid(cluster: Any, name: str) -> bool:
    return condition(cluster, name, "Invalid")[0] == "True"


def is_running_or_invalid(cluster: Any, name: str) -> bool:
    return is_running(cluster, name) or is_invalid(cluster, name)


def has_conditions(cluster: Any, name: str) -> bool:
    return bool(get(cluster, name).status.conditions)


def nothing_left(cluster: Any, kind: Any) -> bool:
    return not cluster.list(kind, NS).items


def comes_to_rest(memory: MemoryCluster, quiet: float = 0.7) -> None:
    """Wait until nothing is written any more, Events aside; also what the agents' first look brings is over then."""
    seen, since = -1, time.monotonic()

    def is_quiet() -> bool:
        nonlocal seen, since
        now = len([write for write in memory.writes if write.kind != "Event"])
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > quiet

    eventually(is_quiet, 20, lambda: f"rest; the last writes: {memory.writes[-3:]}")


def edit(cluster: Any, name: str, **spec: Any) -> TrainingJob:
    edited: TrainingJob = cluster.patch(TRAINING_JOBS, NS, name, {"spec": spec})
    return edited


def test_a_job_runs_succeeds_and_is_cleaned_up(driven: Driven, begin: Begin) -> None:
    cluster, _, nodes = driven
    begin(cluster)
    cluster.create(training_job("tj"))
    eventually(lambda: phase(cluster, "tj") == "running", 15)
    job = get(cluster, "tj")
    assert (job.status.trainers, job.status.pservers, job.status.observed_generation) == (2, 1, 1)
    for pod in cluster.list(PODS, NS).items:
        if pod.metadata.labels.get("paddlepaddle.org/role") == "trainer":
            nodes.finish(pod, "Succeeded")
    eventually(lambda: phase(cluster, "tj") == "succeeded", 15)
    eventually(lambda: not [p for p in cluster.list(PODS, NS).items if p.status.phase == "Running"], 15)
    events = eventually(lambda: cluster.list(EVENTS, NS).items)
    ours = {event.regarding.name for event in events if event.reporting_controller == "paddlepaddle.org/edl-controller"}
    assert ours == {"tj"}


def test_a_deleted_job_leaves_nothing(driven: Driven, begin: Begin) -> None:
    cluster, _, _ = driven
    begin(cluster)
    cluster.create(training_job("tj"))
    eventually(lambda: phase(cluster, "tj") == "running", 15)
    cluster.delete(TRAINING_JOBS, NS, "tj")
    for kind in (TRAINING_JOBS, REPLICA_SETS, JOBS, PODS):
        eventually(partial(nothing_left, cluster, kind), 15, kind.plural)


def test_the_trainers_grow_to_what_there_is_room_for(driven: Driven, begin: Begin) -> None:
    cluster, _, _ = driven
    begin(cluster, autoscale=True)
    cluster.create(training_job("tj", trainers=1, most=3, agent={"mode": "Classic"}))
    eventually(lambda: phase(cluster, "tj") == "running", 15)
    eventually(lambda: get(cluster, "tj").status.trainers == 3, 30)
    records = eventually(lambda: get(cluster, "tj").status.scale_records.scale_records, 10)
    assert sum(record.additional for record in records) == 2


def test_process_next_work_item_needs_no_run(memory: MemoryCluster, settings: JobSettings) -> None:
    """The library's way: the caller owns the threads."""
    controller = Controller(memory, settings=settings, autoscale=False)
    controller.watch_training_jobs()
    controller.watch_training_jobs()
    stop = threading.Event()
    thread = threading.Thread(target=controller.informers.run, args=(stop,), name="edl-test-informers")
    thread.start()
    memory.create(training_job("tj"))
    assert controller.process_next_work_item()
    assert memory.get(REPLICA_SETS, NS, "tj-pserver").spec.replicas == 1
    controller.queue.shut_down()
    while controller.process_next_work_item():
        pass
    stop.set()
    thread.join(10)
    controller.agents.close()


# --- one bad object among good ones ---


@pytest.mark.fault("K30")
def test_one_job_that_always_raises_costs_nobody_else_anything(
    memory: MemoryCluster, start: Start, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[float] = []
    real = Controller._pass

    def broken(self: Controller, job: TrainingJob, memory: Any) -> float | None:
        if job.metadata.name == "bad":
            passes.append(time.monotonic())
            raise RuntimeError("a bug")
        return real(self, job, memory)

    monkeypatch.setattr(Controller, "_pass", broken)
    controller = begin(memory)
    memory.create(training_job("bad"))
    eventually(lambda: len(passes) >= 4)
    for number in range(200):
        memory.create(training_job(f"good-{number}"))
    eventually(lambda: len(memory.list(REPLICA_SETS, NS).items) == 200, 30)
    assert condition(memory, "bad", SYNCED) == ("False", "Failed")
    message = find_condition(get(memory, "bad").status.conditions, SYNCED)
    assert message is not None
    assert message.message == "RuntimeError: a bug"
    gaps = [b - a for a, b in pairwise(passes)]
    assert len(passes) < 25, "5 ms, doubling"
    assert gaps[-1] > gaps[0]
    monkeypatch.setattr(Controller, "_pass", real)
    controller.queue.add((NS, "bad"))
    eventually(lambda: condition(memory, "bad", SYNCED) == ("True", "Synced"), 10)
    eventually(lambda: controller.queue.failures((NS, "bad")) == 0)


@pytest.mark.report("M60")
@pytest.mark.report("M61")
@pytest.mark.fault("K25")
def test_bad_jobs_get_a_condition_and_good_ones_run(memory: MemoryCluster, start: Start, begin: Begin) -> None:
    cluster, _, _ = drive(memory, start)
    bad: dict[str, dict[str, Any]] = {
        "quantity": {"trainer": {"entrypoint": "t", "min-instance": 1, "resources": {"requests": {"cpu": "many"}}}},
        "volume": {"VolumeMounts": [{"name": "unknown", "mountPath": "/x"}]},
        "backwards": {"trainer": {"entrypoint": "t", "min-instance": 5, "max-instance": 2}},
        "empty": {"trainer": {}, "pserver": {}},
    }
    begin(memory)
    for name, spec in bad.items():
        memory.create(training_job(name, **spec))
    unreadable = msgspec.structs.replace(
        TrainingJob(), metadata=ObjectMeta(name="unreadable", namespace=NS, annotations={UNREADABLE: "$.spec: no"})
    )
    memory.create(unreadable)
    for number in range(20):
        cluster.create(training_job(f"good-{number}", trainers=1, most=1))
    for name in (*bad, "unreadable"):
        eventually(partial(is_invalid, memory, name), 15, name)
    for number in range(20):
        eventually(partial(is_running, memory, f"good-{number}"), 30)
    owners = {one.metadata.owner_references[0].name for one in memory.list(REPLICA_SETS, NS).items}
    assert owners == {f"good-{number}" for number in range(20)}
    comes_to_rest(memory)


@pytest.mark.report("M62")
@pytest.mark.parametrize("length", [40, 63, 64, 100, 253])
def test_long_names_run_or_say_why_not(memory: MemoryCluster, start: Start, begin: Begin, length: int) -> None:
    cluster, _, _ = drive(memory, start)
    begin(memory)
    names = ["a" * (length - 1) + last for last in "xy"]
    for name in names:
        cluster.create(training_job(name, trainers=1, most=1))
    for name in names:
        eventually(partial(is_running_or_invalid, memory, name), 15)
    children = [one.metadata.name for one in (*memory.list(REPLICA_SETS, NS).items, *memory.list(JOBS, NS).items)]
    assert all(len(child) <= 63 for child in children)
    assert len(children) == len(set(children))


@pytest.mark.report("M37")
def test_zero_replicas_and_edits_after_creation_crash_nothing(
    memory: MemoryCluster, start: Start, begin: Begin
) -> None:
    cluster, _, _ = drive(memory, start)
    begin(memory)
    cluster.create(training_job("none", pservers=0, trainers=1, most=1))
    cluster.create(training_job("zero", trainers=0, most=0))
    cluster.create(training_job("edited", trainers=1, most=1))
    eventually(lambda: phase(memory, "edited") == "running", 15)
    edit(cluster, "edited", pserver={"min-instance": 3})
    edit(cluster, "edited", trainer={"max-instance": 4})
    edit(cluster, "edited", pserver=None)
    cluster.create(training_job("after", trainers=1, most=1))
    eventually(lambda: phase(memory, "after") == "running", 15)
    assert memory.get(REPLICA_SETS, NS, "edited-pserver").spec.replicas == 1, "the partition is kept"
    for name in ("none", "zero"):
        eventually(partial(has_conditions, memory, name), 10)
    assert not [w for w in memory.writes if w.patch and SYNCED in str(w.patch)], "no pass failed"


# --- what a cluster does ---


@pytest.mark.fault("K7")
def test_a_create_whose_answer_was_lost_makes_one_child(memory: MemoryCluster, start: Start, begin: Begin) -> None:
    cluster, _, _ = drive(memory, start)
    memory.hold(REPLICA_SETS)
    fault = memory.fail("create", REPLICA_SETS, Unavailable("cut"), after=True)
    begin(memory)
    cluster.create(training_job("tj"))
    eventually(lambda: fault.times == 0)
    memory.release(REPLICA_SETS)
    eventually(lambda: phase(memory, "tj") == "running", 15)
    assert len(memory.list(REPLICA_SETS, NS).items) == 1


@pytest.mark.fault("K8")
def test_a_stranger_with_a_childs_name_is_left_alone(memory: MemoryCluster, start: Start, begin: Begin) -> None:
    cluster, _, _ = drive(memory, start)
    from tests.controller.test_loops import replica_set

    stranger = cluster.create(replica_set("tj-pserver", 0))
    eventually(lambda: memory.get(REPLICA_SETS, NS, "tj-pserver").status.observed_generation)
    begin(memory)
    cluster.create(training_job("tj"))
    eventually(lambda: condition(memory, "tj", "Created") == ("False", "NameTaken"), 10)
    comes_to_rest(memory)
    now = memory.get(REPLICA_SETS, NS, "tj-pserver")
    assert (now.metadata.uid, now.spec) == (stranger.metadata.uid, stranger.spec)


@pytest.mark.fault("K6")
def test_a_conflict_is_decided_anew_and_the_users_edit_survives(
    memory: MemoryCluster, start: Start, begin: Begin
) -> None:
    cluster, _, _ = drive(memory, start)
    edits = 0

    def edit_before_status(verb: str, kind: str, name: str) -> None:
        nonlocal edits
        if (verb, kind, name) == ("patch", "TrainingJob", "tj") and edits < 3:
            edits += 1
            memory.before_write = lambda *_: None
            memory.patch(TRAINING_JOBS, NS, "tj", {"metadata": {"labels": {"edit": str(edits)}}})
            memory.before_write = edit_before_status

    memory.before_write = edit_before_status
    begin(memory, workers=1)
    cluster.create(training_job("tj"))
    eventually(lambda: phase(memory, "tj") == "running", 15)
    assert edits == 3
    assert get(memory, "tj").metadata.labels == {"edit": "3"}


@pytest.mark.fault("K9")
def test_what_is_refused_is_shown_and_not_tried_again_at_once(memory: MemoryCluster, begin: Begin) -> None:
    memory.fail("create", REPLICA_SETS, Forbidden("exceeded quota: pods=2"), times=None)
    begin(memory)
    memory.create(training_job("tj"))
    eventually(lambda: condition(memory, "tj", SYNCED) == ("False", "Refused"), 10)
    never(lambda: memory.count("create", REPLICA_SETS) > 2, 1.0, "tried again within a second")
    found = find_condition(get(memory, "tj").status.conditions, SYNCED)
    assert found is not None
    assert "quota" in found.message


@pytest.mark.fault("K36")
def test_what_a_user_does_to_a_child_is_set_right_but_not_the_parallelism(
    memory: MemoryCluster, start: Start, begin: Begin
) -> None:
    cluster, _, _ = drive(memory, start)
    begin(memory)
    cluster.create(training_job("tj", most=4))
    eventually(lambda: phase(memory, "tj") == "running", 15)
    cluster.patch(JOBS, NS, "tj-trainer", {"spec": {"parallelism": 3}})
    cluster.patch(REPLICA_SETS, NS, "tj-pserver", {"spec": {"replicas": 0}})
    eventually(lambda: memory.get(REPLICA_SETS, NS, "tj-pserver").spec.replicas == 1, 10)
    cluster.delete(REPLICA_SETS, NS, "tj-pserver")
    eventually(lambda: "tj-pserver" in {one.metadata.name for one in memory.list(REPLICA_SETS, NS).items}, 10)
    assert memory.get(JOBS, NS, "tj-trainer").spec.parallelism == 3, "within its bounds it is taken as it is"


@pytest.mark.report("M59")
def test_a_lost_pod_event_is_made_good_by_the_resync(memory: MemoryCluster, start: Start, begin: Begin) -> None:
    cluster, _, nodes = drive(memory, start)
    begin(memory, resync=1.0)
    cluster.create(training_job("tj"))
    eventually(lambda: phase(memory, "tj") == "running", 15)
    nodes.hold = True
    victim = next(p for p in memory.list(PODS, NS).items if "pserver" in p.metadata.name)
    # The news that it is not ready any more reaches nobody.
    memory.lost = lambda change: change.obj is not None and change.obj.metadata.name == victim.metadata.name
    conditions = [{"type": "Ready", "status": "False"}]
    memory.patch(PODS, NS, victim.metadata.name, {"status": {"conditions": conditions}}, subresource="status")
    eventually(lambda: get(memory, "tj").status.pservers == 0, 5)


@pytest.mark.fault("K44")
def test_an_edit_overtakes_a_resync_and_unchanged_jobs_are_not_written(
    memory: MemoryCluster, settings: JobSettings, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 500
    for number in range(count):
        memory.create(training_job(f"tj-{number}"))
    controller = begin(memory, workers=2)
    eventually(lambda: len(memory.list(REPLICA_SETS, NS).items) == count, 60)
    eventually(lambda: {controller.queue.sizes()[k] for k in ("waiting", "working", "again")} == {0}, 60)
    eventually(lambda: all(job.status.agents for job in memory.list(TRAINING_JOBS, NS).items), 60)
    before = len(memory.writes)
    edited: list[float] = []
    real = Controller._pass

    def slowed(self: Controller, job: TrainingJob, memory: Any) -> float | None:
        if job.spec.image == "example.com/digits:2" and not edited:
            edited.append(time.monotonic())
        time.sleep(0.01)  # all of them take seconds
        return real(self, job, memory)

    monkeypatch.setattr(Controller, "_pass", slowed)
    memory.compact()  # the watch is cut, everything is listed anew
    from edl_controller.runtime.workqueue import Priority

    for number in range(count):
        controller.queue.add((NS, f"tj-{number}"), Priority.RESYNC)
    started = time.monotonic()
    edit(memory, f"tj-{count - 1}", image="example.com/digits:2")
    eventually(lambda: edited, 10)
    assert edited[0] - started < 1.0
    monkeypatch.setattr(Controller, "_pass", real)
    eventually(lambda: len(controller.queue) == 0, 30)
    others = [
        w for w in memory.writes[before:] if w.kind != "Event" and w.name.partition("-pserver")[0] != f"tj-{count - 1}"
    ]
    assert others == []


@pytest.mark.report("M50")
def test_the_last_edit_counts_however_fast_they_come(
    memory: MemoryCluster, start: Start, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, _, _ = drive(memory, start)
    real = Controller._pass

    def slow(self: Controller, job: TrainingJob, memory: Any) -> float | None:
        time.sleep(0.25)
        return real(self, job, memory)

    monkeypatch.setattr(Controller, "_pass", slow)
    begin(memory)
    cluster.create(training_job("tj"))
    eventually(lambda: phase(memory, "tj") == "running", 20)
    for number in range(60):
        edit(cluster, "tj", image=f"example.com/digits:{number}")
        time.sleep(0.05)
    eventually(
        lambda: (
            memory.get(REPLICA_SETS, NS, "tj-pserver").spec.template.spec.containers[0].image == "example.com/digits:59"
        ),
        5,
        "the end state is that of the last spec",
    )
    eventually(lambda: get(memory, "tj").status.observed_generation == get(memory, "tj").metadata.generation, 5)


class Killed(BaseException):
    """The process is gone: nothing catches it."""


@pytest.mark.report("M49")
@pytest.mark.fault("K17")
def test_killed_after_any_single_write_the_next_one_ends_the_same(
    memory: MemoryCluster, start: Start, settings: JobSettings, begin: Begin
) -> None:
    """A controller that dies after its n-th write, for every n, and is started again each time."""
    cluster, _, _ = drive(memory, start)
    cluster.create(training_job("tj"))
    lives = 0
    while phase(memory, "tj") != "running":
        lives += 1
        assert lives < 60
        _one_write(memory, settings)
        time.sleep(0.02)
    assert lives > 3
    creates = [w.name for w in memory.writes if w.verb == "create" and w.kind in ("ReplicaSet", "Job")]
    assert sorted(creates) == ["tj-pserver", "tj-trainer"], "side effects happen once"
    begin(memory)
    comes_to_rest(memory)
    begin(memory)
    before = len(memory.writes)
    never(lambda: [w for w in memory.writes[before:] if w.kind != "Event"], 0.7, "the next life finds nothing to do")


def _one_write(memory: MemoryCluster, settings: JobSettings) -> None:
    """Live until the first write of this controller is done, then die without a word."""

    class Dying:
        def __getattr__(self, name: str) -> Any:
            real = getattr(memory, name)
            if name not in ("create", "patch", "delete"):
                return real

            def write(*args: Any, **options: Any) -> Any:
                real(*args, **options)
                raise Killed

            return write

    controller = Controller(Dying(), settings=settings, autoscale=False)
    controller.watch_training_jobs()
    stop = threading.Event()
    thread = threading.Thread(target=controller.informers.run, args=(stop,), name="edl-test-informers")
    thread.start()
    try:
        eventually(lambda: controller.informers.has_synced)
        with contextlib.suppress(Killed):
            while len(controller.queue):
                controller.process_next_work_item()
    finally:
        stop.set()
        thread.join(10)
        controller.agents.close()


@pytest.mark.report("M55")
def test_a_pods_end_told_twice_makes_no_child_twice(memory: MemoryCluster, start: Start, begin: Begin) -> None:
    cluster, _, _ = drive(memory, start)
    begin(memory)
    cluster.create(training_job("tj"))
    eventually(lambda: phase(memory, "tj") == "running", 15)
    before = len(memory.writes)
    victim = next(p for p in memory.list(PODS, NS).items if "pserver" in p.metadata.name)
    cluster.delete(PODS, NS, victim.metadata.name)
    eventually(
        lambda: (
            phase(memory, "tj") == "running"
            and victim.metadata.uid not in {p.metadata.uid for p in memory.list(PODS, NS).items}
        ),
        15,
    )
    with memory._changed:
        entry = [one for one in memory._log if one[2].type == "DELETED"][-1]
        memory._version += 1
        memory._log.append((memory._version, entry[1], entry[2]))
    memory.compact()
    eventually(lambda: get(memory, "tj").status.pservers == 1, 10)
    created = [w.kind for w in memory.writes[before:] if w.verb == "create" and w.kind != "Event"]
    assert created == ["Pod"], "by the ReplicaSet alone"


@pytest.mark.report("M65")
def test_jobs_that_fail_once_and_vanish_leave_nothing(
    memory: MemoryCluster, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Controller._pass

    def fail(self: Controller, job: TrainingJob, memory: Any) -> float | None:
        raise RuntimeError("always")

    monkeypatch.setattr(Controller, "_pass", fail)
    controller = begin(memory)
    for number in range(300):
        memory.create(training_job(f"tj-{number}"))
    eventually(lambda: controller.queue.sizes()["failures"] == 300, 20)
    monkeypatch.setattr(Controller, "_pass", real)
    for number in range(300):
        with contextlib.suppress(NotFound):
            memory.delete(TRAINING_JOBS, NS, f"tj-{number}")
    eventually(lambda: set(controller.queue.sizes().values()) == {0}, 20, lambda: str(controller.queue.sizes()))
    assert not controller._memories


@pytest.mark.fault("K42")
def test_a_stop_with_ten_keys_in_work(memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = threading.Semaphore(0)
    done: list[str] = []

    def slow(self: Controller, job: TrainingJob, memory: Any) -> float | None:
        at_work.release()
        time.sleep(0.5)
        done.append(job.metadata.name)
        return None

    monkeypatch.setattr(Controller, "_pass", slow)
    for number in range(40):
        memory.create(training_job(f"tj-{number}"))
    controller, stop = Controller(memory, workers=10, autoscale=False), threading.Event()
    thread = threading.Thread(target=controller.run, args=(stop,), name="edl-test-controller")
    thread.start()
    for _ in range(10):
        assert at_work.acquire(timeout=10)
    stop.set()
    started = time.monotonic()
    thread.join(30)
    assert not thread.is_alive()
    assert time.monotonic() - started < 5
    assert 10 <= len(done) <= 20, "what is in work is finished, nothing more is taken"
    assert not [t.name for t in threading.enumerate() if t.name.startswith("edl-trainingjobs")]


def test_a_worker_that_hangs_does_not_hold_up_the_stop_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edl_controller.runtime.reconciler.STOP_WITHIN", 0.2)
    free, stop = threading.Event(), threading.Event()

    def hang(key: str) -> float | None:
        free.wait(20)
        return None

    reconciler: Reconciler[str] = Reconciler("hanging", hang)
    reconciler.queue.add("x")
    thread = threading.Thread(target=reconciler.run, args=(stop,), name="edl-test-reconciler")
    thread.start()
    eventually(lambda: reconciler.queue.sizes()["working"])
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
    assert "left behind" in caplog.text
    free.set()


@pytest.mark.fault("K43")
def test_a_cluster_that_is_down_at_the_start_is_waited_for(
    memory: MemoryCluster, settings: JobSettings, start: Start
) -> None:
    fault = memory.fail("list", TRAINING_JOBS, Unavailable("refused"), times=None)
    controller = Controller(memory, settings=settings, autoscale=False)
    start(controller.run)
    never(lambda: controller.ready, 0.5)
    fault.times = 0
    eventually(lambda: controller.ready, 10)


def test_at_rest_nothing_is_written(driven: Driven, begin: Begin, etcd: SharedEtcd) -> None:
    cluster, _, _ = driven
    begin(cluster, resync=0.5)
    cluster.create(training_job("tj"))
    eventually(lambda: phase(cluster, "tj") == "running", 15)
    time.sleep(1.0)  # events, and what the agents' silence brings
    version = get(cluster, "tj").metadata.resource_version
    never(lambda: get(cluster, "tj").metadata.resource_version != version, 2.0)
    assert not is_true(get(cluster, "tj").status.conditions, "Failed")
