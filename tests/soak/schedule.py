"""PURE: what is done to whom and when, drawn from a seed.

A schedule is a list of steps, each with an offset in seconds from the start of the run. It knows agents and members by
number only; the runner turns the steps into signals, proxies and requests. The same seed and plan give the same steps.
(The run itself is not repeated exactly: processes and the network have their own timing. The seed brings the same
faults at the same times again.)

A round is a time of chaos, then an outage of the whole store, then a calm that is long enough for I5 to be demanded.
Rules that keep a round meaningful: one agent suffers one thing at a time, at most one member is down (so that there is
a quorum), everything has ended before the outage.
"""

from __future__ import annotations

import dataclasses
import random

CUT_MODES = ("refuse", "reset", "black_hole", "half_open", "hold", "hold_answers")
"""Ways of cutting a connection, named as the proxy's methods."""
CUT_WEIGHTS = (1, 1, 1, 1, 3, 1)
"""`hold` most: what was sent before the cut arrives after it, when another agent may have the slot."""


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """Base of all actions."""


@dataclasses.dataclass(frozen=True, slots=True)
class Start(Action):
    """Start a process in the place of agent `agent`; with its old address, or with a new one."""

    agent: int
    same_address: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Kill(Action):
    """SIGKILL."""

    agent: int


@dataclasses.dataclass(frozen=True, slots=True)
class Stop(Action):
    """SIGTERM."""

    agent: int


@dataclasses.dataclass(frozen=True, slots=True)
class Pause(Action):
    """SIGSTOP."""

    agent: int


@dataclasses.dataclass(frozen=True, slots=True)
class Resume(Action):
    """SIGCONT."""

    agent: int


@dataclasses.dataclass(frozen=True, slots=True)
class Cut(Action):
    """Cut the agent's connections to all members; `mode` is one of `CUT_MODES`."""

    agent: int
    mode: str


@dataclasses.dataclass(frozen=True, slots=True)
class Mend(Action):
    """Undo a `Cut`."""

    agent: int


@dataclasses.dataclass(frozen=True, slots=True)
class MemberDown(Action):
    """Kill (or stop cleanly) one member: the leader, or some follower."""

    leader: bool
    clean: bool


@dataclasses.dataclass(frozen=True, slots=True)
class MemberUp(Action):
    """Start the member again that is down."""


@dataclasses.dataclass(frozen=True, slots=True)
class Desire(Action):
    """Write the desired count."""

    value: int


@dataclasses.dataclass(frozen=True, slots=True)
class StoreAway(Action):
    """Kill all members."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoreBack(Action):
    """Start all members again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settle(Action):
    """Wait the time that I5 allows, then take a snapshot that must be in order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One action.

    Attributes:
        at: seconds from the start of the run. `Settle` takes its own time on top; the offsets of later steps count
        without it. action: what is done.
    """

    at: float
    action: Action


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What a schedule is drawn from.

    Attributes:
        agents: how many places for agents there are; all are started before the first step.
        ttl: seconds; the granted lease TTL, the measure of all times.
        chaos: seconds of chaos in a round.
        away: seconds of the store's outage in a round.
        rounds: how many rounds.
        gap: mean seconds between two faults.
        least_desired: lowest desired count.
        most_desired: highest desired count; above `agents` there are slots that stay empty, below there are waiters.
    """

    agents: int
    ttl: float
    chaos: float
    away: float
    rounds: int = 1
    gap: float = 0.7
    least_desired: int = 2
    most_desired: int = 9


def make_schedule(seed: int, plan: Plan) -> tuple[Step, ...]:
    """Draw a schedule; steps are in order of time."""
    dice = random.Random(seed)
    steps: list[Step] = []
    start = 0.0
    for _ in range(plan.rounds):
        chaos = _chaos(dice, plan, start)
        steps += chaos
        # Everything is over. Agents need a moment of an ordinary life, so that "no more than before the outage" has a
        # before.
        outage = max([start + plan.chaos, *(step.at for step in chaos)]) + 2 * plan.ttl
        back = outage + plan.away
        # All slots are held again when the count is lowered, so that holders must give theirs up; the calm has waiters.
        lowered = back + 1.5 * plan.ttl
        few = dice.randint(plan.least_desired, max(plan.least_desired, plan.agents // 2))
        steps += [
            Step(outage, StoreAway()),
            Step(back, StoreBack()),
            Step(back, Desire(plan.most_desired)),
            Step(lowered, Desire(few)),
            Step(lowered, Settle()),
        ]
        start = lowered
    return tuple(steps)


def _chaos(dice: random.Random, plan: Plan, start: float) -> list[Step]:
    """Draw the faults of one round, each with its end."""
    steps: list[Step] = []
    free_from = [start] * plan.agents
    member_free_from = start
    end = start + plan.chaos
    at = start
    while (at := at + dice.expovariate(1 / plan.gap)) < end:
        kind = dice.choices(("kill", "stop", "pause", "cut", "member", "desire"), weights=(3, 2, 3, 4, 2, 2))[0]
        if kind == "desire":
            steps.append(Step(at, Desire(dice.randint(plan.least_desired, plan.most_desired))))
            continue
        if kind == "member":
            down = dice.uniform(0.3, 1.5) * plan.ttl
            if at >= member_free_from and at + down < end:
                steps.append(Step(at, MemberDown(leader=dice.random() < 0.6, clean=dice.random() < 0.3)))
                steps.append(Step(at + down, MemberUp()))
                # A member that has just started must catch up before another one may go: else there is no quorum.
                member_free_from = at + down + max(2.0, plan.ttl)
            continue
        idle = [agent for agent in range(plan.agents) if free_from[agent] <= at]
        if not idle:
            continue
        agent = dice.choice(idle)
        last, pair = _on_agent(dice, plan, kind, agent)
        if at + last < end:
            steps += [Step(at, pair[0]), Step(at + last, pair[1])]
            free_from[agent] = at + last + dice.uniform(0.2, 1.0) * plan.ttl
    steps.sort(key=lambda step: step.at)
    return steps


def _on_agent(dice: random.Random, plan: Plan, kind: str, agent: int) -> tuple[float, tuple[Action, Action]]:
    """Draw one fault of one agent: how long it lasts, and its two actions."""
    if kind == "pause":
        return dice.uniform(0.5, 2.5) * plan.ttl, (Pause(agent), Resume(agent))
    if kind == "cut":
        # Short enough to be survived, or long enough for another agent to have the slot when the cut ends.
        last = dice.choice((dice.uniform(0.2, 0.9), dice.uniform(1.6, 2.8)))
        return last * plan.ttl, (Cut(agent, dice.choices(CUT_MODES, weights=CUT_WEIGHTS)[0]), Mend(agent))
    last = dice.choice((0.0, dice.uniform(0.1, 2.0))) * plan.ttl
    again = Start(agent, same_address=dice.random() < 0.6)
    return last, ((Kill(agent) if kind == "kill" else Stop(agent)), again)
