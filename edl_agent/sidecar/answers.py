"""The protocol's messages from the library's values."""

import json
import math
from typing import Any

from edl_agent.drain import Drain
from edl_agent.membership import Members
from edl_agent.session import SessionState, SessionView
from edl_agent.sidecar import wire
from edl_agent.sidecar.life import Program
from edl_agent.tasks import Task
from edl_agent.tasks.rules import PassSummary

STATES = {state: wire.enum_number("SessionState", f"SESSION_STATE_{state.name}") for state in SessionState}
ROLES = {name: wire.enum_number("Role", f"ROLE_{name.upper()}") for name in ("pserver", "trainer", "session_only")}
DRAIN_STATES = {
    name: wire.enum_number("DrainState", f"DRAIN_STATE_{name.upper()}") for name in ("none", "requested", "acked")
}

_Session, _Pservers, _Pserver = wire.message("Session"), wire.message("Pservers"), wire.message("Pserver")
_Drain, _Task, _PassCounts = wire.message("Drain"), wire.message("Task"), wire.message("PassCounts")


def session(program: Program | None, name: str, wall: float) -> Any:
    """``Session``."""
    if program is None:
        return _Session(state=STATES[SessionState.NEW], name=name, time=wall)
    view: SessionView = program.view
    answer = _Session(state=STATES[view.state], attached=True, name=name, time=wall)
    if program.registered:
        answer.role = ROLES[program.role or "session_only"]
    if view.slot is not None:
        answer.role = ROLES[view.slot.role]
        answer.index, answer.epoch, answer.address = view.slot.index, view.slot.epoch, view.slot.address
    if view.lease is not None:
        answer.lease = f"{view.lease.lease_id:x}"
        answer.ttl = view.lease.ttl
        answer.deadline_monotonic = view.lease.deadline
    if view.loss is not None:
        answer.loss = str(view.loss)
    return answer


def pservers(members: Members) -> Any:
    """``Pservers``."""
    answer = _Pservers(
        pservers=[_Pserver(index=one.index, address=one.address, epoch=one.epoch) for one in members.pservers],
        complete=members.complete,
        revision=members.revision,
        age=members.age if math.isfinite(members.age) else 0.0,
    )
    if members.desired is not None:
        answer.desired = members.desired
    return answer


def drain(found: Drain) -> Any:
    """``Drain``."""
    answer = _Drain(state=DRAIN_STATES[found.state], reason=found.reason, decision=found.decision or "")
    left = found.deadline
    if left is not None:
        answer.seconds_left = left
    return answer


def task(task_id: str, found: Task) -> Any:
    """``Task``."""
    return _Task(
        id=task_id,
        pass_number=found.pass_number,
        index=found.index,
        spec=json.dumps(found.spec, separators=(",", ":")),
        failures=found.failures,
    )


def counts(found: PassSummary) -> Any:
    """``PassCounts``."""
    return _PassCounts(
        pass_number=found.pass_number,
        tasks=found.tasks,
        finished=found.finished,
        set_aside=found.set_aside,
        failures=found.failures,
    )
