"""The Controller before a real API server: in a thread of its own, behind a proxy that records every write.

Users act past the proxy, so the record holds what the controller wrote and nothing else: it is the oracle of the
invariants C1, C2 and C5 (`assert_invariants`).
"""

from __future__ import annotations

import copy
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edl_controller.cluster.kube import KubeCluster, kubeconfig
from edl_controller.controller import Controller
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.names import JOB_UID_LABEL, ROLE_LABEL
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_http import Json
from tests.bench.kube_proxy import Call, KubeProxy, kubeconfig_for
from tests.bench.kube_test_node import KubeTestNodes
from tests.bench.waiting import eventually

DEADLINE = 40.0
"""Seconds in which anything must have happened: machines of CI are slow."""
RESOURCES = {"requests": {"cpu": "10m", "memory": "1Mi"}}


@dataclass
class RunningController:
    """One life of a controller in its thread."""

    controller: Controller
    cluster: KubeCluster
    stopping: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="edl-test-controller", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.controller.run(self.stopping)
        except BaseException as error:
            self.error = error

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it, and see that it ends well."""
        self.stopping.set()
        self._thread.join(35)
        assert not self._thread.is_alive(), "the controller does not end"
        self.cluster.close()
        if self.error is not None:
            raise AssertionError(f"the controller died: {self.error!r}") from self.error


@dataclass(frozen=True)
class Bounds:
    """What a user allowed for the trainers of a job, from a moment on (monotonic seconds)."""

    since: float
    least: int
    most: int


class ControllerBench:
    """A namespace of one test, with users, nodes and controllers."""

    def __init__(
        self,
        control_plane: KubeControlPlane,
        nodes: KubeTestNodes,
        proxy: KubeProxy,
        namespace: str,
        etcd: str,
        folder: Path,
        token: str = "",
    ) -> None:
        """``etcd``: URL of the one that all jobs share; ``folder``: for a kubeconfig; ``token``: of the controllers."""
        self.client, self.nodes, self.proxy, self.namespace = control_plane.client, nodes, proxy, namespace
        self._settings = JobSettings(etcd_endpoints=(etcd,))
        self.source, self.etcd = kubeconfig_for(proxy, folder, token or control_plane.token), etcd
        self._lives: list[RunningController] = []
        self.bounds: dict[str, list[Bounds]] = defaultdict(list)
        """By uid: C2 goes by them."""
        self.core = f"/api/v1/namespaces/{namespace}"
        self.jobs_path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self.sets_path = f"/apis/apps/v1/namespaces/{namespace}/replicasets"
        self.training_jobs_path = f"/apis/paddlepaddle.org/v1/namespaces/{namespace}/trainingjobs"

    # --- controllers ---

    def start(self, *, ready: bool = True, silence: float = 90.0, **options: Any) -> RunningController:
        """Start a controller through the proxy; ``ready``: wait until its caches are filled."""
        cluster = KubeCluster(kubeconfig(self.source), silence=silence)
        given: dict[str, Any] = {"settings": self._settings, "namespaces": [self.namespace]} | options
        life = RunningController(Controller(cluster, **given), cluster)
        self._lives.append(life)
        if ready:
            eventually(lambda: life.controller.ready, DEADLINE, "the controller is ready")
        return life

    def close(self) -> None:
        """End all controllers that still run; raises AssertionError where one has died."""
        for life in self._lives:
            if life.alive or life.error is not None:
                life.stop()

    # --- users ---

    def create(self, name: str, *, trainers: int = 2, most: int | None = None, pservers: int = 1, **spec: Any) -> Json:
        """Create a TrainingJob; returns it as stored."""
        body: Json = {
            "image": "example.com/digits:1",
            "fault_tolerant": True,
            "trainer": {
                "entrypoint": "python t.py",
                "min-instance": trainers,
                "max-instance": trainers if most is None else most,
                "resources": RESOURCES,
            },
            "pserver": {"entrypoint": "python p.py", "min-instance": pservers, "resources": RESOURCES},
            "agent": {"mode": "Classic"},
        }
        document = {
            "apiVersion": "paddlepaddle.org/v1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": body | spec,
        }
        return self._noted(self.client.post(self.training_jobs_path, document))

    def edit(self, name: str, spec: Mapping[str, Any]) -> Json:
        """Merge into a job's spec."""
        return self._noted(self.client.patch(f"{self.training_jobs_path}/{name}", {"spec": spec}))

    def scale(self, name: str, **instances: int) -> Json:
        """``scale("tj", max=3)``."""
        return self.edit(name, {"trainer": {f"{which}-instance": value for which, value in instances.items()}})

    def delete(self, name: str, *, propagation: str = "Background") -> None:
        """Delete a job."""
        self.client.delete(f"{self.training_jobs_path}/{name}", {"propagationPolicy": propagation})

    def finish(self, name: str, exit_code: int = 0) -> None:
        """Let all trainers of a job end, also those that replace others meanwhile."""

        def all_end() -> bool:
            running = [
                pod for pod in self.pods(name, "trainer") if pod["status"].get("phase") in ("Pending", "Running")
            ]
            for pod in running:
                self.nodes.finish(self.namespace, pod["metadata"]["name"], exit_code)
            return not running

        eventually(all_end, DEADLINE, "the trainers end", interval=0.1)

    def _noted(self, job: Json) -> Json:
        trainer = job["spec"]["trainer"]
        least = int(trainer.get("min-instance", 0))
        bounds = Bounds(time.monotonic(), least, int(trainer.get("max-instance") or least))
        self.bounds[job["metadata"]["uid"]].append(bounds)
        return job

    # --- what is there ---

    def job(self, name: str) -> Json:
        """One TrainingJob; LookupError where there is none."""
        return self._get(f"{self.training_jobs_path}/{name}")

    def trainer(self, name: str) -> Json:
        """The Job of its trainers."""
        return self._get(f"{self.jobs_path}/{name}-trainer")

    def replica_set(self, name: str, role: str = "pserver") -> Json:
        """The ReplicaSet of a role."""
        return self._get(f"{self.sets_path}/{name}-{role}")

    def children(self) -> list[Json]:
        """All ReplicaSets and Jobs of the namespace."""
        return [
            {"kind": kind, **one}
            for kind, path in (("ReplicaSet", self.sets_path), ("Job", self.jobs_path))
            for one in self.client.get(path)["items"]
        ]

    def pods(self, name: str = "", role: str = "") -> list[Json]:
        """The pods of the namespace, of a job, of a role, that are not being deleted."""
        owner = f"{name}-{role}"
        return [
            pod
            for pod in self.client.get(f"{self.core}/pods")["items"]
            if "deletionTimestamp" not in pod["metadata"]
            and (not name or pod["metadata"]["name"].startswith(f"{owner}-" if role else f"{name}-"))
        ]

    def phase(self, name: str) -> str:
        """Of a job; empty where it has none, or is not there."""
        answer = self.client.call("GET", f"{self.training_jobs_path}/{name}")
        return str(answer.body.get("status", {}).get("phase", "")) if answer.status == 200 else ""

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        """Status and reason of one; empty where it is not there."""
        for one in self.job(name).get("status", {}).get("conditions", []):
            if one["type"] == kind:
                return one["status"], one.get("reason", "")
        return "", ""

    def events(self, name: str) -> list[Json]:
        """The Events about a job."""
        found = self.client.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")["items"]
        return [one for one in found if one.get("regarding", {}).get("name") == name]

    def _get(self, path: str) -> Json:
        answer = self.client.call("GET", path)
        if answer.status != 200:
            raise LookupError(f"GET {path}: {answer.status}")
        return answer.body

    # --- waiting ---

    def wait_phase(self, name: str, phase: str, timeout: float = DEADLINE) -> None:
        """Wait for a phase of a job."""
        eventually(lambda: self.phase(name) == phase, timeout, lambda: f"{name} is {phase}, but {self.phase(name)}")

    def wait_trainers(self, name: str, count: int, timeout: float = DEADLINE) -> None:
        """Wait until the status counts so many trainers."""
        eventually(lambda: self.job(name)["status"].get("trainers", 0) == count, timeout, f"{count} trainers")

    def wait_gone(self, name: str, timeout: float = DEADLINE) -> None:
        """Wait until neither the job nor anything that it had is there."""
        eventually(lambda: not self.left(name), timeout, lambda: f"nothing is left, but {self.left(name)}")

    def left(self, name: str) -> list[str]:
        """The names of all that a job has left, itself included."""
        paths = (self.training_jobs_path, self.sets_path, self.jobs_path, f"{self.core}/pods")
        found = [one["metadata"]["name"] for path in paths for one in self.client.get(path)["items"]]
        return [one for one in found if one == name or one.startswith(f"{name}-")]

    def written(self, since: float = 0.0) -> list[Call]:
        """What controllers have written, Events aside, from a moment on (monotonic seconds)."""
        return [call for call in self.proxy.writes() if call.resource != "events" and call.time >= since]

    def wait_rest(self, quiet: float = 1.0, timeout: float = DEADLINE) -> None:
        """Wait until nothing is written any more, Events aside."""
        begin = time.monotonic()

        def rests() -> bool:
            writes = self.written()
            return time.monotonic() - max([begin, *(call.time for call in writes)]) > quiet

        eventually(rests, timeout, lambda: f"rest; the last writes: {[show(call) for call in self.written()[-3:]]}")

    def assert_invariants(self, *, slack: float = 5.0, again: Iterable[str] = ()) -> None:
        """Check C1, C2 and C5 on what has been written, and C1 on what is there. See `assert_invariants`."""
        assert_invariants(self.proxy.writes(), self.bounds, slack=slack, again=again)
        owned = [
            (_controller(one["metadata"]).get("uid"), one["metadata"].get("labels", {}).get(ROLE_LABEL))
            for one in self.children()
            if JOB_UID_LABEL in one["metadata"].get("labels", {})
        ]
        assert len(owned) == len(set(owned)), f"C1: two children of one role: {owned}"


def show(call: Call) -> str:
    """A request, for people."""
    return f"{call.verb} {call.resource} {call.name} {call.status}: {call.body[:300].decode(errors='replace')}"


def assert_invariants(
    record: Iterable[Call], bounds: Mapping[str, list[Bounds]], *, slack: float = 5.0, again: Iterable[str] = ()
) -> None:
    """Check what controllers have written.

    Args:
        record: the writes that the server has carried out, in order.
        bounds: by uid, what users allowed and when.
        slack: seconds for which a controller may go by what a user has replaced (the news is on its way).
        again: children that somebody else has deleted, so that they had to be made again.

    Raises:
        AssertionError: C1, C2 or C5 does not hold.
    """
    record = list(record)
    _assert_one_child(record, set(again))
    _assert_parallelism(record, bounds, slack)
    _assert_status(record)


def _assert_one_child(record: list[Call], again: set[str]) -> None:
    """C1."""
    there: dict[tuple[str, str], str] = {}
    for call in record:
        if call.verb == "create" and call.resource in ("replicasets", "jobs"):
            meta = call.json["metadata"]
            owner, labels, name = _controller(meta), meta["labels"], meta["name"]
            assert owner.get("kind") == "TrainingJob", f"C1: no controller reference: {show(call)}"
            assert labels[JOB_UID_LABEL] == owner["uid"], show(call)
            role = (owner["uid"], labels[ROLE_LABEL])
            assert role not in there or name in again, f"C1: a second child: {show(call)}"
            assert there.get(role, name) == name, f"C1: another name: {show(call)}"
            there[role] = name
        elif call.verb == "delete":
            there = {role: name for role, name in there.items() if name != call.name}


def _controller(meta: Json) -> Json:
    return next((one for one in meta.get("ownerReferences", []) if one.get("controller")), {})


def _assert_parallelism(record: list[Call], bounds: Mapping[str, list[Bounds]], slack: float) -> None:
    """C2."""
    owners: dict[str, str] = {}
    for call in record:
        if call.resource != "jobs" or call.verb not in ("create", "patch"):
            continue
        if call.verb == "create":
            owners[call.json["metadata"]["name"]] = _controller(call.json["metadata"])["uid"]
        parallelism = call.json.get("spec", {}).get("parallelism")
        uid = owners.get(call.name or call.json["metadata"].get("name", ""), "")
        if parallelism is None or uid not in bounds:
            continue
        known = bounds[uid]
        # A version counts until it was replaced, and `slack` longer. The user's own clock ran a little later.
        ends = [one.since + slack for one in known[1:]] + [float("inf")]
        valid = [one for one, end in zip(known, ends, strict=True) if call.time <= end]
        assert any(one.least <= parallelism <= one.most for one in valid), f"C2: {show(call)}, allowed: {valid}"


def _assert_status(record: list[Call]) -> None:
    """C5."""
    statuses: dict[str, Json] = {}
    for call in record:
        if call.resource != "trainingjobs/status":
            continue
        uid = call.json["metadata"]["uid"]
        before = statuses.get(uid, {})
        after = merged(before, call.json["status"])
        assert without_times(before) != without_times(after), f"C5: a status without a change: {show(call)}"
        generations = before.get("observedGeneration", 0), after.get("observedGeneration", 0)
        assert generations[0] <= generations[1], f"C5: observedGeneration falls: {show(call)}"
        statuses[uid] = after


def merged(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def without_times(value: Any) -> Any:
    """The same without moments."""
    if isinstance(value, dict):
        return {
            key: without_times(item) for key, item in value.items() if not key.endswith(("Time", "Timestamp", "_time"))
        }
    return [without_times(item) for item in value] if isinstance(value, list) else value
