"""``edl describe``: all about one job: bounds, conditions, pods, agents, decisions, events."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edl_agent.cli.output import paint, table
from edl_controller.cli.target import connected, namespace_option, root_option

if TYPE_CHECKING:
    from edl_controller.api.events import Event
    from edl_controller.api.pods import Pod
    from edl_controller.api.v1 import TrainingJob


@click.command()
@click.argument("name")
@namespace_option
@root_option
def describe(name: str, namespace: str, root: Path | None) -> None:
    """Show job NAME: conditions, agents, pods, changes of size with their reasons, events."""
    from edl_controller.api.kinds import EVENTS, PODS, TRAINING_JOBS
    from edl_controller.core.names import JOB_UID_LABEL

    with connected(root) as cluster:
        job = cluster.get(TRAINING_JOBS, namespace, name)
        pods = cluster.list(PODS, namespace, labels={JOB_UID_LABEL: job.metadata.uid}).items
        events = [one for one in cluster.list(EVENTS, namespace).items if one.regarding.uid == job.metadata.uid]
    click.echo("\n".join(description(job, pods, events, time.time())))


def description(job: TrainingJob, pods: tuple[Pod, ...], events: list[Event], now: float) -> list[str]:
    """Return the lines. ``now``: Unix seconds."""
    from edl_controller.cli import rows

    meta, spec, status = job.metadata, job.spec, job.status
    trainer = spec.trainer
    lines = [
        f"Name:       {meta.name}",
        f"Namespace:  {meta.namespace}",
        f"Created:    {meta.creation_timestamp}",
        f"Phase:      {status.phase or 'new'}" + (f" ({status.reason})" if status.reason else ""),
        f"Trainers:   {status.trainers} ready of {status.desired_trainers}"
        f" (between {trainer.min_instance} and {trainer.max_instance})",
        f"Pservers:   {status.pservers} ready of {spec.pserver.min_instance or 0}",
    ]
    if view := status.agents:
        lost = f", lost: {', '.join(map(str, view.lost_pservers))}" if view.lost_pservers else ""
        lines.append(
            f"Agents:     {view.pservers} slots held{lost}; {view.trainers} trainers report,"
            f" {view.rate or '0'} samples/s (seen {view.observed or 'never'})"
        )
    if status.conditions:
        cells = [
            [one.type, one.status, one.reason, one.last_transition_time or "", one.message] for one in status.conditions
        ]
        lines += ["", paint("Conditions", bold=True), table(["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"], cells)]
    if pods:
        from edl_controller.api.kinds import PODS

        cells = [rows.row(PODS, one, now, wide=True, namespaces=False) for one in pods]
        lines += ["", paint("Pods", bold=True), table(rows.header(PODS, wide=True, namespaces=False), cells)]
    if records := status.scale_records.scale_records:
        cells = [[one.scale_timestamp or "", f"{one.additional:+d}", one.status, one.reason] for one in records]
        lines += ["", paint("Decisions", bold=True), table(["TIME", "TRAINERS", "DONE", "WHY"], cells)]
    if events:
        ordered = sorted(
            events, key=lambda one: (one.series.last_observed_time if one.series else one.event_time) or ""
        )
        cells = [
            [
                (one.series.last_observed_time if one.series else one.event_time) or "",
                one.type,
                one.reason,
                str(one.series.count if one.series else 1),
                one.note,
            ]
            for one in ordered
        ]
        lines += ["", paint("Events", bold=True), table(["LAST SEEN", "TYPE", "REASON", "TIMES", "NOTE"], cells)]
    return lines
