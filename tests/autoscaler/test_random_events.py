"""Whatever happens in whatever order, with crashes in between: bounds are kept, nothing fails, all comes to rest."""

from __future__ import annotations

import contextlib
import random

import pytest

from edl_controller.api.kinds import NODES, PODS
from edl_controller.core.planner.observed import gate_of
from edl_controller.errors import NotFound
from tests.autoscaler.sim_rooms import Room, training_job

NAMES = ("a", "b", "c")


def happen(room: Room, chance: random.Random, services: list[str], bounds: dict[str, tuple[int, int]]) -> None:
    """One thing out of those that happen to a cluster."""
    match chance.randrange(8):
        case 0:
            services.append(f"web-{len(services)}")
            room.service(services[-1], str(chance.randint(1, 4)))
        case 1 if services:
            with contextlib.suppress(NotFound):
                room.world.cluster.delete(PODS, "ns", services[chance.randrange(len(services))])
        case 2 if bounds:
            name = chance.choice(sorted(bounds))
            low = chance.randint(0, 3)
            bounds[name] = (low, low + chance.randint(0, 6))
            room.edit(name, trainer=training_job(name, *bounds[name]).spec.trainer)
        case 3 if len(bounds) < len(NAMES):
            name = NAMES[len(bounds)]
            bounds[name] = (1, chance.randint(1, 8))
            room.submit(training_job(name, *bounds[name], cpu=chance.choice(["1", "2"])))
        case 4:
            node = room.world.cluster.get(NODES, "", chance.choice(["n1", "n2"]))
            cordon = not node.spec.unschedulable
            room.world.cluster.patch(NODES, "", node.metadata.name, {"spec": {"unschedulable": cordon}})
        case 5 if bounds:
            pods = room.pods(chance.choice(sorted(bounds)))
            running = [pod for pod in pods if pod.status.phase == "Running"]
            if running:
                room.world.set_ready(chance.choice(running), chance.random() < 0.5)
        case _:
            room.new_scaler()


@pytest.mark.parametrize("seed", range(8))
def test_bounds_are_kept_nothing_fails_and_all_comes_to_rest(seed: int) -> None:
    chance = random.Random(seed)
    room = Room()
    for name in ("n1", "n2", "n3"):
        room.world.add_node(name, cpu="6")
    services: list[str] = []
    bounds: dict[str, tuple[int, int]] = {}
    for _ in range(60):
        happen(room, chance, services, bounds)
        before = {name: room.size(name) or 0 for name in bounds}
        room.rounds(chance.choice([0.25, 0.5, 2.0]))
        for name, (low, high) in bounds.items():
            size = room.size(name) or 0
            assert low <= size <= high or min(before[name], high) <= size <= max(before[name], low), name
    room.rounds(20)
    version = room.world.cluster.list(PODS).resource_version
    room.rounds(10)
    assert room.world.cluster.list(PODS).resource_version == version, "not at rest"
    for name, (low, high) in bounds.items():
        assert low <= (room.size(name) or 0) <= high
        assert room.job(name).status.failed == 0, "pods removed by a cut are never counted"
        running = [pod for pod in room.pods(name) if pod.status.phase == "Running"]
        assert [gate_of(pod) for pod in running] == ["True"] * len(running), "no victim is forgotten"
