"""The Autoscaler: looks at cluster and agents, lets the policy plan, and carries the plans out step by step.

One loop does everything that reads or writes; the calls from outside only leave a note and return. What is decided is
decided by `edl_controller.core.planner` and `edl_controller.core.scaling`, from what cluster and etcd show: after a
crash the next one finds all that is half done. Only the journal of decisions is kept in memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from edl_agent.drain_request import DrainRequest
from edl_controller.api import timestamps
from edl_controller.api.conditions import RECORD_LIMIT
from edl_controller.api.defaults import with_defaults
from edl_controller.api.kinds import JOBS, PODS
from edl_controller.api.pods import Pod
from edl_controller.api.settings import Settings
from edl_controller.api.v1 import ScaleRecord, TrainingJob
from edl_controller.api.workloads import Job
from edl_controller.cluster.port import ObjectWriter, Stop
from edl_controller.core.agents import AgentState
from edl_controller.core.planner.classic import Classic
from edl_controller.core.planner.journal import Decision, Journal
from edl_controller.core.planner.observed import gate_of, hears_agents, is_scalable, job_key, job_view, waiting_pods
from edl_controller.core.planner.plan import JobPlan, Plan
from edl_controller.core.planner.policy import PlannerSettings, Policy
from edl_controller.core.planner.snapshot import JobView, Snapshot
from edl_controller.core.scaling import PodInService, ScalingView, Steps, decision_id, next_steps
from edl_controller.core.service_gate import set_gate
from edl_controller.errors import ClusterError, Conflict, EdlControllerError, NotFound
from edl_controller.runtime.cluster_view import ClusterView

STOP_SEEN = 0.5
"""Seconds within which the stop is seen."""

log = logging.getLogger(__name__)


class AgentAccess(Protocol):
    """What is needed of `edl_controller.agent_state.AgentStates`. No call waits for etcd."""

    def get(self, job: str) -> AgentState:
        """Return what was read last."""
        ...

    def refresh(self, job: str) -> None:
        """Read again soon."""
        ...

    def request_drain(self, job: str, name: str, request: DrainRequest) -> None:
        """Write a drain request soon."""
        ...

    def withdraw_drain(self, job: str, name: str) -> None:
        """Remove a drain request soon."""
        ...


class WallClock(Protocol):
    """What is needed of time."""

    def wall(self) -> float:
        """Return Unix seconds."""
        ...


@dataclass(frozen=True)
class AutoscalerSettings:
    """How often, and how. Seconds.

    Attributes:
        planner: what the policy is told.
        interval: between two rounds when nothing happens.
        busy_interval: between two rounds while trainers are being drained or cut.
        idle_interval: in place of ``interval``, where `wake` and `notice` tell of everything that happens: then a round
            of many jobs in which nothing can have changed is spared.
        stale_after: after so long a silence of the cluster nothing is decided.
        limits: what the defaults of jobs go by.
    """

    planner: PlannerSettings = field(default_factory=PlannerSettings)
    interval: float = 1.0
    busy_interval: float = 0.2
    idle_interval: float = 0.0
    stale_after: float = 30.0
    limits: Settings = field(default_factory=Settings)


@dataclass
class _Scaled:
    """What is remembered of one job. All but the newest changes and the journal could be read anew."""

    job: TrainingJob
    journal: Journal = field(default_factory=Journal)
    grown: float | None = None
    shrunk: float | None = None
    asked: dict[str, DrainRequest | None] = field(default_factory=dict)
    view: ScalingView = field(default_factory=ScalingView)


@dataclass(frozen=True)
class _Seen:
    """One scalable job in one round."""

    job: TrainingJob
    trainer: Job
    pods: tuple[Pod, ...]
    agents: AgentState
    view: JobView


class Autoscaler:
    """Scales the trainers of all jobs between their minimum and maximum. See the module.

    Args:
        writer: of Jobs' parallelism and pods' readiness gates.
        view: of the cluster.
        agents: of all jobs.
        policy: decides.
        settings: see `AutoscalerSettings`.
        clock: Unix seconds.
    """

    def __init__(
        self,
        writer: ObjectWriter,
        view: ClusterView,
        agents: AgentAccess,
        policy: Policy | None = None,
        settings: AutoscalerSettings | None = None,
        *,
        clock: WallClock,
    ) -> None:
        self._writer, self._cluster, self._agents, self._clock = writer, view, agents, clock
        self._policy = policy or Classic()
        self._settings = settings or AutoscalerSettings()
        self._lock = threading.Lock()
        self._notes: dict[str, TrainingJob | None] = {}
        self._woken = threading.Event()
        self._news = threading.Event()
        self._rests = (0.0, 0.0)
        self._deaf = False
        self._jobs: dict[str, _Scaled] = {}
        self._plan = Plan(0.0)
        self._listeners: list[Callable[[str], object]] = []
        self._deciders: list[Callable[[Decision], object]] = []
        self.turns = 0
        """Of the loop, so far: one that is stuck makes none."""

    # --- what is told; never blocks ---

    def on_add(self, job: TrainingJob) -> None:
        """A job is there."""
        self._note(job_key(job), job)

    def on_update(self, job: TrainingJob) -> None:
        """A job has changed."""
        self._note(job_key(job), job)

    def on_del(self, job: TrainingJob) -> None:
        """A job is gone."""
        self._note(job_key(job), None)

    def wake(self) -> None:
        """Something has changed: begin the next round soon."""
        self._woken.set()

    def notice(self) -> None:
        """Agents have news, as they often do: begin the next round within the usual interval."""
        self._news.set()

    # --- what can be asked ---

    def scaling_of(self, job: str) -> ScalingView:
        """Return what to show of a job's scaling, by its key."""
        with self._lock:
            scaled = self._jobs.get(job)
            return ScalingView() if scaled is None else scaled.view

    def decisions(self, job: str) -> tuple[Decision, ...]:
        """Return the newest decisions about a job, oldest first."""
        with self._lock:
            scaled = self._jobs.get(job)
            return () if scaled is None else scaled.journal.entries

    def on_change(self, listener: Callable[[str], object]) -> None:
        """Call ``listener(job key)`` from the loop when what `scaling_of` says has changed; it must not block."""
        self._listeners.append(listener)

    def on_decision(self, listener: Callable[[Decision], object]) -> None:
        """Call ``listener(decision)`` from the loop for each decision that is made; it must not block."""
        self._deciders.append(listener)

    @property
    def plan(self) -> Plan:
        """The newest plan."""
        return self._plan

    # --- the loop ---

    def run(self, stop: Stop) -> None:
        """Plan and act until ``stop`` is set; rest while neither cluster nor agents nor time give a reason to."""
        while not stop.is_set():
            self.turns += 1
            pause = self._settings.interval
            begin, end = self._rests
            # A clock that was set back is no reason to rest for longer.
            if self._woken.is_set() or self._news.is_set() or not begin <= self._clock.wall() < end:
                self._woken.clear()
                self._news.clear()
                if self._try_round() or self._woken.is_set():
                    pause = self._settings.busy_interval
            self._rest(pause, stop)

    def _try_round(self) -> bool:
        self._rests = (0.0, 0.0)  # what fails is tried again at the next turn
        try:
            return self.round()
        except ClusterError as error:
            log.warning("No plan: the cluster does not answer: %s", error)
        except Exception:
            log.exception("A round of the autoscaler failed")
        return False

    def round(self) -> bool:
        """Look, plan and act once. Returns whether more steps are to follow soon.

        Raises:
            ClusterError: the cluster does not answer.
        """
        self._take_notes()
        self._cluster.look()
        now = self._clock.wall()
        silence = self._cluster.silence()
        if silence > self._settings.stale_after:
            if not self._deaf:
                log.warning("Nothing has been heard of the cluster for %.0f s: no plan until it is", silence)
            self._deaf = True
            return False
        self._deaf = False
        seen = [one for scaled in self._jobs.values() if (one := self._see(scaled, now)) is not None]
        elastic = frozenset(one.trainer.metadata.uid for one in seen)
        snapshot = Snapshot(
            tuple(one.view for one in seen), self._cluster.nodes(), waiting_pods(self._cluster.waiting(), elastic)
        )
        self._plan = self._policy.plan(snapshot, self._settings.planner, now)
        busy = failed = False
        for one, plan in zip(seen, self._plan.jobs, strict=True):
            try:
                busy |= self._act(one, plan, now)
            except Conflict as error:
                log.debug("%s has changed meanwhile; looking again: %s", one.view.key, error)
                busy = True
            except ClusterError as error:
                log.warning("The plan for %s could not be carried out: %s", one.view.key, error)
                failed = True
        if not (busy or failed or self._plan.changes):
            self._rests = (now, self._next_due(seen, now))
        return busy

    def _next_due(self, seen: list[_Seen], now: float) -> float:
        """Return until when time alone changes no plan: a cooldown ends; or to make sure, after a while.

        Agents that are too long unheard for no known reason (this process was stopped for a while) may be heard again
        without having news: until then there is no rest. That an error is over is news.
        """
        stale_after = self._settings.planner.stale_after
        if any(one.view.agents_age > stale_after and not one.agents.error for one in seen):
            return now
        ends = [
            end
            for view in (one.view for one in seen)
            for cooldown in (view.up_cooldown, view.down_cooldown)
            if view.changed is not None and (end := view.changed + cooldown) > now
        ]
        return min([now + self._settings.idle_interval, *ends])

    # --- inside ---

    def _note(self, key: str, job: TrainingJob | None) -> None:
        with self._lock:
            self._notes[key] = job
        self._woken.set()

    def _take_notes(self) -> None:
        with self._lock:
            notes, self._notes = self._notes, {}
            for key, job in notes.items():
                if job is None:
                    self._jobs.pop(key, None)
                    continue
                filled = with_defaults(job, self._settings.limits)
                if key in self._jobs:
                    self._jobs[key].job = filled
                else:
                    self._jobs[key] = _Scaled(filled)

    def _rest(self, pause: float, stop: Stop) -> None:
        left = pause
        while left > 0 and not stop.is_set():
            step = min(left, STOP_SEEN)
            left -= step
            if self._woken.wait(step):
                # Changes come in bursts: one round for all of them.
                stop.wait(min(left, self._settings.busy_interval / 2))
                return

    def _see(self, scaled: _Scaled, now: float) -> _Seen | None:
        job = scaled.job
        found = self._cluster.trainers(job)
        if found is None or not is_scalable(job, found[0]):
            self._show(scaled, ScalingView(records=scaled.view.records))
            return None
        trainer, pods = found
        agents = self._heard(scaled)
        try:
            view = job_view(job, trainer, pods, agents, now)
        except EdlControllerError as error:
            self._show(scaled, replace(scaled.view, reason=str(error)))
            return None
        view = replace(view, grown=_later(view.grown, scaled.grown), shrunk=_later(view.shrunk, scaled.shrunk))
        return _Seen(job, trainer, pods, agents, view)

    def _heard(self, scaled: _Scaled) -> AgentState:
        """What the agents say, with what was asked of them but does not show yet."""
        if not hears_agents(scaled.job):
            return AgentState()
        agents = self._agents.get(job_key(scaled.job))
        requests = dict(agents.drain_requests)
        for name, request in [*scaled.asked.items()]:
            if requests.get(name) == request and (request is not None or name not in agents.drains):
                del scaled.asked[name]
            elif request is None:
                requests.pop(name, None)
            else:
                requests[name] = request
        return replace(agents, drain_requests=tuple(sorted(requests.items())), drains=frozenset(requests))

    def _act(self, seen: _Seen, plan: JobPlan, now: float) -> bool:
        key = seen.view.key
        scaled = self._jobs[key]
        decision = decision_id(seen.job.metadata.uid, now)
        steps = next_steps(
            seen.view,
            plan,
            seen.agents,
            {pod.metadata.name: PodInService(pod.metadata.uid, gate_of(pod)) for pod in seen.pods},
            now,
            drain_seconds=float(seen.job.spec.autoscaling.drain_seconds or 0),
            decision=decision,
            stale_after=self._settings.planner.stale_after,
        )
        if steps.chosen:
            self._decide(
                scaled,
                Decision(decision, now, key, plan.before, plan.target, plan.reason, steps.chosen, cause=plan.cause),
            )
            scaled.shrunk = now
        try:
            self._carry_out(scaled, seen, plan, steps, decision, now)
        finally:
            self._show(scaled, self._shown(scaled, seen, plan, steps))
        if steps.busy and hears_agents(seen.job):
            self._agents.refresh(key)
        return steps.busy

    def _carry_out(self, scaled: _Scaled, seen: _Seen, plan: JobPlan, steps: Steps, decision: str, now: float) -> None:
        key = seen.view.key
        for name, request in steps.request.items():
            scaled.asked[name] = request
            self._agents.request_drain(key, name, request)
        for name in steps.withdraw:
            scaled.asked[name] = None
            self._agents.withdraw_drain(key, name)
        by_name = {pod.metadata.name: pod for pod in seen.pods}
        for name in steps.close:
            self._set_gate(by_name[name], False, now)
        for name in steps.open:
            self._set_gate(by_name[name], True, now)
        if steps.parallelism is not None:
            self._set_parallelism(scaled, seen, plan, steps.parallelism, decision, now)

    def _set_parallelism(
        self, scaled: _Scaled, seen: _Seen, plan: JobPlan, parallelism: int, decision: str, now: float
    ) -> None:
        meta, before = seen.trainer.metadata, seen.view.parallelism
        self._writer.patch(
            JOBS,
            meta.namespace,
            meta.name,
            {"spec": {"parallelism": parallelism}},
            resource_version=meta.resource_version,
            uid=meta.uid,
        )
        log.info("%s: trainers from %d to %d. %s", seen.view.key, before, parallelism, plan.reason)
        if parallelism > before:
            scaled.grown = now
            self._decide(
                scaled, Decision(decision, now, seen.view.key, before, parallelism, plan.reason, cause=plan.cause)
            )
        else:
            scaled.shrunk = now
        with self._lock:
            last = scaled.journal.last
            if last is not None:
                scaled.journal = scaled.journal.close(last.id, "done")
        record = ScaleRecord(
            scale_timestamp=timestamps.render(now), additional=parallelism - before, status="True", reason=plan.reason
        )
        scaled.view = replace(scaled.view, records=(*scaled.view.records, record)[-RECORD_LIMIT:])

    def _set_gate(self, pod: Pod, in_service: bool, now: float) -> None:
        reason = "BackInService" if in_service else "ScalingDown"
        patch = set_gate(pod, in_service=in_service, reason=reason, now=now)
        try:
            self._writer.patch(
                PODS,
                patch.namespace,
                patch.name,
                patch.patch,
                subresource="status",
                resource_version=patch.resource_version,
                uid=patch.uid,
            )
        except (NotFound, Conflict) as error:  # it has changed or ended meanwhile: the next round sees it
            log.debug("The readiness gate of %s/%s was not set: %s", patch.namespace, patch.name, error)

    def _decide(self, scaled: _Scaled, decision: Decision) -> None:
        with self._lock:
            scaled.journal = scaled.journal.add(decision)
        for listener in self._deciders:
            listener(decision)

    def _shown(self, scaled: _Scaled, seen: _Seen, plan: JobPlan, steps: Steps) -> ScalingView:
        ready = sum(pod.ready_since is not None and not pod.draining for pod in seen.view.pods)
        scaling = steps.busy or ready < plan.target
        return ScalingView(plan.target, scaling and not seen.view.frozen, plan.reason, scaled.view.records)

    def _show(self, scaled: _Scaled, view: ScalingView) -> None:
        with self._lock:
            changed, scaled.view = scaled.view != view, view
        if changed:
            for listener in self._listeners:
                listener(job_key(scaled.job))


def _later(one: float | None, other: float | None) -> float | None:
    return max((time for time in (one, other) if time is not None), default=None)
