"""Time of one plan of the autoscaler, against the structure of 2018 (one trainer a step, with a look at every node) on
the same cluster; and how the time grows when jobs and nodes double."""

import random
import time
from collections.abc import Iterator

from benchmarks.ground import say
from benchmarks.table import Row, ratio
from edl_controller.core.capacity import MEGA, ClusterResource, NodeRoom, Nodes
from edl_controller.core.placement import CPU, MEMORY, NodeFacts, Shape, add, gpus, slots, subtract
from edl_controller.core.planner.classic import Classic
from edl_controller.core.planner.original_rule import OriginalJob, scale_all_dry_run
from edl_controller.core.planner.policy import PlannerSettings
from edl_controller.core.planner.snapshot import JobView, Snapshot, TrainerPod, WaitingPod

NAME = "planner"
GPU = "nvidia.com/gpu"
PODS_PER_NODE = 30
TRAINERS_PER_JOB = 30
SETTINGS = PlannerSettings(max_load=0.97, step=1000)
NOW = 1_000_000.0


def run(quick: bool) -> Iterator[Row]:
    """Two rows."""
    jobs, nodes = (50, 250) if quick else (1_000, 5_000)
    repetitions = 3 if quick else 7
    snapshot = _cluster(jobs, nodes)
    pods = sum(room.used["pods"] for room in snapshot.nodes)
    what = f"one plan: {jobs:,} jobs, {nodes:,} nodes, {pods:,} pods"
    say(f"{what}; the baseline takes a while")
    baseline, steps = _baseline(snapshot)
    ours, grown = _ours(snapshot, repetitions)
    note = f"best of {repetitions}, baseline once; ours moves {grown:,} trainers, the baseline {steps:,}"
    yield ratio(NAME, what, "s", baseline, ours, must=0.01, moonshot=0.001, note=note)
    half, _ = _ours(_cluster(jobs // 2, nodes // 2), repetitions)
    note = "the smaller is the baseline"
    yield ratio(NAME, "the same with half the jobs and nodes", "s", half, ours, must=2.3, note=note)
    rest, moved = _ours(_full(jobs, nodes), repetitions)
    note = f"nothing fits any more, which is the usual case; {moved} trainers are moved"
    yield Row(NAME, "the same on a full cluster", "s", None, rest, rest, "value", note=note)


def _ours(snapshot: Snapshot, repetitions: int) -> tuple[float, int]:
    policy, best, moved = Classic(), float("inf"), 0
    for _ in range(repetitions):
        begin = time.perf_counter()
        plan = policy.plan(snapshot, SETTINGS, NOW)
        best = min(best, time.perf_counter() - begin)
        moved = sum(abs(one.change) for one in plan.jobs)
    return best, moved


def _baseline(snapshot: Snapshot) -> tuple[float, int]:
    resource = _sums(snapshot)
    jobs = [
        OriginalJob(
            view.key,
            view.trainer.amounts[CPU],
            -(-view.trainer.amounts[MEMORY] // MEGA),
            gpus(view.trainer.amounts),
            view.minimum,
            view.maximum,
            view.parallelism,
        )
        for view in snapshot.jobs
    ]
    begin = time.perf_counter()
    diff = scale_all_dry_run(jobs, resource, SETTINGS.max_load)
    return time.perf_counter() - begin, sum(map(abs, diff.values()))


def _sums(snapshot: Snapshot) -> ClusterResource:
    total: dict[str, int] = {}
    used: dict[str, int] = {}
    for room in snapshot.nodes:
        add(total, room.allocatable)
        add(used, room.used)
    return ClusterResource(
        node_count=len(snapshot.nodes),
        gpu_limit=gpus(used),
        gpu_total=gpus(total),
        cpu_request_milli=used[CPU],
        cpu_total_milli=total[CPU],
        memory_request_mega=used[MEMORY] // MEGA,
        memory_total_mega=total[MEMORY] // MEGA,
        nodes=Nodes(
            {room.facts.name: room.room[CPU] for room in snapshot.nodes},
            {room.facts.name: room.room[MEMORY] // MEGA for room in snapshot.nodes},
        ),
    )


def _shapes(chance: random.Random) -> list[Shape]:
    """Twenty kinds of trainers, a tenth of them with GPUs."""
    found = []
    for number in range(20):
        asked = {CPU: chance.choice([500, 1000, 2000, 4000]), MEMORY: chance.choice([1, 2, 4, 8]) * 2**30, "pods": 1}
        found.append(Shape(tuple(sorted((asked | ({GPU: 1} if number % 10 == 0 else {})).items()))))
    return found


def _cluster(jobs: int, nodes: int) -> Snapshot:
    """Nodes of three sizes, filled to about two thirds by jobs' trainers and by pods of others; some pods wait."""
    chance = random.Random(2018)
    shapes = _shapes(chance)
    allocatable, used = [], []
    for number in range(nodes):
        cores = chance.choice([32, 48, 64])
        amounts = {CPU: cores * 1000, MEMORY: cores * 4 * 2**30, "pods": 110}
        allocatable.append(amounts | ({GPU: 8} if number % 5 == 0 else {}))
        used.append({"pods": 0, CPU: 0, MEMORY: 0})
    views = []
    with_gpu, all_nodes = range(0, nodes, 5), range(nodes)
    for number in range(jobs):
        shape = shapes[number % len(shapes)]
        places = with_gpu if gpus(shape.amounts) else all_nodes
        pods = []
        for trainer in range(TRAINERS_PER_JOB):
            node = places[chance.randrange(len(places))]
            if slots(shape.amounts, subtract(dict(allocatable[node]), used[node])):
                add(used[node], shape.amounts)
                pods.append(TrainerPod(f"j{number}-{trainer}", node=f"n{node}", ready_since=1.0, created=1.0))
        views.append(JobView(f"ns/j{number}/u", shape, 2, 2 + chance.randint(30, 90), len(pods), tuple(pods)))
    for node in range(nodes):
        for _ in range(PODS_PER_NODE - used[node]["pods"]):
            add(used[node], {CPU: chance.choice([250, 500, 1500]), MEMORY: chance.choice([1, 2, 4]) * 2**30, "pods": 1})
    rooms = [
        NodeRoom(NodeFacts(f"n{node}", {}), has, takes, {}, subtract(dict(has), takes))
        for node, (has, takes) in enumerate(zip(allocatable, used, strict=True))
    ]
    waiting = tuple(WaitingPod(f"ns/w{number}", shapes[1], 0, float(number)) for number in range(jobs // 20))
    return Snapshot(tuple(views), tuple(rooms), waiting)


def _full(jobs: int, nodes: int) -> Snapshot:
    """The same cluster when others have taken what was left."""
    snapshot = _cluster(jobs, nodes)
    rooms = []
    for node in snapshot.nodes:
        left = {CPU: node.room[CPU] - 250}
        used = add(dict(node.used), left)
        rooms.append(NodeRoom(node.facts, node.allocatable, used, {}, subtract(dict(node.allocatable), used)))
    return Snapshot(snapshot.jobs, tuple(rooms))
