"""Several replicas in virtual time, with pauses, crashes, lost and late requests and clocks that disagree.

At no moment do two believe to lead, and once all is well again, one does.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_controller.api.leases import Lease, LeaseSpec
from edl_controller.api.meta import ObjectMeta
from edl_controller.core import election
from edl_controller.core.election import Acquire, Decision, ElectionSettings, Look, Renew, StepDown, View, Wait

SETTINGS = ElectionSettings(lease=11.0)
"""Tight: between the end of one and the begin of the next there is little more than the clocks differ by."""
DRIFT = 0.02
"""By how much clocks are too fast or too slow."""
CALM = 20.0
"""Seconds without faults at the beginning."""
END = 100.0
"""When faults end."""
HEALED = END + 60.0
"""When somebody must lead: two leases, and all requests on their way have arrived."""


@dataclass
class Elector:
    """One process. Its clock is ``offset + rate x time``; its wall clock is anything."""

    view: View
    offset: float
    rate: float
    wall: float
    paused_until: float = 0.0
    cut_off_until: float = 0.0
    alive: bool = True
    generation: int = 0
    waits_for: object = None

    def clock(self, time: float) -> float:
        return self.offset + self.rate * time

    def leads(self, time: float) -> bool:
        return self.alive and election.leads(self.view, SETTINGS, self.clock(time))


@dataclass
class Simulation:
    """All of them and the one server. ``restarts``: who is lost or crashed comes back as another."""

    seed: int
    number: int = 3
    restarts: bool = True
    time: float = 0.0
    lease: Lease | None = None
    broken: dict[str, float] = field(default_factory=dict)
    """Fault of the network -> until when."""
    deleted: bool = False
    trap: float = 0.0
    """Seconds for which the next writer is paused."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._order = itertools.count()
        self._versions = itertools.count(1)
        self._names = itertools.count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self.electors = [self._new() for _ in range(self.number)]
        self.takeovers: list[tuple[float, str]] = []
        self.renewals: dict[str, float] = {}
        for elector in self.electors:
            self.at(self.random.uniform(0, 3), partial(self._step, elector))

    def _new(self) -> Elector:
        return Elector(
            View(identity=f"e{next(self._names)}"),
            offset=self.random.uniform(-1e6, 1e6),
            rate=self.random.uniform(1 - DRIFT, 1 + DRIFT),
            wall=self.random.choice([-3600.0, 0.0, 3600.0]),
        )

    def at(self, time: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (time, next(self._order), what))

    def run(self, until: float) -> None:
        while self._queue and self._queue[0][0] <= until:
            self.time, _, what = heapq.heappop(self._queue)
            what()
            leading = [one.view.identity for one in self.electors if one.leads(self.time)]
            assert len(leading) <= 1, f"at {self.time:.2f}: {leading}"
        self.time = until

    @property
    def leading(self) -> Sequence[Elector]:
        return [one for one in self.electors if one.leads(self.time)]

    # --- one process ---

    def _when_awake(self, elector: Elector, what: Callable[[], None]) -> None:
        """A paused process goes on where it was; a dead one does not."""
        if not elector.alive:
            return
        if self.time < elector.paused_until:
            self.at(elector.paused_until, partial(self._when_awake, elector, what))
        else:
            what()

    def _step(self, elector: Elector) -> None:
        self._when_awake(elector, partial(self._decide, elector))

    def _decide(self, elector: Elector) -> None:
        now = elector.clock(self.time)
        decision = election.decide(elector.view, SETTINGS, now)
        match decision:
            case StepDown(why):
                elector.view = election.stepped_down(elector.view, why)
                self.crash(elector)
            case Wait(until):
                self.at(self.time + max(1e-6, (until - now) / elector.rate), partial(self._step, elector))
            case _:
                # Between the decision and the sending a process may be paused as well.
                sent = now
                self.at(
                    self.time + 1e-4, partial(self._when_awake, elector, partial(self._send, elector, decision, sent))
                )

    def _send(self, elector: Elector, decision: Decision, sent: float) -> None:
        ticket = elector.waits_for = object()
        spec = election.acquired_spec(elector.view, SETTINGS, 1.8e9 + elector.wall + self.time)
        known = elector.view.seen.lease if elector.view.seen is not None else None
        lost, lost_answer, late, late_answer = (
            self.random.random() < 0.4 and self.broken.get(fault, 0) > self.time for fault in NETWORK[:4]
        )

        def arrive() -> None:
            answer = self._serve(decision, known, spec)
            if self.trap and isinstance(answer, Lease) and not isinstance(decision, Look):
                # The worst moment: the write is done, its answer is read much later, and no other follows.
                elector.paused_until = min(END, self.time + self.trap)
                elector.cut_off_until = min(END, elector.paused_until + 30.0)
                self.trap = 0.0
            if not lost_answer:
                delay = self._delay(SETTINGS.attempt if late_answer else 0.0)
                self.at(self.time + delay, partial(self._when_awake, elector, partial(hear, answer)))

        def hear(answer: Lease | str | None) -> None:
            if elector.waits_for is not ticket:
                return  # it was left behind
            elector.waits_for = None
            now, pause = elector.clock(self.time), SETTINGS.pause(self.random.random())
            if isinstance(answer, str):
                elector.view = election.failed(elector.view, now, pause)
            elif isinstance(decision, Look):
                elector.view = election.looked(elector.view, SETTINGS, answer, now, pause)
            else:
                assert answer is not None
                before = elector.view.renewed
                elector.view = election.wrote(elector.view, SETTINGS, answer, sent, now, pause)
                if before is None:
                    self.takeovers.append((self.time, elector.view.identity))
            self._decide(elector)

        if not lost and self.time >= elector.cut_off_until:
            self.at(self.time + self._delay(15.0 if late else 0.0), arrive)
        self.at(self.time + SETTINGS.attempt, partial(self._when_awake, elector, partial(hear, "no answer")))

    def _delay(self, more: float) -> float:
        return self.random.uniform(0.001, 0.05) + self.random.uniform(0, more)

    # --- the server ---

    def _serve(self, decision: Decision, known: Lease | None, spec: LeaseSpec) -> Lease | str | None:
        if self.broken.get("server away", 0) > self.time:
            return "away"
        match decision:
            case Look():
                return self.lease
            case Acquire() if known is None:
                if self.lease is not None:
                    return "already exists"
            case Acquire() | Renew():
                assert known is not None
                if self.lease is None or self.lease.metadata != known.metadata:
                    return "conflict or not found"
        self.renewals[spec.holder_identity] = self.time
        version = str(next(self._versions))
        uid = self.lease.metadata.uid if self.lease is not None else f"uid of {version}"
        self.lease = Lease(metadata=ObjectMeta(name="l", uid=uid, resource_version=version), spec=spec)
        return self.lease

    # --- what happens to them ---

    def crash(self, elector: Elector) -> None:
        """It is no more; another is started a second later, if at all."""
        elector.alive = False
        place = self.electors.index(elector)
        if self.restarts:
            self.at(self.time + 1.0, partial(self._start, place))

    def _start(self, place: int) -> None:
        if not self.electors[place].alive:
            self.electors[place] = self._new()
            self._step(self.electors[place])

    def happen(self, fault: str, place: int, seconds: float) -> None:
        elector = self.electors[place % self.number]
        match fault:
            case "pause":
                elector.paused_until = max(elector.paused_until, self.time + seconds)
            case "pause the leader":
                for one in self.leading:
                    one.paused_until = self.time + seconds
            case "pause the next writer, then cut it off":
                self.trap = seconds
            case "crash" if elector.alive:
                self.crash(elector)
            case "release":
                for one in self.leading:
                    spec = election.released_spec(self.lease.spec, self.time) if self.lease is not None else None
                    mine = self.lease is not None and self.lease.spec.holder_identity == one.view.identity
                    self.crash(one)
                    if spec is not None and mine and self.lease is not None:
                        meta = msgspec.structs.replace(self.lease.metadata, resource_version=str(next(self._versions)))
                        self.lease = Lease(metadata=meta, spec=spec)
            case "set the wall clock":
                elector.wall = self.random.uniform(-7200, 7200)
            case "delete the lease":
                # Once: an absence that was seen before and after another lease looks like one and the same.
                if not self.deleted:
                    self.lease, self.deleted = None, True
            case "label the lease" if self.lease is not None:
                meta = msgspec.structs.replace(self.lease.metadata, resource_version=str(next(self._versions)))
                self.lease = msgspec.structs.replace(self.lease, metadata=meta)
            case _:
                self.broken[fault] = max(self.broken.get(fault, 0.0), self.time + seconds)


EVERYWHERE = (
    "pause",
    "pause the leader",
    "pause the next writer, then cut it off",
    "set the wall clock",
    "label the lease",
)
NETWORK = ("lost requests", "lost answers", "late requests", "late answers", "server away")


def faults(*kinds: str) -> st.SearchStrategy[list[tuple[float, str, int, float]]]:
    """When, what, to whom, for how long."""
    one = st.tuples(st.floats(CALM, END - 30), st.sampled_from(kinds), st.integers(0, 4), st.floats(0.1, 30))
    return st.lists(one, max_size=25)


def play(simulation: Simulation, plan: list[tuple[float, str, int, float]]) -> None:
    for time, fault, place, seconds in plan:
        simulation.at(time, partial(simulation.happen, fault, place, seconds))
    simulation.run(HEALED)


@pytest.mark.fault("K20")
@pytest.mark.fault("C4")
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), faults(*EVERYWHERE, *NETWORK, "crash", "release"))
def test_never_two_and_in_the_end_one(seed: int, number: int, plan: list[tuple[float, str, int, float]]) -> None:
    simulation = Simulation(seed, number)
    play(simulation, plan)
    assert len(simulation.leading) == 1


@pytest.mark.report("M64")
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), faults(*EVERYWHERE, *NETWORK, "delete the lease"))
def test_a_lease_that_is_deleted_gives_no_second_leader(
    seed: int, number: int, plan: list[tuple[float, str, int, float]]
) -> None:
    simulation = Simulation(seed, number, restarts=False)
    play(simulation, plan)
    if any(one.alive for one in simulation.electors):
        assert len(simulation.leading) == 1


@pytest.mark.fault("K19")
@pytest.mark.parametrize("seed", range(20))
def test_a_dead_leader_is_followed_within_lease_and_retry(seed: int) -> None:
    simulation = Simulation(seed, restarts=False)
    simulation.run(50.0)
    (dead,) = simulation.leading
    simulation.crash(dead)
    simulation.run(90.0)
    assert len(simulation.takeovers) == 2
    last = simulation.renewals[dead.view.identity]
    assert simulation.takeovers[1][0] - last <= (SETTINGS.lease + SETTINGS.retry) / (1 - DRIFT) + 1.0


@pytest.mark.parametrize("seed", range(5))
def test_nothing_happens_and_nothing_changes(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.run(1000.0)
    assert len(simulation.takeovers) == 1
    assert simulation.lease is not None
    assert simulation.lease.spec.lease_transitions == 0
