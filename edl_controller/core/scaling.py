"""PURE: how a plan for one job is carried out, one step at a time, from nothing but what the cluster and etcd show.

A trainer goes in four steps, each of which can be seen by whoever comes after a crash: a drain request in etcd; its
answer, or the deadline; the readiness gate False; once the pod is not Ready, a smaller parallelism, with which the Job
controller removes exactly this pod (`edl_controller.core.planner.victims`). After its end the request is removed. Where
a target has risen meanwhile, the steps are undone: the request withdrawn, the gate True.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edl_agent.drain_request import DrainRequest
from edl_controller.api.v1 import ScaleRecord
from edl_controller.core.agents import AgentState
from edl_controller.core.planner.observed import DECISION, drains_of_ours
from edl_controller.core.planner.plan import JobPlan
from edl_controller.core.planner.snapshot import JobView, TrainerPod
from edl_controller.core.planner.victims import choose_victims, cut_to, needs_drain


@dataclass(frozen=True, slots=True)
class ScalingView:
    """What the life cycle shows of a job's scaling.

    Attributes:
        desired: trainers that it should have; None = not known (yet).
        scaling: whether it is on its way there.
        reason: one sentence: why it has this size.
        records: the changes that this program has made, oldest first, bounded.
    """

    desired: int | None = None
    scaling: bool = False
    reason: str = ""
    records: tuple[ScaleRecord, ...] = ()


NOT_SCALING = ScalingView()


@dataclass(frozen=True, slots=True)
class PodInService:
    """A trainer pod's uid and its readiness gate: ``True``, ``False``, ``Unset``; empty = it has no such gate."""

    uid: str
    gate: str


@dataclass(frozen=True, slots=True)
class Steps:
    """What is to be done now for one job.

    Attributes:
        parallelism: to set, at the very version of the Job that was looked at; None = leave it.
        request: agents to be asked to drain.
        withdraw: drain requests to be removed, by name.
        close: pods whose readiness gate is to be set False.
        open: pods whose readiness gate is to be set True.
        chosen: victims chosen just now.
        busy: whether more steps will follow.
    """

    parallelism: int | None = None
    request: Mapping[str, DrainRequest] = field(default_factory=dict)
    withdraw: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    busy: bool = False


def next_steps(
    view: JobView,
    plan: JobPlan,
    agents: AgentState,
    pods: Mapping[str, PodInService],
    now: float,
    *,
    drain_seconds: float,
    decision: str,
    stale_after: float = 30.0,
) -> Steps:
    """Return what is to be done now.

    Args:
        view: the job as the plan saw it.
        plan: what was decided.
        agents: what its agents say.
        pods: all pods of the trainer Job that are still there, by name; also those that terminate.
        now: Unix seconds.
        drain_seconds: how long a victim has to answer.
        decision: id of the decision, for new drain requests.
        stale_after: seconds; older news of the agents is not waited for.
    """
    leaving = [pod for pod in view.pods if pod.draining]
    taken_back = len(leaving) if view.frozen else max(0, plan.target - plan.before)
    back = sorted(leaving, key=lambda pod: _progress(pod, agents, pods))[:taken_back]
    staying = [pod for pod in leaving if pod not in back]
    count = 0 if view.frozen else len(view.pods) - len(leaving) - plan.target
    chosen = choose_victims(view.pods, count, plan.victims)
    heard = bool(agents.reports) and not agents.error and agents.age(now) <= stale_after and drain_seconds > 0
    asked = [pod for pod in chosen if heard and needs_drain(pod)]
    ready_to_go = [pod for pod in chosen if pod not in asked] + [pod for pod in staying if _may_go(pod, agents, now)]
    # A gate keeps a pod that is not Ready just now from becoming Ready before the cut.
    close = [pod for pod in ready_to_go if _gate(pod, pods) == "True" and _runs(pod)]
    gone = {pod.name for pod in ready_to_go if (pod.ready_since is None and pod not in close) or not _gate(pod, pods)}
    ended = [
        name for name, uid in drains_of_ours(agents).items() if name not in pods or (uid and pods[name].uid != uid)
    ]
    opened = [pod for pod in back if _gate(pod, pods) == "False"]
    return Steps(
        parallelism=None if view.frozen else _parallelism(view, plan, gone, len(back)),
        request={pod.name: DrainRequest(decision, now + drain_seconds, plan.reason, pod.uid) for pod in asked},
        withdraw=tuple(sorted({*(pod.name for pod in back if pod.name in agents.drains), *ended})),
        close=tuple(pod.name for pod in close),
        open=tuple(pod.name for pod in opened),
        chosen=tuple(pod.name for pod in chosen),
        busy=bool(leaving or chosen or ended) or (not view.frozen and view.parallelism != plan.target),
    )


def decision_id(job_uid: str, now: float) -> str:
    """Return a new id for drain requests; `DECISION` marks them as this program's."""
    return f"{DECISION}{job_uid[:8]}-{now:.3f}"


def _parallelism(view: JobView, plan: JobPlan, gone: set[str], back: int) -> int | None:
    wanted = view.parallelism
    grown = plan.target + max(0, view.still_draining - back)
    if grown > view.parallelism:
        wanted = grown
    elif gone:
        wanted = min(wanted, cut_to(view.pods, gone, max(view.minimum, plan.target)))
    elif len(view.pods) <= plan.target:
        wanted = plan.target  # what is given up has no pod yet
    return wanted if wanted != view.parallelism else None


def _gate(pod: TrainerPod, pods: Mapping[str, PodInService]) -> str:
    known = pods.get(pod.name)
    return known.gate if known is not None else ""


def _runs(pod: TrainerPod) -> bool:
    return bool(pod.node) and not pod.pending


def _may_go(pod: TrainerPod, agents: AgentState, now: float) -> bool:
    """It has answered, its time is over, or there is nobody (left) to answer."""
    if pod.agent == "lost" or pod.pending or _acked(pod, agents):
        return True
    request = dict(agents.drain_requests).get(pod.name)
    return request is None or now >= request.deadline


def _acked(pod: TrainerPod, agents: AgentState) -> bool:
    return any(report.name == pod.name and report.drain == "acked" for report in agents.reports)


def _progress(pod: TrainerPod, agents: AgentState, pods: Mapping[str, PodInService]) -> tuple[bool, bool]:
    """Who has come least far is taken back first."""
    return _gate(pod, pods) == "False", _acked(pod, agents)
