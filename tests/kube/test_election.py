"""Two replicas before a real API server: who may write, judged by the record of every write (K19, K20, M64, C4)."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edl_controller.api.configuration import ConfigMap
from edl_controller.api.kinds import CONFIG_MAPS, LEASES
from edl_controller.api.meta import ObjectMeta
from edl_controller.cluster.kube import KubeCluster, kubeconfig
from edl_controller.errors import NotFound, NotLeading
from edl_controller.runtime.fenced_cluster import FencedCluster
from edl_controller.runtime.leader import Leader
from tests.bench.clocks import FakeClock
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_proxy import KubeProxy, kubeconfig_for
from tests.bench.waiting import eventually, never
from tests.kube.leading_process import NAME, SETTINGS, WRITERS, write_on

SLOW = 2.0
"""Seconds that this machine may be late, when it has other work."""
UNDERWAY = 1.0
"""Seconds from the check of the fence to the proxy, at most; a careless program writes on for longer than that."""

Elect = Callable[..., Leader]


@pytest.fixture
def direct(control_plane: KubeControlPlane) -> Iterator[KubeCluster]:
    """Past the proxy."""
    with KubeCluster(kubeconfig(control_plane.kubeconfig), answer_within=SETTINGS.attempt) as cluster:
        yield cluster


@pytest.fixture
def proxied(connect: Callable[..., KubeCluster]) -> KubeCluster:
    """Through the proxy."""
    return connect(answer_within=SETTINGS.attempt)


@pytest.fixture
def elect(namespace: str, kube_proxy: KubeProxy, proxied: KubeCluster) -> Iterator[Elect]:
    """``elect(cluster, identity, **options) -> Leader``, started, closed after the test."""
    made: list[Leader] = []

    def start(cluster: KubeCluster, identity: str, **options: object) -> Leader:
        made.append(Leader(cluster, namespace, NAME, identity, SETTINGS, **options))  # type: ignore[arg-type]
        made[-1].start()
        return made[-1]

    yield start
    kube_proxy.clear()
    kube_proxy.drop_connections()
    for one in made:
        one.close()


class Working:
    """Ten threads that write what they can, through the fence."""

    def __init__(self, cluster: KubeCluster, namespace: str, leader: Leader) -> None:
        self._stop = threading.Event()
        fenced = FencedCluster(cluster, leader.is_leader)
        self._threads = [
            threading.Thread(target=write_on, args=(fenced, namespace, number, self._stop), name="edl-test-write")
            for number in range(WRITERS)
        ]
        for one in self._threads:
            one.start()

    def __enter__(self) -> Working:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for one in self._threads:
            one.join(30)
        assert not any(one.is_alive() for one in self._threads)


def leading(leader: Leader) -> Leader:
    eventually(leader.is_leader, 30, "that it leads")
    return leader


def holder(cluster: KubeCluster, namespace: str) -> str:
    return cluster.get(LEASES, namespace, NAME).spec.holder_identity


def last(proxy: KubeProxy, resource: str) -> float:
    """When the last write was asked for that was carried out."""
    return max(call.time for call in proxy.writes(resource))


@pytest.mark.fault("K19")
@pytest.mark.fault("C4")
@pytest.mark.report("M64")
def test_a_leader_that_is_cut_off_stops_at_its_deadline_and_is_followed(
    namespace: str, kube_proxy: KubeProxy, proxied: KubeCluster, direct: KubeCluster, elect: Elect
) -> None:
    first = leading(elect(proxied, "first"))
    second = elect(direct, "second")
    with Working(proxied, namespace, first):
        eventually(lambda: len(kube_proxy.writes("configmaps")) > 2 * WRITERS, 30, "work")
        # Its renewals alone: what it writes beside them would still arrive.
        kube_proxy.hold("*", "leases")
        renewed = last(kube_proxy, "leases")
        assert first.lost.wait(30)
        assert time.monotonic() - renewed < SETTINGS.renew_deadline + SLOW
        assert not second.is_leader()
        eventually(second.is_leader, 30, "that the second leads", interval=0.01)
        followed = time.monotonic()
        # The exact bounds are judged in virtual time (tests/core/test_elections_together.py).
        assert SETTINGS.lease <= followed - renewed < SETTINGS.lease + SETTINGS.retry + 1.0 + SLOW
        never(first.is_leader, 1.0)
    assert last(kube_proxy, "configmaps") <= renewed + SETTINGS.renew_deadline + UNDERWAY
    assert holder(direct, namespace) == "second"
    assert direct.get(LEASES, namespace, NAME).spec.lease_transitions == 1


@pytest.mark.report("M64")
@pytest.mark.fault("C4")
def test_renewals_that_fail_until_the_deadline_and_work_again_end_it_once_with_ten_keys_in_work(
    namespace: str, kube_proxy: KubeProxy, proxied: KubeCluster, elect: Elect
) -> None:
    losses: list[float] = []
    leader = leading(elect(proxied, "me", on_lost=lambda: losses.append(time.monotonic())))
    with Working(proxied, namespace, leader):
        eventually(lambda: len(kube_proxy.writes("configmaps")) > 2 * WRITERS, 30, "work")
        failing = kube_proxy.fail(500, "patch", "leases", times=None)
        renewed = last(kube_proxy, "leases")
        assert leader.lost.wait(30)
        failing.remove()
        never(leader.is_leader, 2.0)
    leader.release()
    assert last(kube_proxy, "leases") == renewed
    assert last(kube_proxy, "configmaps") <= renewed + SETTINGS.renew_deadline + UNDERWAY
    assert len(losses) == 1


@pytest.mark.report("M64")
def test_a_deleted_lease_is_written_anew_and_a_stop_after_a_deletion_is_no_crash(
    namespace: str, direct: KubeCluster, elect: Elect
) -> None:
    leader = leading(elect(direct, "me"))
    first = direct.get(LEASES, namespace, NAME).metadata.uid
    direct.delete(LEASES, namespace, NAME)
    eventually(lambda: _uid(direct, namespace) not in ("", first), 30, "another Lease")
    assert leader.is_leader()
    direct.delete(LEASES, namespace, NAME)
    leader.release()
    assert not leader.is_leader()
    assert not leader.lost.is_set()


def _uid(cluster: KubeCluster, namespace: str) -> str:
    try:
        return cluster.get(LEASES, namespace, NAME).metadata.uid
    except NotFound:
        return ""


def test_a_release_lets_the_other_lead_within_the_retry_time(namespace: str, direct: KubeCluster, elect: Elect) -> None:
    first, second = leading(elect(direct, "first")), elect(direct, "second")
    never(second.is_leader, 0.5)
    begin = time.monotonic()
    first.release()
    released = time.monotonic()
    eventually(second.is_leader, 30, "that the second leads", interval=0.01)
    assert time.monotonic() - released < min(SETTINGS.retry * SETTINGS.jitter + SLOW, SETTINGS.lease - 1.0)
    assert released - begin < SETTINGS.attempt + SLOW
    spec = direct.get(LEASES, namespace, NAME).spec
    assert (spec.holder_identity, spec.lease_duration_seconds, spec.lease_transitions) == ("second", 4, 1)


@pytest.mark.fault("K20")
def test_an_hour_between_two_clocks_changes_nothing(namespace: str, direct: KubeCluster, elect: Elect) -> None:
    behind, ahead = FakeClock(running=True), FakeClock(running=True)
    behind.jump_wall(-3600)
    ahead.jump_wall(3600)
    first = leading(elect(direct, "first", clock=behind))
    second = elect(direct, "second", clock=ahead)
    never(lambda: second.is_leader() or not first.is_leader(), SETTINGS.lease + 0.5)
    first.close()  # as if it had died: its stamps lie in the past, and are no reason to be early
    closed = time.monotonic()
    eventually(second.is_leader, 30, "that the second leads", interval=0.01)
    assert time.monotonic() - closed > SETTINGS.lease - SETTINGS.retry * SETTINGS.jitter - 0.5
    assert direct.get(LEASES, namespace, NAME).spec.lease_transitions == 1


def test_a_renewal_whose_answer_is_lost_costs_nothing(
    namespace: str, kube_proxy: KubeProxy, proxied: KubeCluster, elect: Elect
) -> None:
    leader = leading(elect(proxied, "me"))
    lost = kube_proxy.lose_answer("patch", "leases")
    lost.wait_fired(30)
    renewals = len(kube_proxy.writes("leases"))
    eventually(lambda: len(kube_proxy.writes("leases")) > renewals + 1, 30, "further renewals")
    assert leader.is_leader()


@pytest.mark.fault("C4")
def test_who_loses_the_lead_while_a_write_is_being_sent_does_not_send_it(
    namespace: str, kube_proxy: KubeProxy, proxied: KubeCluster, connect: Callable[..., KubeCluster], elect: Elect
) -> None:
    leader, asked = leading(elect(proxied, "me")), threading.Event()

    def pause() -> None:
        """As if the process had been stopped between the fence and the network."""
        if asked.is_set():
            assert leader.lost.wait(30)
        leader.check()

    fenced = FencedCluster(connect(before_write=pause), leader.is_leader)
    fenced.create(ConfigMap(metadata=ObjectMeta(name="t-0", namespace=namespace)))
    writes = len(kube_proxy.writes("configmaps"))
    kube_proxy.fail(500, "patch", "leases", times=None)
    asked.set()
    with pytest.raises(NotLeading, match="me does not lead by the lease"):
        fenced.patch(CONFIG_MAPS, namespace, "t-0", {"data": {"x": "1"}})
    assert fenced.get(CONFIG_MAPS, namespace, "t-0").data == {}
    assert len(kube_proxy.writes("configmaps")) == writes


@pytest.mark.fault("C4")
def test_a_leader_that_was_stopped_beyond_its_lease_writes_nothing_when_it_goes_on(
    namespace: str,
    kube_proxy: KubeProxy,
    control_plane: KubeControlPlane,
    direct: KubeCluster,
    elect: Elect,
    tmp_path: Path,
) -> None:
    config = kubeconfig_for(kube_proxy, tmp_path, control_plane.token)
    command = [sys.executable, "-m", "tests.kube.leading_process", str(config), namespace, "stopped"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "leads\n"
            second = elect(direct, "second")
            eventually(lambda: len(kube_proxy.writes("configmaps")) > 2 * WRITERS, 30, "work")
            process.send_signal(signal.SIGSTOP)
            leading(second)
            taken = time.monotonic()
            process.send_signal(signal.SIGCONT)
            assert process.stdout.readline() == "lost\n"
            assert process.wait(30) == 3
        finally:
            process.kill()
    # Of each thread the one request that was between the check and the network when all stopped; no other.
    late = [call.name for call in kube_proxy.writes("configmaps") if call.time > taken]
    assert len(late) == len(set(late))
    assert last(kube_proxy, "leases") < taken
    assert second.is_leader()
    assert holder(direct, namespace) == "second"
