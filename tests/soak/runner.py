"""Drives a random run: real agents as processes, a real etcd of three members, a schedule of faults; records what was
done.

Every agent talks to the members through TCP proxies of its own, so that its connections can be cut without touching the
others'. Everything waits with a bound, and everything that was started is ended when `run` returns, also after an
error: agents and members are tied to this process by the kernel as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from edl_agent.testing import EtcdServerError, spawn_bound_to_parent
from tests.bench.etcd_cluster import EtcdCluster, Member
from tests.bench.tcp_proxy import TcpProxy
from tests.soak import schedule
from tests.soak.evidence import Limits
from tests.soak.history import (
    AgentKilled,
    AgentPaused,
    AgentResumed,
    AgentStarted,
    AgentStopAsked,
    AgentStopped,
    DesiredChanged,
    FaultBegan,
    FaultEnded,
    HistoryWriter,
    Record,
    Snapshot,
    read_history,
)
from tests.soak.store_log import StoreError, StoreLog

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
CHECKOUT = Path(__file__).resolve().parents[2]
STOP_BOUND = 6.0
"""Seconds after SIGTERM until an agent is killed and counted as one that did not end (dial_timeout + 1 s, with the
store down).
"""
START_BOUND = 40.0
"""Seconds for all agents to start and the first slots to be filled, on a busy machine."""


class RunFailed(RuntimeError):
    """The run itself went wrong (the bench, not an invariant)."""


@dataclasses.dataclass
class Place:
    """Where agents live one after the other: a number, its proxies, and the process that is there now."""

    number: int
    proxies: list[TcpProxy]
    generation: int = 0
    port: int = 0
    name: str = ""
    process: subprocess.Popen[Any] | None = None
    asked_at: float | None = None
    ended: bool = True
    cut: int | None = None


class Runner:
    """One run. `run()` once, then read `records()`."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        plan: schedule.Plan,
        *,
        desired: int,
        ttl: float,
        program: tuple[str, ...] = ("tests.soak.agent",),
    ) -> None:
        """Prepare a run.

        Args:
            folder: for histories and logs; must exist.
            seed: of the schedule.
            plan: of the schedule.
            desired: the desired count that the agents create.
            ttl: seconds that the agents ask for.
            program: module of the agent, and more arguments for it.
        """
        self._program = program
        self.folder = folder
        self.steps = schedule.make_schedule(seed, plan)
        self.limits = Limits(ttl=plan.ttl)
        self._plan = plan
        self._desired = desired
        self._ttl = ttl
        self._writer = HistoryWriter(folder / "runner.jsonl")
        self._cluster = EtcdCluster(3, folder=folder / "etcd")
        self._store = StoreLog([member.endpoint for member in self._cluster.members])
        self._places: list[Place] = []
        self._faults = 0
        self._member_down: tuple[Member, int] | None = None
        self._member_rising: tuple[Member, int] | None = None
        self._away: int | None = None
        self.skipped: list[str] = []
        self._performed: dict[str, int] = {}

    @property
    def performed(self) -> dict[str, int]:
        """How often each kind of action was carried out."""
        return dict(self._performed)

    def records(self) -> list[Record]:
        """Return the whole recorded history: agents', runner's, store's."""
        return read_history(sorted(self.folder.glob("*.jsonl")))

    def run(self) -> None:
        """Start everything, follow the schedule, end everything, read the store's change log.

        Raises:
            RunFailed: the first slots were not filled in time, or the store did not answer any more.
        """
        try:
            self._cluster.start()
            for number in range(self._plan.agents):
                self._places.append(Place(number, [TcpProxy(member.client_url) for member in self._cluster.members]))
            self._write(DesiredChanged(time.monotonic(), self._desired))
            for place in self._places:
                self._start(place, same_address=False)
            self._wait_for_first_slots()
            self._follow()
            self._stop_all()
            self._read_store()
        except (StoreError, EtcdServerError, AssertionError) as error:
            raise RunFailed(str(error)) from error
        finally:
            self._end()

    # -- following the schedule ------------------------------------------------------------------------------------

    def _follow(self) -> None:
        origin = time.monotonic()
        for step in self.steps:
            while (left := origin + step.at - time.monotonic()) > 0:
                self._look_around()
                time.sleep(min(left, 0.05))
            self._look_around()
            began = time.monotonic()
            self._do(step.action)
            if isinstance(step.action, schedule.Settle):
                origin += time.monotonic() - began

    def _do(self, action: schedule.Action) -> None:
        kind = type(action).__name__
        logger.debug("%s", action)
        self._performed[kind] = self._performed.get(kind, 0) + 1
        match action:
            case schedule.Start(agent, same_address):
                self._start(self._places[agent], same_address)
            case schedule.Kill(agent):
                self._kill(self._places[agent])
            case schedule.Stop(agent):
                self._ask_to_stop(self._places[agent])
            case schedule.Pause(agent):
                self._pause(self._places[agent])
            case schedule.Resume(agent):
                self._resume(self._places[agent])
            case schedule.Cut(agent, mode):
                self._cut(self._places[agent], mode)
            case schedule.Mend(agent):
                self._mend(self._places[agent])
            case schedule.MemberDown(leader, clean):
                self._member_goes(leader, clean)
            case schedule.MemberUp():
                self._member_comes()
            case schedule.Desire(value):
                self._store.put_desired(value)
                self._write(DesiredChanged(time.monotonic(), value))
            case schedule.StoreAway():
                self._store_goes()
            case schedule.StoreBack():
                self._store_comes()
            case schedule.Settle():
                self._settle()
            case _:
                raise TypeError(f"unknown action {action}")

    def _look_around(self) -> None:
        """Notice what has happened by itself: processes that ended, a member that is healthy again."""
        for place in self._places:
            if place.process is None or place.ended:
                continue
            code = place.process.poll()
            asked = place.asked_at is not None
            if code is None and place.asked_at is not None and time.monotonic() > place.asked_at + STOP_BOUND:
                logger.error("%s did not end within %s s of SIGTERM", place.name, STOP_BOUND)
                place.process.kill()
                code = place.process.wait(10.0)
            if code is not None:
                place.ended = True
                self._write(AgentStopped(time.monotonic(), place.name, code, asked))
        if self._member_rising is not None:
            member, fault = self._member_rising
            if member.healthy(0.2):
                self._member_rising = None
                self._write(FaultEnded(time.monotonic(), fault))

    def _settle(self) -> None:
        """Wait as long as I5 allows, then take two snapshots."""
        self._wait_until(lambda: self._member_rising is None, 30.0, "the member to be healthy")
        deadline = time.monotonic() + self.limits.settle + 0.1
        while time.monotonic() < deadline:
            self._look_around()
            time.sleep(0.05)
        for _ in range(2):
            self._write(self._store.snapshot())
            time.sleep(0.25)

    # -- agents --------------------------------------------------------------------------------------------------------

    def _start(self, place: Place, same_address: bool) -> None:
        # The old process first: two live processes with one address are another test (row A27).
        self._wait_until(lambda: place.ended, STOP_BOUND + 12.0, f"{place.name} to end")
        place.generation += 1
        if not same_address or not place.port:
            place.port = 10_000 + 100 * place.number + place.generation % 100
        place.name = f"a{place.number}.{place.generation}"
        place.asked_at = None
        command = [
            sys.executable,
            *("-m", *self._program),
            *("--name", place.name),
            *("--endpoints", ",".join(proxy.endpoint for proxy in place.proxies)),
            *("--host", HOST),
            *("--port", str(place.port)),
            *("--num-pservers", str(self._desired)),
            *("--ttl", str(self._ttl)),
            *("--history", str(self.folder / f"{place.name}.jsonl")),
        ]
        self._write(AgentStarted(time.monotonic(), place.name, f"{HOST}:{place.port}"))
        with (self.folder / f"{place.name}.log").open("ab") as log:
            place.process = spawn_bound_to_parent(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=CHECKOUT, start_new_session=True
            )
        place.ended = False

    def _kill(self, place: Place) -> None:
        self._look_around()
        if place.process is not None and not place.ended:
            place.process.kill()
            place.process.wait(10.0)
            place.ended = True
            self._write(AgentKilled(time.monotonic(), place.name))

    def _ask_to_stop(self, place: Place) -> None:
        if not place.ended:
            # An interpreter that is still starting dies of SIGTERM, which says nothing about the product.
            history = self.folder / f"{place.name}.jsonl"
            self._wait_until(lambda: history.exists() or place.ended, START_BOUND, f"{place.name} to be up")
            place.asked_at = time.monotonic()
            self._write(AgentStopAsked(place.asked_at, place.name))
            self._signal(place, signal.SIGTERM)

    def _pause(self, place: Place) -> None:
        self._write(AgentPaused(time.monotonic(), place.name))
        self._signal(place, signal.SIGSTOP)

    def _resume(self, place: Place) -> None:
        self._signal(place, signal.SIGCONT)
        self._write(AgentResumed(time.monotonic(), place.name))

    def _signal(self, place: Place, number: signal.Signals) -> None:
        if place.process is not None and not place.ended:
            # Popen takes a process that has ended for what it is: nothing is sent to another one's id.
            place.process.send_signal(number)

    def _cut(self, place: Place, mode: str) -> None:
        place.cut = self._begin(f"cut {mode}", (place.name,))
        for proxy in place.proxies:
            getattr(proxy, mode)()

    def _mend(self, place: Place) -> None:
        for proxy in place.proxies:
            proxy.pass_all()
        if place.cut is not None:
            self._write(FaultEnded(time.monotonic(), place.cut))
            place.cut = None

    def _stop_all(self) -> None:
        for place in self._places:
            self._ask_to_stop(place)
        self._wait_until(lambda: all(place.ended for place in self._places), STOP_BOUND + 12.0, "all agents to end")

    # -- the store -----------------------------------------------------------------------------------------------------

    def _member_goes(self, leader: bool, clean: bool) -> None:
        if self._member_rising is not None or self._member_down is not None:
            self.skipped.append("MemberDown: another member is not back yet")
            return
        index = self._cluster.leader() if leader else self._cluster.followers()[0]
        member = self._cluster.members[index]
        fault = self._begin(f"{'leader' if leader else 'follower'} {'stopped' if clean else 'killed'}")
        if clean:
            member.terminate()
        else:
            member.kill()
        self._member_down = (member, fault)

    def _member_comes(self) -> None:
        if self._member_down is not None:
            self._member_down[0].launch()
            self._member_rising, self._member_down = self._member_down, None

    def _store_goes(self) -> None:
        self._wait_until(lambda: self._member_rising is None, 30.0, "the member to be healthy")
        self._away = self._begin("store_away")
        self._cluster.kill_all()

    def _store_comes(self) -> None:
        # I6 is about the time in which nothing answers: it ends before the first member is back.
        if self._away is not None:
            self._write(FaultEnded(time.monotonic(), self._away))
            self._away = None
        fault = self._begin("store starting")
        self._cluster.start()
        self._write(FaultEnded(time.monotonic(), fault))

    def _wait_for_first_slots(self) -> None:
        wanted = min(self._plan.agents, self._desired)

        def filled() -> Snapshot | None:
            with contextlib.suppress(StoreError):
                snapshot = self._store.snapshot()
                return snapshot if len(snapshot.slots) == wanted else None
            return None

        snapshot = self._wait_until(filled, START_BOUND, f"{wanted} slots to be filled")
        granted = self._store.granted_ttl(snapshot.slots[0].lease)
        # The server may have raised the TTL: its word counts, for the agents and for the invariants.
        self.limits = dataclasses.replace(self.limits, ttl=granted)

    def _read_store(self) -> None:
        writer = HistoryWriter(self.folder / "store.jsonl")
        for change in self._store.changes():
            writer.write(change)
        writer.close()

    # -- small things
    # ----------------------------------------------------------------------------------------------------

    def _begin(self, name: str, agents: tuple[str, ...] = ()) -> int:
        self._faults += 1
        self._write(FaultBegan(time.monotonic(), self._faults, name, agents))
        return self._faults

    def _write(self, record: Record) -> None:
        self._writer.write(record)

    def _wait_until(self, condition: Any, bound: float, what: str) -> Any:
        deadline = time.monotonic() + bound
        while True:
            self._look_around()
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                raise RunFailed(f"not within {bound} s: {what}")
            time.sleep(0.05)

    def _end(self) -> None:
        """End all processes and proxies; never raises for one so that the others are ended too."""
        for place in self._places:
            if place.process is not None and place.process.poll() is None:
                place.process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    place.process.wait(10.0)
            for proxy in place.proxies:
                with contextlib.suppress(Exception):
                    proxy.close()
        self._cluster.close()
        self._writer.close()
