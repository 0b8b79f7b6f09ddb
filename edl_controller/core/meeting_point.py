"""PURE: where the agents of a job meet: which etcd, below which prefix, with whose certificates.

Jobs are taken with their defaults (`edl_controller.api.defaults`).
"""

from __future__ import annotations

from dataclasses import dataclass

from edl_controller.api.v1 import TrainingJob
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.names import etcd_prefix

MASTER_ETCD_PORT = 2379


@dataclass(frozen=True)
class MeetingPoint:
    """An etcd as the pods of one job use it.

    Attributes:
        endpoints: URLs; empty while the master's address is not known.
        prefix: of all keys of the job.
        tls_secret: Secret with ``ca.crt``; empty = none.
        client_certificate: whether that Secret has ``tls.crt`` and ``tls.key`` too.
        credentials_secret: Secret with ``username`` and ``password``; empty = none.
        identity: of the store: another one has another content. Empty = not known.
    """

    endpoints: tuple[str, ...]
    prefix: str
    tls_secret: str = ""
    client_certificate: bool = False
    credentials_secret: str = ""
    identity: str = ""


def in_master_pod(job: TrainingJob) -> bool:
    """Tell whether the job's etcd runs in its own master pod (compatibility mode)."""
    return job.spec.etcd.mode == "Master"


def job_prefix(job: TrainingJob) -> str:
    """Return the prefix of the job's keys; none for the original's programs with an etcd of their own."""
    if job.spec.agent.mode == "Classic" and in_master_pod(job):
        return ""
    meta = job.metadata
    return etcd_prefix(meta.namespace, meta.name, meta.uid)


def external(job: TrainingJob, settings: JobSettings, identity: str = "") -> MeetingPoint:
    """Return the meeting point in an external etcd: the job's own, else the controller's."""
    etcd, prefix = job.spec.etcd, job_prefix(job)
    if etcd.endpoints:
        return MeetingPoint(
            etcd.endpoints,
            prefix,
            tls_secret=etcd.tls.secret_name if etcd.tls else "",
            client_certificate=etcd.tls is not None and etcd.tls.client_certificate,
            credentials_secret=etcd.credentials.secret_name if etcd.credentials else "",
            identity=identity,
        )
    return MeetingPoint(
        settings.etcd_endpoints,
        prefix,
        tls_secret=etcd.tls.secret_name if etcd.tls else settings.etcd_tls_secret,
        client_certificate=etcd.tls.client_certificate if etcd.tls else settings.etcd_client_certificate,
        credentials_secret=etcd.credentials.secret_name if etcd.credentials else settings.etcd_credentials_secret,
        identity=identity,
    )


def in_master(job: TrainingJob, address: str, pod_uid: str) -> MeetingPoint:
    """Return the meeting point in the master pod with this address."""
    host = f"[{address}]" if ":" in address else address
    return MeetingPoint((f"http://{host}:{MASTER_ETCD_PORT}",), job_prefix(job), identity=pod_uid)


def default_meeting_point(job: TrainingJob, settings: JobSettings) -> MeetingPoint:
    """Return what is known of the meeting point before any pod runs."""
    return MeetingPoint((), job_prefix(job)) if in_master_pod(job) else external(job, settings)
