"""Whatever happens in whatever order, with crashes in between: the same end, and rest there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_controller.api.meta import is_true
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.names import REVISION_ANNOTATION
from edl_controller.core.parser import revision
from edl_controller.core.semantics.pod_state import is_active, is_ready
from tests.core.jobs import OWN, SHARED, condition, edited, training_job
from tests.core.world import World

EVENTS = (
    *("pass", "crash 0", "crash 1", "crash 2", "garbage", "replica sets", "jobs", "nodes"),
    *("fail trainer", "fail pserver", "fail master", "lose trainer", "lose pserver", "lose master"),
    *("scale 1", "scale 3", "image", "suspend", "resume", "pservers 5", "deaf", "hear"),
)
events = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3)), max_size=40)


def happen(world: World, event: str, number: int) -> None:
    what, _, rest = event.partition(" ")
    match what:
        case "pass":
            world.reconcile()
        case "crash":
            world.reconcile(crash_after=int(rest))
        case "garbage":
            world.collect_garbage()
        case "replica":
            world.run_replica_sets()
        case "jobs":
            world.run_jobs()
        case "nodes":
            world.run_nodes()
        case "fail":
            world.end_pod(rest, "Failed", number)
        case "succeed":
            world.end_pod("trainer", "Succeeded", number)
        case "lose":
            world.lose_pod(rest, number)
        case "scale":
            world.scale(int(rest))
        case "image":
            world.set_job(edited(world.job, image=f"example.com/digits:{number}"))
        case "suspend" | "resume":
            world.set_job(edited(world.job, suspend=what == "suspend"))
        case "pservers":
            world.set_job(edited(world.job, pserver={"min-instance": int(rest)}))
        case "deaf" | "hear":
            world.heard = what == "hear"


def running_end(world: World) -> dict[str, Any]:
    """What a running job looks like from outside, without what its history may decide."""
    job = world.job
    pods = {
        role: sum(is_active(pod) and is_ready(pod) for pod in world.pods(role))
        for role in ("master", "pserver", "trainer")
    }
    trainer, pserver = world.trainer_job, world.replica_set("pserver")
    assert trainer is not None
    assert pserver is not None
    assert pods["trainer"] == trainer.spec.parallelism == job.status.desired_trainers == job.status.trainers
    return {
        "phase": job.status.phase,
        "reason": job.status.reason,
        "pods": (pods["master"], pods["pserver"]),
        "conditions": [condition(job, kind) for kind in ("Created", "Running", "Scaling", "SpecApplied")],
        "lost": is_true(job.status.conditions, "CoordinationStateLost"),
        "current": [child.metadata.annotations[REVISION_ANNOTATION] for child in (trainer, pserver)]
        == [revision(job, "trainer"), revision(job, "pserver")],
        "generation": job.status.observed_generation == job.metadata.generation,
    }


def at_rest(world: World) -> None:
    outcome = world.decide()
    assert not outcome.actions
    assert not outcome.notes
    assert outcome.status == world.job.status
    assert not world.trouble


@settings(max_examples=60, deadline=None)
@given(events, st.sampled_from([SHARED, OWN]))
def test_any_order_of_events_comes_to_the_same_end(happened: list[tuple[str, int]], settings: JobSettings) -> None:
    world = World(training_job(), settings)
    for event, number in happened:
        happen(world, event, number)
    # The user's last word is the same for all: what differs is only what has happened before.
    world.set_job(edited(world.job, suspend=False, image="example.com/digits:9", pserver={"min-instance": 2}))
    world.heard = True
    world.settle()
    # Pods of pservers follow an edit when they are replaced; let each be, once.
    while world.pods("pserver") and world.lose_pod("pserver"):
        pass
    world.settle()
    if world.lose_pod("master"):
        world.settle()
    count = int(world.children().pserver.metadata.annotations["paddlepaddle.org/pservers"])  # type: ignore[union-attr]
    applied = ("True", "Applied") if count == 2 else ("False", "PserverCountFixed")
    assert running_end(world) == {
        "phase": "running",
        "reason": "",
        "pods": (0 if settings is SHARED else 1, count),
        "conditions": [("True", "ChildrenCreated"), ("True", "EnoughReady"), ("False", "Settled"), applied],
        "lost": False,
        "current": True,
        "generation": True,
    }
    at_rest(world)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from((*EVENTS, "succeed")), st.integers(0, 3)), max_size=40),
    st.sampled_from([SHARED, OWN]),
    st.sampled_from(["Running", "All", "None"]),
)
def test_any_order_of_events_ends_well_once_a_trainer_succeeds(
    happened: list[tuple[str, int]], settings: JobSettings, policy: str
) -> None:
    world = World(training_job(cleanPodPolicy=policy), settings)
    for event, number in happened:
        happen(world, event, number)
    if not world.finals:
        world.set_job(edited(world.job, suspend=False))
        world.heard = True
        world.settle()
    while world.end_pod("trainer", "Succeeded"):
        world.run_jobs()
    world.settle()
    assert world.finals == ["succeeded"], "an end is recorded once"
    assert world.job.status.phase == "succeeded"
    assert [condition(world.job, kind)[0] for kind in ("Running", "Succeeded")] == ["False", "True"]
    left = {role: sum(map(is_active, world.pods(role))) for role in ("master", "pserver", "trainer")}
    assert left["trainer"] == 0
    if policy != "None":
        assert not any(left.values())
    else:
        assert left["pserver"] == 2 or left["pserver"] == 5
    assert (world.trainer_job is None) == (policy == "All")
    at_rest(world)


@pytest.mark.parametrize("settings", [SHARED, OWN])
@pytest.mark.parametrize("crash_after", [0, 1, 2])
def test_a_crash_after_each_single_action(settings: JobSettings, crash_after: int) -> None:
    """Before each pass that does something, one that crashes after ``crash_after`` of its actions."""
    world = World(training_job(), settings)
    for _ in range(200):
        world.reconcile(crash_after=crash_after)
        if not any([world.reconcile(), *(step() for step in world.others)]):
            break
    assert running_end(world)["phase"] == "running"
    at_rest(world)
    assert len(world.all_kinds("jobs")) == 1
