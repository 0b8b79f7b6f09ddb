"""A virtual cluster with TrainingJobs in it, and an Autoscaler that is stepped by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from edl_agent.drain_request import DrainRequest
from edl_controller.api.defaults import with_defaults
from edl_controller.api.kinds import JOBS, PODS, TRAINING_JOBS
from edl_controller.api.meta import ObjectMeta
from edl_controller.api.pods import Container, Pod, PodSpec, ResourceRequirements
from edl_controller.api.v1 import (
    AgentSpec,
    Autoscaling,
    EtcdSpec,
    PserverSpec,
    TrainerSpec,
    TrainingJob,
    TrainingJobSpec,
)
from edl_controller.api.workloads import Job
from edl_controller.autoscaler import AgentAccess, Autoscaler, AutoscalerSettings
from edl_controller.cluster.sim import PodCourse, SimWorld
from edl_controller.core.agents import NEVER_SEEN, AgentState
from edl_controller.core.children import Children
from edl_controller.core.parser import DefaultJobParser
from edl_controller.core.planner.observed import job_key
from edl_controller.core.planner.policy import PlannerSettings
from edl_controller.core.service_gate import open_gates
from edl_controller.runtime.cluster_view import ListedView

FULL = AutoscalerSettings(planner=PlannerSettings(max_load=1.0, step=100))


class NoAgents:
    """Of jobs whose programs have none."""

    def get(self, job: str) -> AgentState:
        return NEVER_SEEN

    def refresh(self, job: str) -> None:
        pass

    def request_drain(self, job: str, name: str, request: DrainRequest) -> None:
        raise AssertionError("nobody would read it")

    def withdraw_drain(self, job: str, name: str) -> None:
        raise AssertionError("nobody has asked")


def training_job(
    name: str,
    low: int,
    high: int,
    *,
    cpu: str = "1",
    mode: str = "Classic",
    pservers: int = 0,
    namespace: str = "ns",
    endpoint: str = "",
    **scaling: int | bool,
) -> TrainingJob:
    settings: dict[str, int | bool] = {"scale_up_cooldown_seconds": 0, **scaling}
    return TrainingJob(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=TrainingJobSpec(
            image="i",
            fault_tolerant=True,
            agent=AgentSpec(mode=mode),
            etcd=EtcdSpec(mode="External", endpoints=(endpoint or "http://127.0.0.1:1",)),
            autoscaling=Autoscaling(**settings),  # type: ignore[arg-type]
            pserver=PserverSpec(min_instance=pservers, max_instance=pservers, command=("ps",)),
            trainer=TrainerSpec(
                min_instance=low,
                max_instance=high,
                command=("train",),
                resources=ResourceRequirements(requests={"cpu": cpu, "memory": "100M"}),
            ),
        ),
    )


@dataclass
class Room:
    """The world, the Autoscaler in it, and short ways to look and to change."""

    agents: AgentAccess = field(default_factory=NoAgents)
    settings: AutoscalerSettings = FULL
    world: SimWorld = field(default_factory=lambda: SimWorld(courses=lambda _: PodCourse(start=0.5, end=1.0)))

    def __post_init__(self) -> None:
        self.world.clock.set(time.time())
        self.scaler = self.new_scaler()

    def new_scaler(self) -> Autoscaler:
        """One that knows nothing but what is there, as after a crash."""
        view = ListedView(self.world.cluster)
        self.scaler = Autoscaler(self.world.cluster, view, self.agents, settings=self.settings, clock=self.world.clock)
        for job in self.world.cluster.list(TRAINING_JOBS).items:
            self.scaler.on_add(job)
        return self.scaler

    def submit(self, job: TrainingJob) -> TrainingJob:
        """Create the job and its trainer Job, as the life cycle would."""
        job = self.world.cluster.create(job)
        self.world.cluster.create(DefaultJobParser().parse_to_trainer(with_defaults(job)))
        self.scaler.on_add(job)
        return job

    def job(self, name: str, namespace: str = "ns") -> Job:
        return self.world.cluster.get(JOBS, namespace, f"{name}-trainer")

    def size(self, name: str, namespace: str = "ns") -> int | None:
        return self.job(name, namespace).spec.parallelism

    def key(self, name: str) -> str:
        return job_key(self.world.cluster.get(TRAINING_JOBS, "ns", name))

    def pods(self, name: str) -> list[Pod]:
        """Trainers that were not asked to end."""
        uid = self.job(name).metadata.uid
        return [
            pod
            for pod in self.world.cluster.list(PODS).items
            if any(owner.uid == uid for owner in pod.metadata.owner_references)
            and pod.metadata.deletion_timestamp is None
            and pod.status.phase not in ("Succeeded", "Failed")
        ]

    def service(self, name: str, cpu: str) -> Pod:
        """A pod of somebody else."""
        return self.world.cluster.create(
            Pod(
                metadata=ObjectMeta(name=name, namespace="ns"),
                spec=PodSpec(
                    containers=(Container(name="c", image="i", resources=ResourceRequirements(requests={"cpu": cpu})),)
                ),
            )
        )

    def pod(self, name: str) -> Pod:
        return self.world.cluster.get(PODS, "ns", name)

    def rounds(self, seconds: float, step: float = 0.25, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass with a round every ``step`` seconds; tell whether ``until`` came true."""
        for _ in range(int(seconds / step)):
            self.open_gates()
            self.scaler.round()
            self.world.advance(step)
            if until():
                return True
        return until()

    def open_gates(self) -> None:
        """As the life cycle does."""
        pods = tuple(pod for pod in self.world.cluster.list(PODS).items if pod.spec.readiness_gates)
        for patch in open_gates(Children(trainer_pods=pods), self.world.clock.wall()):
            self.world.cluster.patch(PODS, patch.namespace, patch.name, patch.patch, subresource="status")

    def edit(self, name: str, **spec: object) -> None:
        """Change the TrainingJob, and tell of it."""
        job = self.world.cluster.get(TRAINING_JOBS, "ns", name)
        changed = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, **spec))
        changed = self.world.cluster.rewrite(TRAINING_JOBS, "ns", name, lambda _: changed)
        self.scaler.on_update(changed)
