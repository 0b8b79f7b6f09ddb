"""The contract's calls for the children of a TrainingJob, over any cluster that reads and writes objects."""

from __future__ import annotations

import contextlib
from typing import Protocol

from edl_controller.api.kinds import JOBS, NODES, PODS, REPLICA_SETS
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job, ReplicaSet
from edl_controller.cluster.port import JobPods, ObjectReader, ObjectWriter
from edl_controller.core import capacity
from edl_controller.core.capacity import ClusterResource
from edl_controller.core.names import child_name, labels
from edl_controller.core.placement import is_terminating
from edl_controller.errors import NotFound


class _Objects(ObjectReader, ObjectWriter, Protocol):
    """What the calls are made of."""


class WorkloadCalls:
    """Mixed into a cluster, gives it `WorkloadAccess` and `ResourceInquiry` of `edl_controller.cluster.port`."""

    def create_job(self: _Objects, job: Job) -> Job:
        """See `WorkloadAccess.create_job`."""
        return self.create(job)

    def create_replica_set(self: _Objects, replica_set: ReplicaSet) -> ReplicaSet:
        """See `WorkloadAccess.create_replica_set`."""
        return self.create(replica_set)

    def delete_replica_set(self: _Objects, namespace: str, name: str) -> None:
        """See `WorkloadAccess.delete_replica_set`."""
        with contextlib.suppress(NotFound):
            self.delete(REPLICA_SETS, namespace, name)

    def delete_trainer_job(self: _Objects, namespace: str, name: str) -> None:
        """See `WorkloadAccess.delete_trainer_job`."""
        with contextlib.suppress(NotFound):
            self.delete(JOBS, namespace, name)

    def get_replica_set(self: _Objects, namespace: str, name: str) -> ReplicaSet:
        """See `WorkloadAccess.get_replica_set`."""
        return self.get(REPLICA_SETS, namespace, name)

    def get_trainer_job(self: _Objects, job: TrainingJob) -> Job:
        """See `WorkloadAccess.get_trainer_job`."""
        meta = job.metadata
        return self.get(JOBS, meta.namespace or "default", child_name(meta.name, "trainer"))

    def get_trainer_job_by_name(self: _Objects, namespace: str, name: str) -> Job:
        """See `WorkloadAccess.get_trainer_job_by_name`."""
        return self.get(JOBS, namespace, name)

    def update_trainer_job(self: _Objects, job: Job) -> Job:
        """See `WorkloadAccess.update_trainer_job`."""
        meta = job.metadata
        return self.patch(
            JOBS,
            meta.namespace,
            meta.name,
            {"spec": {"parallelism": job.spec.parallelism}},
            resource_version=meta.resource_version,
            uid=meta.uid,
        )

    def job_pods(self: _Objects, job: TrainingJob) -> JobPods:
        """See `WorkloadAccess.job_pods`."""
        meta = job.metadata
        pods = self.list(PODS, meta.namespace or "default", labels=labels(meta.name, meta.uid, "trainer")).items
        phases = [pod.status.phase for pod in pods if not is_terminating(pod)]
        return JobPods(total=len(pods), running=phases.count("Running"), pending=phases.count("Pending"))

    def inquiry_resource(self: _Objects) -> ClusterResource:
        """See `ResourceInquiry.inquiry_resource`."""
        return capacity.inquiry(self.list(NODES).items, self.list(PODS).items)
