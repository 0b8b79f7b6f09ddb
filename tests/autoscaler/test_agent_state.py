"""What the controller reads of the agents in a real etcd, and what it writes there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from edl_agent import EtcdClient
from edl_agent.drain import Drain
from edl_agent.drain_request import DrainRequest
from edl_agent.errors import ConfigurationError
from edl_agent.reporting import Reporter
from edl_agent.tasks import Task, TaskQueue
from edl_controller.agent_state import AgentStates
from edl_controller.agent_store import EtcdAccess
from edl_controller.core.agents import NEVER_SEEN, AgentState
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd

JOB = "ns/job/uid"


@pytest.fixture
def states() -> Iterator[AgentStates]:
    found = AgentStates(workers=3, interval=0.05)
    yield found
    found.close()


@pytest.fixture
def access(etcd: SharedEtcd) -> EtcdAccess:
    return EtcdAccess((etcd.client_url,))


def fresh(states: AgentStates, job: str = JOB) -> AgentState:
    """The state of a look that begins now."""
    begin = time.time()
    states.refresh(job)

    def read() -> AgentState | None:
        state = states.get(job)
        return state if state.observed is not None and state.observed >= begin else None

    found = eventually(read, 5.0, lambda: f"a new look at {job}: {states.get(job)}")
    assert found is not None
    return found


def test_everything_that_the_agents_say(states: AgentStates, etcd: SharedEtcd, access: EtcdAccess, prefix: str) -> None:
    states.watch(JOB, access, prefix)
    assert fresh(states).pservers == ()
    with (
        EtcdClient(etcd.client_url, 2, prefix=prefix, ttl=5) as pserver,
        EtcdClient(etcd.client_url, None, prefix=prefix, ttl=5) as trainer,
    ):
        assert pserver.register(7164, host="127.0.0.1") == 0
        trainer.open()
        with (
            Reporter(trainer, role="trainer", name="t-1", interval=0.1) as reporter,
            TaskQueue(trainer, "t-1") as tasks,
        ):
            reporter.update(step=3, samples=96)
            tasks.set_dataset(range(2), passes=2)
            eventually(lambda: states.get(JOB).reports[0].step == 3, 5.0, "the report is read")
            state = fresh(states)
            assert state.desired == 2
            assert [(slot.index, slot.address) for slot in state.pservers] == [(0, "127.0.0.1:7164")]
            assert state.pservers[0].epoch == pserver.session.epoch
            assert state.pservers[0].lease == pserver.session.lease_id
            assert state.missing(2) == (1,)
            assert [(report.name, report.step) for report in state.reports] == [("t-1", 3)]
            assert (state.passes, state.passes_finished, state.finished) == (2, 0, False)
            while isinstance(task := tasks.get_task(timeout=5), Task):
                tasks.finish(task)
            assert fresh(states).finished
            assert state.cluster_id != 0
            assert state.error == ""
    gone = fresh(states)
    assert (gone.pservers, gone.reports, gone.desired) == ((), (), 2)


def test_a_drain_is_asked_for_answered_and_withdrawn(
    states: AgentStates, etcd: SharedEtcd, access: EtcdAccess, prefix: str
) -> None:
    states.watch(JOB, access, prefix)
    with EtcdClient(etcd.client_url, None, prefix=prefix, ttl=5) as client:
        client.open()
        with Reporter(client, role="trainer", name="t-1"), Drain(client, "t-1") as drain:
            request = DrainRequest("d-1", time.time() + 30, "another job waits", "pod-uid")
            states.request_drain(JOB, "t-1", request)
            assert drain.requested.wait(5)
            assert drain.reason == "another job waits"
            drain.acknowledge()
            eventually(lambda: [one.drain for one in fresh(states).reports] == ["acked"], 5.0, "the answer is read")
            assert states.get(JOB).drain_requests == (("t-1", request),)
            states.withdraw_drain(JOB, "t-1")
            eventually(lambda: not drain.requested.is_set(), 5.0, "the request is withdrawn")
            assert fresh(states).drains == frozenset()


@pytest.mark.parametrize("found", ["7", "many", None], ids=["another", "no number", "none"])
@pytest.mark.fault("K35")
def test_the_desired_count_is_repaired(
    states: AgentStates, access: EtcdAccess, prefix: str, etcdctl: Callable[..., str], found: str | None
) -> None:
    if found is not None:
        etcdctl("put", f"{prefix}/ps_desired", found)
    states.watch(JOB, access, prefix)
    assert fresh(states).desired == (7 if found == "7" else None)
    states.repair_desired(JOB, 2)
    eventually(lambda: fresh(states).desired == 2, 5.0, "the count is repaired")
    etcdctl("put", f"{prefix}/ps_desired", "3")
    never(lambda: fresh(states).desired != 3, 0.3)  # asked for once, done once


def test_values_of_others_hide_nothing(
    states: AgentStates, access: EtcdAccess, prefix: str, etcdctl: Callable[..., str]
) -> None:
    for key, value in {
        "/ps/0": "10.0.0.1:1",
        "/ps/01": "not a slot",
        "/ps0": "in between",
        "/edl/agents/bad": "{",
        "/edl/drain/bad": "nothing",
        "/edl/tasks/state": "[]",
    }.items():
        etcdctl("put", prefix + key, value)
    states.watch(JOB, access, prefix)
    state = fresh(states)
    assert [slot.address for slot in state.pservers] == ["10.0.0.1:1"]
    assert state.drains == {"bad"}
    assert not any((state.reports, state.drain_requests, state.passes))


def test_changes_are_told_once_and_ages_are_not(
    states: AgentStates, access: EtcdAccess, prefix: str, etcdctl: Callable[..., str]
) -> None:
    told: list[tuple[str, int]] = []
    states.on_change(lambda job, state: told.append((job, len(state.pservers))))

    def broken(job: str, state: AgentState) -> None:
        raise RuntimeError("a caller's mistake")

    states.on_change(broken)
    states.watch(JOB, access, prefix)
    fresh(states)
    etcdctl("put", f"{prefix}/ps/0", "10.0.0.1:1")
    eventually(lambda: told[-1:] == [(JOB, 1)], 5.0, "the change is told")
    count = len(told)
    for _ in range(3):
        fresh(states)
    assert len(told) == count


@pytest.mark.fault("K34")
def test_a_store_that_is_silent_costs_only_its_own_jobs_their_freshness(
    states: AgentStates, access: EtcdAccess, etcd: SharedEtcd, prefix: str, proxy: TcpProxy
) -> None:
    silent = [f"silent/{number}/u" for number in range(20)]
    behind = EtcdAccess((proxy.endpoint,))
    for job in silent:
        states.watch(job, behind, f"{prefix}/{job}")
    states.watch(JOB, access, prefix)
    for job in silent:
        fresh(states, job)
    proxy.black_hole()
    eventually(lambda: all(states.get(job).error for job in silent), 10.0, "the error is noted for all its jobs")
    ages = []
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        ages.append(states.get(JOB).age(time.time()))
        time.sleep(0.02)
    assert max(ages) < 1.0, "the other store's job stays fresh"
    begin = time.monotonic()
    states.request_drain(silent[0], "t", DrainRequest("d", time.time() + 1))
    kept = states.get(silent[0])
    assert time.monotonic() - begin < 0.2, "no call waits for a store"
    assert kept.age(time.time()) > 1.5, "what was known is kept, with its age"
    assert kept.cluster_id
    proxy.pass_all()
    eventually(lambda: "t" in states.get(silent[0]).drains, 20.0, "what was asked for meanwhile is done")


def test_jobs_of_a_store_in_which_nothing_happens_are_not_read_one_by_one(
    states: AgentStates, etcd_proxy: EtcdProxy, etcdctl: Callable[..., str], prefix: str
) -> None:
    jobs = [f"ns/{number}/u" for number in range(50)]
    access = EtcdAccess((etcd_proxy.endpoint,))
    told: list[str] = []
    states.on_change(lambda job, state: told.append(job))
    for job in jobs:
        etcdctl("put", f"{prefix}/{job}/ps/0", "10.0.0.1:1") if job == jobs[7] else None
        states.watch(job, access, f"{prefix}/{job}")
    for job in jobs:
        fresh(states, job)

    def quiet() -> bool:
        etcd_proxy.clear()
        begin = time.time()
        eventually(lambda: all(age_of(states, job) < time.time() - begin for job in jobs), 5.0, "all are looked at")
        return etcd_proxy.count("Txn") == 0

    # Other tests of this worker are over, so the store's revision stands still: all jobs rest, and are fresh.
    eventually(quiet, 20.0, "no job is read")
    assert etcd_proxy.count("Range") < 50
    told.clear()
    etcdctl("del", f"{prefix}/{jobs[7]}/ps/0")
    eventually(lambda: told == [jobs[7]], 5.0, "a deletion is seen")
    etcdctl("put", f"{prefix}/{jobs[8]}/ps/0", "10.0.0.2:1")
    eventually(lambda: told == [jobs[7], jobs[8]], 5.0, "a new key is seen")


def age_of(states: AgentStates, job: str) -> float:
    """Seconds since the state of a job was last known to hold."""
    return states.get(job).age(time.time())


@pytest.mark.fault("K34")
def test_a_resting_job_shows_that_its_store_has_gone(
    states: AgentStates, proxy: TcpProxy, etcd: SharedEtcd, prefix: str, etcdctl: Callable[..., str]
) -> None:
    states.watch(JOB, EtcdAccess((proxy.endpoint,)), prefix)
    fresh(states)
    eventually(lambda: states._jobs[JOB].resting, 10.0, "it rests")
    proxy.black_hole()
    eventually(lambda: states.get(JOB).error, 10.0, "the error shows")
    eventually(lambda: age_of(states, JOB) > 1.0, 10.0, "its age grows")
    etcdctl("put", f"{prefix}/ps/0", "10.0.0.1:1")
    proxy.pass_all()
    eventually(lambda: states.get(JOB).pservers and not states.get(JOB).error, 20.0, "it is read again")


def test_an_outage_is_logged_once_and_so_is_its_end(
    states: AgentStates, proxy: TcpProxy, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Who runs the controller looks into its log, and not into the conditions of each job."""
    caplog.set_level("INFO", "edl_controller.agent_store")

    def said(words: str) -> list[str]:
        return [record.message for record in caplog.records if words in record.message]

    for job in ("a/b/u", JOB):
        states.watch(job, EtcdAccess((proxy.endpoint,)), f"{prefix}/{job}")
        fresh(states, job)
    assert not said(proxy.endpoint)
    proxy.refuse()
    eventually(lambda: said("cannot be read"), 30.0, "it is said")
    store = states._jobs[JOB].store
    failures = store.failures
    eventually(lambda: store.failures > failures, 30.0, "it is tried again")
    proxy.pass_all()
    eventually(lambda: said("answers again"), 30.0, "its end is said")
    (line,) = said("cannot be read")
    assert proxy.endpoint in line


def test_forgotten_jobs_and_moved_ones(
    states: AgentStates, access: EtcdAccess, prefix: str, etcdctl: Callable[..., str]
) -> None:
    etcdctl("put", f"{prefix}/new/ps/0", "10.0.0.1:1")
    assert states.get(JOB) is NEVER_SEEN
    states.watch(JOB, access, f"{prefix}/old")
    assert fresh(states).pservers == ()
    states.watch(JOB, access, f"{prefix}/new")
    assert len(fresh(states).pservers) == 1
    states.forget(JOB)
    states.forget(JOB)
    assert states.get(JOB) is NEVER_SEEN
    with pytest.raises(ConfigurationError):
        states.watch(JOB, access, "no/slash")


def test_a_vanished_job_is_swept_and_nothing_else(
    states: AgentStates, access: EtcdAccess, etcdctl: Callable[..., str], prefix: str
) -> None:
    uid = prefix.strip("/").replace("/", "-")
    mine, neighbour = f"/edl/jobs/ns/job/{uid}", f"/edl/jobs/ns/job/{uid}0"
    for key in ("/ps/0", "/ps_desired", "/edl/agents/x"):
        etcdctl("put", mine + key, "v")
    etcdctl("put", f"{neighbour}/ps/0", "v")
    assert {mine, neighbour} <= set(states.prefixes(access))
    states.sweep(access, mine)
    assert etcdctl("get", "--prefix", "--keys-only", mine).split() == [f"{neighbour}/ps/0"]
    assert mine not in states.prefixes(access)
    states.sweep(access, neighbour)
    for bad in ("", "/edl/jobs", "/edl/jobs/ns", "/edl/jobs/ns/job", "/edl/jobs/ns/job/uid/ps", "/other/jobs/a/b/c"):
        with pytest.raises(ConfigurationError):
            states.sweep(access, bad)


def test_another_cluster_at_the_same_place_shows(
    states: AgentStates, etcd_factory: Callable[..., EtcdCluster], prefix: str
) -> None:
    cluster = etcd_factory()
    states.watch(JOB, EtcdAccess((cluster.endpoint_string,)), prefix)
    before = fresh(states).cluster_id
    cluster.members[0].kill()
    cluster.members[0].wipe(new_identity=True)
    cluster.members[0].start()
    eventually(lambda: states.get(JOB).cluster_id not in (0, before), 20.0, "the new cluster is noticed")


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("edl_controller.agent_state.read_state", id="while a job is read"),
        pytest.param("edl_controller.agent_store.Store.look", id="while a resting store is looked at"),
    ],
)
def test_reading_outlives_faults_of_its_own(
    states: AgentStates,
    access: EtcdAccess,
    etcd: SharedEtcd,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    states.watch(JOB, access, prefix)
    fresh(states)
    failures = threading.Semaphore(0)

    def fail(*args: object) -> None:
        failures.release()
        raise ZeroDivisionError("a fault of this program")

    with monkeypatch.context() as patch:
        patch.setattr(broken, fail)
        states.refresh(JOB)
        for _ in range(5):  # more than there are threads
            assert failures.acquire(timeout=20)
        if broken.endswith("read_state"):
            eventually(lambda: states.get(JOB).error == "a fault of this program", 20.0, "it is told")
    with EtcdClient(etcd.client_url, 1, prefix=prefix, ttl=5) as pserver:
        pserver.register(7164, host="127.0.0.1")
        eventually(lambda: len(states.get(JOB).pservers) == 1, 20.0, "reading goes on")
    assert states.get(JOB).error == ""
    assert [record.levelname for record in caplog.records if "unexpectedly" in record.message] == ["ERROR"]


def test_closing_ends_all_threads_even_while_a_store_is_silent(
    proxy: TcpProxy, access: EtcdAccess, prefix: str
) -> None:
    found = AgentStates(workers=2, interval=0.02)
    found.watch(JOB, EtcdAccess((proxy.endpoint,)), prefix)
    fresh(found)
    proxy.black_hole()
    begin = time.monotonic()
    found.close()
    found.close()
    assert time.monotonic() - begin < 2.5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("edl-agent-state")]
