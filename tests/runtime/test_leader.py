"""One replica's thread: what it does when requests fail, hang or come late, and when its time stands still or jumps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl_controller.api import timestamps
from edl_controller.api.configuration import ConfigMap
from edl_controller.api.kinds import CONFIG_MAPS, LEASES
from edl_controller.api.leases import Lease, LeaseSpec
from edl_controller.api.meta import ObjectMeta
from edl_controller.core.election import ElectionSettings
from edl_controller.errors import NotLeading, Unavailable
from edl_controller.runtime.fenced_cluster import FencedCluster
from edl_controller.runtime.leader import Leader, own_identity
from tests.bench.clocks import FakeClock
from tests.bench.waiting import eventually, never
from tests.runtime.memory_cluster import MemoryCluster

FAST = ElectionSettings(lease=3, renew_deadline=2, retry=0.4)
HOUR = 3600.0
NEVER = threading.Event()

Elect = Callable[..., Leader]


class Counted:
    """Metrics, and what calls back."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def leading(self, yes: bool) -> None:
        self.events.append("leads" if yes else "leads no more")

    def lost(self) -> None:
        self.events.append("lost")

    def called_back(self) -> None:
        self.events.append("called back")


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def elect(cluster: MemoryCluster) -> Iterator[Elect]:
    """``elect(identity, **options) -> Leader``, started, closed after the test."""
    made: list[Leader] = []

    def start(identity: str, settings: ElectionSettings = FAST, clock: Any = None, **options: Any) -> Leader:
        made.append(Leader(cluster, "ns", "edl", identity, settings, clock, **options))
        made[-1].start()
        return made[-1]

    yield start
    cluster.faults.clear()
    for one in made:
        one.close()


def holder(cluster: MemoryCluster) -> str:
    return str(cluster.get(LEASES, "ns", "edl").spec.holder_identity)


def leading(leader: Leader) -> Leader:
    eventually(leader.is_leader, 30, "that it leads")
    return leader


def lease_writes(cluster: MemoryCluster) -> int:
    return sum(one.kind == "Lease" for one in cluster.writes)


def test_one_leads_the_other_waits_and_follows_a_release_within_the_retry_time(
    cluster: MemoryCluster, elect: Elect
) -> None:
    first = elect("first")
    assert first.wait_until_leading(NEVER)
    second = elect("second")
    never(second.is_leader, 1.0)
    assert first.is_leader()
    begin = time.monotonic()
    first.release()
    assert not first.is_leader()
    assert second.wait_until_leading(NEVER)
    assert time.monotonic() - begin < FAST.lease  # the retry time, on a machine with other work
    assert holder(cluster) == "second"
    assert not first.lost.is_set()
    first.release()  # once more
    assert cluster.get(LEASES, "ns", "edl").spec.lease_transitions == 1


def test_closed_without_release_the_others_wait_for_the_whole_lease(cluster: MemoryCluster, elect: Elect) -> None:
    first, second = leading(elect("first")), elect("second")
    eventually(lambda: cluster.count("get", LEASES) >= 3, 30)
    begin = time.monotonic()
    first.close()
    first.release()  # comes too late to release anything
    assert not first.is_leader()
    assert holder(cluster) == "first"
    assert second.wait_until_leading(NEVER)
    assert time.monotonic() - begin > FAST.lease - FAST.retry * FAST.jitter


@pytest.mark.fault("K20")
@pytest.mark.parametrize("hours", [-1, 1])
def test_wall_clocks_do_not_matter(hours: int, cluster: MemoryCluster, elect: Elect) -> None:
    ahead = FakeClock(running=True)
    ahead.jump_wall(hours * HOUR)
    first = leading(elect("first", clock=ahead))
    before = cluster.get(LEASES, "ns", "edl").spec
    second = elect("second", clock=FakeClock(running=True))
    never(lambda: second.is_leader() or not first.is_leader(), FAST.lease / 2)
    ahead.jump_wall(-2 * hours * HOUR)
    never(lambda: second.is_leader() or not first.is_leader(), FAST.lease)
    after = cluster.get(LEASES, "ns", "edl").spec
    assert (after.acquire_time, after.lease_transitions) == (before.acquire_time, 0)
    assert after.renew_time != before.renew_time


@pytest.mark.fault("K20")
@pytest.mark.parametrize("hours", [-1, 1])
def test_an_abandoned_lease_is_taken_after_its_length_whatever_its_stamps_say(
    hours: int, cluster: MemoryCluster, elect: Elect
) -> None:
    stamp = timestamps.render_micro(time.time() + hours * HOUR)
    spec = LeaseSpec(holder_identity="gone", lease_duration_seconds=3, acquire_time=stamp, renew_time=stamp)
    cluster.create(Lease(metadata=ObjectMeta(name="edl", namespace="ns"), spec=spec))
    begin = time.monotonic()
    assert elect("second").wait_until_leading(NEVER)
    assert time.monotonic() - begin >= 3.0


@pytest.mark.fault("C4")
def test_a_machine_that_slept_beyond_the_deadline_leads_no_more(cluster: MemoryCluster, elect: Elect) -> None:
    clock, counted = FakeClock(running=True), Counted()
    leader = leading(elect("me", ElectionSettings(), clock, metrics=counted, on_lost=counted.called_back))
    fenced = FencedCluster(cluster, leader.is_leader)
    fenced.create(ConfigMap(metadata=ObjectMeta(name="a", namespace="ns")))
    writes = len(cluster.writes)
    clock.suspend(11.0)
    with pytest.raises(NotLeading):
        fenced.patch(CONFIG_MAPS, "ns", "a", {"data": {"x": "1"}})
    assert leader.lost.is_set()
    assert not leader.wait_until_leading(NEVER)
    never(leader.is_leader, 1.0)
    leader.release()
    assert len(cluster.writes) == writes
    assert counted.events == ["leads", "leads no more", "lost", "called back"]


@pytest.mark.report("M64")
@pytest.mark.fault("C4")
def test_renewals_that_fail_until_the_deadline_end_it_once_and_for_good(cluster: MemoryCluster, elect: Elect) -> None:
    counted = Counted()
    leader = leading(elect("me", metrics=counted))
    fault = cluster.fail("patch", LEASES, Unavailable("500"), times=None)
    writes = lease_writes(cluster)
    assert leader.lost.wait(30)
    fault.times = 0
    never(leader.is_leader, 1.5)
    leader.release()
    assert lease_writes(cluster) == writes
    assert counted.events == ["leads", "leads no more", "lost"]


def test_renewals_that_fail_for_a_while_cost_nothing(cluster: MemoryCluster, elect: Elect) -> None:
    leader = leading(elect("me", ElectionSettings(lease=30, renew_deadline=25, retry=0.2)))
    fault = cluster.fail("patch", LEASES, Unavailable("500"), times=3)
    eventually(lambda: fault.times == 0, 20)
    writes = lease_writes(cluster)
    eventually(lambda: lease_writes(cluster) > writes, 20, "a renewal")
    assert leader.is_leader()


def test_a_renewal_whose_answer_is_lost_is_looked_after(cluster: MemoryCluster, elect: Elect) -> None:
    leader = leading(elect("me", ElectionSettings(lease=30, renew_deadline=25, retry=0.2)))
    cluster.fail("patch", LEASES, Unavailable("lost"), times=1, after=True)
    writes = lease_writes(cluster)
    eventually(lambda: lease_writes(cluster) > writes + 2, 20, "renewals")
    assert leader.is_leader()


@pytest.mark.report("M64")
def test_a_deleted_lease_is_created_anew_and_a_stop_after_a_deletion_is_no_crash(
    cluster: MemoryCluster, elect: Elect
) -> None:
    leader = leading(elect("me"))
    cluster.delete(LEASES, "ns", "edl")
    eventually(lambda: holder(cluster) == "me" if cluster.list(LEASES).items else False, 30, "the lease")
    assert leader.is_leader()
    cluster.delete(LEASES, "ns", "edl")
    leader.release()
    assert not leader.is_leader()
    assert not leader.lost.is_set()


def test_who_is_put_out_of_the_record_leads_no_more(cluster: MemoryCluster, elect: Elect) -> None:
    leader = leading(elect("me"))
    cluster.patch(LEASES, "ns", "edl", {"spec": {"holderIdentity": "somebody"}})
    assert leader.lost.wait(30)
    assert holder(cluster) == "somebody"


def test_a_request_that_hangs_holds_up_neither_the_deadline_nor_the_end(cluster: MemoryCluster, elect: Elect) -> None:
    goes_on, hanging = threading.Event(), threading.Event()

    def hang(verb: str, kind: str, name: str) -> None:
        if (verb, kind) == ("patch", "Lease"):
            hanging.set()
            goes_on.wait(60)

    leader = leading(elect("me"))
    cluster.before_write = hang
    try:
        assert hanging.wait(30)
        begin = time.monotonic()
        assert leader.lost.wait(30)
        assert time.monotonic() - begin < FAST.renew_deadline + 3
        assert not leader.is_leader()
        begin = time.monotonic()
        leader.release()
        assert time.monotonic() - begin < 5
    finally:
        goes_on.set()


def test_a_release_while_a_renewal_hangs_ends_in_time(cluster: MemoryCluster, elect: Elect) -> None:
    goes_on, hanging = threading.Event(), threading.Event()

    def hang(verb: str, kind: str, name: str) -> None:
        if (verb, kind) == ("patch", "Lease"):
            hanging.set()
            goes_on.wait(60)

    leader = leading(elect("me", ElectionSettings(lease=60, renew_deadline=50, retry=0.2)))
    cluster.before_write = hang
    try:
        assert hanging.wait(30)
        begin = time.monotonic()
        leader.release()
        assert time.monotonic() - begin < 6
        assert not leader.is_leader()
        assert holder(cluster) == "me"
    finally:
        goes_on.set()


def test_an_error_that_is_none_of_a_cluster_does_not_end_the_election(
    cluster: MemoryCluster, elect: Elect, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.fail("get", LEASES, RuntimeError("a defect"), times=2)
    leading(elect("me"))
    assert "none of a cluster" in caplog.text


def test_a_wait_for_the_lead_ends_with_the_stop_and_with_the_leader(cluster: MemoryCluster, elect: Elect) -> None:
    leading(elect("first"))
    second, stop = elect("second"), threading.Event()
    stop.set()
    assert not second.wait_until_leading(stop)
    second.close()
    assert not second.wait_until_leading(NEVER)


def test_a_context_releases_at_its_end(cluster: MemoryCluster) -> None:
    with Leader(cluster, "ns", "edl", settings=FAST) as leader:
        assert leader.wait_until_leading(NEVER)
        assert holder(cluster) == leader.identity
    assert holder(cluster) == ""


def test_every_process_has_a_name_of_its_own() -> None:
    assert own_identity() != own_identity()
    assert Leader(MemoryCluster(), "ns", "edl").identity != Leader(MemoryCluster(), "ns", "edl").identity
