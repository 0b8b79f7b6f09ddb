"""PURE: the rule of the original planner (2017), as its own unit tests state it (`tests/data`), on sums and node maps.

It is here for comparison, faults and all: it counts sums and not what can be placed, and one trainer at a time with a
look at every node. `classic` is the policy made of it. The one difference: the original could plan for ever (its limits
for growing and shrinking differ); here a round that leads to a plan seen before is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from edl_controller.api.pods import PodSpec
from edl_controller.core.capacity import MEGA, ClusterResource
from edl_controller.core.placement import CPU, MEMORY, gpus, pod_limits, pod_requests


@dataclass(frozen=True, slots=True)
class OriginalJob:
    """A job as the original saw it: what one trainer asks for (GPUs by limit), and how many there may be."""

    name: str
    cpu_request_milli: int
    memory_request_mega: int
    gpu_limit: int
    minimum: int
    maximum: int
    parallelism: int


def trainer_requests(spec: PodSpec) -> tuple[int, int, int]:
    """Return what one trainer asks for: CPU in millicores, memory in 10^6 bytes (rounded up), GPUs by limit."""
    asked = pod_requests(spec)
    return asked.get(CPU, 0), -(-asked.get(MEMORY, 0) // MEGA), gpus(pod_limits(spec))


def fulfilment(minimum: int, maximum: int, trainers: int) -> float:
    """Return how much of what it may have above its minimum a job has; 1 where there is nothing between."""
    return 1.0 if minimum == maximum else (trainers - minimum) / (maximum - minimum)


def elastic(job: OriginalJob) -> bool:
    """Tell whether the number of trainers may change."""
    return job.minimum < job.maximum


def wants_gpu(job: OriginalJob) -> bool:
    """Tell whether the trainers use GPUs."""
    return job.gpu_limit > 0


def sorted_jobs(jobs: Iterable[OriginalJob], *filters: Callable[[OriginalJob], bool]) -> list[OriginalJob]:
    """Return the jobs that pass all filters, the least fulfilled first; ties by GPU, CPU and memory, ascending."""
    chosen = [job for job in jobs if all(one(job) for one in filters)]
    return sorted(
        chosen,
        key=lambda job: (
            fulfilment(job.minimum, job.maximum, job.parallelism),
            job.gpu_limit,
            job.cpu_request_milli,
            job.memory_request_mega,
        ),
    )


def scale_dry_run(
    resource: ClusterResource, job: OriginalJob, current_diff: int, max_load_desired: float, *, scale_down: bool
) -> int:
    """Plan one step for one job, and book it in ``resource``.

    Args:
        resource: the sums; changed by what is planned.
        job: as it is now.
        current_diff: what is planned for it so far.
        max_load_desired: share of the totals up to which CPU, memory and GPUs may be promised.
        scale_down: which half of a round it is.

    Returns:
        By how many trainers the plan changes: -1, 0, 1, or down to the maximum at once.
    """
    planned = job.parallelism + current_diff
    node = None
    if scale_down:
        change = _step_down(resource, job, planned, max_load_desired)
    elif planned >= job.maximum:
        change = job.maximum - planned
    else:
        change, node = _step_up(resource, job, max_load_desired)
    resource.gpu_limit += change * job.gpu_limit
    resource.cpu_request_milli += change * job.cpu_request_milli
    resource.memory_request_mega += change * job.memory_request_mega
    if node is not None and change:
        resource.nodes.nodes_cpu_idle_milli[node] -= change * job.cpu_request_milli
        resource.nodes.nodes_memory_free_mega[node] -= change * job.memory_request_mega
    return change


def _step_down(resource: ClusterResource, job: OriginalJob, planned: int, max_load: float) -> int:
    if planned > job.maximum:
        return -1
    over = (
        resource.gpu_limit > int(resource.gpu_total * max_load)
        or resource.cpu_request_milli > int(resource.cpu_total_milli * max_load)
        or resource.memory_request_mega > int(resource.memory_total_mega * max_load)
    )
    return -1 if over and planned > job.minimum else 0


def _step_up(resource: ClusterResource, job: OriginalJob, max_load: float) -> tuple[int, str | None]:
    if resource.memory_total_mega - resource.memory_request_mega <= job.memory_request_mega:
        return 0, None
    if int(resource.cpu_total_milli * max_load) - resource.cpu_request_milli < job.cpu_request_milli:
        return 0, None
    if job.gpu_limit and resource.gpu_total - resource.gpu_limit < job.gpu_limit:
        return 0, None
    node = _assignable_node(resource, job)
    return (0, None) if node is None else (1, node)


def _assignable_node(resource: ClusterResource, job: OriginalJob) -> str | None:
    free = resource.nodes.nodes_memory_free_mega
    for name, idle in resource.nodes.nodes_cpu_idle_milli.items():
        if job.cpu_request_milli <= idle and job.memory_request_mega <= free[name]:
            return name
    return None


def scale_all_dry_run(
    jobs: Sequence[OriginalJob], resource: ClusterResource, max_load_desired: float
) -> Mapping[str, int]:
    """Plan for all elastic jobs: rounds of a step up for each in order, then a step down for each in reverse order.

    Args:
        jobs: all of them.
        resource: the sums; changed by what is planned.
        max_load_desired: see `scale_dry_run`.

    Returns:
        Job name to change of the number of trainers; jobs that are not elastic are not in it.
    """
    order = sorted_jobs(jobs, elastic)
    diff = {job.name: 0 for job in order}
    seen: set[tuple[int, ...]] = set()
    while (state := tuple(diff.values())) not in seen:
        seen.add(state)
        for job in order:
            diff[job.name] += scale_dry_run(resource, job, diff[job.name], max_load_desired, scale_down=False)
        for job in reversed(order):
            diff[job.name] += scale_dry_run(resource, job, diff[job.name], max_load_desired, scale_down=True)
    return diff
