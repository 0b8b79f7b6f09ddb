"""The condition AgentStateKnown says why the agents cannot be read, once."""

from __future__ import annotations

from edl_controller.api import conditions as known
from edl_controller.api.meta import find_condition
from edl_controller.core.agents import AgentState
from edl_controller.core.job_conditions import Conditions, say_agents
from edl_controller.core.job_settings import JobSettings


def test_the_first_reason_replaces_that_nothing_was_read_and_stays() -> None:
    conditions = Conditions((), 1000.0, 1)
    said = []
    for error in ("", "etcd refuses the password", "etcd refuses it in other words"):
        say_agents(conditions, AgentState(error=error), JobSettings())
        found = find_condition(conditions.value, known.AGENT_STATE_KNOWN)
        assert found is not None
        said.append((found.status, found.reason, found.message))
    assert said == [
        ("False", "NeverSeen", "the job's etcd has not been read"),
        *[("False", "NeverSeen", "etcd refuses the password")] * 2,
    ]
