"""TrainingJobs of the launcher's sample, for whoever tests an installed controller."""

from __future__ import annotations

from typing import Any

import yaml

from tests.bench.kube_http import Json
from tests.bench.waiting import eventually
from tests.containers.installed_controller import ROOT
from tests.containers.pods import Pods

SAMPLE = ROOT / "deploy" / "samples" / "launcher.yaml"


class Jobs:
    """TrainingJobs of the launcher's sample, in a namespace at the level `restricted`."""

    def __init__(self, pods: Pods, image: str) -> None:
        """``image``: of all their pods."""
        self.pods, self._image = pods, image
        self._path = f"/apis/paddlepaddle.org/v1/namespaces/{pods.namespace}/trainingjobs"

    def submit(self, name: str, seconds: int) -> None:
        """The sample, with a trainer of so many seconds, a read-only root, and less of the nodes."""
        job: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
        job["metadata"]["name"] = name
        spec = job["spec"]
        spec |= {"image": self._image, "imagePullPolicy": "Never"}
        spec["template"] = {"containerSecurityContext": {"readOnlyRootFilesystem": True}}
        for role in ("pserver", "trainer"):
            spec[role]["resources"] = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
        spec["trainer"]["max-instance"] = 1
        command = spec["trainer"]["command"]
        spec["trainer"]["command"] = [word.replace("sleep(30)", f"sleep({seconds})") for word in command]
        assert command != spec["trainer"]["command"]
        self.pods.client.post(self._path, job)

    def phase(self, name: str) -> str:
        """As the controller says."""
        return str(self.status(name).get("phase", ""))

    def status(self, name: str) -> Json:
        """The whole of it."""
        found: Json = self.pods.client.get(f"{self._path}/{name}").get("status", {})
        return found

    def wait(self, name: str, phase: str, timeout: float) -> None:
        """Wait (seconds) for a phase."""
        eventually(lambda: self.phase(name) == phase, timeout, lambda: f"{name}: {self.status(name)}", interval=0.3)

    def running(self, name: str) -> dict[str, str]:
        """Its pods that run: name -> uid with the number of restarts."""
        found = [pod for pod in self.pods.all() if pod["metadata"]["name"].startswith(f"{name}-")]
        return {
            pod["metadata"]["name"]: f"{pod['metadata']['uid']} {pod['status']['containerStatuses'][0]['restartCount']}"
            for pod in found
            if pod["status"].get("phase") == "Running"
        }

    def remove(self) -> None:
        """Delete all of them, and wait until their pods are gone: their controller lives on."""
        self.pods.client.delete(self._path)
        eventually(lambda: not self.pods.client.get(self._path)["items"], 60, "the jobs are gone", interval=0.2)
