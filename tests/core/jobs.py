"""Jobs, children and pods for the tests of `edl_controller.core`, built in a few words."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from edl_agent.report import Report
from edl_controller.api.kinds import TRAINING_JOBS
from edl_controller.api.meta import Condition, find_condition
from edl_controller.api.pods import Pod
from edl_controller.api.v1 import TrainingJob
from edl_controller.core.agents import AgentState, Slot
from edl_controller.core.job_settings import JobSettings

NOW = 1_800_000_000.0
SHARED = JobSettings(etcd_endpoints=("http://etcd-0:2379", "http://etcd-1:2379"))
"""The controller has an etcd for all jobs."""
OWN = JobSettings()
"""Each job has its own, in its master pod."""


def training_job(spec: dict[str, Any] | None = None, /, name: str = "digits", **more: Any) -> TrainingJob:
    """A fault-tolerant job of two pservers and one to four trainers; ``more`` replaces parts of its spec."""
    body: dict[str, Any] = {
        "image": "example.com/digits:1",
        "fault_tolerant": True,
        "trainer": {"entrypoint": "python train.py", "min-instance": 1, "max-instance": 4},
        "pserver": {"entrypoint": "python pserver.py", "min-instance": 2},
    }
    body |= (spec or {}) | more
    meta = {"name": name, "namespace": "team", "uid": "uid-1", "generation": 1}
    return TRAINING_JOBS.from_json({"metadata": meta, "spec": body})


def edited(job: TrainingJob, **parts: Any) -> TrainingJob:
    """The job after an edit: parts of its spec, merged one level deep; None removes."""
    body = TRAINING_JOBS.to_json(job)
    for name, value in parts.items():
        old = body["spec"].get(name)
        body["spec"][name] = {**old, **value} if isinstance(value, dict) and isinstance(old, dict) else value
    body["metadata"]["generation"] = job.metadata.generation + 1
    return TRAINING_JOBS.from_json(body)


def agents(pservers: int = 0, *, now: float = NOW, rate: float = 0.0, **more: Any) -> AgentState:
    """What the agents say at ``now``: so many slots are held."""
    reports = (Report(name="t", role="trainer", rate=rate),) if rate else ()
    slots = tuple(Slot(index, f"10.0.0.{index}:7164", 10 + index, 1) for index in range(pservers))
    return AgentState(**{"observed": now, "cluster_id": 7, "pservers": slots, "reports": reports, **more})


def condition(found: Any, kind: str) -> tuple[str, str]:
    """Status and reason of a condition of a job or a status; empty where it is not there."""
    status = getattr(found, "status", found)
    one = find_condition(status.conditions, kind)
    return (one.status, one.reason) if one is not None else ("", "")


def with_phase(pod: Pod, phase: str, *, ready: bool = False, ip: str = "") -> Pod:
    """A pod in another phase."""
    others = tuple(one for one in pod.status.conditions if one.type != "Ready")
    conditions = (*others, Condition(type="Ready", status="True" if ready else "False"))
    return replace(pod, status=replace(pod.status, phase=phase, conditions=conditions, pod_ip=ip or pod.status.pod_ip))
