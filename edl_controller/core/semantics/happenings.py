"""PURE: the Events that Kubernetes' controllers write beside what they do, in their words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edl_controller.api import timestamps
from edl_controller.api.events import Event
from edl_controller.api.kinds import ApiObject, Kind
from edl_controller.api.meta import ObjectMeta, is_true
from edl_controller.api.workloads import JobStatus

REPORTERS = {"Job": "job-controller", "ReplicaSet": "replicaset-controller", "Pod": "default-scheduler"}
"""Who writes events about objects of a kind."""


def event(kind: Kind[Any], obj: ApiObject, reason: str, note: str, now: float, *, warning: bool = False) -> Event:
    """Return an Event about an object; who stores it ends its name."""
    meta = obj.metadata
    return Event(
        metadata=ObjectMeta(generate_name=f"{meta.name}.", namespace=meta.namespace or "default"),
        event_time=timestamps.render_micro(now),
        reporting_controller=REPORTERS.get(kind.name, kind.name.lower()),
        reporting_instance=REPORTERS.get(kind.name, kind.name.lower()),
        action=reason,
        reason=reason,
        regarding=kind.reference(obj),
        note=note[:1024],
        type="Warning" if warning else "Normal",
    )


def of_a_job(before: JobStatus, after: JobStatus) -> Iterator[tuple[str, str, bool]]:
    """Yield reason, note and whether it is a warning, of what became of a Job between two statuses."""
    old = {(condition.type, condition.status) for condition in before.conditions}
    for condition in after.conditions:
        if (condition.type, condition.status) in old:
            continue
        match condition.type, condition.status:
            case "Complete", "True":
                yield "Completed", "Job completed", False
            case "Failed", "True":
                yield condition.reason, condition.message, True
            case "Suspended", "True":
                yield "Suspended", condition.message, False
            case "Suspended", "False" if is_true(before.conditions, "Suspended"):
                yield "Resumed", condition.message, False
