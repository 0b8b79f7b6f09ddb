"""The digits job from its image, on two real nodes, by the controller as a process beside the cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.bench.controller_process import ControllerProcess
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_http import Json
from tests.bench.kubelet_node import KubeletNodes
from tests.bench.waiting import eventually
from tests.containers.conftest import NODES
from tests.containers.pods import Pods

JOB = Path(__file__).resolve().parents[2] / "examples" / "digits" / "job.yaml"
GOOD = 93.0
"""Per cent of the held-out images; what the demo asks for, too."""

LONGEST = 240.0
Image = Callable[[str], str]


class Digits:
    """The job while it runs: its pods, and all that they said so far (of pods that are gone, too)."""

    def __init__(self, pods: Pods, nodes: KubeletNodes) -> None:
        self._pods, self._nodes = pods, nodes
        self._path = f"/apis/paddlepaddle.org/v1/namespaces/{pods.namespace}/trainingjobs/digits"
        self.logs: dict[str, str] = {}

    def submit(self, image: str, trainers: int) -> None:
        """The example as it is, but for the image, the sizes and the etcd."""
        job = yaml.safe_load(JOB.read_text())
        spec = job["spec"]
        spec |= {"image": image, "imagePullPolicy": "Never", "etcd": {"mode": "External"}}
        del spec["master"]
        for role in ("pserver", "trainer"):
            spec[role]["resources"] = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
        spec["trainer"] |= {"min-instance": trainers, "max-instance": trainers}
        self._pods.client.post(self._path.rpartition("/")[0], job)

    def change(self, spec: Json) -> None:
        """Patch it, as its user."""
        self._pods.client.patch(self._path, {"spec": spec})

    def pods(self, role: str) -> list[Json]:
        """The running pods of a role that are not about to go; what they said is kept."""
        found = self._pods.all(f"paddlepaddle.org/role={role}")
        for pod in found:
            name = pod["metadata"]["name"]
            self.logs[name] = self._pods.log(name) or self.logs.get(name, "")
        alive = [p for p in found if "deletionTimestamp" not in p["metadata"]]
        return [pod for pod in alive if pod["status"].get("phase") == "Running"]

    def accuracies(self) -> list[float]:
        """In per cent, after each pass."""
        self.pods("trainer")
        said = "\n".join(self.logs.values())
        return [float(value) for value in re.findall(r"a pass is over: loss \S+, (\S+) % of", said)]

    def succeeded(self) -> bool:
        """Whether the job has. Keeps the logs."""
        self.pods("trainer")
        status = self._pods.client.get(self._path).get("status", {})
        return any(c["type"] == "Succeeded" and c["status"] == "True" for c in status.get("conditions", ()))

    def status(self) -> Json:
        """Of the object, for messages."""
        found: Json = self._pods.client.get(self._path).get("status", {})
        return found

    def job(self) -> Json:
        """The Job of the trainers."""
        (job,) = self._pods.client.get(f"/apis/batch/v1/namespaces/{self._pods.namespace}/jobs")["items"]
        found: Json = job
        return found

    def kill(self, pod: Json) -> None:
        """SIGKILL to the program in its container."""
        container = pod["spec"]["containers"][0]["name"]
        self._nodes.nodes[pod["spec"]["nodeName"]].kill_container(pod["metadata"]["name"], container)


@pytest.fixture
def digits(
    pods: Pods, nodes: KubeletNodes, control_plane: KubeControlPlane, definition: None, pods_etcd: str
) -> Iterator[Digits]:
    """A controller that leads; no job yet."""
    arguments = ("--kubeconfig", str(control_plane.kubeconfig), "--namespace", pods.namespace, "--autoscale")
    place = {"POD_NAMESPACE": pods.namespace}
    with ControllerProcess(*arguments, "--etcd-endpoints", pods_etcd, environment=place) as controller:
        controller.wait_leading()
        yield Digits(pods, nodes)
        assert controller.terminate() == 0


def test_the_job_reaches_its_accuracy_whatever_happens_to_its_containers(
    digits: Digits, pods: Pods, image: Image
) -> None:
    digits.submit(image("edl-digits"), trainers=3)
    eventually(
        lambda: len(digits.pods("trainer")) == 3 and len(digits.pods("pserver")) == 2,
        90,
        lambda: f"all pods run: {digits.status()}",
        interval=0.3,
    )
    everywhere = digits.pods("trainer") + digits.pods("pserver")
    assert {pod["spec"]["nodeName"] for pod in everywhere} == set(NODES)

    # A pserver's container is killed: it is started again, takes an index and restores its checkpoint.
    eventually(lambda: len(digits.accuracies()) >= 2, 90, lambda: f"two passes: {digits.logs}", interval=0.3)
    victim = digits.pods("pserver")[0]
    name = victim["metadata"]["name"]
    digits.kill(victim)
    restored = re.compile(r"pserver \d+ epoch \d+: restored step \d+")
    eventually(lambda: restored.search(pods.log(name)), 60, lambda: f"restored: {pods.log(name)}", interval=0.2)
    again = pods.read(name)
    assert again is not None
    assert again["status"]["containerStatuses"][0]["restartCount"] == 1

    # One trainer fewer: it is told to go and gives its task back; exactly its pod goes, and nothing counts as failed.
    before = {pod["metadata"]["name"] for pod in digits.pods("trainer")}
    digits.change({"trainer": {"min-instance": 2, "max-instance": 2}})
    eventually(lambda: len(digits.pods("trainer")) == 2, 60, lambda: f"two are left: {digits.status()}", interval=0.1)
    (gone,) = before - {pod["metadata"]["name"] for pod in digits.pods("trainer")}
    assert "the trainer leaves" in digits.logs[gone], digits.logs[gone]
    for other in before - {gone}:
        assert "the trainer leaves" not in digits.logs[other]

    began = time.monotonic()
    eventually(digits.succeeded, LONGEST, lambda: f"it succeeds: {digits.status()} {digits.logs}", interval=0.5)
    print(f"succeeded {time.monotonic() - began:.0f} s after the last fault")
    assert {pod["metadata"]["name"] for pod in pods.all("paddlepaddle.org/role=trainer")} <= before
    assert digits.job()["status"].get("failed", 0) == 0
    assert max(digits.accuracies()) >= GOOD
