"""PURE: the pod of a role: its containers, volumes, placement, security."""

from __future__ import annotations

from typing import Any

import msgspec

from edl_controller.api.defaults import has_command
from edl_controller.api.meta import Json, ObjectMeta
from edl_controller.api.pods import (
    Container,
    ContainerPort,
    EmptyDir,
    HttpGetAction,
    PodSpec,
    PodTemplateSpec,
    Probe,
    ReadinessGate,
    ResourceRequirements,
    Volume,
    VolumeMount,
)
from edl_controller.api.v1 import PodOverrides, TrainingJob
from edl_controller.core.agent_wiring import wire
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.meeting_point import MASTER_ETCD_PORT, MeetingPoint, in_master_pod
from edl_controller.core.names import IN_SERVICE_GATE, Role, labels
from edl_controller.core.pod_environment import (
    LOGIN_FOLDER,
    TLS_FOLDER,
    agent_environment,
    environment,
    pod_references,
    role_spec,
)
from edl_controller.core.pod_security import NOBODY, container_security, pod_security

_TLS_VOLUME, _LOGIN_VOLUME, _ETCD_VOLUME = "edl-etcd-tls", "edl-etcd-login", "edl-etcd-data"
_ETCD_FOLDER = "/var/lib/edl-etcd"
_GROUP_READS = 0o440

_CLASSIC_ETCD_PORT = 4001
"""The second client port that the original's etcd listens on."""

_MASTER_PORT = 8080

_ETCD_BESIDE_A_MASTER = ResourceRequirements(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "512Mi"})
"""Where the user's master command has the role's resources."""


def pod_template(
    job: TrainingJob, role: Role, meeting: MeetingPoint, annotations: dict[str, str], settings: JobSettings
) -> PodTemplateSpec:
    """Return what a role's pods are made from.

    Args:
        job: validated.
        role: whose.
        meeting: where the agents meet.
        annotations: of the controller.
        settings: of the operator.
    """
    spec, overrides = job.spec, merged_overrides(job, role)
    containers, sidecars, own_volumes = _containers(job, role, meeting, settings)
    secured = container_security(overrides.container_security_context)
    secrets = bool(meeting.tls_secret or meeting.credentials_secret) and role != "master"
    return PodTemplateSpec(
        metadata=ObjectMeta(
            labels={**overrides.labels, **labels(job.metadata.name, job.metadata.uid, role)},
            annotations={**overrides.annotations, **annotations},
        ),
        spec=PodSpec(
            containers=tuple(_secured(one, secured) for one in containers),
            init_containers=tuple(_secured(one, secured) for one in sidecars),
            volumes=(*spec.volumes, *own_volumes),
            restart_policy="Never" if role == "trainer" else "Always",
            node_selector={**spec.node_selector, **overrides.node_selector},
            tolerations=overrides.tolerations,
            affinity=overrides.affinity,
            host_network=spec.host_network,
            dns_policy="ClusterFirstWithHostNet" if spec.host_network else "",
            service_account_name=overrides.service_account_name,
            # Pods need no access to the API; a job that names an account wants that account's.
            automount_service_account_token=None if overrides.service_account_name else False,
            enable_service_links=False,
            security_context=pod_security(overrides.security_context, secrets=secrets),
            image_pull_secrets=spec.image_pull_secrets,
            priority_class_name=overrides.priority_class_name,
            readiness_gates=(ReadinessGate(condition_type=IN_SERVICE_GATE),) if role == "trainer" else (),
            termination_grace_period_seconds=overrides.termination_grace_period_seconds,
        ),
    )


def merged_overrides(job: TrainingJob, role: Role) -> PodOverrides:
    """Return a role's overrides over the job's: maps are merged key by key, everything else is replaced."""
    common, own = job.spec.template, role_spec(job, role).template
    found: dict[str, Any] = {}
    for name in PodOverrides.__struct_fields__:
        wide, narrow = getattr(common, name), getattr(own, name)
        if name in ("labels", "annotations", "node_selector"):
            found[name] = {**wide, **narrow}
        else:
            found[name] = wide if narrow in (None, "", ()) else narrow
    return PodOverrides(**found)


def _secured(container: Container, context: Json) -> Container:
    """Return the container with its security context; what it has already is a default."""
    return msgspec.structs.replace(container, security_context={**(container.security_context or {}), **context})


def _containers(
    job: TrainingJob, role: Role, meeting: MeetingPoint, settings: JobSettings
) -> tuple[tuple[Container, ...], tuple[Container, ...], tuple[Volume, ...]]:
    """Main containers, native sidecars, and the volumes that are ours."""
    if role == "master" and in_master_pod(job):
        etcd = _etcd(job, settings)
        data = Volume(name=_ETCD_VOLUME, empty_dir=EmptyDir())
        if not has_command(job.spec.master) and job.spec.agent.mode != "Classic":
            return (etcd,), (), (data,)
        master = _main(job, role, meeting, settings)[0]
        return (master, msgspec.structs.replace(etcd, resources=_ETCD_BESIDE_A_MASTER)), (), (data,)
    main, sidecars, volumes = _main(job, role, meeting, settings)
    return (main,), sidecars, volumes


def _main(
    job: TrainingJob, role: Role, meeting: MeetingPoint, settings: JobSettings
) -> tuple[Container, tuple[Container, ...], tuple[Volume, ...]]:
    spec, own = job.spec, role_spec(job, role)
    secured = container_security(merged_overrides(job, role).container_security_context)
    wiring = wire(job, role, settings, read_only_root=bool(secured.get("readOnlyRootFilesystem")))
    secret_volumes, secret_mounts = _secrets(meeting)
    extra = dict(wiring.environment)
    if role == "master" and in_master_pod(job):
        # A master finds etcd in its own pod.
        extra |= {"MASTER_IP": "$(POD_IP)", "ETCD_IP": "$(POD_IP)", "EDL_ETCD_ENDPOINTS": _url(MASTER_ETCD_PORT)}
    main = Container(
        name=role,
        image=own.image,
        image_pull_policy=spec.image_pull_policy,
        command=wiring.command,
        args=wiring.args,
        working_dir=wiring.working_dir,
        env=environment(job, role, meeting, extra),
        ports=_ports(job, role),
        resources=own.resources,
        volume_mounts=(*spec.volume_mounts, *wiring.mounts, *secret_mounts),
        readiness_probe=wiring.readiness,
        liveness_probe=wiring.liveness,
        termination_message_policy="FallbackToLogsOnError",
    )
    sidecars = tuple(
        msgspec.structs.replace(
            one,
            image_pull_policy=spec.image_pull_policy,
            env=agent_environment(job, role, meeting),
            volume_mounts=(*wiring.mounts, *secret_mounts),
        )
        for one in wiring.sidecars
    )
    return main, sidecars, (*wiring.volumes, *secret_volumes)


def _ports(job: TrainingJob, role: Role) -> tuple[ContainerPort, ...]:
    if role == "master":
        return (ContainerPort(name="master-port", container_port=_MASTER_PORT),)
    first, count = job.spec.port or 0, (job.spec.ports_num or 0) + (job.spec.ports_num_for_sparse or 0)
    return tuple(ContainerPort(name=f"jobport-{port}", container_port=port) for port in range(first, first + count))


def _secrets(meeting: MeetingPoint) -> tuple[tuple[Volume, ...], tuple[VolumeMount, ...]]:
    wanted = (
        (_TLS_VOLUME, meeting.tls_secret, TLS_FOLDER),
        (_LOGIN_VOLUME, meeting.credentials_secret, LOGIN_FOLDER),
    )
    present = [(name, secret, folder) for name, secret, folder in wanted if secret]
    return (
        tuple(
            Volume(name=name, secret={"secretName": secret, "defaultMode": _GROUP_READS}) for name, secret, _ in present
        ),
        tuple(VolumeMount(name=name, mount_path=folder, read_only=True) for name, _, folder in present),
    )


def _url(port: int) -> str:
    return f"http://$(POD_IP):{port}"


def _etcd(job: TrainingJob, settings: JobSettings) -> Container:
    """One member on the pod's own address. Its cluster token is the pod's uid: another pod is another cluster."""
    url, peer = _url(MASTER_ETCD_PORT), _url(MASTER_ETCD_PORT + 1)
    listen = [url]
    if job.spec.agent.mode == "Classic":
        listen += [_url(_CLASSIC_ETCD_PORT), f"http://127.0.0.1:{MASTER_ETCD_PORT}"]
    return Container(
        name="etcd",
        image=settings.etcd_image,
        image_pull_policy=job.spec.image_pull_policy,
        command=(
            *settings.etcd_command,
            "--name=master",
            f"--data-dir={_ETCD_FOLDER}/data",
            f"--listen-client-urls={','.join(listen)}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=master={peer}",
            "--initial-cluster-token=$(POD_UID)",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=5m",
        ),
        env=pod_references(),
        ports=(ContainerPort(name="etcd-port", container_port=MASTER_ETCD_PORT),),
        resources=job.spec.master.resources,
        volume_mounts=(VolumeMount(name=_ETCD_VOLUME, mount_path=_ETCD_FOLDER),),
        # The image says nothing, which is root.
        security_context={"runAsUser": NOBODY},
        readiness_probe=Probe(
            http_get=HttpGetAction(port=MASTER_ETCD_PORT, path="/health"), period_seconds=2, timeout_seconds=5
        ),
        liveness_probe=Probe(
            # A store that is full answers reads: a restart would not help it.
            http_get=HttpGetAction(port=MASTER_ETCD_PORT, path="/health?exclude=NOSPACE&serializable=true"),
            initial_delay_seconds=10,
            timeout_seconds=15,
            failure_threshold=8,
        ),
    )
