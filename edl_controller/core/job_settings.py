"""PURE: what the operator of the controller decides for all jobs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from edl_controller.api.settings import Settings


@dataclass(frozen=True)
class JobSettings:
    """Settings of the parser and the life cycle. Times in seconds.

    Attributes:
        limits: what jobs may ask for; whether there is an external etcd follows from ``etcd_endpoints``.
        etcd_endpoints: of the etcd that all jobs share, as their pods reach it; empty: each job has its own, in its
            master pod.
        etcd_tls_secret: Secret (in each job's namespace) with ``ca.crt``, where that etcd speaks TLS.
        etcd_client_certificate: that Secret has ``tls.crt`` and ``tls.key`` too.
        etcd_credentials_secret: Secret (in each job's namespace) with ``username`` and ``password`` for that etcd.
        etcd_image: of the etcd in a master pod.
        etcd_command: how it is started there.
        agent_command: how the agent is started in the pods; found on the image's PATH.
        probe_port: where launchers answer probes, on the pod's own address; 0 = probes run ``edl-agent`` in the
            container (the rule on the host's network, where a port may be taken).
        agents_stale: from this age on what the agents said counts as unknown.
        foreign_retry: between two looks at a name that is taken by a stranger's object.
    """

    limits: Settings = field(default_factory=Settings)
    etcd_endpoints: tuple[str, ...] = ()
    etcd_tls_secret: str = ""
    etcd_client_certificate: bool = False
    etcd_credentials_secret: str = ""
    etcd_image: str = "quay.io/coreos/etcd:v3.6.16"
    etcd_command: tuple[str, ...] = ("etcd",)
    agent_command: tuple[str, ...] = ("edl-agent",)
    probe_port: int = 7099
    agents_stale: float = 30.0
    foreign_retry: float = 60.0

    @property
    def rules(self) -> Settings:
        """What defaults and validation go by."""
        return replace(self.limits, external_etcd=bool(self.etcd_endpoints))


DEFAULT_SETTINGS = JobSettings()
