"""Files written for the original, unchanged: a real API server takes them with our definition, and the children are
those of the original.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from edl_controller.core.job_settings import JobSettings
from tests.bench.kube_http import Json
from tests.bench.waiting import eventually
from tests.kube.controller_bench import DEADLINE, ControllerBench

FILES = Path(__file__).parents[1] / "api" / "classic"
ROLE_LABELS = {"master": "paddle-job-master", "pserver": "paddle-job-pserver", "trainer": "paddle-job"}


def submit(bench: ControllerBench, file: str) -> Json:
    """Create what the file says; no etcd is given, as in the original."""
    bench.start(settings=JobSettings())
    bench.client.post(bench.training_jobs_path, yaml.safe_load((FILES / file).read_text()))
    job = bench.job(yaml.safe_load((FILES / file).read_text())["metadata"]["name"])
    written = yaml.safe_load((FILES / file).read_text())["spec"]
    assert _within(written, job["spec"]), "the API server keeps every field as it was written"
    return job


def _within(part: object, whole: object) -> bool:
    """Whether all that ``part`` says is in ``whole``, but what is empty or null."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(_within(value, whole.get(key)) for key, value in part.items() if value)
    return part == whole


def child(bench: ControllerBench, name: str, role: str) -> Json:
    """The child of a role, as soon as it is there; its name, owner and labels are the original's."""
    path = bench.jobs_path if role == "trainer" else bench.sets_path
    where = f"{path}/{name}-{role}"
    eventually(lambda: bench.client.call("GET", where).status == 200, DEADLINE, lambda: f"{where}: {bench.job(name)}")
    found = bench.client.get(where)
    assert [owner["kind"] for owner in found["metadata"]["ownerReferences"]] == ["TrainingJob"]
    assert found["spec"]["template"]["metadata"]["labels"][ROLE_LABELS[role]] == name
    return found


def environment(found: Json, container: int = 0) -> dict[str, str | None]:
    """Of a child's container; None: from a field."""
    variables = found["spec"]["template"]["spec"]["containers"][container]["env"]
    return {one["name"]: one.get("value") for one in variables}


def test_the_example_of_the_original(bench: ControllerBench) -> None:
    submit(bench, "examplejob.yaml")

    master = child(bench, "example", "master")
    assert master["spec"]["replicas"] == 1
    ports = {port["name"] for one in master["spec"]["template"]["spec"]["containers"] for port in one.get("ports", ())}
    assert "etcd-port" in ports

    pserver = child(bench, "example", "pserver")
    assert pserver["spec"]["replicas"] == 2
    (container,) = pserver["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "paddlepaddle/paddlecloud-job"
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "600Mi"}
    assert {port["containerPort"] for port in container["ports"] if port["name"].startswith("jobport-")} == {7164, 7165}

    trainer = child(bench, "example", "trainer")
    assert trainer["spec"]["parallelism"] >= 2
    assert "completions" not in trainer["spec"]
    assert trainer["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    said = environment(trainer)
    expected = {"PADDLE_JOB_NAME": "example", "TRAINERS": "2", "PSERVERS": "2", "TRAINER_PACKAGE": "/home/job-1/",
                "PADDLE_INIT_PORT": "7164", "PADDLE_INIT_USE_GPU": "0", "POD_IP": None}  # fmt: skip
    assert expected.items() <= said.items()
    assert "python train.py" in str(said["ENTRY"])
    bench.wait_phase("example", "running")
    # It may grow to 6, and there is room for all.
    eventually(lambda: bench.trainer("example")["spec"]["parallelism"] > 2, DEADLINE, "it grows")


@pytest.fixture
def gpu_node(bench: ControllerBench) -> Iterator[None]:
    """What the second file needs: GPUs on a node with its label, and the claim that it mounts."""
    node, volume = f"{bench.namespace}-gpus", f"{bench.namespace}-data"
    size: Json = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    claim = {"namespace": bench.namespace, "name": "data"}
    bench.client.post(
        "/api/v1/persistentvolumes",
        {
            "metadata": {"name": volume},
            "spec": {**size, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/nowhere"}, "claimRef": claim},
        },
    )
    request = {**size, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}
    bench.client.post(f"{bench.core}/persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": request})
    bench.nodes.add(node, cpu="16", memory="64Gi", labels={"accelerator": "nvidia"}, extra={"nvidia.com/gpu": "4"})
    yield
    bench.nodes.remove(node)
    bench.client.delete(f"/api/v1/persistentvolumes/{volume}")


def test_every_classic_field(bench: ControllerBench, gpu_node: None) -> None:
    submit(bench, "strict_gpu_job.yaml")

    child(bench, "strict", "master")

    assert child(bench, "strict", "pserver")["spec"]["replicas"] == 2
    trainer = child(bench, "strict", "trainer")
    assert trainer["spec"]["parallelism"] == 4
    pod = trainer["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"accelerator": "nvidia"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "data"}} in pod["volumes"]
    (container,) = pod["containers"]
    assert container["image"] == "registry.example.com/team/word2vec:2018"
    assert {"name": "data", "mountPath": "/pfs/dlnel"} in container["volumeMounts"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1", "not the alpha name, which no node has any more"
    expected = {
        "PADDLE_INIT_USE_GPU": "1",
        "PADDLE_INIT_TRAINER_COUNT": "1",
        "PADDLE_INIT_NUM_PASSES": "50",
        "PADDLE_INIT_PORT": "30236",
        "PADDLE_INIT_PORTS_NUM": "2",
        "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": "2",
    }
    assert expected.items() <= environment(trainer).items()
    bench.wait_phase("strict", "running")


def test_the_one_rule_of_the_original(bench: ControllerBench) -> None:
    """Without ``fault_tolerant`` the number of trainers is fixed."""
    document = yaml.safe_load((FILES / "examplejob.yaml").read_text())
    document["spec"]["fault_tolerant"] = False
    answer = bench.client.call("POST", bench.training_jobs_path, document)
    assert answer.status == 422
    assert "min-instance equals max-instance unless fault_tolerant is true" in str(answer.body)
