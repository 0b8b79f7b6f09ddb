"""The port: what the controller's shell needs of a cluster, as small protocols with duties of time and atomicity.

Duties of every cluster:

- each call ends within its own deadline (30 s at most), with an answer or with a `ClusterError`;
- a write is applied whole or not at all; where its answer was lost it is `Unavailable`: read before you repeat it;
- objects are frozen values; what is returned carries the server's ``uid``, ``resource_version`` and ``generation``;
- a change of ``spec`` raises ``generation``; status is written with ``subresource="status"`` only, and does not;
- a deleted Pod is asked to end first (``deletion_timestamp``) and vanishes when its node says so; what a deleted object
  owned is collected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from edl_controller.api.kinds import ApiObject, Kind
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job, ReplicaSet
from edl_controller.core.capacity import ClusterResource

T = TypeVar("T", bound=ApiObject)

ChangeType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
Propagation = Literal["Background", "Foreground", "Orphan"]
Subresource = Literal["", "status", "resize"]


@dataclass(frozen=True)
class Listing(Generic[T]):
    """All objects at one moment, and the version to watch from."""

    items: tuple[T, ...]
    resource_version: str


@dataclass(frozen=True)
class Change(Generic[T]):
    """One change of an object. DELETED carries the last state; BOOKMARK only a version (``obj`` is None)."""

    type: ChangeType
    obj: T | None
    resource_version: str


class Stop(Protocol):
    """What ends a wait: `threading.Event` is one."""

    def is_set(self) -> bool:
        """Tell whether to end."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the end."""
        ...


class ObjectReader(Protocol):
    """Reads objects."""

    def get(self, kind: Kind[T], namespace: str, name: str) -> T:
        """Return the live object.

        Raises:
            NotFound: there is none.
        """
        ...

    def list(self, kind: Kind[T], namespace: str = "", *, labels: dict[str, str] | None = None) -> Listing[T]:
        """Return all objects of a kind, of one namespace or (``""``) of all, that carry these labels."""
        ...

    def watch(self, kind: Kind[T], namespace: str, resource_version: str, stop: Stop) -> Iterator[Change[T]]:
        """Yield every change after ``resource_version`` in order.

        Bookmarks may come at any time, also of the very version that was asked for: the cluster answers.
        Ends when ``stop`` is set, or by itself (then watch again from the last version).

        Raises:
            Gone: the version is no longer kept: list again.
            Unavailable: the connection was lost.
        """
        ...


class ObjectWriter(Protocol):
    """Changes objects. Every call returns the object as it is after it."""

    def create(self, obj: T) -> T:
        """Create the object; ``generate_name`` gets a random end.

        Raises:
            AlreadyExists: the name is taken.
            Invalid: it breaks a rule.
        """
        ...

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
        """Apply a JSON merge patch (RFC 7386) atomically; a patch that changes nothing writes nothing.

        Raises:
            NotFound: there is no such object.
            Conflict: ``resource_version`` or ``uid`` is given and is another now.
            Invalid: the result breaks a rule.
        """
        ...

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
        """Delete the object and, unless orphaned, what it owns.

        The policy is always sent: without one Kubernetes lets the pods of a Job live on.

        Raises:
            NotFound: there is no such object.
            Conflict: ``uid`` or ``resource_version`` is given and is another now.
        """
        ...


@dataclass(frozen=True)
class JobPods:
    """The trainer pods of a job; terminating pods count in ``total`` only."""

    total: int
    running: int
    pending: int


class WorkloadAccess(Protocol):
    """The original's calls for the children of a TrainingJob, by their contract names."""

    def create_job(self, job: Job) -> Job:
        """Create a trainer Job. Raises as `ObjectWriter.create`."""
        ...

    def create_replica_set(self, replica_set: ReplicaSet) -> ReplicaSet:
        """Create a ReplicaSet. Raises as `ObjectWriter.create`."""
        ...

    def delete_replica_set(self, namespace: str, name: str) -> None:
        """Delete a ReplicaSet and its pods; none there is fine."""
        ...

    def delete_trainer_job(self, namespace: str, name: str) -> None:
        """Delete a trainer Job and its pods; none there is fine."""
        ...

    def get_replica_set(self, namespace: str, name: str) -> ReplicaSet:
        """Return a ReplicaSet.

        Raises:
            NotFound: there is none.
        """
        ...

    def get_trainer_job(self, job: TrainingJob) -> Job:
        """Return the trainer Job of a TrainingJob.

        Raises:
            NotFound: there is none.
        """
        ...

    def get_trainer_job_by_name(self, namespace: str, name: str) -> Job:
        """Return a trainer Job by its own name.

        Raises:
            NotFound: there is none.
        """
        ...

    def update_trainer_job(self, job: Job) -> Job:
        """Set the parallelism of the trainer Job to that of ``job``, if the live one is still at ``job``'s version.

        Raises:
            NotFound: there is none.
            Conflict: it has changed since ``job`` was read.
        """
        ...

    def job_pods(self, job: TrainingJob) -> JobPods:
        """Count the trainer pods of a TrainingJob."""
        ...


class ResourceInquiry(Protocol):
    """The original's look at the whole cluster."""

    def inquiry_resource(self) -> ClusterResource:
        """Add up what all nodes have and all pods ask for."""
        ...


class Cluster(ObjectReader, ObjectWriter, WorkloadAccess, ResourceInquiry, Protocol):
    """All of it: what one adapter implements (`edl_controller.cluster.workloads` gives the contract's names)."""


__all__: Sequence[str] = (
    "Change",
    "Cluster",
    "JobPods",
    "Listing",
    "ObjectReader",
    "ObjectWriter",
    "ResourceInquiry",
    "Stop",
    "WorkloadAccess",
)
