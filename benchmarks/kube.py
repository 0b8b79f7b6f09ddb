"""Lists and watches of pods as an API server sends them: into what the controller needs, against the official client's
models in the same run; from a watch line to the updated account of a node; and the memory that is kept."""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.ground import ROOT, say
from benchmarks.table import Row, ratio

NAME = "kube"
PAGE = 500
PODS_PER_JOB = 20


def run(quick: bool) -> Iterator[Row]:
    """Four rows."""
    from kubernetes.client import ApiClient

    from edl_controller.cluster.kube.lean_pods import LeanPods

    count, repetitions = (1_000, 3) if quick else (10_000, 9)
    pages = [*_pages(count)]
    texts = [page.decode() for page in pages]
    official: Any = ApiClient()
    lean = LeanPods()
    say(f"{count:,} pods, {sum(map(len, pages)) / count:,.0f} bytes each; the official client takes a while")
    baseline = _best(lambda: [official.deserialize(text, "V1PodList", "application/json") for text in texts], 1)
    ours = _best(lambda: [lean.page(page).items for page in pages], repetitions)
    again = _best(lambda: [official.deserialize(text, "V1PodList", "application/json") for text in texts], 1)
    note = f"pages of {PAGE}, CPU time; ours best of {repetitions}, the baseline the better of two around it"
    what = f"decode a list of {count:,} pods (official client: models)"
    yield ratio(NAME, what, "s", min(baseline, again), ours, must=1 / 50, moonshot=1 / 100, note=note)
    yield _event(count, repetitions)
    yield _memory(count, 20.0 * count / 10_000, 5.0 * count / 10_000)
    many = 15 * count
    yield _memory(many, 20.0 * many / 10_000, 100.0 * many / 150_000)


def _event(count: int, repetitions: int) -> Row:
    from edl_controller.cluster.kube.lean_pods import LeanPods
    from edl_controller.core.capacity import Accounts

    lean, accounts = LeanPods(), Accounts()
    # Each pod is there, ends, and is there again: every line moves an amount.
    lines = [
        json.dumps({"type": "MODIFIED", "object": pod(number, phase)}, separators=(",", ":")).encode()
        for phase in ("Running", "Succeeded")
        for number in range(count)
    ]

    def follow() -> None:
        for line in lines:
            accounts.apply(lean.line(line))

    best = _best(follow, repetitions) / len(lines) * 1e6
    note = "CPU time; each event changes what a node has left"
    return Row(
        NAME,
        "one watch line to the updated account",
        "us",
        None,
        best,
        best,
        "value",
        must=20.0,
        moonshot=6.0,
        note=note,
    )


def _memory(count: int, must: float, moonshot: float) -> Row:
    command = [sys.executable, "-m", "benchmarks.kube"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for page in _pages(count):
            process.stdin.write(page + b"\n")
        process.stdin.close()
        kept = float(process.stdout.read())
    note = "resident, in a process of its own; with the room that a page takes while it is read"
    what = f"memory that {count:,} pods take"
    return Row(NAME, what, "MB", None, kept, kept, "value", must=must, moonshot=moonshot, note=note)


def _best(work: Callable[[], Any], repetitions: int) -> float:
    best = float("inf")
    for _ in range(repetitions):
        gc.collect()
        begin = time.thread_time()
        kept = work()
        best = min(best, time.thread_time() - begin)
        del kept
    return best


def _pages(count: int) -> Iterator[bytes]:
    for first in range(0, count, PAGE):
        items = [pod(number) for number in range(first, min(count, first + PAGE))]
        page = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": items}
        yield json.dumps(page, separators=(",", ":")).encode()


def pod(number: int, phase: str = "Running") -> dict[str, Any]:
    """A trainer's pod as the API server shows it: of a Job of 20, with 11 variables and what a node adds."""
    job = number // PODS_PER_JOB
    name, job_uid = f"job-{job}-trainer", f"e09a85e1-0176-475d-96d5-{job:012d}"
    started = f"2026-12-01T{job // 60 % 24:02d}:{job % 60:02d}:{number % PODS_PER_JOB // 4:02d}Z"
    labels = {
        "batch.kubernetes.io/controller-uid": job_uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": job_uid,
        "job-name": name,
        "paddlepaddle.org/job": f"job-{job}",
    }
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job_uid}
    own_ip = {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}
    variables = [{"name": f"PADDLE_VARIABLE_{index}", "value": f"value {index}"} for index in range(10)]
    token = f"kube-api-access-{number:05d}"
    container = {
        "name": "trainer",
        "image": "paddle:1",
        "command": ["python", "train.py"],
        "env": [*variables, {"name": "POD_IP", "valueFrom": own_ip}],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "600Mi"}},
        "volumeMounts": [
            {"name": token, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always",
    }
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    tolerations = [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for taint in ("not-ready", "unreachable")
    ]
    conditions = [
        {"type": condition, "status": "True", "lastProbeTime": None, "lastTransitionTime": started}
        for condition in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    status = {
        "name": "trainer",
        "state": {"running": {"startedAt": started}},
        "lastState": {},
        "ready": True,
        "restartCount": 0,
        "image": "paddle:1",
        "imageID": "docker.io/paddle@sha256:" + "a" * 64,
        "containerID": f"containerd://{number:064x}",
        "started": True,
    }
    return {
        "metadata": {
            "name": f"{name}-{number:05d}",
            "generateName": f"{name}-",
            "namespace": "default",
            "uid": f"30c9a52a-2a3d-45bd-bc6f-{number:012d}",
            "resourceVersion": str(1000 + number),
            "generation": 1,
            "creationTimestamp": started,
            "labels": labels,
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            "finalizers": ["batch.kubernetes.io/job-tracking"],
        },
        "spec": {
            "volumes": [{"name": token, "projected": {"sources": sources, "defaultMode": 420}}],
            "containers": [container],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "nodeName": f"node-{number % 300}",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": tolerations,
            "priority": 0,
            "enableServiceLinks": True,
        },
        "status": {
            "phase": phase,
            "conditions": conditions,
            "hostIP": "10.0.0.1",
            "podIP": f"10.{number // 62500}.{number // 250 % 250}.{number % 250}",
            "startTime": started,
            "containerStatuses": [status],
            "qosClass": "Burstable",
        },
    }


def _kept() -> float:
    """Return how many MB this process grows by the pages on standard input, read one after the other."""
    from edl_controller.cluster.kube.lean_pods import LeanPods

    def resident() -> float:
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096 / 2**20

    lean, items = LeanPods(), list[Any]()
    before = resident()
    while page := sys.stdin.buffer.readline():
        items += lean.page(page).items
    return max(0.0, resident() - before)  # a freed page may outweigh a few pods


if __name__ == "__main__":
    print(_kept())
