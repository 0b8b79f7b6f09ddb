"""PURE: modern names of the classic fields: camel case, as all other fields of the Kubernetes world.

Only where they are unambiguous. Both names with the same value are fine, with different values a fault; where a job was
stored with both, the classic one counts.
"""

from __future__ import annotations

from typing import Any

from edl_controller.errors import Fault

SPEC_ALIASES = {
    "portsNum": "ports_num",
    "portsNumForSparse": "ports_num_for_sparse",
    "faultTolerant": "fault_tolerant",
    "hostNetwork": "host_network",
    "HostNetwork": "host_network",  # of the original's own types: a slip in a struct tag
    "volumeMounts": "VolumeMounts",
    "nodeSelector": "NodeSelector",
}
"""Alias to classic name, in ``spec``."""

ROLE_ALIASES = {"minInstance": "min-instance", "maxInstance": "max-instance", "etcdEndpoint": "etcd-endpoint"}
"""Alias to classic name, in ``spec.trainer``, ``spec.pserver`` and ``spec.master``."""

ROLES = ("trainer", "pserver", "master")

IGNORED = {"trainer": ("passes",)}
"""Where the original's example files have a field that nothing reads: accepted, and still not read."""


def with_classic_names(document: Any) -> tuple[Any, list[Fault]]:
    """Return the document with classic names only, and the aliases that contradict them.

    The argument is not changed.
    """
    faults: list[Fault] = []
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        return document, faults
    spec = _renamed(document["spec"], SPEC_ALIASES, "spec", faults)
    for role in ROLES:
        if isinstance(spec.get(role), dict):
            renamed = _renamed(spec[role], ROLE_ALIASES, f"spec.{role}", faults)
            spec = {**spec, role: {key: item for key, item in renamed.items() if key not in IGNORED.get(role, ())}}
    return {**document, "spec": spec}, faults


def _renamed(values: dict[str, Any], aliases: dict[str, str], path: str, faults: list[Fault]) -> dict[str, Any]:
    found = {key: item for key, item in values.items() if key not in aliases}
    for alias, name in aliases.items():
        item = values.get(alias)
        if item is None:
            continue
        if found.get(name) is not None and found[name] != item:
            faults.append(Fault(f"{path}.{alias}", "Invalid", f"it is another name of {name}, which has another value"))
        else:
            found[name] = item
    return found
