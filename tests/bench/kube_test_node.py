"""Light nodes for a real API server: no containers, only what a kubelet would write.

Their pods run as soon as they are bound (unless held back), end when told to, and on deletion get their final phase and
vanish. The nodes' leases are renewed, or the node controller would turn all pods NotReady.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import urllib3

from tests.bench.kube_http import MERGE_PATCH, STRATEGIC_PATCH, Json, KubeHttpClient, UnexpectedAnswerError

LEASE_SECONDS = 40
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
ZERO_GRACE = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}


@dataclass
class _Wish:
    """What a test wants of one pod, by uid."""

    ready: bool = True
    exit_code: int | None = None
    reported: Json = field(default_factory=dict)


class KubeTestNodes:
    """Any number of nodes, served by two threads. A context manager: starts them, and ends them.

    ``termination_exit_code``: of containers that are asked to end; None keeps such pods terminating until
    ``let_terminate()``. ``run``: whether bound pods run by themselves; else they stay Pending until ``start(pod)``.
    """

    def __init__(self, client: KubeHttpClient, *, termination_exit_code: int | None = 143, run: bool = True) -> None:
        self._client = client
        self.termination_exit_code = termination_exit_code
        self.run = run
        self.names: set[str] = set()
        self._started: set[str] = set()
        self._wishes: dict[str, _Wish] = {}
        self._pods: dict[str, Json] = {}
        self._dirty: dict[str, None] = {}
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=target, name=f"test-node-{target.__name__.strip('_')}", daemon=True)
            for target in (self._watch, self._serve, self._renew)
        ]

    # -- life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads; the Node objects stay."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(10.0)

    def add(
        self,
        name: str,
        *,
        cpu: str = "4",
        memory: str = "8Gi",
        pods: int = 110,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        extra: Mapping[str, str] | None = None,
    ) -> None:
        """Create a Node, ready at once. ``extra``: more resources, such as ``{"nvidia.com/gpu": "2"}``."""
        self._renew_lease(name)
        room = {"cpu": cpu, "memory": memory, "pods": str(pods), "ephemeral-storage": "100Gi", **(extra or {})}
        node = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "spec": {"taints": [dict(taint) for taint in taints]},
        }
        self._client.post("/api/v1/nodes", node)
        status = {"capacity": room, "allocatable": room, "conditions": [_condition("Ready", True, "KubeletReady")]}
        self._client.patch(f"/api/v1/nodes/{name}/status", {"status": status}, STRATEGIC_PATCH)
        with self._changed:
            self.names.add(name)
            self._touch(*self._pods)

    def remove(self, name: str) -> None:
        """Delete a Node; its pods are the garbage collector's then."""
        with self._changed:
            self.names.discard(name)
        self._client.delete(f"/api/v1/nodes/{name}")

    # -- what a test wants of a pod ------------------------------------------------------------------------------

    def set_ready(self, namespace: str, name: str, ready: bool) -> None:
        """Let the containers of a pod pass or fail their readiness probe."""
        self._wish(namespace, name, ready=ready)

    def finish(self, namespace: str, name: str, exit_code: int) -> None:
        """Let the containers of a pod end by themselves (for ever: they are not restarted)."""
        self._wish(namespace, name, exit_code=exit_code)

    def start(self, namespace: str, name: str) -> None:
        """Let a pod run where pods do not run by themselves."""
        with self._changed:
            self._started.add(self._uid(namespace, name))
            self._touch(self._uid(namespace, name))

    def let_terminate(self, exit_code: int = 143) -> None:
        """End the pods that are held terminating, and those to come."""
        self.termination_exit_code = exit_code
        with self._changed:
            self._touch(*self._pods)

    def _wish(self, namespace: str, name: str, **values: Any) -> None:
        uid = self._uid(namespace, name)
        with self._changed:
            wish = self._wishes.setdefault(uid, _Wish())
            for key, value in values.items():
                setattr(wish, key, value)
            self._touch(uid)

    def _uid(self, namespace: str, name: str) -> str:
        uid: str = self._client.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["metadata"]["uid"]
        return uid

    # -- threads -------------------------------------------------------------------------------------------------

    def _touch(self, *uids: str) -> None:
        self._dirty.update(dict.fromkeys(uids))
        self._changed.notify_all()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(urllib3.exceptions.HTTPError, UnexpectedAnswerError, OSError, ValueError):
                listing = self._client.get("/api/v1/pods")
                with self._changed:
                    self._pods = {pod["metadata"]["uid"]: pod for pod in listing["items"]}
                    self._touch(*self._pods)
                version = listing["metadata"]["resourceVersion"]
                # One second at a time, so that close() is quick.
                while not self._stopping.is_set():
                    path = f"/api/v1/pods?resourceVersion={version}&allowWatchBookmarks=true"
                    for event in self._client.watch(path, seconds=1):
                        if event["type"] == "ERROR":
                            raise ValueError(event)
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            self._see(event["type"], event["object"])
            self._stopping.wait(0.1)

    def _see(self, change: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        with self._changed:
            if change == "DELETED":
                self._pods.pop(uid, None)
                self._wishes.pop(uid, None)
                self._dirty.pop(uid, None)
            else:
                self._pods[uid] = pod
                self._touch(uid)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                if not self._dirty:
                    self._changed.wait(1.0)
                    continue
                uid = next(iter(self._dirty))
                del self._dirty[uid]
                pod = self._pods.get(uid)
                wish = self._wishes.setdefault(uid, _Wish())
            if pod is None or pod["spec"].get("nodeName") not in self.names:
                continue
            try:
                self._reconcile(pod, wish)
            except UnexpectedAnswerError as error:
                if error.answer.status != 404:
                    self.errors.append(str(error))
            except urllib3.exceptions.HTTPError as error:
                self.errors.append(str(error))
                self._stopping.wait(0.2)
                with self._changed:
                    self._touch(uid)

    def _reconcile(self, pod: Json, wish: _Wish) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        final = pod["status"].get("phase") in ("Succeeded", "Failed")
        if "deletionTimestamp" in meta:
            if not final:
                if self.termination_exit_code is None and wish.exit_code is None:
                    return
                code = wish.exit_code if wish.exit_code is not None else self.termination_exit_code
                self._report(path, pod, wish, _ended(pod, code or 0))
            # As the kubelet does it: the object goes once the containers have ended.
            self._client.expect("DELETE", path, {**ZERO_GRACE, "preconditions": {"uid": meta["uid"]}})
            return
        if final or not (self.run or meta["uid"] in self._started):
            return
        self._report(path, pod, wish, _ended(pod, wish.exit_code) if wish.exit_code is not None else _live(pod, wish))

    def _report(self, path: str, pod: Json, wish: _Wish, status: Json) -> None:
        # Without the times: what says the same again is not written again.
        essence = {
            "phase": status["phase"],
            "conditions": [(c["type"], c["status"], c.get("message")) for c in status["conditions"]],
            "states": [c["state"] for c in status["containerStatuses"]] if status["phase"] != "Running" else [],
            "resources": [c.get("resources") for c in status["containerStatuses"]],
        }
        if essence == wish.reported:
            return
        wish.reported = essence
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        self._client.patch(f"{path}/status", body, STRATEGIC_PATCH)

    def _renew(self) -> None:
        while not self._stopping.wait(LEASE_SECONDS / 4):
            for name in list(self.names):
                with contextlib.suppress(urllib3.exceptions.HTTPError, UnexpectedAnswerError):
                    self._renew_lease(name)

    def _renew_lease(self, name: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        answer = self._client.call("PATCH", f"{LEASES}/{name}", {"spec": spec}, content_type=MERGE_PATCH)
        if answer.status == 404:
            self._client.post(LEASES, {"metadata": {"name": name}, "spec": spec})


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _condition(kind: str, true: bool, reason: str = "", message: str = "") -> Json:
    # null removes what an earlier report said: a strategic merge would keep it.
    return {
        "type": kind,
        "status": "True" if true else "False",
        "reason": reason or None,
        "message": message or None,
        "lastTransitionTime": _now(),
    }


def _live(pod: Json, wish: _Wish) -> Json:
    names = [container["name"] for container in pod["spec"]["containers"]]
    unready = f"containers with unready status: [{' '.join(names)}]"
    containers_ready = (
        _condition("ContainersReady", True)
        if wish.ready
        else _condition("ContainersReady", False, "ContainersNotReady", unready)
    )
    gates = _gate_fault(pod)
    if not wish.ready:
        ready = _condition("Ready", False, "ContainersNotReady", unready)
    elif gates:
        ready = _condition("Ready", False, "ReadinessGatesNotReady", gates)
    else:
        ready = _condition("Ready", True)
    running = {"running": {"startedAt": pod["status"].get("startTime") or _now()}}
    return {
        "phase": "Running",
        "startTime": pod["status"].get("startTime") or _now(),
        # Of this machine: what the controller dials there is refused at once, and leaves it never.
        "podIP": "127.0.77.1",
        "podIPs": [{"ip": "127.0.77.1"}],
        "hostIP": "127.0.0.1",
        "conditions": [
            _condition("PodReadyToStartContainers", True),
            _condition("Initialized", True),
            ready,
            containers_ready,
        ],
        "containerStatuses": [_container(c, running, ready=wish.ready) for c in pod["spec"]["containers"]],
    }


def _gate_fault(pod: Json) -> str:
    found = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    faults = []
    for gate in pod["spec"].get("readinessGates", []):
        kind = gate["conditionType"]
        if kind not in found:
            faults.append(f'corresponding condition of pod readiness gate "{kind}" does not exist.')
        elif found[kind] != "True":
            faults.append(f'the status of pod readiness gate "{kind}" is not "True", but {found[kind]}')
    return ", ".join(faults)


def _ended(pod: Json, exit_code: int) -> Json:
    reason = "PodCompleted" if exit_code == 0 else "PodFailed"
    terminated = {
        "exitCode": exit_code,
        "reason": "Completed" if exit_code == 0 else "Error",
        "startedAt": pod["status"].get("startTime") or _now(),
        "finishedAt": _now(),
    }
    state = {"terminated": terminated, "running": None, "waiting": None}
    return {
        "phase": "Succeeded" if exit_code == 0 else "Failed",
        "conditions": [
            _condition("PodReadyToStartContainers", False),
            _condition("Initialized", True, "PodCompleted" if exit_code == 0 else ""),
            _condition("Ready", False, reason),
            _condition("ContainersReady", False, reason),
        ],
        "containerStatuses": [_container(c, state, ready=False) for c in pod["spec"]["containers"]],
    }


def _container(container: Json, state: Json, *, ready: bool) -> Json:
    running = state.get("running") is not None
    status = {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": ready,
        "started": running,
        "restartCount": 0,
        "state": state,
    }
    if running:
        # Whoever reports these can resize in place; a wish is granted as soon as it is seen.
        resources = container.get("resources", {})
        status |= {"resources": resources, "allocatedResources": resources.get("requests", {})}
    return status
