"""PURE: TrainingJob (``paddlepaddle.org/v1``): the classic fields under their classic names, and what users missed.

Where a field is modern, its JSON name is in camel case. Modern aliases of the classic names are translated by
`edl_controller.api.aliases` when an object is read. Defaults are filled by `edl_controller.api.defaults`.
"""

from __future__ import annotations

import msgspec

from edl_controller.api.meta import Condition, Json, LocalObjectReference, ObjectMeta, Record
from edl_controller.api.pods import (
    EnvVar,
    ResourceRequirements,
    Toleration,
    Volume,
    VolumeMount,
)

GROUP = "paddlepaddle.org"
VERSION = "v1"

field = msgspec.field


class PodOverrides(Record, frozen=True, kw_only=True):
    """What users may set on the pods: of all roles (``spec.template``), or of one (``spec.trainer.template`` wins)."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    affinity: Json | None = None
    security_context: Json | None = None
    """Of the pod."""
    container_security_context: Json | None = None
    priority_class_name: str = ""
    service_account_name: str = ""
    termination_grace_period_seconds: int | None = None


class RoleSpec(Record, frozen=True, kw_only=True):
    """What all three roles have. ``replica_spec`` was filled by the original controller: accepted and ignored."""

    image: str = ""
    entrypoint: str = ""
    """A command line as in the original; split into words as a shell would, never given to a shell."""
    command: tuple[str, ...] = ()
    """The command as a list; in place of ``entrypoint``."""
    workspace: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    env: tuple[EnvVar, ...] = ()
    template: PodOverrides = PodOverrides()
    min_instance: int | None = field(default=None, name="min-instance")
    max_instance: int | None = field(default=None, name="max-instance")
    etcd_endpoint: str = field(default="", name="etcd-endpoint")
    replica_spec: Json | None = field(default=None, name="replicaSpec")


class TrainerSpec(RoleSpec, frozen=True, kw_only=True):
    """The trainers: ``min-instance`` to ``max-instance`` of them."""


class PserverSpec(RoleSpec, frozen=True, kw_only=True):
    """The parameter servers: ``min-instance`` of them, fixed while the job runs (the partition is modulo n)."""


class MasterSpec(RoleSpec, frozen=True, kw_only=True):
    """The master pod: etcd (compatibility mode) and, where the user gives one, a command."""


class EtcdTls(Record, frozen=True, kw_only=True):
    """Names a Secret with ``ca.crt`` and, for client certificates, ``tls.crt`` and ``tls.key``."""

    secret_name: str = ""
    client_certificate: bool = False
    """The Secret has a client certificate too (the controller never reads Secrets, so it has to be told)."""


class EtcdCredentials(Record, frozen=True, kw_only=True):
    """Names a Secret with ``username`` and ``password``."""

    secret_name: str = ""


class EtcdSpec(Record, frozen=True, kw_only=True):
    """Where the agents of the job meet."""

    mode: str = ""
    """``External`` (the default where there is an etcd outside of the job) or ``Master`` (in the master pod)."""
    endpoints: tuple[str, ...] = ()
    """Of the job's own external etcd; empty: the controller's."""
    tls: EtcdTls | None = None
    credentials: EtcdCredentials | None = None


class AgentSpec(Record, frozen=True, kw_only=True):
    """How the pods take part."""

    mode: str = ""
    """``Launcher`` (``edl-agent run`` runs the command), ``Library`` (the program imports ``edl_agent``), ``Sidecar``
    (a native sidecar beside the program), ``Classic`` (the original's start scripts of the image)."""
    ttl_seconds: int | None = None
    """TTL of the agents' leases."""
    image: str = ""
    """Image of the sidecar; empty: the role's image."""


class Autoscaling(Record, frozen=True, kw_only=True):
    """How the number of trainers may be changed between ``min-instance`` and ``max-instance``."""

    enabled: bool | None = None
    scale_up_cooldown_seconds: int | None = None
    scale_down_cooldown_seconds: int | None = None
    drain_seconds: int | None = None
    """How long a victim may take to finish its task before it is cut anyway."""
    priority: int | None = None
    weight: int | None = None
    smallest_trainer: ResourceRequirements | None = None
    """Opt-in: to what a trainer may be shrunk in place."""


class TrainingJobSpec(Record, frozen=True, kw_only=True):
    """What the user wants."""

    image: str = ""
    port: int | None = None
    ports_num: int | None = field(default=None, name="ports_num")
    ports_num_for_sparse: int | None = field(default=None, name="ports_num_for_sparse")
    fault_tolerant: bool = field(default=False, name="fault_tolerant")
    passes: int | None = None
    host_network: bool = field(default=False, name="host_network")
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    image_pull_policy: str = ""
    volumes: tuple[Volume, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = field(default=(), name="VolumeMounts")
    node_selector: dict[str, str] = field(default_factory=dict, name="NodeSelector")
    env: tuple[EnvVar, ...] = ()
    template: PodOverrides = PodOverrides()
    trainer: TrainerSpec = TrainerSpec()
    pserver: PserverSpec = PserverSpec()
    master: MasterSpec = MasterSpec()
    etcd: EtcdSpec = EtcdSpec()
    agent: AgentSpec = AgentSpec()
    autoscaling: Autoscaling = Autoscaling()
    suspend: bool = False
    clean_pod_policy: str = ""
    """What goes when the job has ended: ``Running`` (the pods that still run; the default), ``All`` or ``None``."""
    ttl_seconds_after_finished: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None


class ScaleRecord(Record, frozen=True, kw_only=True):
    """One change of the number of trainers."""

    scale_timestamp: str | None = None
    additional: int = 0
    status: str = ""
    """``True``, ``False`` or ``Unknown``: whether it came into effect."""
    reason: str = ""


class ScaleRecords(Record, frozen=True, kw_only=True):
    """The newest records, bounded (`edl_controller.api.conditions`)."""

    scale_records: tuple[ScaleRecord, ...] = field(default=(), name="ScaleRecords")


class ReplicaStatus(Record, frozen=True, kw_only=True):
    """How the pods of one role are."""

    training_resource_type: str = field(name="training_resource_type")
    """``master``, ``pserver`` or ``trainer``."""
    state: str = ""
    """``""``, ``starting``, ``running``, ``failed`` or ``succeeded``."""
    resource_states: dict[str, int] = field(default_factory=dict, name="resource_states")
    """State to number of pods."""


class AgentView(Record, frozen=True, kw_only=True):
    """What the agents say in the job's etcd, as far as it is worth showing."""

    pservers: int = 0
    """Slots held."""
    lost_pservers: tuple[int, ...] = ()
    """Indexes nobody holds."""
    trainers: int = 0
    """Trainers with a fresh report."""
    rate: str = ""
    """Samples per second of all trainers, as text (the API wants no floats)."""
    observed: str | None = None


class TrainingJobStatus(Record, frozen=True, kw_only=True):
    """What is. Phases: ``""``, creating, running, scaling, succeeded, failed (derived from the conditions)."""

    phase: str = ""
    reason: str = ""
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    replica_statuses: tuple[ReplicaStatus, ...] = field(default=(), name="replica_statuses")
    scale_records: ScaleRecords = field(default=ScaleRecords(), name="scale_records")
    trainers: int = 0
    """Trainers that are ready now."""
    desired_trainers: int = 0
    """The parallelism of the trainer Job now."""
    pservers: int = 0
    """Pservers that are ready now."""
    trainer_selector: str = ""
    """Label selector of the trainers, as text (for the scale subresource)."""
    start_time: str | None = None
    completion_time: str | None = None
    agents: AgentView | None = None


class TrainingJob(Record, frozen=True, kw_only=True):
    """An elastic training job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TrainingJobSpec = TrainingJobSpec()
    status: TrainingJobStatus = TrainingJobStatus()
