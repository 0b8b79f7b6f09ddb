"""``edl describe``: all about one job: bounds, conditions, pods, agents, decisions, events."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edl_agent.cli.output import paint, table
from edl_controller.cli.target import connected, namespace_option, root_option, serving
from edl_controller.cli.words import OBJECT_NAME

if TYPE_CHECKING:
    from edl_controller.api.events import Event
    from edl_controller.api.pods import Pod
    from edl_controller.api.v1 import TrainingJob
    from edl_controller.core.agents import AgentState


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", type=OBJECT_NAME)
@namespace_option
@root_option
def describe(names: tuple[str, ...], namespace: str, root: Path | None) -> None:
    """Show jobs: conditions, slots and agents, pods, changes of size with their reasons, events."""
    from edl_controller.api.kinds import EVENTS, PODS, TRAINING_JOBS
    from edl_controller.cli.agents import meeting_point, read_agents
    from edl_controller.core.names import JOB_UID_LABEL

    with connected(root) as cluster:
        for number, name in enumerate(names):
            job = cluster.get(TRAINING_JOBS, namespace, name)
            uid = job.metadata.uid
            pods = cluster.list(PODS, namespace, labels={JOB_UID_LABEL: uid}).items
            own = {uid, *(pod.metadata.uid for pod in pods)}
            events = [one for one in cluster.list(EVENTS, namespace).items if one.regarding.uid in own]
            agents, why = None, ""
            if not job.status.completion_time:
                agents, why = read_agents(meeting_point(job, pods, serving(root).endpoints))
            click.echo("\n\n" * bool(number) + "\n".join(description(job, pods, events, agents, why, time.time())))


def description(
    job: TrainingJob, pods: tuple[Pod, ...], events: list[Event], agents: AgentState | None, unknown: str, now: float
) -> list[str]:
    """Return the lines.

    Args:
        job: which.
        pods: its pods.
        events: of the job and of its pods.
        agents: what its agents say; None = not known.
        unknown: why that is not known; empty = it does not matter any more.
        now: Unix seconds.
    """
    from edl_controller.api import timestamps
    from edl_controller.api.kinds import PODS
    from edl_controller.cli import rows
    from edl_controller.cli.agents import AGENT_TITLES, SLOT_TITLES, agent_rows, slot_rows
    from edl_controller.runtime.plain_text import printable

    def age(text: str | None) -> str:
        return rows.duration(timestamps.age(text, now)) if text else ""

    lines = _head(job, age(job.metadata.creation_timestamp))

    def section(title: str, titles: list[str], cells: list[list[str]]) -> None:
        if cells:
            shown = [[printable(cell) for cell in row] for row in cells]
            lines.extend(["", paint(title, bold=True), table(titles, shown)])

    status = job.status
    section(
        "Conditions",
        ["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"],
        [[one.type, one.status, one.reason, age(one.last_transition_time), one.message] for one in status.conditions],
    )
    section(
        "Pods",
        rows.header(PODS, wide=True, namespaces=False),
        [rows.row(PODS, one, now, wide=True, namespaces=False) for one in pods],
    )
    if agents is not None:
        section("Slots", SLOT_TITLES, slot_rows(agents, job.spec.pserver.min_instance or 0))
        section("Agents", AGENT_TITLES, agent_rows(agents, now))
    elif unknown:
        lines += ["", paint("Agents", bold=True), f"not known: {printable(unknown)}"]
    section(
        "Decisions",
        ["AGE", "TRAINERS", "DONE", "WHY"],
        [
            [age(one.scale_timestamp), f"{one.additional:+d}", one.status, one.reason]
            for one in status.scale_records.scale_records
        ],
    )
    section(
        "Events",
        ["LAST SEEN", "TIMES", "TYPE", "REASON", "OBJECT", "NOTE"],
        [
            [
                age(one.last_seen),
                str(one.series.count if one.series else 1),
                one.type,
                one.reason,
                f"{one.regarding.kind}/{one.regarding.name}",
                one.note,
            ]
            for one in sorted(events, key=lambda one: one.last_seen)
        ],
    )
    return lines


def _head(job: TrainingJob, age: str) -> list[str]:
    meta, status, trainer = job.metadata, job.status, job.spec.trainer
    lines = [
        f"Name:       {meta.name}",
        f"Namespace:  {meta.namespace}",
        f"Created:    {meta.creation_timestamp} ({age} ago)",
        f"Phase:      {status.phase or 'new'}" + (f" ({status.reason})" if status.reason else ""),
        f"Trainers:   {status.trainers} ready of {status.desired_trainers}"
        f" (between {trainer.min_instance} and {trainer.max_instance})",
        f"Pservers:   {status.pservers} ready of {job.spec.pserver.min_instance or 0}",
    ]
    if view := status.agents:
        lost = f", lost: {', '.join(map(str, view.lost_pservers))}" if view.lost_pservers else ""
        lines.append(
            f"Agents:     {view.pservers} pserver slots held{lost}; {view.trainers} trainers report,"
            f" {view.rate or '0'} samples/s"
        )
    return lines
