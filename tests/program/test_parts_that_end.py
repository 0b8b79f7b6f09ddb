"""Threads that end by themselves are noticed; and nothing is written to agents' keys by who does not lead."""

from __future__ import annotations

import threading
import time

import pytest

from edl_agent.drain_request import DrainRequest
from edl_controller.agent_state import AgentStates
from edl_controller.agent_store import EtcdAccess
from edl_controller.api.kinds import PODS, TRAINING_JOBS
from edl_controller.core.planner.journal import Decision
from edl_controller.core.planner.plan import Cause
from edl_controller.runtime.informer import InformerDied
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.metrics import DecisionCounts, Metrics
from edl_controller.runtime.reconciler import Reconciler, WorkerDied
from edl_controller.runtime.workqueue import WorkQueue
from tests.bench.clocks import FakeClock
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd
from tests.runtime.memory_cluster import MemoryCluster


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_ends_by_itself_ends_all_of_them() -> None:
    def die(key: str) -> float | None:
        raise SystemExit(1)  # ends a thread without a word

    reconciler = Reconciler("test", die, workers=3)
    reconciler.queue.add("key")
    with pytest.raises(WorkerDied, match="a worker of test has ended by itself"):
        reconciler.run(threading.Event())
    assert reconciler.queue.is_shut_down


def test_a_stop_is_no_death() -> None:
    stop = threading.Event()
    reconciler: Reconciler[str] = Reconciler("test", lambda key: None, workers=3)
    timer = threading.Timer(0.2, stop.set)
    timer.start()
    reconciler.run(stop)
    timer.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_reflector_that_ends_by_itself_ends_the_informers(monkeypatch: pytest.MonkeyPatch) -> None:
    informers, stop = Informers(MemoryCluster()), threading.Event()
    informers.of(TRAINING_JOBS)
    pods = informers.of(PODS)

    def die(*_: object) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(pods.reflectors[0], "_watch", die)
    with pytest.raises(InformerDied, match="edl-informer-pods-handlers"):
        informers.run(stop)
    stop.set()
    eventually(lambda: not any("edl-informer" in one.name for one in threading.enumerate()), 30)


def test_unfinished_work_is_added_up() -> None:
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock=clock.monotonic)
    for key in ("a", "b"):
        queue.add(key)
        queue.get()
        clock.advance(2.0)
    assert (queue.unfinished_work(), queue.longest_work()) == (6.0, 4.0)


def test_who_does_not_lead_asks_no_agent_for_anything(etcd: SharedEtcd, prefix: str) -> None:
    leads = threading.Event()
    agents = AgentStates(may_write=leads.is_set, interval=0.2)
    try:
        agents.watch("ns/job/uid", EtcdAccess((etcd.client_url,)), prefix)
        agents.request_drain("ns/job/uid", "pod", DrainRequest(deadline=time.time() + 60, decision="d"))
        eventually(lambda: agents.get("ns/job/uid").observed, 30, "a look")
        never(lambda: etcd.etcdctl("get", "--prefix", prefix), 1.0, "a key", interval=0.2)
        leads.set()
        eventually(lambda: "pod" in agents.get("ns/job/uid").drains, 30, "it is written once one leads")
    finally:
        agents.close()


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize(("before", "target", "kind"), [(1, 2, "grow"), (5, 3, "shrink")])
def test_decisions_are_counted_by_kind_and_class_of_reason(before: int, target: int, kind: str, cause: Cause) -> None:
    metrics = Metrics()
    DecisionCounts(metrics).decided(Decision("id", 0.0, "ns/job/uid", before, target, "Why.", cause=cause))
    line = f'edl_autoscaler_decisions_total{{kind="{kind}",reason="{cause}"}} 1.0\n'
    assert line in metrics.page().body.decode()
