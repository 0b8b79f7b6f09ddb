"""PURE: Pod and its parts, as far as they are read; deeper parts are kept as JSON and handed on."""

from __future__ import annotations

import msgspec

from edl_controller.api.meta import Condition, Json, LocalObjectReference, ObjectMeta, Record

Quantities = dict[str, str | int | float]
"""Resource name to amount as it was written (`edl_controller.api.quantity` reads it exactly)."""

# Field names that Python reserves or that are no plain camel case need a name of their own.
field = msgspec.field


class ResourceRequirements(Record, frozen=True, kw_only=True):
    """What a container asks for and what it may not exceed."""

    limits: Quantities = {}
    requests: Quantities = {}


class KeySelector(Record, frozen=True, kw_only=True):
    """A key of a Secret or ConfigMap of the same namespace."""

    name: str = ""
    key: str = ""
    optional: bool = False


class FieldSelector(Record, frozen=True, kw_only=True):
    """A field of the pod itself, such as ``status.podIP``."""

    field_path: str
    api_version: str = ""


class EnvVarSource(Record, frozen=True, kw_only=True):
    """Where the value of a variable comes from; one of them is set."""

    field_ref: FieldSelector | None = None
    secret_key_ref: KeySelector | None = None
    config_map_key_ref: KeySelector | None = None
    resource_field_ref: Json | None = None


class EnvVar(Record, frozen=True, kw_only=True):
    """One environment variable; ``$(NAME)`` in a value is expanded, ``$$(NAME)`` is not."""

    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class ContainerPort(Record, frozen=True, kw_only=True):
    """A port that the container listens on."""

    container_port: int
    name: str = ""
    protocol: str = ""
    host_port: int = 0
    host_ip: str = field(default="", name="hostIP")


class VolumeMount(Record, frozen=True, kw_only=True):
    """Where a volume of the pod appears in the container."""

    name: str
    mount_path: str
    sub_path: str = ""
    read_only: bool = False


class HostPath(Record, frozen=True, kw_only=True):
    """A path of the node."""

    path: str
    type: str = ""


class EmptyDir(Record, frozen=True, kw_only=True):
    """A folder that lives as long as the pod."""

    medium: str = ""
    size_limit: str | int | float | None = None


class Volume(Record, frozen=True, kw_only=True):
    """A volume; exactly one source is set."""

    name: str
    empty_dir: EmptyDir | None = None
    host_path: HostPath | None = None
    secret: Json | None = None
    config_map: Json | None = None
    downward_api: Json | None = field(default=None, name="downwardAPI")
    projected: Json | None = None
    persistent_volume_claim: Json | None = None
    ephemeral: Json | None = None
    csi: Json | None = None
    nfs: Json | None = None
    image: Json | None = None


class ExecAction(Record, frozen=True, kw_only=True):
    """A command run in the container; exit code 0 is success."""

    command: tuple[str, ...] = ()


class HttpGetAction(Record, frozen=True, kw_only=True):
    """A GET request; 200 to 399 is success."""

    port: int | str
    path: str = ""
    host: str = ""
    scheme: str = ""
    http_headers: tuple[Json, ...] = ()


class TcpSocketAction(Record, frozen=True, kw_only=True):
    """A connection that must open."""

    port: int | str
    host: str = ""


class Probe(Record, frozen=True, kw_only=True):
    """A question asked again and again; times in whole seconds. Kubernetes' defaults are 0, 10, 1, 1, 3."""

    exec: ExecAction | None = None
    http_get: HttpGetAction | None = None
    tcp_socket: TcpSocketAction | None = None
    grpc: Json | None = None
    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 1
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class LifecycleHandler(Record, frozen=True, kw_only=True):
    """What is done after the start or before the stop of a container."""

    exec: ExecAction | None = None
    http_get: HttpGetAction | None = None
    tcp_socket: TcpSocketAction | None = None
    sleep: Json | None = None


class Lifecycle(Record, frozen=True, kw_only=True):
    """Hooks of a container."""

    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None


class Container(Record, frozen=True, kw_only=True):
    """One container. As an init container with ``restart_policy="Always"`` it is a native sidecar (KEP-753)."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[Json, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    volume_mounts: tuple[VolumeMount, ...] = ()
    image_pull_policy: str = ""
    security_context: Json | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    restart_policy: str | None = None
    termination_message_path: str = ""
    termination_message_policy: str = ""


class Toleration(Record, frozen=True, kw_only=True):
    """A taint that the pod may be placed in spite of."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class ReadinessGate(Record, frozen=True, kw_only=True):
    """A condition that somebody else sets and that must be True before the pod is Ready."""

    condition_type: str


class PodSpec(Record, frozen=True, kw_only=True):
    """What a pod should be."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    restart_policy: str = ""
    node_name: str = ""
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    affinity: Json | None = None
    topology_spread_constraints: tuple[Json, ...] = ()
    host_network: bool = False
    service_account_name: str = ""
    automount_service_account_token: bool | None = None
    security_context: Json | None = None
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    priority_class_name: str = ""
    priority: int | None = None
    scheduler_name: str = ""
    scheduling_gates: tuple[Json, ...] = ()
    readiness_gates: tuple[ReadinessGate, ...] = ()
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    enable_service_links: bool | None = None
    share_process_namespace: bool | None = None
    hostname: str = ""
    subdomain: str = ""
    dns_policy: str = ""
    overhead: Quantities = {}


class ContainerStateRunning(Record, frozen=True, kw_only=True):
    """The container runs."""

    started_at: str | None = None


class ContainerStateTerminated(Record, frozen=True, kw_only=True):
    """The container ended."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerStateWaiting(Record, frozen=True, kw_only=True):
    """The container does not run yet, or not again yet."""

    reason: str = ""
    message: str = ""


class ContainerState(Record, frozen=True, kw_only=True):
    """One of the three."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Record, frozen=True, kw_only=True):
    """What the node reports of one container."""

    name: str
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    image: str = ""
    image_id: str = field(default="", name="imageID")
    container_id: str = field(default="", name="containerID")
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(Record, frozen=True, kw_only=True):
    """What the node and the scheduler report of a pod. Phases: Pending, Running, Succeeded, Failed, Unknown."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    reason: str = ""
    message: str = ""
    pod_ip: str = field(default="", name="podIP")
    host_ip: str = field(default="", name="hostIP")
    start_time: str | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    observed_generation: int = 0
    qos_class: str = ""


class Pod(Record, frozen=True, kw_only=True):
    """A pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodTemplateSpec(Record, frozen=True, kw_only=True):
    """What the pods of a workload are made from."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
