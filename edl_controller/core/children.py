"""PURE: what there is of a job: its master, pservers and trainers, and their pods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edl_controller.api.meta import ObjectMeta
from edl_controller.api.pods import Pod
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job, ReplicaSet
from edl_controller.core.names import JOB_UID_LABEL, ROLES, Role, child_name


@dataclass(frozen=True)
class Children:
    """The children of one job, as read.

    Attributes:
        master: its ReplicaSet, None = there is none.
        pserver: its ReplicaSet.
        trainer: its Job.
        master_pods: all that are there, also those that end or have ended.
        pserver_pods: the same of the pservers.
        trainer_pods: the same of the trainers.
        foreign: roles whose name is taken by an object that is not this job's.
    """

    master: ReplicaSet | None = None
    pserver: ReplicaSet | None = None
    trainer: Job | None = None
    master_pods: tuple[Pod, ...] = ()
    pserver_pods: tuple[Pod, ...] = ()
    trainer_pods: tuple[Pod, ...] = ()
    foreign: tuple[Role, ...] = ()

    def child(self, role: Role) -> ReplicaSet | Job | None:
        """Return a role's child."""
        return {"master": self.master, "pserver": self.pserver, "trainer": self.trainer}[role]

    def pods(self, role: Role) -> tuple[Pod, ...]:
        """Return a role's pods."""
        return {"master": self.master_pods, "pserver": self.pserver_pods, "trainer": self.trainer_pods}[role]


NO_CHILDREN = Children()


def collect_children(
    job: TrainingJob, replica_sets: Iterable[ReplicaSet], jobs: Iterable[Job], pods: Iterable[Pod]
) -> Children:
    """Pick a job's children out of the objects of its namespace.

    A child is known by its name and its controller, which is this very job (by uid); an object of that name with
    another controller, or none, is a stranger's. A pod is known by the job's uid in its labels, which no user can set,
    and by the name of its controller: the child itself may be gone already.

    Args:
        job: whose.
        replica_sets: at least those with a child's name.
        jobs: at least those with a child's name.
        pods: at least those with the job's uid label.
    """
    meta = job.metadata
    names = {child_name(meta.name, role): role for role in ROLES}
    found: dict[Role, ReplicaSet | Job] = {}
    foreign: list[Role] = []
    workloads: list[ReplicaSet | Job] = [*replica_sets, *jobs]
    for one in workloads:
        role = names.get(one.metadata.name)
        if role is None or one.metadata.namespace != meta.namespace or isinstance(one, Job) != (role == "trainer"):
            continue
        if _controlled_by(one.metadata, meta.uid):
            found[role] = one
        else:
            foreign.append(role)
    by_role: dict[Role, list[Pod]] = {role: [] for role in ROLES}
    for pod in sorted(pods, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name)):
        owner = pod.metadata.controller()
        if pod.metadata.labels.get(JOB_UID_LABEL) != meta.uid or pod.metadata.namespace != meta.namespace:
            continue
        role = names.get(owner.name) if owner is not None else None
        if role is not None:
            by_role[role].append(pod)
    master, pserver, trainer = found.get("master"), found.get("pserver"), found.get("trainer")
    return Children(
        master=master if isinstance(master, ReplicaSet) else None,
        pserver=pserver if isinstance(pserver, ReplicaSet) else None,
        trainer=trainer if isinstance(trainer, Job) else None,
        master_pods=tuple(by_role["master"]),
        pserver_pods=tuple(by_role["pserver"]),
        trainer_pods=tuple(by_role["trainer"]),
        foreign=tuple(role for role in ROLES if role in foreign),
    )


def _controlled_by(meta: ObjectMeta, uid: str) -> bool:
    owner = meta.controller()
    return owner is not None and owner.uid == uid
