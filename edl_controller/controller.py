"""The Controller: brings each TrainingJob in line with what its user wrote, level-triggered, with bounded workers.

A worker gets a key, reads the job, its children and what its agents say, lets `core.lifecycle.decide` (pure), takes
the actions, and has the status written (`job_status`) last and only if it differs.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from edl_agent.clock import Clock, SystemClock
from edl_controller.agent_state import AgentStates
from edl_controller.agent_store import EtcdAccess
from edl_controller.api import conditions as known
from edl_controller.api.kinds import JOBS, PODS, REPLICA_SETS, TRAINING_JOBS, UNREADABLE
from edl_controller.api.meta import ObjectMeta, find_condition
from edl_controller.api.v1 import TrainingJob
from edl_controller.autoscaler import Autoscaler, AutoscalerSettings
from edl_controller.cluster.port import Cluster, Stop
from edl_controller.core.agents import AgentState
from edl_controller.core.children import Children, collect_children
from edl_controller.core.job_settings import DEFAULT_SETTINGS, JobSettings
from edl_controller.core.lifecycle import Outcome, decide
from edl_controller.core.names import JOB_UID_LABEL, ROLES, child_name
from edl_controller.core.planner.bounds import Bounds
from edl_controller.core.planner.classic import Classic
from edl_controller.core.planner.observed import job_key
from edl_controller.core.planner.policy import PlannerSettings
from edl_controller.core.scaling import ScalingView
from edl_controller.errors import Conflict, Forbidden, Invalid, Unavailable
from edl_controller.job_agents import JobAgents
from edl_controller.job_status import StatusWriter
from edl_controller.prefix_sweeper import PrefixSweeper
from edl_controller.runtime.apply_actions import ActionApplier, StaleDecision
from edl_controller.runtime.cache import Key, by_label
from edl_controller.runtime.cluster_view import InformedView
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.logs import about
from edl_controller.runtime.manager import STOP_WITHIN, Component, Manager
from edl_controller.runtime.reconciler import ReconcileMetrics, Reconciler
from edl_controller.runtime.recorder import Recorder
from edl_controller.runtime.reflector import Delta
from edl_controller.runtime.workqueue import Priority, QueueMetrics, WorkQueue

QUICK_TRIES = 5
"""Passes over one job in a row, while what it was decided on turns out to be old."""
REFUSED_RETRY = 60.0
"""Seconds before something is tried again that the cluster has refused (Forbidden, Invalid)."""
UNFILLED_RETRY = 2.0
"""Seconds between two looks at a job in a namespace of which not everything could be listed yet."""
FAILURES_SHOWN = 2
"""After so many failures in a row the condition `SYNCED` says so: one alone is noise."""

PLAN_TO_MAKE_SURE = 120.0
"""Seconds between two plans when nothing has happened that could change one."""

JOB = "job-uid"
"""Index of pods by the uid of their TrainingJob."""
UID = "uid"
"""Index of TrainingJobs by their uid."""

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Seen:
    """On what a pass decided that nothing is to be done, and until when that holds by itself."""

    versions: tuple[str, ...]
    news: int
    until: float


@dataclasses.dataclass
class _Memory:
    """What is remembered of one job; all of it can be lost.

    Attributes:
        job: its key for agents and autoscaler.
        since: when it was first looked at.
        seen: the last pass, if it did nothing.
        news: how often agents or autoscaler had news.
        unreadable: the generation that was found to be so, and said to be.
        barred: the generation that needs what the cluster has refused or asked to wait for, and until when that is
            left alone.
    """

    job: str
    since: float
    seen: _Seen | None = None
    news: int = 0
    unreadable: int = 0
    barred: tuple[int, float] = (0, 0.0)


class Controller:
    """The controller of TrainingJobs.

    Args:
        cluster: its only way to the outside.
        max_load_desired: share of the cluster's capacity that elastic trainers may fill.
        workers: how many jobs are worked on at once.
        namespaces: to look after; none: all.
        settings: of parser and life cycle; its ``etcd_endpoints`` are also where the jobs' agents are read.
        etcd: the controller's own access to that etcd, where it differs from that of the jobs.
        agents: what reads the agents' state; made, and closed at the end, where none is given.
        autoscale: whether trainers are scaled into the room that the nodes have; else the nodes are not looked at, and
            jobs are only kept between their minimum and maximum.
        resync: seconds between whole lists, which make good what was missed.
        clock: of the machine; tests have others.
        metrics: counts what the queue does.
        reconciles: counts the passes.
        leads: nothing is worked on before it says yes; the caches are filled meanwhile. None: at once.
        stop_within: seconds that the end may take.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        max_load_desired: float = 0.97,
        workers: int = 4,
        namespaces: Sequence[str] = (),
        settings: JobSettings = DEFAULT_SETTINGS,
        etcd: EtcdAccess | None = None,
        agents: AgentStates | None = None,
        autoscale: bool = True,
        resync: float = 600.0,
        clock: Clock | None = None,
        metrics: QueueMetrics | None = None,
        reconciles: ReconcileMetrics | None = None,
        leads: Callable[[], bool] | None = None,
        stop_within: float = STOP_WITHIN,
    ) -> None:
        clock = clock or SystemClock()
        self._cluster, self._settings, self._now = cluster, settings, clock.wall
        self._namespaces, self._monotonic = tuple(namespaces), clock.monotonic
        self._etcd = etcd or (EtcdAccess(settings.etcd_endpoints) if settings.etcd_endpoints else None)
        self._owns_agents = agents is None
        self.agents = AgentStates() if agents is None else agents
        self._job_agents = JobAgents(self.agents, settings, self._etcd)
        self.informers = Informers(cluster, namespaces=namespaces, resync=resync)
        self._jobs = self.informers.of(TRAINING_JOBS, **{UID: lambda job: (job.metadata.uid,)}).cache
        self._sets = self.informers.of(REPLICA_SETS).cache
        self._trainers = self.informers.of(JOBS).cache
        self._pods = self.informers.of(PODS, **{JOB: by_label(JOB_UID_LABEL)}).cache
        self._needed = self.informers.all()
        self.recorder = Recorder(cluster, now=clock.wall)
        self._status = StatusWriter(cluster, self._jobs, self.recorder, clock.wall)
        self._applier = ActionApplier(cluster, self.informers, clock.wall)
        self.queue: WorkQueue[Key] = WorkQueue("trainingjobs", clock=clock.monotonic, metrics=metrics)
        self._reconciler = Reconciler(
            "trainingjobs",
            self._reconcile,
            workers=workers,
            queue=self.queue,
            on_error=self._tell,
            metrics=reconciles,
            stop_within=stop_within,
        )
        self.autoscaler = self._make_autoscaler(max_load_desired, clock, nodes=autoscale)
        self._leads, self._stop_within = leads or (lambda: True), stop_within
        # Who does not lead yet collects no keys: they would look like work that is left undone.
        self._collects = leads is None
        self._watching = False
        self._memories: dict[Key, _Memory] = {}
        self._manager: Manager | None = None

    # --- the public names ---

    @property
    def ready(self) -> bool:
        """Whether the caches are filled and the workers work."""
        return self._manager is not None and self._manager.ready

    @property
    def synced(self) -> bool:
        """Whether the caches are filled, so that work could begin; of several namespaces: where it is not refused."""
        if all(one.has_synced for one in self._needed):
            return True
        reflectors = [reflector for informer in self._needed for reflector in informer.reflectors]
        settled = all(one.synced.is_set() or isinstance(one.trouble, Forbidden) for one in reflectors)
        return settled and any(map(self._is_filled, self._namespaces))

    def _is_filled(self, namespace: str) -> bool:
        return all(informer.filled(namespace) for informer in self._needed)

    def run(self, stop: Stop) -> None:
        """Watch and reconcile until ``stop`` is set; then end within 30 s.

        Raises:
            ComponentDied: a part of the controller has ended by itself.
        """
        self.watch_training_jobs()
        self._manager = Manager(self._components(), stop_within=self._stop_within)
        log.info("The controller starts")
        try:
            self._manager.run(stop)
        finally:
            self.queue.shut_down()
            if self._owns_agents:
                self.agents.close()
            log.info("The controller has ended")

    def watch_training_jobs(self) -> None:
        """Have every change of a TrainingJob, its children, pods and agents put its key into the queue. Idempotent."""
        if self._watching:
            return
        self._watching = True
        self.informers.of(TRAINING_JOBS).add_handler(self._on_job)
        self.informers.of(REPLICA_SETS).add_handler(self._on_child)
        self.informers.of(JOBS).add_handler(self._on_child)
        self.informers.of(PODS).add_handler(self._on_pod)
        self.agents.on_change(self._on_agents)
        self.autoscaler.on_change(self._on_news)

    def process_next_work_item(self) -> bool:
        """Wait for a key and bring its job in line; False: the queue is shut down."""
        return self._reconciler.process_next_work_item()

    def _components(self) -> list[Component]:
        # What only the autoscaler reads (nodes, which a namespaced installation may not list) holds nobody else up.
        parts = [
            Component("recorder", self.recorder.run, restart=True),
            Component("informers", self.informers.run, ready=lambda: self.synced and self._leads()),
            Component("workers", self._work),
            Component("autoscaler", self.autoscaler.run),
        ]
        if self._etcd is not None:
            sweeper = PrefixSweeper(self.agents, self._etcd, self._lives, self._namespaces, self._monotonic)
            parts.append(Component("sweeper", sweeper.run, restart=True))
        return parts

    def _work(self, stop: Stop) -> None:
        if not self._collects:
            self._collects = True
            for job in self._jobs.all():
                self.queue.add((job.metadata.namespace, job.metadata.name), Priority.RESYNC)
        self._reconciler.run(stop)

    def _lives(self, uid: str) -> bool:
        return bool(self._jobs.by_index(UID, uid))

    def _make_autoscaler(self, max_load: float, clock: Clock, *, nodes: bool) -> Autoscaler:
        planner = PlannerSettings(max_load=max_load)
        settings = AutoscalerSettings(planner, idle_interval=PLAN_TO_MAKE_SURE, limits=self._settings.rules)
        view = InformedView(self.informers, lambda: self.autoscaler.wake(), nodes=nodes)
        policy = Classic() if nodes else Bounds()
        return Autoscaler(self._cluster, view, self.agents, policy, settings, clock=clock)

    # --- what brings a key into the queue ---

    def _on_job(self, delta: Delta[TrainingJob]) -> None:
        job = delta.obj
        if delta.origin != "resync":
            {"added": self.autoscaler.on_add, "updated": self.autoscaler.on_update, "deleted": self.autoscaler.on_del}[
                delta.type
            ](job)
        self._add(job.metadata, delta)

    def _on_child(self, delta: Delta[Any]) -> None:
        owner = delta.obj.metadata.controller()
        if owner is not None and owner.kind == TRAINING_JOBS.name:
            self._collect((delta.obj.metadata.namespace, owner.name), _priority(delta))

    def _on_pod(self, delta: Delta[Any]) -> None:
        for job in self._jobs.by_index(UID, delta.obj.metadata.labels.get(JOB_UID_LABEL, "")):
            self._add(job.metadata, delta)

    def _on_agents(self, key: str, state: AgentState) -> None:
        self._on_news(key)
        self.autoscaler.notice()

    def _on_news(self, key: str) -> None:
        namespace, name, _ = key.split("/")
        memory = self._memories.get((namespace, name))
        if memory is not None and memory.job == key:
            memory.news += 1
            self.queue.add((namespace, name))

    def _add(self, meta: ObjectMeta, delta: Delta[Any]) -> None:
        self._collect((meta.namespace, meta.name), _priority(delta))

    def _collect(self, key: Key, priority: Priority) -> None:
        if self._collects:
            self.queue.add(key, priority)

    # --- one pass ---

    def _reconcile(self, key: Key) -> float | None:
        for _ in range(QUICK_TRIES):
            job = self._jobs.get(*key)
            memory = self._remember(key, job)
            if job is None or memory is None:
                return None  # deleted: its children go with it
            if self._namespaces and not self._is_filled(key[0]):
                return UNFILLED_RETRY  # what it has cannot be seen (row K22)
            generation, until = memory.barred
            if generation == job.metadata.generation and until > self._now():
                return until - self._now()
            if UNREADABLE in job.metadata.annotations:
                self._refuse(job, memory, job.metadata.annotations[UNREADABLE])
                return None
            try:
                return self._pass(job, memory)
            except StaleDecision as error:
                log.debug("%s/%s: %s", *key, error)
            except (Forbidden, Invalid) as error:
                log.info("The cluster refused what %s/%s needs: %s", *key, error, extra=about(TRAINING_JOBS.name, *key))
                memory.barred = job.metadata.generation, self._now() + REFUSED_RETRY
                self._status.show_failure(job, "Refused", str(error))
                return REFUSED_RETRY
            except Unavailable as error:
                if error.retry_after is not None:  # what happens to the job meanwhile is no reason to ask again
                    memory.barred = job.metadata.generation, self._now() + error.retry_after
                raise
        raise Conflict(f"{QUICK_TRIES} passes in a row were decided on old news")

    def _remember(self, key: Key, job: TrainingJob | None) -> _Memory | None:
        """Return what is remembered of this very job. Safe here: one key is never worked on twice at once."""
        memory = self._memories.get(key)
        if memory is not None and (job is None or memory.job != job_key(job)):
            self.agents.forget(memory.job)
            del self._memories[key]
            memory = None
        if memory is None and job is not None:
            memory = self._memories[key] = _Memory(job_key(job), self._now())
        return memory

    def _pass(self, job: TrainingJob, memory: _Memory) -> float | None:
        children, versions = self._children(job)
        seen, news, now = memory.seen, memory.news, self._now()
        if seen is not None and (seen.versions, seen.news) == (versions, news) and now < seen.until:
            return None if seen.until == float("inf") else seen.until - now
        memory.seen = None
        unread = self._job_agents.watch(job, children)
        agents = self.agents.get(memory.job)
        if unread:
            agents = dataclasses.replace(agents, error=unread)
        outcome = decide(job, children, agents, self._settings, now, self._scaling(memory.job))
        outcome = self._until_first_look(job, agents, outcome, memory.since + self._settings.agents_stale - now)
        changed = self._applier.apply(outcome.actions, job)
        self._job_agents.repair_desired(job, children, agents)
        changed += self._status.write(job, outcome, self._scaling(memory.job).records)
        if not changed:
            until = float("inf") if outcome.again_after is None else now + outcome.again_after
            memory.seen = _Seen(versions, news, until)
        return outcome.again_after

    def _until_first_look(self, job: TrainingJob, agents: AgentState, outcome: Outcome, left: float) -> Outcome:
        """Leave what is shown of the agents as it is until this process has looked once, or ``left`` is over.

        A controller that starts knows nothing of them; that is no news about any job, and no reason to write to all.
        """
        shown = find_condition(job.status.conditions, known.AGENT_STATE_KNOWN)
        if shown is None or agents.observed is not None or agents.error or left <= 0:
            return outcome
        conditions = tuple(shown if one.type == known.AGENT_STATE_KNOWN else one for one in outcome.status.conditions)
        return dataclasses.replace(
            outcome,
            status=msgspec.structs.replace(outcome.status, conditions=conditions),
            notes=tuple(note for note in outcome.notes if note.reason != "NeverSeen"),
            again_after=left if outcome.again_after is None else min(left, outcome.again_after),
        )

    def _children(self, job: TrainingJob) -> tuple[Children, tuple[str, ...]]:
        """Return the children, and the versions of all that was read."""
        meta = job.metadata
        names = {role: child_name(meta.name, role) for role in ROLES}
        sets = [self._sets.get(meta.namespace, names[role]) for role in ROLES if role != "trainer"]
        found_sets = [one for one in sets if one is not None]
        trainer = self._trainers.get(meta.namespace, names["trainer"])
        trainers = [] if trainer is None else [trainer]
        pods = self._pods.by_index(JOB, meta.uid)
        versions = [meta.resource_version]
        versions += [one.metadata.resource_version for one in found_sets]
        versions += ["" if trainer is None else trainer.metadata.resource_version, *_versions(pods)]
        return collect_children(job, found_sets, trainers, pods), tuple(versions)

    def _scaling(self, key: str) -> ScalingView:
        return self.autoscaler.scaling_of(key)

    # --- what goes wrong ---

    def _refuse(self, job: TrainingJob, memory: _Memory, why: str) -> None:
        """Say once of an object that cannot be read that it is so; nothing is made from it, nobody else is hindered."""
        if memory.unreadable != job.metadata.generation:
            self._status.show_unreadable(job, why)
            memory.unreadable = job.metadata.generation

    def _tell(self, key: Key, error: Exception) -> None:
        """Show on the job that passes over it fail (row K30)."""
        job = self._jobs.get(*key)
        if job is None or isinstance(error, (Conflict, Unavailable)) or self.queue.failures(key) < FAILURES_SHOWN:
            return
        self._status.show_failure(job, "Failed", f"{type(error).__name__}: {error}")


def _versions(pods: Sequence[Any]) -> list[str]:
    return sorted(pod.metadata.resource_version for pod in pods)


def _priority(delta: Delta[Any]) -> Priority:
    """What a user changed overtakes what is only looked at to make sure, at the start and in a resync (row K44)."""
    routine = delta.origin == "resync" or (delta.origin == "list" and delta.type == "added")
    return Priority.RESYNC if routine else Priority.CHANGE
