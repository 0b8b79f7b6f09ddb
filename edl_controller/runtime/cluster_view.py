"""What the autoscaler sees of the cluster: nodes' accounts, who waits, each job's trainers; from lists or informers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from edl_controller.api.kinds import JOBS, NODES, PODS
from edl_controller.api.nodes import Node
from edl_controller.api.pods import Pod
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job
from edl_controller.cluster.port import ObjectReader
from edl_controller.core.capacity import Accounts, NodeRoom
from edl_controller.core.names import child_name
from edl_controller.runtime.informer import Informer
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.reflector import Delta


class ClusterView(Protocol):
    """One look after the other; what a look shows belongs together as far as the cluster allows."""

    def look(self) -> None:
        """Bring everything up to date.

        Raises:
            ClusterError: the cluster does not answer.
        """
        ...

    def silence(self) -> float:
        """Return for how many seconds nothing has been heard of the cluster."""
        ...

    def nodes(self) -> tuple[NodeRoom, ...]:
        """Return the accounts of all nodes."""
        ...

    def waiting(self) -> tuple[Pod, ...]:
        """Return the pods that wait for a node."""
        ...

    def trainers(self, job: TrainingJob) -> tuple[Job, tuple[Pod, ...]] | None:
        """Return the Job with the trainers' name and the pods it controls; None: there is no such Job."""
        ...


class ListedView:
    """Lists everything at each look: for simulations and small clusters."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._accounts = Accounts()
        self._jobs: dict[tuple[str, str], Job] = {}
        self._pods: dict[str, list[Pod]] = {}

    def look(self) -> None:
        """See `ClusterView.look`."""
        accounts = Accounts()
        self._pods = {}
        for node in self._reader.list(NODES).items:
            accounts.put_node(node)
        for pod in self._reader.list(PODS).items:
            accounts.put_pod(pod)
            if (owner := pod.metadata.controller()) is not None:
                self._pods.setdefault(owner.uid, []).append(pod)
        self._jobs = {(one.metadata.namespace, one.metadata.name): one for one in self._reader.list(JOBS).items}
        self._accounts = accounts

    def silence(self) -> float:
        """See `ClusterView.silence`: a look that fails raises."""
        return 0.0

    def nodes(self) -> tuple[NodeRoom, ...]:
        """See `ClusterView.nodes`."""
        return self._accounts.nodes()

    def waiting(self) -> tuple[Pod, ...]:
        """See `ClusterView.waiting`."""
        return self._accounts.waiting()

    def trainers(self, job: TrainingJob) -> tuple[Job, tuple[Pod, ...]] | None:
        """See `ClusterView.trainers`."""
        found = self._jobs.get((job.metadata.namespace, child_name(job.metadata.name, "trainer")))
        return None if found is None else (found, tuple(self._pods.get(found.metadata.uid, ())))


class InformedView:
    """Follows informers: the accounts are kept pod by pod, nothing is listed. Made before the informers run.

    Args:
        informers: of pods, nodes and Jobs.
        changed: called after each difference, from the informers' threads; must not block.
        nodes: False: the nodes are not looked at, so there are none.
    """

    def __init__(
        self, informers: Informers, changed: Callable[[], object] = lambda: None, *, nodes: bool = True
    ) -> None:
        self._lock = threading.Lock()
        self._accounts = Accounts()
        self._pods: dict[str, dict[str, Pod]] = {}
        self._changed = changed
        pods, self._jobs = informers.of(PODS), informers.of(JOBS)
        self._informers: tuple[Informer[Any], ...] = (pods, self._jobs)
        pods.add_handler(self._pod)
        self._jobs.add_handler(self._job)
        if nodes:
            self._informers = (*self._informers, informers.of(NODES))
            informers.of(NODES).add_handler(self._node)

    def look(self) -> None:
        """See `ClusterView.look`: it is up to date already."""

    def silence(self) -> float:
        """See `ClusterView.silence`."""
        return max(informer.silence() for informer in self._informers)

    def nodes(self) -> tuple[NodeRoom, ...]:
        """See `ClusterView.nodes`."""
        with self._lock:
            return self._accounts.nodes()

    def waiting(self) -> tuple[Pod, ...]:
        """See `ClusterView.waiting`."""
        with self._lock:
            return self._accounts.waiting()

    def trainers(self, job: TrainingJob) -> tuple[Job, tuple[Pod, ...]] | None:
        """See `ClusterView.trainers`."""
        found = self._jobs.cache.get(job.metadata.namespace, child_name(job.metadata.name, "trainer"))
        if found is None:
            return None
        with self._lock:
            return found, tuple(self._pods.get(found.metadata.uid, {}).values())

    def _pod(self, delta: Delta[Pod]) -> None:
        if delta.origin == "resync":
            return
        pod = delta.obj
        owner = pod.metadata.controller()
        with self._lock:
            if delta.type == "deleted":
                self._accounts.remove_pod(pod.metadata.uid)
            else:
                self._accounts.put_pod(pod)
            if owner is not None:
                mates = self._pods.setdefault(owner.uid, {})
                if delta.type == "deleted":
                    mates.pop(pod.metadata.uid, None)
                else:
                    mates[pod.metadata.uid] = pod
                if not mates:
                    del self._pods[owner.uid]
        self._changed()

    def _job(self, delta: Delta[Job]) -> None:
        if delta.origin != "resync":
            self._changed()

    def _node(self, delta: Delta[Node]) -> None:
        if delta.origin == "resync":
            return
        with self._lock:
            if delta.type == "deleted":
                self._accounts.remove_node(delta.obj.metadata.name)
            else:
                self._accounts.put_node(delta.obj)
        self._changed()
