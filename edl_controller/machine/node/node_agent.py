"""`NodeAgent`: one virtual node: announces itself, runs the pods that are bound to it, and says how they are."""

from __future__ import annotations

import logging
import platform
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from edl_controller.api import timestamps
from edl_controller.api.kinds import CONFIG_MAPS, NODES, PODS, SECRETS
from edl_controller.api.meta import Condition, ObjectMeta, ObjectReference, find_condition
from edl_controller.api.nodes import Node, NodeSpec, NodeStatus, Taint
from edl_controller.api.pods import Pod, Quantities
from edl_controller.cluster.port import Cluster
from edl_controller.core.merge_patch import difference
from edl_controller.errors import AlreadyExists, ClusterError, Gone, NotFound
from edl_controller.machine.node import volumes
from edl_controller.machine.node.addresses import AddressPool
from edl_controller.machine.node.environment import Source, decoded
from edl_controller.machine.node.event_loop import EventLoop
from edl_controller.machine.node.images import Images
from edl_controller.machine.node.log_limit import LogLimit
from edl_controller.machine.node.pod_phase import Observation
from edl_controller.machine.node.pod_runner import PodRunner
from edl_controller.machine.node.process import ProcessHost
from edl_controller.machine.node.restart import BackOff
from edl_controller.machine.node.services import EventType, Report, Services
from edl_controller.machine.node.status_writer import StatusWriter
from edl_controller.machine.node.wildcard_watch import WildcardWatch

_log = logging.getLogger(__name__)

HEARTBEAT = 10.0
"""Seconds between two signs of life, as kubelet's (``nodeStatusUpdateFrequency``)."""

NICE = 5
"""Added to the priority number of pods, so that the control plane answers while they take the whole machine."""

_WORKERS = 8
"""Threads for what may wait: probes, reading Secrets, making volumes."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a broken watch is begun again; doubled each time."""

_STOP_LIMIT = 10.0
"""Seconds after the grace of `NodeAgent.stop` at which it gives up to wait for ends that are told."""


class NodeAgent:
    """One node. Several may live in one process. `start` and `stop` it once; also a context manager.

    Args:
        cluster: where pods come from and statuses go.
        name: of the node.
        capacity: what it claims to have (``cpu``, ``memory``, ``pods``, more as you like); all of it is allocatable.
        root: folder for its files: ``pods/``, and ``logs/<namespace>_<pod>_<uid>/<container>/<restart>.log``.
        labels: of the Node object, beside those that every node has.
        taints: of the Node object, when it is made.
        images: what images stand for; default: all are this program's own environment.
        report: takes events; default: they are logged.
        back_off: between runs of a container.
        heartbeat: seconds between two signs of life.
        mount: whether containers get mount namespaces; None: where that is allowed.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        capacity: Quantities,
        root: Path,
        *,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Taint] = (),
        images: Images | None = None,
        report: Report | None = None,
        back_off: BackOff | None = None,
        heartbeat: float = HEARTBEAT,
        mount: bool | None = None,
    ) -> None:
        self.name, self.root = name, root
        self._cluster, self._capacity, self._heartbeat = cluster, capacity, heartbeat
        self._labels, self._taints = dict(labels or {}), tuple(taints)
        self._addresses = AddressPool(name)
        self._loop = EventLoop(f"edl-node-{name}")
        self._writer = StatusWriter(cluster, f"edl-node-{name}-writer")
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix=f"edl-node-{name}-worker")
        mounts = volumes.may_mount() if mount is None else mount
        self._services = Services(
            loop=self._loop,
            host=ProcessHost(self._loop),
            workers=self._workers,
            images=images or Images(),
            back_off=back_off or BackOff(),
            report=report or _log_event,
            fetch=self._fetch,
            root=root,
            node_name=name,
            host_ip=self._addresses.node_address,
            allocatable=capacity,
            links=None if mounts else volumes.Links(),
            nice=NICE,
        )
        self._runners: dict[str, PodRunner] = {}
        self._running: dict[str, tuple[int, ...]] = {}
        self._wildcards: WildcardWatch | None = None
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name=f"edl-node-{name}-watch", daemon=True)

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> NodeAgent:
        """Announce the node and begin to run its pods.

        Raises:
            ClusterError: the Node object cannot be written.
            OSError: the root cannot be made.
        """
        self.root.mkdir(parents=True, exist_ok=True, mode=0o711)
        self._announce()
        self._loop.start()
        self._writer.start()
        self._loop.post(self._begin)
        self._watcher.start()
        return self

    def stop(self, grace: float = 2.0) -> None:
        """End all containers (SIGTERM, after ``grace`` seconds SIGKILL) and the node. Pods stay in the cluster.

        A node of the same name and root that is started later takes their pods over, as after a crash.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._loop.post(lambda: self._end(grace))
        self._ended.wait(grace + _STOP_LIMIT)
        self._loop.close()
        self._services.host.close()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._writer.close(lambda: self._write_node(ready=False))
        self._watcher.join()
        if self._services.links is not None:
            for uid in self._runners:
                self._services.links.drop(uid)
        self._addresses.close()

    def __enter__(self) -> NodeAgent:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def host_pid(self) -> int:
        """Return the id of the process that starts containers; 0 before the first."""
        return self._services.host.pid

    @property
    def address(self) -> str:
        """Return the node's own address on the loopback."""
        return self._addresses.node_address

    # -- the Node object -----------------------------------------------------------------------------------------

    def _announce(self) -> None:
        labels = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
            **self._labels,
        }
        try:
            node = self._cluster.get(NODES, "", self.name)
            missing = {key: value for key, value in labels.items() if node.metadata.labels.get(key) != value}
            if missing:
                self._cluster.patch(NODES, "", self.name, {"metadata": {"labels": missing}})
        except NotFound:
            try:
                self._cluster.create(
                    Node(metadata=ObjectMeta(name=self.name, labels=labels), spec=NodeSpec(taints=self._taints))
                )
            except AlreadyExists:
                _log.debug("node %s was made by somebody else", self.name)
        self._write_node(ready=True)

    def _write_node(self, *, ready: bool) -> None:
        now = timestamps.render(time.time())
        node = self._cluster.get(NODES, "", self.name)
        reason = ("KubeletReady", "the node runs pods") if ready else ("NodeShutdown", "the node was stopped")
        wanted = {"Ready": ready, "MemoryPressure": False, "DiskPressure": False, "PIDPressure": False}
        conditions = []
        for kind, holds in wanted.items():
            old = find_condition(node.status.conditions, kind)
            conditions.append(
                Condition(
                    type=kind,
                    status=str(holds),
                    reason=reason[0] if kind == "Ready" else f"NodeHasNo{kind}",
                    message=reason[1] if kind == "Ready" else "not watched",
                    last_heartbeat_time=now,
                    last_transition_time=old.last_transition_time if old and old.status == str(holds) else now,
                )
            )
        foreign = tuple(one for one in node.status.conditions if one.type not in wanted)
        status = NodeStatus(
            capacity=self._capacity,
            allocatable=self._capacity,
            conditions=foreign + tuple(conditions),
            addresses=(
                {"type": "InternalIP", "address": self.address},
                {"type": "Hostname", "address": self.name},
            ),
        )
        patch = difference(msgspec.to_builtins(node.status), msgspec.to_builtins(status))
        self._cluster.patch(NODES, "", self.name, {"status": patch}, subresource="status")

    def _beat(self) -> None:
        self._writer.do(lambda: self._write_node(ready=True))
        self._loop.call_later(self._heartbeat, self._beat)

    # -- the pods, on the loop's thread --------------------------------------------------------------------------

    def _begin(self) -> None:
        self._wildcards = WildcardWatch(self._services, lambda: list(self._runners.values()))
        LogLimit(self._services)
        self._loop.call_later(self._heartbeat, self._beat)

    def _all_pods(self, pods: Sequence[Pod]) -> None:
        """Take the whole list: those that are not in it are gone."""
        mine = {pod.metadata.uid: pod for pod in pods}
        for uid in list(self._runners):
            if uid not in mine:
                self._pod_gone(uid)
        for pod in pods:
            self._pod(pod)
        folder = self.root / "pods"
        left = [one for one in folder.iterdir() if one.name not in mine] if folder.is_dir() else []
        for one in left:
            if one.name not in self._runners:
                self._workers.submit(volumes.remove, one)

    def _pod(self, pod: Pod) -> None:
        meta = pod.metadata
        runner = self._runners.get(meta.uid)
        if self._stopping.is_set():
            return
        if runner is None:
            if pod.status.phase in ("Succeeded", "Failed"):
                if meta.deletion_timestamp:
                    self._writer.submit(pod, None, remove=True)
                return
            try:
                address = self._addresses.take()
            except OSError as error:
                self._services.report(PODS.reference(pod), "Warning", "FailedCreatePodSandBox", str(error))
                return
            runner = self._runners[meta.uid] = PodRunner(self._services, pod, address, self._observed)
            if meta.deletion_timestamp is None:
                runner.start()
        runner.update(pod)
        if meta.deletion_timestamp is not None:
            grace = meta.deletion_grace_period_seconds
            runner.stop(30.0 if grace is None else float(grace))
            if runner.over:  # it had ended before it was asked to
                self._writer.submit(pod, runner.observation(), remove=True)

    def _pod_gone(self, uid: str) -> None:
        """The object is gone: nothing of the pod may be left."""
        self._writer.forget(uid)
        runner = self._runners.get(uid)
        if runner is None:
            self._workers.submit(volumes.remove, self.root / "pods" / uid)
            return
        runner.stop(0.0)
        if runner.over:
            self._forget(runner)
        runner.vanished = True

    def _observed(self, runner: PodRunner, seen: Observation) -> None:
        uid = runner.pod.metadata.uid
        pids = tuple(run.pid for run in runner.runs)
        if pids != self._running.get(uid):
            self._running[uid] = pids
            if self._wildcards is not None and any(pids):
                self._wildcards.started()
        if self._stopping.is_set():
            if all(one.over for one in self._runners.values()):
                self._ended.set()
            return
        if runner.vanished:
            if runner.over:
                self._forget(runner)
            return
        self._writer.submit(runner.pod, seen, remove=runner.over and runner.pod.metadata.deletion_timestamp is not None)

    def _forget(self, runner: PodRunner) -> None:
        uid = runner.pod.metadata.uid
        if self._runners.pop(uid, None) is not None:
            self._running.pop(uid, None)
            self._addresses.release(runner.pod_ip)
            if self._services.links is not None:
                self._services.links.drop(uid)
            if not self._stopping.is_set():
                self._workers.submit(volumes.remove, runner.folder)

    def _end(self, grace: float) -> None:
        for runner in self._runners.values():
            runner.stop(grace)
        if all(one.over for one in self._runners.values()):
            self._ended.set()

    # -- reading -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                listing = self._cluster.list(PODS)
                mine = tuple(pod for pod in listing.items if pod.spec.node_name == self.name)
                self._loop.post(lambda mine=mine: self._all_pods(mine))  # type: ignore[misc]
                pause = _FIRST_PAUSE
                version = listing.resource_version
                while not self._stopping.is_set():
                    for change in self._cluster.watch(PODS, "", version, self._stopping):
                        version = change.resource_version
                        pod = change.obj
                        if pod is None or pod.spec.node_name != self.name:
                            continue
                        if change.type == "DELETED":
                            self._loop.post(lambda uid=pod.metadata.uid: self._pod_gone(uid))  # type: ignore[misc]
                        else:
                            self._loop.post(lambda pod=pod: self._pod(pod))  # type: ignore[misc]
            except Gone:
                continue
            except ClusterError as error:
                _log.warning("node %s cannot watch pods: %s", self.name, error)
                self._stopping.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            except Exception:
                _log.exception("node %s: a watch of pods failed", self.name)
                self._stopping.wait(_LONGEST_PAUSE)

    def _fetch(self, namespace: str, source: Source) -> Mapping[str, str] | None:
        kind, name = source
        try:
            if kind == "Secret":
                return decoded(self._cluster.get(SECRETS, namespace, name).data)
            return self._cluster.get(CONFIG_MAPS, namespace, name).data
        except NotFound:
            return None


def _log_event(regarding: ObjectReference, type: EventType, reason: str, note: str) -> None:  # noqa: A002
    level = logging.WARNING if type == "Warning" else logging.DEBUG
    _log.log(level, "%s %s/%s: %s: %s", regarding.kind, regarding.namespace, regarding.name, reason, note)
