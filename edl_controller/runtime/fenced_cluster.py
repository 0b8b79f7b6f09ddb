"""A cluster that is written to only while one leads: the guard between a controller and everything it would change.

Asked at the moment of each write, so a process that was stopped for longer than its lease (SIGSTOP, a suspended
machine) writes nothing after it wakes. Between here and the network lie connections and credentials: an API server's
transport asks once more when all but the body is sent (``before_write`` of `edl_controller.cluster.kube.KubeCluster`).
What nobody can do is to call back a request that was sent; for those the lease is longer than the renew deadline, and
every write that must not be late carries a version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from edl_controller.api.kinds import ApiObject, Kind
from edl_controller.cluster.port import Change, Cluster, Listing, Propagation, Stop, Subresource
from edl_controller.cluster.workloads import WorkloadCalls
from edl_controller.errors import NotLeading

T = TypeVar("T", bound=ApiObject)


class FencedCluster(WorkloadCalls):
    """The port over another cluster; reads pass, writes pass while one leads.

    Args:
        cluster: behind it.
        leads: whether this process may write, at this moment (`edl_controller.runtime.leader.Leader.is_leader`).
    """

    def __init__(self, cluster: Cluster, leads: Callable[[], bool]) -> None:
        self._cluster, self._leads = cluster, leads

    def get(self, kind: Kind[T], namespace: str, name: str) -> T:
        """See `ObjectReader.get`."""
        return self._cluster.get(kind, namespace, name)

    def list(self, kind: Kind[T], namespace: str = "", *, labels: dict[str, str] | None = None) -> Listing[T]:
        """See `ObjectReader.list`."""
        return self._cluster.list(kind, namespace, labels=labels)

    def watch(self, kind: Kind[T], namespace: str, resource_version: str, stop: Stop) -> Iterator[Change[T]]:
        """See `ObjectReader.watch`."""
        return self._cluster.watch(kind, namespace, resource_version, stop)

    def create(self, obj: T) -> T:
        """See `ObjectWriter.create`.

        Raises:
            NotLeading: one does not lead; nothing was sent.
        """
        self._check("create", type(obj).__name__)
        return self._cluster.create(obj)

    def patch(
        self,
        kind: Kind[T],
        namespace: str,
        name: str,
        patch: dict[str, Any],
        *,
        subresource: Subresource = "",
        resource_version: str = "",
        uid: str = "",
    ) -> T:
        """See `ObjectWriter.patch`.

        Raises:
            NotLeading: one does not lead; nothing was sent.
        """
        self._check("patch", kind.name)
        return self._cluster.patch(
            kind, namespace, name, patch, subresource=subresource, resource_version=resource_version, uid=uid
        )

    def delete(
        self,
        kind: Kind[T],
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = "Background",
        grace_seconds: int | None = None,
    ) -> None:
        """See `ObjectWriter.delete`.

        Raises:
            NotLeading: one does not lead; nothing was sent.
        """
        self._check("delete", kind.name)
        self._cluster.delete(
            kind,
            namespace,
            name,
            uid=uid,
            resource_version=resource_version,
            propagation=propagation,
            grace_seconds=grace_seconds,
        )

    def _check(self, verb: str, what: str) -> None:
        if not self._leads():
            raise NotLeading(f"{verb} {what}: this replica does not lead")
