"""PURE: what is known about a job: its conditions, the classic phase that follows from them, its scale records."""

from __future__ import annotations

from msgspec.structs import replace

from edl_controller.api import timestamps
from edl_controller.api.meta import Condition, find_condition, is_true
from edl_controller.api.v1 import ScaleRecord, ScaleRecords

CREATED = "Created"
"""All children are there."""
RUNNING = "Running"
"""All pservers and at least the smallest number of trainers are ready."""
SCALING = "Scaling"
"""The number of trainers is being changed."""
SUCCEEDED = "Succeeded"
FAILED = "Failed"
SUSPENDED = "Suspended"
INVALID = "Invalid"
"""The spec has faults; nothing is done until it is changed."""
PLACEABLE = "Placeable"
"""The pods that the job needs fit onto the nodes."""
AGENT_STATE_KNOWN = "AgentStateKnown"
"""The agents' reports are read and fresh."""
COORDINATION_STATE_LOST = "CoordinationStateLost"
"""The job's etcd lost its data: all roles restart from checkpoints."""

TYPES = (
    *(CREATED, RUNNING, SCALING, SUCCEEDED, FAILED, SUSPENDED),
    *(INVALID, PLACEABLE, AGENT_STATE_KNOWN, COORDINATION_STATE_LOST),
)
INTERRUPTED = ("PserversMissing", "TrainersMissing")
"""Reasons of `RUNNING` being False for a job that ran since it was started: it goes on when they are back."""
FINAL = (SUCCEEDED, FAILED)
"""Once one of them is True it stays so."""

STATUSES = ("True", "False", "Unknown")
MESSAGE_LIMIT = 4096
"""Characters of a condition's message; the status stays small whatever an error says."""
RECORD_LIMIT = 20
"""Newest scale records that are kept."""


def set_condition(
    conditions: tuple[Condition, ...],
    kind: str,
    status: str,
    reason: str,
    message: str = "",
    *,
    now: float,
    generation: int = 0,
) -> tuple[Condition, ...]:
    """Return the conditions with one set; its time changes only with its status, its place never.

    Args:
        conditions: as they are.
        kind: its type.
        status: ``True``, ``False`` or ``Unknown``.
        reason: one word in CamelCase, for programs.
        message: for people; cut at `MESSAGE_LIMIT`.
        now: Unix seconds.
        generation: of the spec that it was concluded from.

    Raises:
        ValueError: there is no such status.
    """
    if status not in STATUSES:
        raise ValueError(f"a condition is True, False or Unknown, not {status!r}")
    old = find_condition(conditions, kind)
    since = old.last_transition_time if old is not None and old.status == status else None
    new = Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 3] + "...",
        last_transition_time=since or timestamps.render(now),
        observed_generation=generation,
    )
    if old is None:
        return (*conditions, new)
    return tuple(new if condition.type == kind else condition for condition in conditions)


def is_final(conditions: tuple[Condition, ...]) -> bool:
    """Tell whether the job has ended, well or badly."""
    return any(is_true(conditions, kind) for kind in FINAL)


def phase(conditions: tuple[Condition, ...]) -> str:
    """Return the classic phase: ``""``, creating, running, scaling, succeeded or failed.

    A failed job stays failed. A suspended one is creating again: its pods are gone. So is one whose first pods are
    not all there. One that ran and has lost some (`INTERRUPTED`) runs on: they are replaced. An invalid spec of a job
    that never ran has no phase; of a running one it changes nothing.
    """
    if is_true(conditions, FAILED):
        return "failed"
    if is_true(conditions, SUCCEEDED):
        return "succeeded"
    if is_true(conditions, SUSPENDED):
        return "creating"
    if is_true(conditions, SCALING):
        return "scaling"
    if is_true(conditions, RUNNING):
        return "running"
    running = find_condition(conditions, RUNNING)
    if running is not None and running.reason in INTERRUPTED:
        return "running"
    if find_condition(conditions, CREATED) is not None:
        return "creating"
    return ""


def add_scale_record(records: ScaleRecords, record: ScaleRecord) -> ScaleRecords:
    """Return the records with one more at the end; only the newest `RECORD_LIMIT` stay."""
    return replace(records, scale_records=(*records.scale_records, record)[-RECORD_LIMIT:])


def scale_record(additional: int, status: str, reason: str, *, now: float) -> ScaleRecord:
    """Return a record of one change.

    Args:
        additional: trainers more (or, negative, fewer).
        status: ``True`` (it is in effect), ``False`` (it was refused) or ``Unknown``.
        reason: for people; cut at `MESSAGE_LIMIT`.
        now: Unix seconds.
    """
    return ScaleRecord(
        scale_timestamp=timestamps.render(now), additional=additional, status=status, reason=reason[:MESSAGE_LIMIT]
    )
