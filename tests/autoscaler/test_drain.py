"""Scale-down with agents: real etcd, real agents with the names of virtual pods; asked, answered, gated, cut."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from edl_agent import EtcdClient
from edl_agent.drain import Drain
from edl_agent.reporting import Reporter
from edl_controller.agent_state import AgentStates
from edl_controller.agent_store import EtcdAccess
from edl_controller.api.meta import find_condition
from edl_controller.api.pods import Pod
from edl_controller.core.agents import AgentState
from edl_controller.core.names import IN_SERVICE_GATE
from tests.autoscaler.sim_rooms import Room, training_job
from tests.bench.tcp_proxy import TcpProxy
from tests.conftest import SharedEtcd


class Agent:
    """The agent of one trainer, in this process. It acknowledges when it is told to, or at once."""

    def __init__(self, endpoint: str, prefix: str, name: str, at_once: bool) -> None:
        self.client = EtcdClient(endpoint, None, prefix=prefix, ttl=10)
        self.client.open()
        self.reporter = Reporter(self.client, role="trainer", name=name)
        self.drain = Drain(self.client, name)
        if at_once:
            self.drain.on_request(lambda drain: drain.acknowledge())


class Crew:
    """One agent for each running trainer of a job, kept in step with the pods."""

    def __init__(self, room: Room, endpoint: str, prefix: str, states: AgentStates, *, at_once: bool) -> None:
        self.room, self.endpoint, self.prefix, self.states, self.at_once = room, endpoint, prefix, states, at_once
        self.agents: dict[str, Agent] = {}

    def pods(self) -> dict[str, Pod]:
        return {pod.metadata.name: pod for pod in self.room.pods("a")}

    def run(self, seconds: float, until: Callable[[], bool]) -> bool:
        """Virtual and real time pass alike."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            before = time.time()
            self.room.rounds(0.05, 0.05)
            present = self.pods()
            for name, pod in present.items():
                if name not in self.agents and pod.status.phase == "Running":
                    self.agents[name] = Agent(self.endpoint, self.prefix, name, self.at_once)
            for name in [name for name in self.agents if name not in present]:
                self.agents.pop(name).client.shutdown()
            if until():
                return True
            time.sleep(max(0.0, 0.05 - (time.time() - before)))
            self.room.world.advance(max(0.0, time.time() - self.room.world.clock.wall()))
        return until()

    def sizes(self) -> tuple[int | None, int]:
        return self.room.size("a"), len(self.pods())

    def asked(self) -> set[str]:
        return {name for name, agent in self.agents.items() if agent.drain.requested.is_set()}

    def closed(self) -> set[str]:
        found = {name: find_condition(pod.status.conditions, IN_SERVICE_GATE) for name, pod in self.pods().items()}
        return {name for name, gate in found.items() if gate is not None and gate.status == "False"}

    def reporting(self) -> bool:
        return {report.name for report in self.states.get(self.room.key("a")).reports} == set(self.pods())


@pytest.fixture
def states() -> Iterator[AgentStates]:
    found = AgentStates(interval=0.1)
    yield found
    found.close()


@pytest.fixture
def crew(states: AgentStates, etcd: SharedEtcd, prefix: str) -> Iterator[Crew]:
    """A job with four trainers, as many as fit, all of them reporting; they answer only when told to."""
    room = Room(agents=states)
    room.world.add_node("n1", cpu="4")
    room.submit(training_job("a", 1, 9, mode="Launcher", drain_seconds=20))
    states.watch(room.key("a"), EtcdAccess((etcd.client_url,)), prefix)
    found = Crew(room, etcd.client_url, prefix, states, at_once=False)
    assert found.run(20, lambda: found.sizes() == (4, 4) and found.reporting()), found.sizes()
    yield found
    for agent in found.agents.values():
        with contextlib.suppress(Exception):
            agent.client.shutdown()


def test_no_growth_while_nothing_is_known_of_the_agents(states: AgentStates) -> None:
    room = Room(agents=states)
    room.world.add_node("n1", cpu="4")
    room.submit(training_job("a", 1, 9, mode="Launcher"))
    room.rounds(5)
    assert room.size("a") == 1
    assert room.scaler.scaling_of(room.key("a")).reason == "Nothing is known of its agents."


def test_asked_answered_gated_and_cut(crew: Crew) -> None:
    crew.room.service("web", "1")
    assert crew.run(10, lambda: len(crew.asked()) == 1)
    (victim,) = crew.asked()
    agent = crew.agents[victim]
    assert agent.drain.reason.startswith("Its room on node n1 goes to ns/web")
    assert not crew.run(1.5, lambda: crew.closed() != set() or crew.sizes() != (4, 4)), "it has not answered yet"
    agent.drain.acknowledge()
    assert crew.run(10, lambda: crew.room.pod("web").spec.node_name != "")
    assert crew.sizes() == (3, 3)
    assert victim not in crew.pods()
    assert crew.room.job("a").status.failed == 0
    key = crew.room.key("a")
    assert crew.run(5, lambda: not crew.states.get(key).drains), "its request is removed"
    assert [one.victims for one in crew.room.scaler.decisions(key)][-1] == (victim,)


def test_who_does_not_answer_is_cut_at_the_deadline(crew: Crew) -> None:
    job = training_job("a", 1, 9, mode="Launcher", drain_seconds=2).spec.autoscaling
    crew.room.edit("a", autoscaling=job)
    crew.room.service("web", "1")
    begin = time.monotonic()
    assert crew.run(10, lambda: crew.room.pod("web").spec.node_name != "")
    assert time.monotonic() - begin > 2.0
    assert crew.sizes() == (3, 3)


def test_the_next_one_finishes_a_half_done_drain(crew: Crew) -> None:
    crew.room.service("web", "1")
    assert crew.run(10, lambda: len(crew.asked()) == 1)
    (victim,) = crew.asked()
    crew.room.new_scaler()
    assert not crew.run(1.0, lambda: len(crew.asked()) > 1), "nobody else is asked"
    crew.agents[victim].drain.acknowledge()
    assert crew.run(10, lambda: victim not in crew.pods())
    assert crew.sizes() == (3, 3)


def test_the_next_one_takes_a_drain_back_that_the_bounds_no_longer_allow(crew: Crew) -> None:
    crew.room.service("web", "1")
    assert crew.run(10, lambda: len(crew.asked()) == 1)
    crew.room.new_scaler()
    crew.room.edit("a", trainer=training_job("a", 4, 9).spec.trainer)
    assert crew.run(10, lambda: not crew.asked())
    assert not crew.run(0.5, lambda: crew.sizes() != (4, 4) or crew.closed() != set())


def test_while_the_store_is_silent_room_is_given_all_the_same(
    states: AgentStates, etcd: SharedEtcd, prefix: str, proxy: TcpProxy
) -> None:
    """Fail-static: no growth, but who waits for room does not wait for etcd."""
    room = Room(agents=states)
    room.world.add_node("n1", cpu="4")
    room.submit(training_job("a", 1, 4, mode="Launcher"))
    states.watch(room.key("a"), EtcdAccess((proxy.endpoint,)), prefix)
    crew = Crew(room, etcd.client_url, prefix, states, at_once=True)
    try:
        assert crew.run(20, lambda: crew.sizes() == (4, 4) and crew.reporting())
        proxy.black_hole()

        def silent() -> bool:
            state: AgentState = states.get(room.key("a"))
            return state.error != ""

        assert crew.run(10, silent)
        room.service("web", "1")
        assert crew.run(5, lambda: room.pod("web").spec.node_name != "")
        assert crew.sizes() == (3, 3)
    finally:
        proxy.pass_all()
        for agent in crew.agents.values():
            agent.client.shutdown()
