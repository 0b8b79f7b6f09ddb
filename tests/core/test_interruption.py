"""A job that ran and loses pods runs on: its phase stays, and the reason says what is missing."""

from __future__ import annotations

from tests.core.jobs import SHARED, condition, edited, training_job
from tests.core.world import World


def running() -> World:
    world = World(training_job(), SHARED)
    seen = []
    for _ in range(200):
        seen.append(world.job.status.phase)
        if not any([world.reconcile(), *(step() for step in world.others)]):
            break
    assert list(dict.fromkeys(phase for phase in seen if phase)) == ["creating", "running"]
    return world


def test_a_lost_pserver_is_named_and_the_phase_stays() -> None:
    world = running()
    world.lose_pod("pserver", 1)
    world.reconcile()
    assert condition(world.job, "Running") == ("False", "PserversMissing")
    assert world.job.status.phase == "running"
    assert "1 of 2 pservers are ready; nobody holds index " in world.job.status.reason
    world.settle()
    assert condition(world.job, "Running") == ("True", "EnoughReady")
    assert world.job.status.reason == ""


def test_lost_trainers_are_counted_and_the_phase_stays() -> None:
    world = running()
    world.lose_pod("trainer")
    world.reconcile()
    assert condition(world.job, "Running") == ("False", "TrainersMissing")
    assert world.job.status.phase == "running"
    assert "0 trainers are ready, at least 1 are wanted" in world.job.status.reason


def test_a_suspended_job_begins_anew() -> None:
    world = running()
    world.set_job(edited(world.job, suspend=True))
    world.settle()
    world.set_job(edited(world.job, suspend=False))
    world.reconcile()
    world.reconcile()
    assert (condition(world.job, "Running")[0], world.job.status.phase) == ("False", "creating")
