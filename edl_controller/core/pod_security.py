"""PURE: pods are *restricted* in the sense of Kubernetes' Pod Security Standards; a job may say otherwise by key."""

from __future__ import annotations

from edl_controller.api.meta import Json

_POD: Json = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_CONTAINER: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

NOBODY = 65532
"""User of containers whose image is ours to choose; group that may read mounted Secrets (the pod is in it)."""


def pod_security(users: Json | None, *, secrets: bool) -> Json:
    """Return the pod's security context.

    Args:
        users: what the job says; wins.
        secrets: whether Secrets are mounted that only a group may read.
    """
    group: Json = {"fsGroup": NOBODY, "fsGroupChangePolicy": "OnRootMismatch"} if secrets else {}
    return {**_POD, **group, **(users or {})}


def container_security(users: Json | None) -> Json:
    """Return the security context of each container; what the job says wins."""
    return {**_CONTAINER, **(users or {})}
