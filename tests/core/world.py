"""A tiny world in memory: one job, its children and pods, and everybody who changes them, one small step at a time.

It is no Kubernetes (`tests/contract` has that): just enough of the Job and ReplicaSet controllers and of a node that
the life cycle meets every state, in any order. Objects are stored by the rules of `core.semantics.storage`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from edl_controller import errors
from edl_controller.api.kinds import JOBS, PODS, REPLICA_SETS, TRAINING_JOBS, ApiObject, Kind, kind_of
from edl_controller.api.meta import Condition, is_true
from edl_controller.api.pods import Pod
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job, ReplicaSet
from edl_controller.core.actions import Action, Create, Delete
from edl_controller.core.agents import NEVER_SEEN, AgentState
from edl_controller.core.children import Children, collect_children
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.lifecycle import Outcome, decide
from edl_controller.core.names import COORDINATION_ANNOTATION, IN_SERVICE_GATE, child_name
from edl_controller.core.semantics import storage
from edl_controller.core.semantics.new_pod import new_pod
from edl_controller.core.semantics.pod_state import is_active, is_ready
from tests.core.jobs import NOW, agents, with_phase


class World:
    """All there is, by kind and name."""

    def __init__(self, job: TrainingJob, settings: JobSettings, *, heard: bool = True) -> None:
        self.settings = settings
        self.heard = heard  # whether the controller can read the job's etcd
        self.now = NOW
        self.passes = 0
        self.serial = 0
        self.objects: dict[tuple[str, str], Any] = {}
        self.store(TRAINING_JOBS, job)
        self.finals: list[str] = []
        self.trouble: list[str] = []

    # --- storage ---

    def store(self, kind: Kind[Any], obj: Any) -> None:
        self.serial += 1
        meta = replace(obj.metadata, resource_version=str(self.serial))
        self.objects[kind.plural, meta.name] = replace(obj, metadata=meta)

    def all(self, kind: Kind[Any]) -> list[Any]:
        return [obj for (plural, _), obj in sorted(self.objects.items()) if plural == kind.plural]

    @property
    def job(self) -> TrainingJob:
        return self.all(TRAINING_JOBS)[0]

    @property
    def exists(self) -> bool:
        return bool(self.all(TRAINING_JOBS))

    def set_job(self, job: TrainingJob) -> None:
        self.store(TRAINING_JOBS, job)

    def children(self) -> Children:
        return collect_children(self.job, self.all(REPLICA_SETS), self.all(JOBS), self.all(PODS))

    def pods(self, role: Any) -> list[Pod]:
        return [pod for pod in self.all(PODS) if pod.metadata.labels.get("paddlepaddle.org/role") == role]

    def apply(self, action: Action) -> None:
        """Take one action as the shell does.

        Raises:
            ClusterError: it is refused.
        """
        if isinstance(action, Create):
            self.create(action.obj)
            return
        current = self.objects.get((action.kind.plural, action.name))
        if current is None:
            raise errors.NotFound(action.name)
        if isinstance(action, Delete):
            storage.check_preconditions(action.kind, current, uid=action.uid)
            del self.objects[action.kind.plural, action.name]
            return
        storage.check_preconditions(action.kind, current, uid=action.uid, resource_version=action.resource_version)
        after = storage.patched(action.kind, current, action.patch, subresource=action.subresource, now=self.now)
        if after is current:
            self.trouble.append(f"a patch that changes nothing: {action}")
        self.store(action.kind, after)

    def create(self, obj: ApiObject) -> None:
        kind = kind_of(obj)
        self.serial += 1
        new = storage.created(kind, obj, uid=f"uid-{self.serial}", suffix=f"{self.serial:05}", now=self.now)
        if (kind.plural, new.metadata.name) in self.objects:
            raise errors.AlreadyExists(new.metadata.name)
        self.store(kind, new)

    # --- the controller ---

    def agents(self) -> AgentState:
        """What a reader of the job's etcd sees: a slot for each ready pserver that uses the etcd of now."""
        if not self.heard:
            return NEVER_SEEN
        pods = [pod for pod in self.pods("pserver") if is_active(pod) and is_ready(pod)]
        masters = {pod.metadata.uid for pod in self.pods("master")}
        found = [
            pod for pod in pods if pod.metadata.annotations.get(COORDINATION_ANNOTATION, "") in {*masters, "", "7"}
        ]
        return agents(len(found), now=self.now)

    def decide(self) -> Outcome:
        return decide(self.job, self.children(), self.agents(), self.settings, self.now)

    def reconcile(self, crash_after: int | None = None) -> bool:
        """One pass; tell whether it changed anything. It may crash after so many actions."""
        if not self.exists:
            return False
        self.passes += 1
        outcome = self.decide()
        for done, action in enumerate(outcome.actions):
            if done == crash_after:
                return True
            try:
                self.apply(action)
            except errors.ClusterError as error:
                if isinstance(error, errors.Invalid):
                    self.trouble.append(f"{error}: {action}")
                return True
        if crash_after is not None or not self.exists:
            return True
        if outcome.status != self.job.status:
            self.set_job(replace(self.job, status=outcome.status))
            if outcome.status.phase in ("succeeded", "failed"):
                self.finals = list(dict.fromkeys([*self.finals, outcome.status.phase]))
            elif self.finals:
                self.trouble.append(f"{self.finals} was not final")
            return True
        return bool(outcome.actions)

    # --- everybody else; each step tells whether it changed anything ---

    def collect_garbage(self) -> bool:
        uids = {obj.metadata.uid for obj in self.objects.values()}
        for key, obj in list(self.objects.items()):
            owner = obj.metadata.controller()
            if owner is not None and owner.uid not in uids:
                if key[0] != "pods" or not is_active(obj):
                    del self.objects[key]
                else:
                    self._end(obj)
                return True
        return False

    def run_replica_sets(self) -> bool:
        for one in self.all(REPLICA_SETS):
            if one.metadata.controller() is not None and self._to_number(REPLICA_SETS, one, one.spec.replicas or 0):
                return True
        return False

    def run_jobs(self) -> bool:
        return any(self._run_job(one) for one in self.all(JOBS))

    def _run_job(self, one: Job) -> bool:
        own = self._of(one)
        succeeded = sum(pod.status.phase == "Succeeded" for pod in own)
        failed = sum(pod.status.phase == "Failed" and pod.metadata.deletion_timestamp is None for pod in own)
        conditions = one.status.conditions
        ended = any(is_true(conditions, kind) for kind in ("Complete", "Failed"))
        going = [pod for pod in own if pod.status.phase not in ("Succeeded", "Failed")]
        if not ended and failed > (one.spec.backoff_limit or 0):
            conditions = (*conditions, Condition(type="Failed", status="True", reason="BackoffLimitExceeded"))
        elif not ended and succeeded and not going:
            conditions = (*conditions, Condition(type="Complete", status="True"))
        status = replace(one.status, succeeded=succeeded, failed=failed, conditions=conditions)
        if status != one.status:
            self.store(JOBS, replace(one, status=status))
            return True
        if is_true(conditions, "Failed") or one.spec.suspend:
            return self._to_number(JOBS, one, 0)
        return not ended and not succeeded and self._to_number(JOBS, one, one.spec.parallelism or 0)

    def _of(self, owner: Any) -> list[Pod]:
        return [
            pod
            for pod in self.all(PODS)
            if (found := pod.metadata.controller()) is not None and found.uid == owner.metadata.uid
        ]

    def _to_number(self, kind: Kind[Any], owner: Any, wanted: int) -> bool:
        going = [pod for pod in self._of(owner) if is_active(pod)]
        if len(going) < wanted:
            self.create(new_pod(kind, owner.metadata, owner.spec.template))
        elif len(going) > wanted:
            self._end(min(going, key=is_ready))
        return len(going) != wanted

    def _end(self, pod: Pod) -> None:
        self.store(PODS, replace(pod, metadata=replace(pod.metadata, deletion_timestamp="2027-01-15T08:00:00Z")))

    def run_nodes(self) -> bool:
        """Start a pod, make it ready, or let one that was asked to end go: the first that is due."""
        for pod in self.all(PODS):
            gates = {gate.condition_type for gate in pod.spec.readiness_gates}
            if pod.metadata.deletion_timestamp is not None:
                del self.objects["pods", pod.metadata.name]
            elif pod.status.phase in ("", "Pending"):
                self.store(PODS, with_phase(pod, "Running", ip=f"10.0.0.{self.serial % 250}"))
            elif (
                pod.status.phase == "Running"
                and not is_ready(pod)
                and (IN_SERVICE_GATE not in gates or is_true(pod.status.conditions, IN_SERVICE_GATE))
            ):
                self.store(PODS, with_phase(pod, "Running", ready=True))
            else:
                continue
            return True
        return False

    def end_pod(self, role: str, phase: str, number: int = 0) -> bool:
        """End a running pod by itself, well or badly."""
        running = [pod for pod in self.pods(role) if is_active(pod) and pod.status.phase == "Running"]
        if not running:
            return False
        self.store(PODS, with_phase(running[number % len(running)], phase))
        return True

    def lose_pod(self, role: str, number: int = 0) -> bool:
        """Take a pod away, as when its node is gone."""
        pods = self.pods(role)
        if pods:
            del self.objects["pods", pods[number % len(pods)].metadata.name]
        return bool(pods)

    def scale(self, parallelism: int) -> bool:
        """What the autoscaler does."""
        for one in self.all(JOBS):
            self.store(JOBS, replace(one, spec=replace(one.spec, parallelism=parallelism)))
        return bool(self.all(JOBS))

    @property
    def others(self) -> tuple[Callable[[], bool], ...]:
        return (self.collect_garbage, self.run_replica_sets, self.run_jobs, self.run_nodes)

    def settle(self) -> None:
        """Let everybody act until nobody has anything to do.

        Raises:
            AssertionError: that never happens.
        """
        for _ in range(400):
            if not any([self.reconcile(), *(step() for step in self.others)]):
                return
        raise AssertionError(f"it never comes to rest: {self.decide()}")

    # --- questions ---

    def replica_set(self, role: Any) -> ReplicaSet | None:
        return self.objects.get(("replicasets", child_name("digits", role)))

    @property
    def trainer_job(self) -> Job | None:
        return self.objects.get(("jobs", child_name("digits", "trainer")))

    def all_kinds(self, plural: str) -> list[Any]:
        return [obj for (found, _), obj in self.objects.items() if found == plural]
