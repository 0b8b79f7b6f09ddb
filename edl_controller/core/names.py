"""PURE: the names a job gives to its children, their labels, and its place in etcd.

Names are a function of the job alone, so that a controller that crashed between two steps finds what it has made. The
classic names (``<job>-trainer``) are kept as long as they fit; longer ones are cut and carry a hash of the whole.
"""

from __future__ import annotations

import re
from typing import Literal

from edl_controller.api.names import ROLE_LABELS, child_name, label_value

__all__ = (
    "COORDINATION_ANNOTATION",
    "IN_SERVICE_GATE",
    "JOB_UID_LABEL",
    "PSERVERS_ANNOTATION",
    "REVISION_ANNOTATION",
    "ROLES",
    "ROLE_LABEL",
    "Role",
    "child_name",
    "etcd_prefix",
    "labels",
    "selector_text",
)

Role = Literal["master", "pserver", "trainer"]
ROLES: tuple[Role, ...] = ("master", "pserver", "trainer")

JOB_UID_LABEL = "paddlepaddle.org/job-uid"
ROLE_LABEL = "paddlepaddle.org/role"

REVISION_ANNOTATION = "paddlepaddle.org/revision"
"""Hash of what the user wrote for this role, on children and pods: another hash is another template."""

COORDINATION_ANNOTATION = "paddlepaddle.org/coordination"
"""Which etcd a child was made for: the uid of the master's pod, or the id of the external cluster."""

PSERVERS_ANNOTATION = "paddlepaddle.org/pservers"
"""The number of pservers in effect, which an edit does not change."""

IN_SERVICE_GATE = "paddlepaddle.org/in-service"
"""Readiness gate of the trainers: True from the start, set False for the victims of a scale-down, so that the Job
controller removes exactly these (it removes pods that are not ready first)."""

_ESCAPED = re.compile(r"[^A-Za-z0-9._-]")


def labels(job: str, uid: str, role: Role) -> dict[str, str]:
    """Return the labels of a child and of its pods. The uid keeps two jobs apart that had the same name."""
    return {ROLE_LABELS[role]: label_value(job), JOB_UID_LABEL: uid, ROLE_LABEL: role}


def selector_text(found: dict[str, str]) -> str:
    """Write labels as a selector: ``a=b,c=d``."""
    return ",".join(f"{key}={value}" for key, value in found.items())


def etcd_prefix(namespace: str, name: str, uid: str) -> str:
    """Return ``/edl/jobs/<namespace>/<name>/<uid>``: where the job's keys live in a shared etcd.

    Whatever the parts hold, none can leave its place and two jobs never share one: characters beyond letters, digits,
    ``.``, ``_`` and ``-`` are written as ``~`` and their code in hexadecimal.
    """
    return "/edl/jobs/" + "/".join(map(_part, (namespace, name, uid)))


def _part(text: str) -> str:
    if text in ("", ".", ".."):
        return "~" + text.replace(".", "~2e~")
    return _ESCAPED.sub(lambda found: f"~{ord(found[0]):x}~", text)
