"""What is kept by informers is what a list would show."""

from __future__ import annotations

import random
import threading

import pytest

from edl_controller.api.kinds import NODES, PODS, TRAINING_JOBS
from edl_controller.cluster.sim import SimWorld
from edl_controller.runtime.cluster_view import ClusterView, InformedView, ListedView
from edl_controller.runtime.informers import Informers
from tests.autoscaler.sim_rooms import Room, training_job
from tests.bench.waiting import eventually


def picture(view: ClusterView, room: Room) -> object:
    jobs = [view.trainers(job) for job in (room.world.cluster.get(TRAINING_JOBS, "ns", name) for name in ("a", "b"))]
    return (
        {node.facts.name: node for node in view.nodes()},
        {pod.metadata.uid for pod in view.waiting()},
        [(found[0], {pod.metadata.uid: pod for pod in found[1]}) if found else None for found in jobs],
    )


@pytest.mark.parametrize("seed", range(3))
def test_following_shows_the_same_as_listing(seed: int) -> None:
    chance = random.Random(seed)
    room = Room(world=SimWorld(seed=seed))
    room.world.add_node("n1", cpu="3")
    for name in ("a", "b"):
        room.submit(training_job(name, 2, 4))
    woken = threading.Event()
    informers = Informers(room.world.cluster)
    followed, listed = InformedView(informers, woken.set), ListedView(room.world.cluster)
    assert followed.silence() == float("inf")
    stop = threading.Event()
    thread = threading.Thread(target=informers.run, args=(stop,))
    thread.start()
    try:
        assert informers.wait_synced(stop)
        for number in range(20):
            nodes, pods = room.world.cluster.list(NODES).items, room.world.cluster.list(PODS).items
            match chance.randrange(4):
                case 0:
                    room.service(f"s{number}", "1")
                case 1:
                    room.world.add_node(f"m{number}", cpu="2")
                case 2 if nodes:
                    room.world.remove_node(chance.choice(nodes).metadata.name)
                case 3 if pods:
                    room.world.cluster.delete(PODS, "ns", chance.choice(pods).metadata.name)
            room.rounds(1)
            listed.look()
            expected = picture(listed, room)
            eventually(lambda: picture(followed, room) == expected, 5.0, "both views agree")  # noqa: B023
        assert woken.is_set()
        assert followed.silence() < 60
    finally:
        stop.set()
        thread.join(5)
    assert not thread.is_alive()
