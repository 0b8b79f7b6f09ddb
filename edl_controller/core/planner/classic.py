"""PURE: the policy ``classic``: the rule of the original (`original_rule`), made safe.

Kept: the load limit, the order by fulfilment (ties by GPU, CPU, memory), growth to the least fulfilled, taking back
from the most fulfilled. Changed: room is counted per node and for all resources, not in sums; CPU, memory and GPUs have
one limit for growing and shrinking, so nothing is added to be removed; minima and pods of others come first; stale or
bad news of the agents stops growth; no job changes size again and again. Each phase only ever moves targets one way, so
a plan ends after at most as many steps as there are trainers.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heapreplace

from edl_controller.core.capacity import NodeRoom
from edl_controller.core.placement import CPU, MEMORY, Amounts, Shape, add, gpus
from edl_controller.core.planner.plan import Cause, JobPlan, Plan
from edl_controller.core.planner.policy import PlannerSettings
from edl_controller.core.planner.rooms import Rooms
from edl_controller.core.planner.snapshot import JobView, Snapshot, TrainerPod, WaitingPod
from edl_controller.core.planner.victims import choose_victims, removal_rank

_NODES_TRIED = 64
"""How many nodes are looked at to make room for one waiting pod: those with trainers of the most fulfilled jobs."""

_Load = tuple[int, int, int]


class Classic:
    """The rule of 2017, made safe. See the module."""

    name = "classic"

    def plan(self, snapshot: Snapshot, settings: PlannerSettings, now: float) -> Plan:
        """Return a target for each job. See `edl_controller.core.planner.policy.Policy`."""
        return _Round(snapshot, settings, now).plan()


class _Share:
    """One job while the plan is being made."""

    __slots__ = (
        *(
            "asked",
            "cause",
            "first",
            "job",
            "limit",
            "load",
            "order",
            "placed",
            "reason",
            "span",
            "start",
            "target",
            "ties",
        ),
        *("victims", "why_not_grow", "working_from"),
    )

    def __init__(self, job: JobView) -> None:
        self.job = job
        self.start = self.target = job.committed
        self.reason = ""
        self.cause = Cause.OTHER
        self.why_not_grow = ""
        self.limit = job.maximum
        self.victims: list[str] = []
        self.placed: list[str] = []
        self.order: list[TrainerPod] | None = None
        self.asked = job.trainer.amounts
        self.load = _load(self.asked)
        # The fulfilment of `original_rule`; lost trainers are none.
        self.span = job.maximum - job.minimum
        self.working_from = job.minimum + job.lost
        self.first = -job.priority
        self.ties = (self.load[2], self.load[0], self.load[1])

    def rank(self) -> tuple[float, ...]:
        """The lowest grows first, the highest gives back first."""
        at = (self.target - self.working_from) / self.span if self.span else 1.0
        return (self.first, at, *self.ties)

    def next_victim(self) -> TrainerPod | None:
        """Who would go next; the order is worked out once."""
        if self.order is None:
            self.order = [*reversed(choose_victims(self.job.pods, len(self.job.pods)))]
        while self.order:
            pod = self.order.pop()
            if pod.name not in self.victims:
                return pod
        return None

    def may_give(self) -> bool:
        return self.job.enabled and not self.job.frozen and self.target > self.job.minimum


class _Round:
    """One plan being made."""

    def __init__(self, snapshot: Snapshot, settings: PlannerSettings, now: float) -> None:
        self._settings, self._now = settings, now
        self._shares = [_Share(job) for job in snapshot.jobs]
        self._waiting = snapshot.waiting
        rules = {share.job.trainer.rules for share in self._shares} | {pod.shape.rules for pod in snapshot.waiting}
        self._rooms = Rooms(snapshot.nodes, rules)
        self._total, self._used = _sums(snapshot.nodes)
        self._most = tuple(int(amount * settings.max_load) for amount in self._total)
        self._unplaced: list[str] = []
        self._givers: list[_Share] | None = None
        self._on_nodes: dict[str, list[tuple[_Share, TrainerPod]]] | None = None

    def plan(self) -> Plan:
        for share in self._shares:
            self._note_drains(share)
            self._keep_bounds(share)
        self._serve_waiting()
        for share in self._shares:
            self._place_pending(share)
        self._keep_load()
        self._grow()
        return Plan(
            self._now,
            tuple(_job_plan(share) for share in self._shares),
            {share.job.key: tuple(share.placed) for share in self._shares if share.placed},
            tuple(self._unplaced),
        )

    # --- what is there ---

    def _note_drains(self, share: _Share) -> None:
        for pod in share.job.pods:
            if pod.draining and pod.node:
                self._release(share, pod)

    def _release(self, share: _Share, pod: TrainerPod) -> None:
        if self._rooms.leaves(pod.node, share.asked):
            self._used = _minus(self._used, share.load)

    def _keep_bounds(self, share: _Share) -> None:
        job = share.job
        if job.frozen:
            share.why_not_grow = job.frozen
        elif share.target > job.maximum:
            self._shrink(share, share.target - job.maximum, f"more than the maximum of {job.maximum}", Cause.BOUNDS)
        elif share.target < job.minimum:
            share.target, share.reason = job.minimum, f"fewer than the minimum of {job.minimum}"
            share.cause = Cause.BOUNDS

    # --- who comes first ---

    def _serve_waiting(self) -> None:
        minima = [pod for share in self._shares for pod in self._minima(share)]
        hopeless: set[tuple[Shape, int]] = set()
        for pod in sorted([*self._waiting, *minima], key=lambda one: (-one.priority, one.since, one.name)):
            search = self._rooms.search(pod.shape)
            known = (pod.shape, pod.priority) in hopeless
            if not known and (self._rooms.take(search) or self._rooms.take_soon(pod.shape) or self._make_room(pod)):
                self._used = _plus(self._used, _load(pod.shape.amounts))
            else:
                hopeless.add((pod.shape, pod.priority))
                self._unplaced.append(pod.name)

    def _minima(self, share: _Share) -> list[WaitingPod]:
        """The trainers below the minimum that have no node yet."""
        job = share.job
        if job.frozen:
            return []
        placed = sum(bool(pod.node) and not pod.draining for pod in job.pods)
        missing = max(0, job.minimum - placed)
        since = min((pod.created for pod in job.pods if not pod.node), default=self._now)
        return [WaitingPod(job.key, job.trainer, job.priority, since)] * missing

    def _make_room(self, pod: WaitingPod) -> str | None:
        """Take trainers back on one node, the most fulfilled jobs' first, so that the pod fits there."""
        best: list[tuple[_Share, TrainerPod]] | None = None
        for node in self._nodes_of_the_most_fulfilled(pod):
            chosen = self._taken_for(pod, node)
            if chosen is not None and (best is None or len(chosen) < len(best)):
                best = chosen
            if best is not None and len(best) == 1:
                break
        if best is None:
            return None
        for share, trainer in best:
            reason = f"its room on node {trainer.node} goes to {pod.name}, which waits for it"
            self._take_back(share, trainer, reason, Cause.ROOM_FOR_OTHERS)
        return self._rooms.take_soon(pod.shape)

    def _nodes_of_the_most_fulfilled(self, pod: WaitingPod) -> list[str]:
        nodes: dict[str, None] = {}
        if self._givers is None:
            self._givers = sorted((one for one in self._shares if one.may_give()), key=_Share.rank, reverse=True)
        for share in self._givers:
            if share.job.priority > pod.priority:
                continue
            for trainer in share.job.pods:
                if trainer.node and self._rooms.may_run(pod.shape.rules, trainer.node):
                    nodes[trainer.node] = None
                    if len(nodes) >= _NODES_TRIED:
                        return list(nodes)
        return list(nodes)

    def _taken_for(self, pod: WaitingPod, node: str) -> list[tuple[_Share, TrainerPod]] | None:
        """The fewest trainers, of the most fulfilled jobs, without which the pod fits on the node; None: no such."""
        spare: dict[str, int] = {}
        freed: Amounts = {}
        chosen: list[tuple[_Share, TrainerPod]] = []
        candidates = [
            (share, trainer)
            for share, trainer in self._trainers_on(node)
            if share.may_give() and share.job.priority <= pod.priority and trainer.name not in share.victims
        ]
        for share, trainer in sorted(candidates, key=_most_fulfilled_first):
            left = spare.setdefault(share.job.key, share.target - share.job.minimum)
            if left <= 0:
                continue
            spare[share.job.key] = left - 1
            add(freed, share.asked)
            chosen.append((share, trainer))
            if self._rooms.fits_soon(pod.shape, node, freed):
                return chosen
        return None

    def _trainers_on(self, node: str) -> list[tuple[_Share, TrainerPod]]:
        if self._on_nodes is None:
            self._on_nodes = {}
            for share in self._shares:
                for pod in share.job.pods:
                    if pod.node and not pod.draining:
                        self._on_nodes.setdefault(pod.node, []).append((share, pod))
        return self._on_nodes.get(node, [])

    def _take_back(self, share: _Share, pod: TrainerPod, reason: str, cause: Cause) -> None:
        self._givers = None
        share.target -= 1
        share.victims.append(pod.name)
        share.reason, share.cause = reason, cause
        if pod.node:
            self._release(share, pod)

    # --- what was promised ---

    def _place_pending(self, share: _Share) -> None:
        """Keep room for trainers above the minimum that have no node yet; those that fit nowhere are given up."""
        job = share.job
        placed = sum(bool(pod.node) and not pod.draining and pod.name not in share.victims for pod in job.pods)
        for _ in range(max(job.minimum, placed), share.target):
            share.why_not_grow = share.why_not_grow or "its newest trainers have no node yet"
            if self._rooms.take(self._rooms.search(job.trainer)) or self._rooms.take_soon(job.trainer):
                self._used = _plus(self._used, share.load)
            elif share.may_give():
                share.target -= 1
                share.reason, share.cause = "no node has room for a trainer that waits for one", Cause.NO_ROOM

    # --- the load limit ---

    def _keep_load(self) -> None:
        over = self._over()
        if not over:
            return
        steps = {share.job.key: self._settings.step for share in self._shares}
        heap = [
            (_reversed(share.rank()), number)
            for number, share in enumerate(self._shares)
            if self._calm(share, shrinking=True)
        ]
        heapify(heap)
        while over and heap:
            number = heap[0][1]
            share = self._shares[number]
            # What is over the limit only becomes less: who does not help now never will.
            if not (share.may_give() and steps[share.job.key] and _helps(share.load, over)):
                heappop(heap)
                continue
            steps[share.job.key] -= 1
            before = self._used
            self._shrink(share, 1, "more is asked for than the load limit allows", Cause.LOAD)
            if self._used == before:  # a trainer without a node, for which room was kept
                self._used = _minus(self._used, share.load)
            heapreplace(heap, (_reversed(share.rank()), number))
            over = self._over()

    def _over(self) -> tuple[bool, ...]:
        over = tuple(used > most for used, most in zip(self._used, self._most, strict=True))
        return over if any(over) else ()

    def _shrink(self, share: _Share, count: int, reason: str, cause: Cause) -> None:
        while count and (pod := share.next_victim()) is not None:
            self._take_back(share, pod, reason, cause)
            count -= 1
        if count:
            share.target, share.reason, share.cause = share.target - count, reason, cause

    # --- growth ---

    def _grow(self) -> None:
        heap: list[tuple[tuple[float, ...], int]] = []
        for number, share in enumerate(self._shares):
            share.why_not_grow = share.why_not_grow or self._why_not_grow(share)
            share.limit = min(share.job.maximum, share.start + self._settings.step)
            if not share.why_not_grow and share.target < share.limit:
                heap.append((share.rank(), number))
        heapify(heap)
        most_cpu, most_memory, most_gpu = self._most
        cpu, memory, gpu = self._used
        rooms = self._rooms
        searches = [rooms.search(share.job.trainer) for share in self._shares]
        while heap:
            number = heap[0][1]
            share = self._shares[number]
            more_cpu, more_memory, more_gpu = share.load
            node = None
            if (
                (more_cpu and cpu + more_cpu > most_cpu)
                or (more_memory and memory + more_memory > most_memory)
                or (more_gpu and gpu + more_gpu > most_gpu)
            ):
                share.why_not_grow = "the load limit allows no more"
            elif (node := rooms.take(searches[number])) is None:
                share.why_not_grow = "no node has room for one more trainer"
            if node is None:
                heappop(heap)
                continue
            cpu, memory, gpu = cpu + more_cpu, memory + more_memory, gpu + more_gpu
            share.target += 1
            share.placed.append(node)
            if share.target < share.limit:
                heapreplace(heap, (share.rank(), number))
            else:
                heappop(heap)
        self._used = cpu, memory, gpu

    def _why_not_grow(self, share: _Share) -> str:
        job = share.job
        if not job.enabled:
            return "scaling is switched off"
        if share.target >= job.maximum:
            return f"it has its maximum of {job.maximum}"
        if share.target < share.start or job.draining:
            return share.reason or "some of its trainers are leaving"
        if job.missing_pservers:
            return f"nobody holds pserver {', '.join(map(str, job.missing_pservers[:5]))}"
        if job.agents_age > self._settings.stale_after:
            return "nothing is known of its agents" if job.agents_age == float("inf") else "its agents' news is stale"
        if not self._calm(share, shrinking=False):
            return f"it changed less than {job.up_cooldown:g} s ago"
        return ""

    def _calm(self, share: _Share, *, shrinking: bool) -> bool:
        job = share.job
        if shrinking and job.agents_age > self._settings.stale_after:
            return False
        cooldown = job.down_cooldown if shrinking else job.up_cooldown
        return job.changed is None or self._now - job.changed >= cooldown


def _reversed(rank: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(-part for part in rank)


def _most_fulfilled_first(one: tuple[_Share, TrainerPod]) -> tuple[float, ...]:
    share, pod = one
    return (*_reversed(share.rank()), pod.agent != "lost", *removal_rank(pod))


def _job_plan(share: _Share) -> JobPlan:
    cause = share.cause
    if share.target > share.start and share.placed:
        reason, cause = f"{len(share.placed)} more fit, and it was among the least fulfilled", Cause.FITS
    else:
        reason = share.reason or share.why_not_grow or "it has what it can have"
    return JobPlan(share.job.key, share.start, share.target, _sentence(reason), tuple(share.victims), cause)


def _sentence(reason: str) -> str:
    return reason[:1].upper() + reason[1:] + "."


def _load(asked: Mapping[str, int]) -> _Load:
    return asked.get(CPU, 0), asked.get(MEMORY, 0), gpus(asked)


def _plus(a: _Load, b: _Load) -> _Load:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _minus(a: _Load, b: _Load) -> _Load:
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def _helps(load: _Load, over: tuple[bool, ...]) -> bool:
    return any(mine and above for mine, above in zip(load, over, strict=True))


def _sums(nodes: tuple[NodeRoom, ...]) -> tuple[_Load, _Load]:
    """What the nodes that take pods have, and what is promised on them; who leaves is not counted."""
    total: _Load = (0, 0, 0)
    used: _Load = (0, 0, 0)
    for node in nodes:
        if node.open:
            total, used = _plus(total, _load(node.allocatable)), _plus(used, _load(node.used))
    return total, used
