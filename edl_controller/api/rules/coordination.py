"""PURE: etcd and the agents: where they meet and how."""

from __future__ import annotations

from edl_agent.errors import ConfigurationError
from edl_agent.etcd.endpoints import parse_endpoints
from edl_controller.api.names import is_subdomain
from edl_controller.api.rules.found import Found, shown
from edl_controller.api.settings import Settings
from edl_controller.api.v1 import EtcdSpec, TrainingJobSpec

ETCD_MODES = ("External", "Master")
AGENT_MODES = ("Launcher", "Library", "Sidecar", "Classic")
ENDPOINTS_LIMIT = 20
"""Members of one etcd."""
TTL_RANGE = (2, 86_400)
"""Seconds of the agents' leases: etcd grants no less, and a slot of a dead process stays taken for that long."""


def check_coordination(found: Found, spec: TrainingJobSpec, settings: Settings) -> None:
    """Check ``spec.etcd``, ``spec.agent``, and the roles' classic ``etcd-endpoint`` (which nothing reads)."""
    found.choice("spec.etcd.mode", spec.etcd.mode, ETCD_MODES)
    found.choice("spec.agent.mode", spec.agent.mode, AGENT_MODES)
    found.range("spec.agent.ttlSeconds", spec.agent.ttl_seconds, *TTL_RANGE)
    for name, role in (("trainer", spec.trainer), ("pserver", spec.pserver), ("master", spec.master)):
        if role.etcd_endpoint:
            _endpoints(found, f"spec.{name}.etcd-endpoint", (role.etcd_endpoint,), tls=False)
    _check_etcd(found, spec.etcd, settings)


def _check_etcd(found: Found, etcd: EtcdSpec, settings: Settings) -> None:
    if etcd.mode == "External" and not etcd.endpoints and not settings.external_etcd:
        found.required("spec.etcd.endpoints", "the controller has no etcd for jobs: say where the job's is")
    if etcd.mode == "Master":
        for field, given in (("endpoints", etcd.endpoints), ("tls", etcd.tls), ("credentials", etcd.credentials)):
            if given:
                found.invalid(f"spec.etcd.{field}", "the etcd in the master pod is the controller's to set up")
    if len(etcd.endpoints) > ENDPOINTS_LIMIT:
        found.too_long("spec.etcd.endpoints", f"at most {ENDPOINTS_LIMIT} members are allowed")
    elif etcd.endpoints:
        secure = _endpoints(found, "spec.etcd.endpoints", etcd.endpoints, tls=etcd.tls is not None)
        if secure is False and etcd.credentials is not None:
            found.invalid("spec.etcd.credentials", "a password is not sent without TLS: use https:// endpoints")
    for field, secret in (("tls", etcd.tls), ("credentials", etcd.credentials)):
        if secret is not None and not is_subdomain(secret.secret_name):
            found.invalid(f"spec.etcd.{field}.secretName", f"{shown(secret.secret_name)} is no name of a Secret")


def _endpoints(found: Found, path: str, endpoints: tuple[str, ...], *, tls: bool) -> bool | None:
    """Return whether they use TLS, None where they are no endpoints."""
    before = len(found)
    for index, endpoint in enumerate(endpoints):
        here = f"{path}[{index}]" if path.endswith("s") else path
        if endpoint != endpoint.strip() or ("," in endpoint and here != path):
            found.invalid(here, f"{shown(endpoint)} is not one endpoint")
            continue
        try:
            parse_endpoints(endpoint, tls=tls)
        except ConfigurationError as error:
            found.invalid(here, str(error))
    if len(found) > before:
        return None
    try:
        return parse_endpoints(endpoints, tls=tls)[0].tls
    except ConfigurationError as error:
        found.invalid(path, str(error))
        return None
