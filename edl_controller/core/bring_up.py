"""PURE: makes the children in order (master, pservers, trainers), keeps them as they should be, applies edits.

The rules for an edit of a running job:

- ``trainer.min-instance``, ``trainer.max-instance``: the autoscaler's at once. After a Job is made nothing here reads
  or writes its parallelism.
- ``pserver.min-instance``: refused, since parameters are spread modulo the number of pservers. The number in effect is
  kept on the children.
- whatever else the pservers' or the master's pods depend on (image, resources, env, ...): the ReplicaSet gets the new
  template, and each pod follows when it is replaced; nothing is restarted for it, since a pserver holds parameters.
- the same of the trainers, in a fault-tolerant job: rolled at once, that is, the Job is replaced by a new one at
  ``min-instance``. In a strict job at the next resume after a suspension. Once a trainer has succeeded: not any more.

A coordination state that was lost (another master pod, or another cluster behind the endpoints) restarts all roles: the
Job is deleted, the pservers go down to none and come back, and the trainers after them.

What somebody else does to a child is set back: the number of pservers, the image of their pods, the child's own labels
(row K36). What a user adds stays, and the trainers' parallelism is the autoscaler's present state, whoever wrote it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from edl_controller.api.defaults import with_defaults
from edl_controller.api.kinds import JOBS, REPLICA_SETS
from edl_controller.api.meta import ObjectMeta
from edl_controller.api.pods import Pod
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job, ReplicaSet
from edl_controller.core.actions import Action, Create, Delete, Patch
from edl_controller.core.agents import AgentState
from edl_controller.core.children import Children
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.meeting_point import MeetingPoint, external, in_master, in_master_pod
from edl_controller.core.merge_patch import difference
from edl_controller.core.names import COORDINATION_ANNOTATION, PSERVERS_ANNOTATION, REVISION_ANNOTATION, Role, labels
from edl_controller.core.parser import DefaultJobParser, revision
from edl_controller.core.replica_statuses import left, ready
from edl_controller.core.semantics.pod_state import is_active, is_ready
from edl_controller.core.success import some_succeeded


@dataclass
class Progress:
    """What one pass came to.

    Attributes:
        actions: to take, in this order.
        waiting: reason and message of what the creation waits for; empty = all children are there.
        lost: the coordination state was lost, and not everything has been restarted yet.
    """

    actions: list[Action] = field(default_factory=list)
    waiting: tuple[str, str] = ("", "")
    lost: bool = False


def pservers_in_effect(job: TrainingJob, children: Children) -> int:
    """Return how many pservers the job (with its defaults) has: as many as it was started with."""
    for child in (children.pserver, children.trainer):
        written = child.metadata.annotations.get(PSERVERS_ANNOTATION, "") if child is not None else ""
        if written.isdecimal() and written.isascii():
            return int(written)
    return job.spec.pserver.min_instance or 0


def pservers_up(count: int, children: Children, agents: AgentState, settings: JobSettings, now: float) -> bool:
    """Tell whether every pserver serves: by its slot where the agents are heard, else by its pod."""
    if agents.age(now) <= settings.agents_stale and not agents.missing(count):
        return True
    return ready(children.pserver_pods) >= count


def bring_up(job: TrainingJob, children: Children, agents: AgentState, settings: JobSettings, now: float) -> Progress:
    """Return the next steps of a valid job that is to run.

    Args:
        job: as the user wrote it.
        children: as they are.
        agents: as last heard.
        settings: of the operator.
        now: Unix seconds.
    """
    return _Pass(job, children, agents, settings, now).run()


class _Pass:
    """One pass over one job; holds its values, nothing else."""

    def __init__(
        self, job: TrainingJob, children: Children, agents: AgentState, settings: JobSettings, now: float
    ) -> None:
        filled = with_defaults(job, settings.rules)
        self.count = pservers_in_effect(filled, children)
        # Pservers cannot be edited away; what follows from their absence (way of taking part, place of etcd) neither.
        self.pservers_removed = bool(self.count) and not filled.spec.pserver.min_instance
        spec = replace(job.spec, pserver=_with_count(job, self.count))
        if self.pservers_removed:
            agent = replace(spec.agent, mode=filled.spec.agent.mode)
            spec = replace(spec, agent=agent, etcd=replace(spec.etcd, mode=filled.spec.etcd.mode))
        self.job = replace(job, spec=spec)
        self.filled = with_defaults(self.job, settings.rules)
        self.children, self.agents, self.settings, self.now = children, agents, settings, now
        self.parser = DefaultJobParser(settings)
        self.progress = Progress()

    def run(self) -> Progress:
        meeting = self._master()
        if meeting is None:
            return self.progress
        self.progress.lost = self._is_lost(meeting)
        if self._pservers(meeting):
            self._trainers(meeting)
        return self.progress

    def _wait(self, reason: str, message: str) -> None:
        if not self.progress.waiting[0]:
            self.progress.waiting = (reason, message)

    def _blocked(self, role: Role) -> bool:
        """Whether a role's name is a stranger's, or still that of a child that is on its way out."""
        if role in self.children.foreign:
            self._wait("NameTaken", f"another object has the name of the {role}'s child; it is left alone")
            return True
        child = self.children.child(role)
        if child is not None and child.metadata.deletion_timestamp is not None:
            self._wait("ChildLeaving", f"the former {role} is being deleted")
            return True
        return False

    # --- the master ---

    def _master(self) -> MeetingPoint | None:
        """See to the master; return where the agents meet, None while that is not known."""
        wanted, child = self.parser.parse_to_master(self.job), self.children.master
        if wanted is None and child is not None and child.metadata.deletion_timestamp is None:
            self._delete(REPLICA_SETS, child.metadata)
        if wanted is not None:
            if self._blocked("master"):
                return None
            if child is None:
                self.progress.actions.append(Create(wanted))
            elif self._outdated("master"):
                self._patch_replica_set(child, wanted, 1)
            elif child.spec.replicas != 1:
                self._scale(child, 1)
            self._set_labels_back("master")
        if not in_master_pod(self.filled):
            cluster = f"{self.agents.cluster_id:x}" if self.agents.cluster_id else ""
            return external(self.filled, self.settings, cluster)
        pod = serving_master(self.children)
        if pod is None:
            self._wait("MasterStarting", "waiting for the master's pod, where the job's etcd runs")
            return None
        return in_master(self.filled, pod.status.pod_ip, pod.metadata.uid)

    # --- the coordination state ---

    def _is_lost(self, meeting: MeetingPoint) -> bool:
        made_for = {_identity(child.metadata) for child in (self.children.pserver, self.children.trainer) if child}
        return bool(meeting.identity) and bool(made_for - {meeting.identity, ""})

    def _of(self, child: ReplicaSet | Job, meeting: MeetingPoint) -> MeetingPoint:
        """The meeting point that a child keeps: an external cluster's id that came late is no change."""
        if self.progress.lost or in_master_pod(self.filled):
            return meeting
        return dataclasses.replace(meeting, identity=_identity(child.metadata))

    # --- the pservers ---

    def _pservers(self, meeting: MeetingPoint) -> bool:
        """See to the pservers; tell whether the trainers may come."""
        child = self.children.pserver
        if child is None and not self.count:
            return True
        if self._blocked("pserver"):
            return False
        if child is None:
            self.progress.actions.append(Create(self.parser.parse_to_pserver(self.job, meeting)))
            self._wait("PserversStarting", f"waiting for {self.count} pservers")
            return False
        keeps = self._of(child, meeting)
        if self.progress.lost and _identity(child.metadata) != keeps.identity:
            self._patch_replica_set(child, self.parser.parse_to_pserver(self.job, keeps), 0)
            return True  # the trainers have to go as well
        old = any(
            _identity(pod.metadata) != keeps.identity and pod.status.phase not in ("Succeeded", "Failed")
            for pod in self.children.pserver_pods
        )
        replicas = 0 if old else self.count
        self._set_labels_back("pserver")
        if self._outdated("pserver") or self._has_foreign_image(child):
            self._patch_replica_set(child, self.parser.parse_to_pserver(self.job, keeps), replicas)
        elif child.spec.replicas != replicas:
            self._scale(child, replicas)
        if self.progress.lost:
            return True
        trainer = self.children.trainer
        if trainer is not None and not trainer.spec.suspend:
            return True  # trainers that are there wait for their pservers themselves
        if old or not pservers_up(self.count, self.children, self.agents, self.settings, self.now):
            self._wait("PserversStarting", f"waiting for {self.count} pservers")
            return False
        return True

    # --- the trainers ---

    def _trainers(self, meeting: MeetingPoint) -> None:
        child = self.children.trainer
        if self._blocked("trainer"):
            return
        if child is None:
            if self.progress.lost:
                self._wait("PserversStarting", "the pservers restart with the new coordination state")
            elif left(self.children.trainer_pods):
                self._wait("TrainersLeaving", "waiting for the end of the former trainers")
            else:
                self.progress.actions.append(Create(self.parser.parse_to_trainer(self.job, meeting)))
                self._wait("TrainersStarting", "the trainers' Job is being created")
            return
        if self.progress.lost:
            if _identity(child.metadata) not in ("", meeting.identity):
                self._delete(JOBS, child.metadata)
                self._wait("TrainersLeaving", "the coordination state was lost: the trainers restart")
            return
        self._set_labels_back("trainer")
        if self._outdated("trainer") and self._may_replace(child):
            self._delete(JOBS, child.metadata)
            self._wait("TrainersLeaving", "the trainers are replaced by ones with the new spec")
        elif child.spec.suspend:
            self.progress.actions.append(_patch(JOBS, child.metadata, {"spec": {"suspend": False}}))

    def _may_replace(self, child: Job) -> bool:
        if some_succeeded(self.children):
            return False
        return self.filled.spec.fault_tolerant or (bool(child.spec.suspend) and not left(self.children.trainer_pods))

    # --- steps ---

    def _outdated(self, role: Role) -> bool:
        child = self.children.child(role)
        if role == "pserver" and self.pservers_removed:
            return False
        return child is not None and child.metadata.annotations.get(REVISION_ANNOTATION) != revision(self.job, role)

    def _has_foreign_image(self, child: ReplicaSet) -> bool:
        """Whether somebody else has edited what the pservers' pods run."""
        if self.pservers_removed:
            return False
        wanted = self.filled.spec.pserver.image
        return any(one.name == "pserver" and one.image != wanted for one in child.spec.template.spec.containers)

    def _set_labels_back(self, role: Role) -> None:
        child = self.children.child(role)
        if child is None or child.metadata.deletion_timestamp is not None:
            return
        meta = self.job.metadata
        if lost := difference(child.metadata.labels, child.metadata.labels | labels(meta.name, meta.uid, role)):
            kind = JOBS if role == "trainer" else REPLICA_SETS
            self.progress.actions.append(_patch(kind, child.metadata, {"metadata": {"labels": lost}}))

    def _delete(self, kind: Any, meta: ObjectMeta) -> None:
        self.progress.actions.append(Delete(kind, meta.namespace, meta.name, meta.uid))

    def _scale(self, child: ReplicaSet, replicas: int) -> None:
        self.progress.actions.append(_patch(REPLICA_SETS, child.metadata, {"spec": {"replicas": replicas}}))

    def _patch_replica_set(self, child: ReplicaSet, wanted: ReplicaSet, replicas: int) -> None:
        """Bring template, marks and number over in one step, so that no pod is made of a mixture."""
        before, after = (
            {"metadata": {"annotations": marks}, "spec": {"template": body["template"], "replicas": number}}
            for marks, body, number in (
                (child.metadata.annotations, REPLICA_SETS.to_json(child)["spec"], child.spec.replicas),
                (
                    # What others wrote there stays.
                    {**child.metadata.annotations, **wanted.metadata.annotations},
                    REPLICA_SETS.to_json(wanted)["spec"],
                    replicas,
                ),
            )
        )
        self.progress.actions.append(_patch(REPLICA_SETS, child.metadata, difference(before, after)))


def serving_master(children: Children) -> Pod | None:
    """Return the master's pod that is ready and has an address: the newest one."""
    found = [pod for pod in children.master_pods if is_active(pod) and is_ready(pod) and pod.status.pod_ip]
    return found[-1] if found else None


def _with_count(job: TrainingJob, count: int) -> Any:
    spec = job.spec.pserver
    return spec if count == spec.min_instance else replace(spec, min_instance=count, max_instance=count)


def _identity(meta: ObjectMeta) -> str:
    return meta.annotations.get(COORDINATION_ANNOTATION, "")


def _patch(kind: Any, meta: ObjectMeta, patch: dict[str, Any]) -> Patch:
    return Patch(kind, meta.namespace, meta.name, meta.uid, patch)
