"""The sidecar as a native one: an init container that goes on, before, beside and after the program."""

from __future__ import annotations

from collections.abc import Callable

from tests.bench.waiting import eventually
from tests.containers.pods import Pods, restricted

SOCKET = "/run/edl/agent/agent.sock"

PROGRAM = f"""
import socket, time
with socket.socket(socket.AF_UNIX) as probe:
    probe.connect("{SOCKET}")
print("connected", flush=True)
time.sleep(1)
"""


def test_sidecar_is_there_before_and_after_the_program_and_the_job_completes(
    pods: Pods, image: Callable[[str], str], pods_etcd: str
) -> None:
    folder = [{"name": "edl", "mountPath": "/run/edl"}]
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    sidecar = restricted(
        "edl-agent",
        image("edl-agent"),
        args=["sidecar", "--endpoints", pods_etcd, "--socket", SOCKET],
        restartPolicy="Always",
        env=[address],
        volumeMounts=folder,
        # The program is started when this has succeeded, and not before.
        startupProbe={
            "exec": {"command": ["python", "-c", PROGRAM.replace("time.sleep(1)", "")]},
            "periodSeconds": 1,
            "timeoutSeconds": 20,
            "failureThreshold": 30,
        },
    )
    program = restricted("program", image("edl-agent"), command=["python", "-c", PROGRAM], volumeMounts=folder)
    volumes = [{"name": "edl", "emptyDir": {"medium": "Memory"}}]
    spec = pods.spec(program, initContainers=[sidecar], volumes=volumes)
    jobs = f"/apis/batch/v1/namespaces/{pods.namespace}/jobs"
    pods.client.post(jobs, {"metadata": {"name": "one"}, "spec": {"backoffLimit": 0, "template": {"spec": spec}}})

    def complete() -> bool:
        conditions = pods.client.get(f"{jobs}/one")["status"].get("conditions", ())
        return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)

    eventually(complete, 90, lambda: f"the Job ends: {[pod['status'] for pod in pods.all()]}", interval=0.2)

    (pod,) = pods.all()
    ends = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    sidecar_ends = pod["status"]["initContainerStatuses"][0]["state"]["terminated"]
    assert ends["exitCode"] == 0, pods.log(pod["metadata"]["name"], "program")
    assert sidecar_ends["startedAt"] <= ends["startedAt"]
    assert sidecar_ends["finishedAt"] >= ends["finishedAt"]
    assert sidecar_ends["exitCode"] in (0, 143), sidecar_ends
    assert pod["status"]["phase"] == "Succeeded"
