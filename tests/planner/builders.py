"""Short ways to write a snapshot: CPU in whole cores, memory in GiB."""

from collections.abc import Mapping

from edl_controller.api.nodes import Taint
from edl_controller.core.capacity import NodeRoom
from edl_controller.core.placement import NodeFacts, Rules, Shape, add, subtract
from edl_controller.core.planner.snapshot import JobView, Snapshot, TrainerPod, WaitingPod

GPU = "nvidia.com/gpu"
Capacity = tuple[int, int] | tuple[int, int, int]
Capacities = Mapping[str, Capacity]


def shape(cpu: int = 1, memory: int = 1, gpu: int = 0, rules: Rules | None = None) -> Shape:
    asked = {"cpu": cpu * 1000, "memory": memory * 2**30, "pods": 1} | ({GPU: gpu} if gpu else {})
    return Shape(tuple(sorted(asked.items())), rules or Rules())


def trainers(prefix: str, *nodes: str, ready: bool = True, **more: object) -> tuple[TrainerPod, ...]:
    """One trainer on each of the nodes ("" = unassigned)."""
    return tuple(
        TrainerPod(
            f"{prefix}-{number}",
            f"uid-{prefix}-{number}",
            node,
            pending=not node,
            ready_since=float(number) if ready and node else None,
            created=float(number),
            **more,  # type: ignore[arg-type]
        )
        for number, node in enumerate(nodes)
    )


def job(name: str, minimum: int, maximum: int, *nodes: str, trainer: Shape | None = None, **more: object) -> JobView:
    """A job with a trainer on each of the nodes."""
    pods = more.pop("pods", None) or trainers(name, *nodes)
    parallelism = more.pop("parallelism", len(pods))  # type: ignore[arg-type]
    return JobView(name, trainer or shape(), minimum, maximum, parallelism, pods, **more)  # type: ignore[arg-type]


def cluster(
    nodes: Capacities,
    *jobs: JobView,
    waiting: tuple[WaitingPod, ...] = (),
    others: dict[str, tuple[int, int]] | None = None,
    leaving: dict[str, tuple[int, int]] | None = None,
    taints: dict[str, Taint] | None = None,
    closed: frozenset[str] = frozenset(),
    places: int = 110,
) -> Snapshot:
    """Nodes of (cores, GiB[, GPUs]); the jobs' trainers are booked on them, and what others use or free."""
    rooms = []
    for name, (cpu, memory, *gpu) in nodes.items():
        allocatable = {"cpu": cpu * 1000, "memory": memory * 2**30, "pods": places} | ({GPU: gpu[0]} if gpu else {})
        used: dict[str, int] = {}
        going: dict[str, int] = {}
        for one in jobs:
            for pod in one.pods:
                if pod.node == name:
                    add(used, one.trainer.amounts)
        for book, who in ((used, others), (going, leaving)):
            if who and name in who:
                add(book, shape(*who[name]).amounts)
        room = subtract(subtract(dict(allocatable), used), going)
        facts = NodeFacts(name, {"name": name}, (taints[name],) if taints and name in taints else (), name in closed)
        rooms.append(NodeRoom(facts, allocatable, used, going, room))
    return Snapshot(jobs, tuple(rooms), waiting)


def waits(name: str = "web", cpu: int = 1, memory: int = 1, gpu: int = 0, **more: object) -> WaitingPod:
    return WaitingPod(name, shape(cpu, memory, gpu), **more)  # type: ignore[arg-type]
