"""PURE: access to the node: denied by default.

The rule is the *baseline* of the Pod Security Standards (kubernetes.io/docs/concepts/security/pod-security-standards):
no host network, no host paths, nothing privileged, no added capabilities beyond the harmless ones, no unconfined
profiles; besides, only service accounts that the administrator names, and no priority class of the system.
`edl_controller.api.settings.Settings` opens one door each.
"""

from __future__ import annotations

import posixpath

from edl_controller.api.meta import Json
from edl_controller.api.names import is_subdomain
from edl_controller.api.pods import Volume
from edl_controller.api.rules.found import Found, shown
from edl_controller.api.settings import Settings
from edl_controller.api.v1 import PodOverrides

_CAPABILITIES = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SYSCTLS = frozenset(
    {
        *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"),
        *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
        *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
        *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
    }
)


def check_host_path(found: Found, path: str, volume: Volume, settings: Settings) -> None:
    """Check that a volume shows no folder of the node that is not allowed."""
    if volume.host_path is None:
        return
    folder = volume.host_path.path
    if not folder.startswith("/") or ".." in folder.split("/"):
        found.invalid(f"{path}.hostPath.path", f"{shown(folder)} is no absolute path without '..'")
        return
    folder = posixpath.normpath(folder).replace("//", "/")
    allowed = any(
        folder == root.rstrip("/") or folder.startswith(f"{root.rstrip('/')}/") for root in settings.host_paths
    )
    if not allowed:
        found.forbidden(
            f"{path}.hostPath", f"{shown(folder)} is a folder of the node; this installation does not show it"
        )


def check_identity(found: Found, path: str, template: PodOverrides, settings: Settings) -> None:
    """Check under whose name, and how urgently, the pods run."""
    account = template.service_account_name
    if account and account not in settings.service_accounts:
        found.forbidden(f"{path}.serviceAccountName", f"{shown(account)} is not open to training jobs")
    priority = template.priority_class_name
    if priority and not is_subdomain(priority):
        found.invalid(f"{path}.priorityClassName", f"{shown(priority)} is no name of an object")
    elif priority.startswith("system-"):
        found.forbidden(f"{path}.priorityClassName", f"{shown(priority)} is for the system's own pods")


def check_security_context(found: Found, path: str, context: Json | None, settings: Settings) -> None:
    """Check the security context of a pod or of a container."""
    if context is None or settings.allow_privileged:
        return

    def deny(field: str) -> None:
        found.forbidden(f"{path}.{field}", "it goes beyond the baseline of the Pod Security Standards")

    if context.get("privileged"):
        deny("privileged")
    if not {str(added) for added in _list(_dict(context.get("capabilities")).get("add"))} <= _CAPABILITIES:
        deny("capabilities.add")
    if context.get("procMount") not in (None, "", "Default"):
        deny("procMount")
    for profile in ("seccompProfile", "appArmorProfile"):
        if _dict(context.get(profile)).get("type") == "Unconfined":
            deny(f"{profile}.type")
    linux = _dict(context.get("seLinuxOptions"))
    if linux.get("user") or linux.get("role") or linux.get("type", "") not in _SELINUX_TYPES:
        deny("seLinuxOptions")
    if _dict(context.get("windowsOptions")).get("hostProcess"):
        deny("windowsOptions.hostProcess")
    if any(str(_dict(sysctl).get("name")) not in _SYSCTLS for sysctl in _list(context.get("sysctls"))):
        deny("sysctls")


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    # What is no list is taken for its only entry, which no rule allows.
    return value if isinstance(value, list) else [] if value is None else [value]
