"""What the agents of a job say in its etcd, as far as this machine may read it: for ``edl describe``."""

from __future__ import annotations

from edl_agent.clock import SystemClock
from edl_agent.errors import EdlAgentError
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.endpoints import parse_endpoints
from edl_agent.etcd.kv import Kv
from edl_agent.keys import KeySchema
from edl_controller.agent_reading import read_state
from edl_controller.api.defaults import with_defaults
from edl_controller.api.pods import Pod
from edl_controller.api.v1 import TrainingJob
from edl_controller.cli.rows import Row, duration
from edl_controller.core.agents import AgentState
from edl_controller.core.bring_up import serving_master
from edl_controller.core.children import collect_children
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.meeting_point import MeetingPoint, external, in_master, in_master_pod

_WITHIN = 2.0
"""Seconds that the etcd may take to answer."""


def meeting_point(job: TrainingJob, pods: tuple[Pod, ...], endpoints: str) -> MeetingPoint | None:
    """Return where the job's agents meet; None while that is not known. ``endpoints``: of the cluster's own etcd."""
    settings = JobSettings(etcd_endpoints=(endpoints,))
    filled = with_defaults(job, settings.rules)
    if not in_master_pod(filled):
        return external(filled, settings)
    pod = serving_master(collect_children(job, (), (), pods))
    return None if pod is None else in_master(filled, pod.status.pod_ip, pod.metadata.uid)


def read_agents(meeting: MeetingPoint | None) -> tuple[AgentState | None, str]:
    """Return what the agents say, or None and why it is not known."""
    if meeting is None:
        return None, "its master does not serve"
    if meeting.tls_secret or meeting.credentials_secret:
        return (
            None,
            "its etcd wants certificates or a login; the condition AgentStateKnown has what the controller sees",
        )
    clock = SystemClock()
    connection = Connection(parse_endpoints(meeting.endpoints), tls=None, login=None, dial_timeout=_WITHIN, clock=clock)
    try:
        state, _ = read_state(Kv(connection), KeySchema(meeting.prefix), clock.monotonic() + _WITHIN)
        return state, ""
    except EdlAgentError as error:
        return None, str(error)
    finally:
        connection.close()


SLOT_TITLES = ["ROLE", "INDEX", "ADDRESS", "EPOCH", "HOLDER"]
AGENT_TITLES = ["NAME", "ROLE", "SLOT", "STEP", "SAMPLES/S", "BUSY", "DRAIN", "HEARD"]


def slot_rows(state: AgentState, pservers: int) -> list[Row]:
    """Return the held slots by role and index, and the pserver indexes that nobody holds."""
    holders = {(one.role, one.slot): one.name for one in state.reports}
    found = [
        (role, one.index, one.address, str(one.epoch), holders.get((role, one.index), ""))
        for role, slots in (("pserver", state.pservers), ("trainer", state.trainers))
        for one in slots
    ]
    found += [("pserver", index, "<free>", "", "") for index in state.missing(pservers)]
    return [[role, str(index), *rest] for role, index, *rest in sorted(found)]


def agent_rows(state: AgentState, now: float) -> list[Row]:
    """Return one row for each agent that reports. ``now``: Unix seconds."""
    rows = []
    for one in sorted(state.reports, key=lambda one: (one.role, one.name)):
        asked = "asked" if one.name in state.drains and one.drain == "none" else one.drain
        rows.append(
            [
                one.name,
                one.role,
                "" if one.slot is None else str(one.slot),
                str(one.step),
                f"{one.rate:.3g}",
                "" if one.busy is None else f"{one.busy:.0%}",
                "" if asked == "none" else asked,
                f"{duration(now - one.time)} ago",
            ]
        )
    return rows
