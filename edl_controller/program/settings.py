"""The settings of `edl-controller`: one table, from which come flags, environment, file keys, help and the document.

The names follow from one another: the field ``max_load`` is ``--max-load``, ``EDL_MAX_LOAD``, and ``max-load`` in the
file. Secrets are no settings: only the files that they are in.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, Literal

from edl_controller.cluster.local.keys import DEFAULT_PREFIX
from edl_controller.core.job_settings import DEFAULT_SETTINGS

_JOBS = DEFAULT_SETTINGS
_LIMITS = DEFAULT_SETTINGS.limits


def _setting(
    default: Any, reason: str, *, unit: str = "", least: float | None = None, most: float | None = None, flag: str = ""
) -> Any:
    """One row: its default, what it is for, its unit, its bounds (inclusive), and its flag where that differs."""
    return dataclasses.field(
        default=default, metadata={"reason": reason, "unit": unit, "least": least, "most": most, "flag": flag}
    )


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """All settings. Times in seconds. Empty text means: not given."""

    cluster: Literal["kube", "local"] = _setting(
        "kube", "Where TrainingJobs live: a Kubernetes API server, or the cluster of this machine (edl local)."
    )
    kubeconfig: str = _setting(
        "", "Kubeconfig; not given: the pod's service account, else $KUBECONFIG, else ~/.kube/config.", unit="file"
    )
    context: str = _setting("", "Context of the kubeconfig; not given: its current one.")
    local_endpoints: tuple[str, ...] = _setting(
        (), "etcd of the cluster of this machine; not given: of the one that is up (EDL_LOCAL_ROOT).", unit="URL"
    )
    local_prefix: str = _setting(DEFAULT_PREFIX, "Prefix of the objects in that etcd.")
    namespaces: tuple[str, ...] = _setting(
        (),
        "Namespace to look after, repeatable; none: all. With one or more there is no call to the cluster as a whole.",
        flag="namespace",
    )
    workers: int = _setting(4, "Jobs that are worked on at once.", unit="jobs", least=1, most=256)
    resync: float = _setting(
        600.0, "Between two whole lists, which make good what was missed; 0: none.", unit="s", least=0, most=86400
    )
    autoscale: bool | None = _setting(
        None,
        "Scale trainers into the room that nodes have. That lists the nodes of the whole cluster, so it is off by "
        "default where namespaces are given; jobs are then only kept between their minimum and maximum.",
    )
    max_load: float = _setting(
        0.97, "Share of the cluster's capacity that elastic trainers may fill.", unit="share", least=0.01, most=1.0
    )
    etcd_endpoints: tuple[str, ...] = _setting(
        (), "The etcd that all jobs share; none: each job has its own, in its master pod.", unit="URL"
    )
    etcd_ca: str = _setting("", "TLS: whom the controller trusts there (PEM).", unit="file")
    etcd_cert: str = _setting("", "TLS: the controller's client certificate.", unit="file")
    etcd_key: str = _setting("", "TLS: its key.", unit="file")
    etcd_user: str = _setting("", "The controller's user there.")
    etcd_password_file: str = _setting("", "Its password, read anew at each login.", unit="file")
    etcd_unsafe_plaintext_password: bool = _setting(
        False, "Allow user and password over http, where the network can read them."
    )
    job_etcd_endpoints: tuple[str, ...] = _setting(
        (), "That etcd as the pods of jobs reach it; not given: as the controller does.", unit="URL"
    )
    job_etcd_tls_secret: str = _setting(
        "", "Secret with ca.crt, in each job's namespace, where that etcd speaks TLS.", unit="Secret"
    )
    job_etcd_client_certificate: bool = _setting(False, "That Secret has tls.crt and tls.key too.")
    job_etcd_credentials_secret: str = _setting(
        "", "Secret with username and password for that etcd, in each job's namespace.", unit="Secret"
    )
    job_etcd_image: str = _setting(_JOBS.etcd_image, "Image of the etcd in master pods.", unit="image")
    job_agent_command: tuple[str, ...] = _setting(
        _JOBS.agent_command, "How the agent is started in the pods; in the environment separated by commas."
    )
    job_probe_port: int = _setting(
        _JOBS.probe_port,
        "Where launchers answer probes; 0: probes run edl-agent in the container.",
        unit="port",
        least=0,
        most=65535,
    )
    job_default_image: str = _setting(_LIMITS.default_image, "Image of jobs that name none.", unit="image")
    job_image_prefixes: tuple[str, ...] = _setting((), "Only images below one of these are accepted; none: all.")
    job_max_instances: int = _setting(
        _LIMITS.max_instances, "Most trainers or pservers of a job.", unit="pods", least=1, most=10_000
    )
    job_allow_host_network: bool = _setting(False, "Allow jobs the network of their nodes.")
    job_host_paths: tuple[str, ...] = _setting((), "Folders of nodes that jobs may mount.", unit="folder")
    job_allow_privileged: bool = _setting(False, "Allow jobs more than the baseline of the Pod Security Standards.")
    job_service_accounts: tuple[str, ...] = _setting(
        _LIMITS.service_accounts, "Service accounts that pods of jobs may run under."
    )
    agents_stale: float = _setting(
        _JOBS.agents_stale, "From this age on what agents said counts as unknown.", unit="s", least=2, most=3600
    )
    leader_elect: bool = _setting(True, "Let one of several replicas lead, by a Lease.")
    lease_namespace: str = _setting("", "Namespace of the Lease; not given: that of the pod, else default.")
    lease_name: str = _setting("edl-controller", "Name of the Lease.")
    lease_duration: float = _setting(
        15.0, "Without a renewal for so long, another replica takes over.", unit="s", least=1, most=3600
    )
    lease_renew_deadline: float = _setting(
        10.0, "Without a renewal for so long, the leader leads no more.", unit="s", least=0.5, most=3600
    )
    lease_retry: float = _setting(2.0, "Between two tries to renew or to take over.", unit="s", least=0.1, most=600)
    stop_within: float = _setting(
        30.0, "For a clean stop: ending work, then releasing the Lease.", unit="s", least=6, most=600
    )
    http_bind: str = _setting(
        "127.0.0.1:8080",
        "Where /healthz, /readyz and /metrics answer. Pods need :8080 (all addresses): kubelets ask from outside.",
        unit="host:port",
    )
    metrics_bind: str = _setting("", "Where /metrics answers instead; not given: with the others.", unit="host:port")
    log_format: Literal["auto", "text", "json"] = _setting("auto", "Form of the log; auto: text on a terminal.")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "What is logged.")

    @property
    def scales(self) -> bool:
        """Whether trainers are scaled."""
        return not self.namespaces if self.autoscale is None else self.autoscale


@dataclass(frozen=True)
class Row:
    """One setting in its forms.

    Attributes:
        name: of the field.
        kind: ``text``, ``whole``, ``number``, ``switch``, ``list`` or ``choice``.
        default: its value.
        reason: one or two sentences.
        unit: of the value; empty: none.
        choices: allowed ones; of a ``choice`` only.
        least, most: bounds; None: none.
        flag: as on the command line.
    """

    name: str
    kind: Literal["text", "whole", "number", "switch", "list", "choice"]
    default: Any
    reason: str
    unit: str
    choices: tuple[str, ...]
    least: float | None
    most: float | None
    flag: str

    @property
    def key(self) -> str:
        """In the file."""
        return self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        """The variable."""
        return f"EDL_{self.name.upper()}"

    @property
    def shown_default(self) -> str:
        """The default, for people; empty: nothing."""
        match self.default:
            case bool():
                return "on" if self.default else "off"
            case None:
                return "it depends"
            case tuple():
                return ",".join(self.default)
            case float():
                return f"{self.default:g}"
            case _:
                return str(self.default)


_KINDS: dict[Any, Literal["text", "whole", "number", "switch", "list"]] = {
    str: "text",
    int: "whole",
    float: "number",
    bool: "switch",
    bool | None: "switch",
    tuple[str, ...]: "list",
}


def _rows() -> tuple[Row, ...]:
    types = typing.get_type_hints(ProgramSettings)
    rows = []
    for field in dataclasses.fields(ProgramSettings):
        known = types[field.name]
        choices = typing.get_args(known) if typing.get_origin(known) is Literal else ()
        flag = "--" + (field.metadata["flag"] or field.name.replace("_", "-"))
        rows.append(
            Row(
                field.name,
                "choice" if choices else _KINDS[known],
                field.default,
                field.metadata["reason"],
                field.metadata["unit"],
                choices,
                field.metadata["least"],
                field.metadata["most"],
                flag,
            )
        )
    return tuple(rows)


ROWS = _rows()
"""The table."""
