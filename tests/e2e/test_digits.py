"""The digits job before a real API server: what the example promises, whatever happens to the parts around it."""

from __future__ import annotations

import re
import time

import pytest

from edl_controller import prefix_sweeper
from edl_controller.api.kinds import PODS, TRAINING_JOBS
from edl_controller.api.pods import Pod
from edl_controller.api.settings import Settings
from edl_controller.cluster.kube import KubeCluster, kubeconfig
from edl_controller.controller import Controller
from edl_controller.core.job_settings import JobSettings
from edl_controller.errors import NotFound
from examples.digits.cluster_demo import kill, restored
from tests.bench.kube_proxy import Call
from tests.bench.waiting import never
from tests.e2e.digits_bench import LABEL, NAME, DigitsBench, restarts
from tests.kube.controller_bench import RunningController

GOOD = 0.93
"""Share of the held-out images; what the demo asks for, too."""


@pytest.mark.timeout(240)
@pytest.mark.fault("C6")
@pytest.mark.parametrize("rest", [15.0, pytest.param(60.0, marks=pytest.mark.soak)])
def test_it_grows_gives_room_survives_a_pserver_and_comes_to_rest(digits: DigitsBench, rest: float) -> None:
    digits.node()
    digits.controller().wait_leading()
    digits.submit(most=4, think=0.1)
    full = digits.wait_ready("trainer", 4)

    # A service asks for a core more than is free: one trainer, named beforehand, and no other goes.
    asks_for_room(digits, "1500m")
    digits.wait(lambda: service_runs(digits), "the service runs")
    left = digits.wait_ready("trainer", 3)
    victims = set(digits.named_victims())
    assert victims == names(full) - names(left)
    assert len(victims) == 1
    assert not digits.trainer().status.failed, "given back is not failed"
    digits.cluster.delete(PODS, digits.namespace, "service")
    digits.wait_ready("trainer", 4)

    # A pserver's program is killed: started again, it takes an index and restores what was saved.
    victim = digits.ready("pserver")[0]
    kill(victim)
    digits.wait(lambda: restored(digits.logs, victim), "the pserver serves what was saved")
    assert digits.job().status.phase != "succeeded", "all this happened in mid-training"

    assert digits.wait_succeeded() >= GOOD
    assert not digits.trainer().status.failed
    comes_to_rest(digits, rest)


def asks_for_room(digits: DigitsBench, cpu: str) -> None:
    """A pod of somebody else."""
    container = {"name": "c", "image": "any", "command": ["sleep", "1000"], "resources": {"requests": {"cpu": cpu}}}
    spec = {
        "containers": [container],
        "nodeSelector": {LABEL: digits.namespace},
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
    }
    pod = {"metadata": {"name": "service", "namespace": digits.namespace}, "spec": spec}
    digits.cluster.create(PODS.from_json(pod))


def service_runs(digits: DigitsBench) -> bool:
    """Whether it got its room."""
    try:
        return bool(digits.cluster.get(PODS, digits.namespace, "service").status.phase == "Running")
    except NotFound:
        return False


def names(pods: list[Pod]) -> set[str]:
    """Of pods."""
    return {pod.metadata.name for pod in pods}


def comes_to_rest(digits: DigitsBench, seconds: float) -> None:
    """Once the job has settled, nothing is written but Leases and events."""

    def written() -> list[Call]:
        return [call for call in digits.proxy.writes() if call.resource not in ("leases", "events")]

    digits.wait(lambda: not digits.live(""), "all pods have ended")
    digits.wait(lambda: time.monotonic() - written()[-1].time > 3.0, "the last word on a job that has ended")
    settled = len(written())
    never(lambda: written()[settled:], seconds, "a write at rest", interval=0.2)


@pytest.mark.timeout(240)
def test_it_survives_the_api_server_and_the_leading_controller(digits: DigitsBench) -> None:
    digits.node()
    lease = ("--lease-duration", "16", "--lease-renew-deadline", "14", "--lease-retry", "1")
    leader = digits.controller(*lease).wait_leading()
    standby = digits.controller(*lease).wait_ready()
    digits.submit(trainers=2, most=2, think=0.08)
    began = digits.wait_ready("trainer", 2) + digits.wait_ready("pserver", 2)
    digits.wait_passes(1)

    # The API server is away for five seconds: nobody but the controllers and the nodes notices.
    digits.plane.apiserver.kill()
    never(lambda: not (leader.running and standby.running), 5.0, "a controller ends")
    digits.plane.apiserver.start()
    passes = digits.said("-trainer-").count("a pass is over")
    digits.wait_passes(passes + 1)
    assert leader.leads

    # The leader dies, and its user changes the job while nobody leads.
    leader.kill()
    trainers = {"min-instance": 3, "max-instance": 3}
    digits.change({"trainer": trainers})
    assert not standby.leads
    assert digits.trainer().spec.parallelism == 2
    digits.wait_ready("trainer", 3)
    assert standby.leads

    assert digits.wait_succeeded() >= GOOD
    ended = {pod.metadata.uid: pod for pod in digits.pods()}
    assert {pod.metadata.uid for pod in began} <= set(ended), "pods were made anew"
    assert not sum(map(restarts, ended.values()))
    assert not digits.trainer().status.failed
    assert standby.terminate() == 0


@pytest.mark.timeout(240)
def test_it_survives_the_master_pod_with_its_etcd(digits: DigitsBench) -> None:
    digits.node()
    digits.controller(own_etcd=True).wait_leading()
    master = {"resources": {"requests": {"cpu": "250m", "memory": "128Mi"}}}
    digits.submit(trainers=2, most=2, think=0.05, passes=10, etcd={"mode": "Master"}, master=master)
    began = digits.wait_ready("trainer", 2) + digits.wait_ready("pserver", 2)
    digits.wait_passes(3)

    (lost,) = digits.ready("master")
    digits.cluster.delete(PODS, digits.namespace, lost.metadata.name)
    digits.wait(lambda: digits.condition("CoordinationStateLost"), "the loss is said")
    digits.wait(lambda: {one.metadata.uid for one in digits.ready("master")} - {lost.metadata.uid}, "another master")

    assert digits.wait_succeeded() >= GOOD
    begun_again = re.findall(r"pserver (\d+) epoch \d+: restored step [1-9]", digits.said("-pserver-"))
    assert set(begun_again) == {"0", "1"}, digits.said("-pserver-")
    kept = {pod.metadata.uid for pod in digits.pods() if not restarts(pod)} & {pod.metadata.uid for pod in began}
    assert not kept, "every role begins again"


@pytest.mark.timeout(240)
def test_its_deletion_leaves_nothing_behind(digits: DigitsBench, monkeypatch: pytest.MonkeyPatch) -> None:
    # In this process, where the ten minutes that keys are kept can be made short.
    monkeypatch.setattr(prefix_sweeper, "KEPT", 1.0)
    monkeypatch.setattr(prefix_sweeper, "INTERVAL", 0.3)
    node = digits.node()
    limits = Settings(external_etcd=True, host_paths=(str(digits.checkpoints),))
    settings = JobSettings(limits=limits, etcd_endpoints=(digits.etcd,))
    cluster = KubeCluster(kubeconfig(digits.source))
    life = RunningController(Controller(cluster, namespaces=[digits.namespace], settings=settings), cluster)
    try:
        digits.submit(trainers=2, most=2, think=0.05)
        digits.wait_ready("trainer", 2)
        digits.wait_passes(1)
        assert digits.keys()

        digits.cluster.delete(TRAINING_JOBS, digits.namespace, NAME)

        digits.wait(lambda: not digits.children(), "all children are gone")
        digits.wait(lambda: not digits.keys(), "no key is left")
        with pytest.raises(NotFound):
            digits.job()
        assert not list((node.root / "pods").iterdir()), "files of pods"
        never(digits.keys, 2.0, "a key comes back", interval=0.2)
    finally:
        life.stop()
