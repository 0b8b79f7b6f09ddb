"""From settings to connections: the cluster, the Lease's own connection to it, the controller's etcd, what jobs get."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from edl_agent import errors as agent_errors
from edl_agent.config import make_settings
from edl_agent.etcd.identity import TlsFiles
from edl_controller.agent_store import EtcdAccess
from edl_controller.api.names import is_label, is_subdomain
from edl_controller.cluster.port import Cluster
from edl_controller.core.election import ElectionSettings
from edl_controller.core.job_settings import JobSettings
from edl_controller.errors import ConfigurationError, MissingExtra, Unavailable
from edl_controller.machine.local_state import LocalState, default_root
from edl_controller.program.settings import ProgramSettings

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ClosableCluster(Cluster, Protocol):
    """A cluster with connections."""

    def close(self) -> None:
        """Drop them."""
        ...


class ApiCalls(Protocol):
    """Is told of every request to the API server."""

    def called(self, method: str, status: int) -> None:
        """One was answered; 0: it was not."""
        ...


class Connect(Protocol):
    """Makes a cluster with connections of its own."""

    def __call__(
        self, calls: ApiCalls, *, answer_within: float | None = None, before_write: Callable[[], None] | None = None
    ) -> ClosableCluster:
        """Connect.

        Args:
            calls: who counts the requests.
            answer_within: seconds to an answer; None: the usual ones.
            before_write: asked at the last moment before a write; what it raises ends it undone.
        """
        ...


def connector(settings: ProgramSettings) -> Connect:
    """Return what connects to the cluster. Nothing is dialled.

    Raises:
        ConfigurationError: there are no credentials, or no local cluster; the text says what to do.
        MissingExtra: the Kubernetes client is not installed.
    """
    return _kube(settings) if settings.cluster == "kube" else _local(settings)


def _kube(settings: ProgramSettings) -> Connect:
    try:
        from edl_controller.cluster.kube import KubeCluster, from_environment, kubeconfig
        from edl_controller.cluster.kube.credentials import Credentials
        from edl_controller.cluster.kube.transport import ANSWER_WITHIN, Transport
    except ImportError as error:
        raise MissingExtra("a Kubernetes cluster needs its client: pip install 'edl[controller]'") from error
    named = settings.kubeconfig or settings.context
    source = kubeconfig(settings.kubeconfig or None, settings.context or None) if named else from_environment()
    try:
        Credentials(source).access()
    except Unavailable as error:
        where = settings.kubeconfig or os.environ.get("KUBECONFIG") or "the pod's service account or ~/.kube/config"
        context = f", context {settings.context!r}" if settings.context else ""
        raise ConfigurationError(f"no way to the API server in {where}{context}: {error}") from error

    def connect(
        calls: ApiCalls, *, answer_within: float | None = None, before_write: Callable[[], None] | None = None
    ) -> ClosableCluster:
        transport = Transport(
            Credentials(source), answer_within=answer_within or ANSWER_WITHIN, before_write=before_write, calls=calls
        )
        return KubeCluster(source, lean_pods=True, transport=transport)

    return connect


def _local(settings: ProgramSettings) -> Connect:
    from edl_controller.cluster.local import LocalCluster

    endpoints, prefix = local_place(settings)

    def connect(
        calls: ApiCalls, *, answer_within: float | None = None, before_write: Callable[[], None] | None = None
    ) -> ClosableCluster:
        try:
            return LocalCluster(endpoints, prefix=prefix)
        except agent_errors.ConfigurationError as error:
            raise ConfigurationError(f"local-endpoints: {error}") from error

    return connect


def local_place(settings: ProgramSettings) -> tuple[str, str]:
    """Return etcd's endpoints and the prefix of the cluster of this machine.

    Raises:
        ConfigurationError: none is up, and none is given.
    """
    if settings.local_endpoints:
        return ",".join(settings.local_endpoints), settings.local_prefix
    state = LocalState(default_root())
    serving = state.serving()
    if serving is None:
        raise ConfigurationError(
            f"no cluster is up in {state.root}: `edl local up` starts one, --local-endpoints names an etcd"
        )
    return serving.endpoints, serving.prefix


def etcd_access(settings: ProgramSettings) -> EtcdAccess | None:
    """Return the etcd that all jobs share, as the controller reaches it; None: there is none.

    Raises:
        ConfigurationError: endpoints, files, or user and password do not go together.
    """
    tls_given = settings.etcd_ca or settings.etcd_cert or settings.etcd_key
    if not settings.etcd_endpoints:
        if tls_given or settings.etcd_user or settings.etcd_password_file:
            raise ConfigurationError("etcd-endpoints is missing, and an identity for it is given")
        return None
    try:
        tls = (
            TlsFiles(settings.etcd_ca or None, settings.etcd_cert or None, settings.etcd_key or None)
            if tls_given
            else None
        )
        made = make_settings(
            settings.etcd_endpoints,
            None,
            tls=tls,
            user=settings.etcd_user or None,
            password_file=settings.etcd_password_file or None,
            unsafe_plaintext_password=settings.etcd_unsafe_plaintext_password,
        )
    except agent_errors.ConfigurationError as error:
        raise ConfigurationError(f"etcd of the jobs: {error}") from error
    return EtcdAccess(settings.etcd_endpoints, made.tls, made.login)


def job_settings(settings: ProgramSettings) -> JobSettings:
    """Return what jobs and their agents get."""
    defaults = JobSettings()
    return replace(
        defaults,
        limits=replace(
            defaults.limits,
            default_image=settings.job_default_image,
            image_prefixes=settings.job_image_prefixes,
            max_instances=settings.job_max_instances,
            allow_host_network=settings.job_allow_host_network,
            host_paths=settings.job_host_paths,
            allow_privileged=settings.job_allow_privileged,
            service_accounts=settings.job_service_accounts,
        ),
        etcd_endpoints=settings.job_etcd_endpoints or settings.etcd_endpoints,
        etcd_tls_secret=settings.job_etcd_tls_secret,
        etcd_client_certificate=settings.job_etcd_client_certificate,
        etcd_credentials_secret=settings.job_etcd_credentials_secret,
        etcd_image=settings.job_etcd_image,
        agent_command=settings.job_agent_command,
        probe_port=settings.job_probe_port,
        agents_stale=settings.agents_stale,
    )


def check_names(settings: ProgramSettings) -> None:
    """See that what names objects can be a name: it becomes a part of paths.

    Raises:
        ConfigurationError: it cannot.
    """
    for key, names in (
        ("namespaces", settings.namespaces),
        ("lease-namespace", (settings.lease_namespace,) if settings.lease_namespace else ()),
    ):
        for name in names:
            if not is_label(name):
                raise ConfigurationError(f"{key}: {name!r} cannot be the name of a namespace")
    if not is_subdomain(settings.lease_name):
        raise ConfigurationError(f"lease-name: {settings.lease_name!r} cannot be the name of a Lease")


def election_settings(settings: ProgramSettings) -> ElectionSettings:
    """Return the times of the election.

    Raises:
        ConfigurationError: they cannot work together.
    """
    return ElectionSettings(
        lease=settings.lease_duration, renew_deadline=settings.lease_renew_deadline, retry=settings.lease_retry
    )


def lease_namespace(settings: ProgramSettings, environment: Mapping[str, str]) -> str:
    """Return where the Lease is: as set, else the pod's own namespace, else ``default``."""
    if settings.lease_namespace:
        return settings.lease_namespace
    if environment.get("POD_NAMESPACE"):
        return environment["POD_NAMESPACE"]
    try:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"
