"""The life of a job, case by case: what happens next, and what the status says."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from edl_controller.api import timestamps
from edl_controller.api.kinds import JOBS, PODS, REPLICA_SETS
from edl_controller.api.meta import Condition, ObjectMeta, OwnerReference, find_condition, is_true
from edl_controller.api.v1 import PserverSpec, TrainingJob
from edl_controller.api.workloads import Job, ReplicaSet
from edl_controller.core.actions import Action, Create, Delete, Patch
from edl_controller.core.children import NO_CHILDREN
from edl_controller.core.lifecycle import decide
from edl_controller.core.names import COORDINATION_ANNOTATION, IN_SERVICE_GATE
from edl_controller.core.scaling import ScalingView
from tests.core.jobs import NOW, OWN, SHARED, agents, condition, edited, training_job, with_phase
from tests.core.world import World


def running(job: TrainingJob | None = None, settings: Any = SHARED, **more: Any) -> World:
    """A world in which the job runs and everything is at rest."""
    world = World(job or training_job(), settings, **more)
    world.settle()
    assert world.job.status.phase == "running"
    return world


def short(action: Action) -> str:
    """An action in a few words."""
    if isinstance(action, Create):
        return f"create {action.obj.metadata.name}"
    if isinstance(action, Delete):
        return f"delete {action.name}"
    inner = action.patch.get("spec", {})
    words = [f"{key}={inner[key]}" for key in ("replicas", "suspend") if key in inner]
    words += ["template"] if "template" in inner else []
    return " ".join([f"patch {action.name}", *words])


def next_steps(world: World) -> list[str]:
    return [short(action) for action in world.decide().actions]


def pass_by_pass(world: World, most: int = 40) -> list[str]:
    """All actions of the controller until it rests, while everybody else acts too."""
    found: list[str] = []
    for _ in range(most):
        found += next_steps(world)
        if not any([world.reconcile(), *(step() for step in world.others)]):
            return [step for step in found if "patch digits-trainer-0" not in step]
    raise AssertionError(found)


def env_of(child: Any) -> dict[str, str]:
    return {one.name: one.value for one in child.spec.template.spec.containers[0].env}


# --- creation ---


def test_with_an_external_etcd_pservers_come_first_and_trainers_when_they_serve() -> None:
    world = World(training_job(), SHARED)
    assert next_steps(world) == ["create digits-pserver"]
    world.reconcile()
    assert condition(world.job, "Created") == ("False", "PserversStarting")
    assert world.job.status.phase == "creating"
    world.run_replica_sets()
    world.run_replica_sets()
    assert not next_steps(world)
    world.settle()
    assert [pod.status.phase for pod in world.pods("pserver")] == ["Running", "Running"]
    assert world.trainer_job is not None
    assert condition(world.job, "Created") == ("True", "ChildrenCreated")
    assert condition(world.job, "Running") == ("True", "EnoughReady")
    assert world.replica_set("master") is None


def test_in_mode_master_the_others_get_the_address_of_its_pod() -> None:
    world = World(training_job(), OWN)
    assert next_steps(world) == ["create digits-master"]
    world.reconcile()
    assert condition(world.job, "Created") == ("False", "MasterStarting")
    world.run_replica_sets()
    world.run_nodes()
    assert not next_steps(world), "it has an address and is not ready"
    (pod,) = world.pods("master")
    world.store(PODS, with_phase(pod, "Running", ready=True, ip="fd00::7"))
    (action,) = world.decide().actions
    assert isinstance(action, Create)
    assert env_of(action.obj)["EDL_ETCD_ENDPOINTS"] == "http://[fd00::7]:2379"
    world.store(PODS, with_phase(pod, "Running", ready=True, ip="10.1.2.3"))
    world.settle()
    assert env_of(world.trainer_job)["EDL_ETCD_ENDPOINTS"] == "http://10.1.2.3:2379"
    assert env_of(world.trainer_job)["EDL_PREFIX"] == "/edl/jobs/team/digits/uid-1"


@pytest.mark.parametrize(
    ("heard", "ready", "starts"),
    [
        (agents(2), False, True),  # both slots are held; a readiness probe may be slow
        (agents(1), False, False),
        (agents(0, observed=None), True, True),  # nobody hears the agents; the pods are ready
        (agents(2, now=NOW - 31), False, False),  # that was long ago
        (agents(1), True, True),
    ],
)
def test_when_trainers_start(heard: Any, ready: bool, starts: bool) -> None:
    world = World(training_job(), SHARED)
    world.reconcile()
    for _ in range(2):
        world.run_replica_sets()
    for pod in world.pods("pserver"):
        world.store(PODS, with_phase(pod, "Running", ready=ready))
    found = decide(world.job, world.children(), heard, SHARED, NOW).actions
    assert [short(action) for action in found] == (["create digits-trainer"] if starts else [])


def test_after_creation_the_parallelism_is_the_autoscalers() -> None:
    world = running()
    assert world.trainer_job is not None
    assert world.trainer_job.spec.parallelism == 1
    world.scale(4)
    assert not [step for step in next_steps(world) if "trainer" in step]
    world.reconcile()
    assert condition(world.job, "Scaling") == ("True", "Growing")
    assert (world.job.status.phase, world.job.status.desired_trainers) == ("scaling", 4)
    world.settle()
    assert condition(world.job, "Scaling") == ("False", "Settled")
    assert world.job.status.trainers == 4
    world.set_job(edited(world.job, trainer={"min-instance": 2, "max-instance": 3}))
    assert not next_steps(world), "the autoscaler obeys the new bounds"


def test_what_the_autoscaler_is_about_is_said_with_its_reason() -> None:
    """Also before the parallelism changes: a victim is asked to finish its task first."""
    world = running()
    world.scale(3)
    world.settle()
    view = ScalingView(desired=2, scaling=True, reason="a service waits for 1 core")
    outcome = decide(world.job, world.children(), world.agents(), SHARED, world.now, view)
    found = find_condition(outcome.status.conditions, "Scaling")
    assert found is not None
    assert (found.status, found.reason, found.message) == (
        "True",
        "Shrinking",
        "to 2 trainers: a service waits for 1 core",
    )


def test_pservers_that_are_edited_away_stay_as_they_are() -> None:
    """Without its pserver section a job would be another kind of job, with its etcd elsewhere: nothing restarts."""
    world = running()
    bare = replace(world.job, spec=replace(world.job.spec, pserver=PserverSpec()))
    world.set_job(bare)
    assert not [step for step in next_steps(world) if "pserver" in step or "master" in step]
    world.reconcile()
    assert condition(world.job, "SpecApplied")[0] == "False"


def test_a_job_that_comes_up_is_creating_and_not_scaling() -> None:
    world = World(training_job(), SHARED)
    world.reconcile()
    for pod in (*world.pods("pserver"), *world.pods("trainer")):
        assert pod.status.phase != "Running"
    view = ScalingView(desired=3, scaling=True, reason="there is room")
    outcome = decide(world.job, world.children(), world.agents(), SHARED, world.now, view)
    assert outcome.status.phase == "creating"
    assert all(note.note != f"{note.action} is True" for note in outcome.notes)


def test_a_crashed_trainer_is_no_scaling() -> None:
    world = running()
    world.end_pod("trainer", "Failed")
    world.run_jobs()
    world.reconcile()
    assert condition(world.job, "Scaling") == ("False", "Settled")
    world.settle()
    assert world.job.status.phase == "running"


def test_each_new_trainer_gets_its_gate_opened_once() -> None:
    world = running()
    (pod,) = world.pods("trainer")
    assert is_true(pod.status.conditions, IN_SERVICE_GATE)
    victim = replace(pod.status, conditions=(Condition(type=IN_SERVICE_GATE, status="False", reason="Drained"),))
    world.store(PODS, replace(pod, status=victim))
    assert not next_steps(world), "who closed it wants it closed"
    other = replace(pod.status, conditions=(Condition(type="PodScheduled", status="True"),))
    world.store(PODS, replace(pod, status=other))
    (action,) = world.decide().actions
    assert isinstance(action, Patch)
    assert (action.kind, action.subresource) == (PODS, "status")
    assert action.resource_version == world.pods("trainer")[0].metadata.resource_version
    assert [one["type"] for one in action.patch["status"]["conditions"]] == ["PodScheduled", IN_SERVICE_GATE]


# --- specs that are wrong, names that are taken ---


@pytest.mark.report("M60")
def test_a_bad_spec_makes_nothing_names_every_fault_and_is_mended_by_an_edit() -> None:
    bad = training_job(
        image="no image!",
        trainer={"entrypoint": "t", "min-instance": 1, "resources": {"requests": {"cpu": "9E"}}},
        VolumeMounts=[{"name": "unknown", "mountPath": "/x"}],
    )
    world = World(bad, SHARED)
    world.settle()
    assert condition(world.job, "Invalid") == ("True", "Invalid")
    for path in ("spec.image", "spec.trainer.resources", "spec.VolumeMounts"):
        assert path in world.job.status.reason
    assert world.children() == NO_CHILDREN
    world.set_job(replace(training_job(), status=world.job.status))
    world.settle()
    assert (world.job.status.phase, condition(world.job, "Invalid")[0]) == ("running", "False")


def test_a_running_job_survives_a_bad_edit() -> None:
    world = running()
    before = world.children()
    world.set_job(edited(world.job, image="no image!"))
    world.settle()
    assert (world.job.status.phase, condition(world.job, "Invalid")[0]) == ("running", "True")
    assert world.children() == before
    world.end_pod("trainer", "Succeeded")
    world.settle()
    assert world.job.status.phase == "succeeded"


@pytest.mark.report("M37")
@pytest.mark.report("M61")
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"trainer": None},
        {"pserver": None},
        {"trainer": {"entrypoint": "t", "min-instance": 0, "max-instance": 0}},
        {"pserver": {"entrypoint": "p", "min-instance": 0, "max-instance": 0}},
        {"trainer": {"entrypoint": "t", "min-instance": -1, "max-instance": 2**31}},
        {"trainer": {"entrypoint": "'", "min-instance": 1}},
        {"trainer": {"command": ["", ""]}},
        {"agent": {"mode": "Nonsense"}, "etcd": {"mode": "Nonsense"}, "cleanPodPolicy": "Nonsense"},
        {"template": None, "master": None, "fault_tolerant": None},
    ],
)
def test_whatever_is_stored_gets_a_documented_state(spec: dict[str, Any]) -> None:
    job = training_job(spec) if spec else TrainingJob(metadata=training_job().metadata)
    world = World(job, SHARED)
    world.settle()
    assert not world.trouble
    state = condition(world.job, "Invalid")[0], condition(world.job, "Running")[0]
    assert state in {("True", ""), ("", "True")}


@pytest.mark.report("M37")
def test_no_pservers_and_no_trainers_is_a_state() -> None:
    world = running(
        training_job(trainer={"entrypoint": "t", "min-instance": 0, "max-instance": 2}, pserver={"min-instance": 0})
    )
    assert condition(world.job, "Running") == ("True", "NoTrainersWanted")
    assert world.replica_set("pserver") is None
    world.scale(2)
    world.settle()
    assert (world.job.status.trainers, condition(world.job, "Running")[1]) == (2, "EnoughReady")


@pytest.mark.parametrize("role", ["master", "pserver", "trainer"])
@pytest.mark.parametrize("owned", [False, True])
def test_a_strangers_child_is_reported_and_left_alone(role: str, owned: bool) -> None:
    owner = OwnerReference(api_version="apps/v1", kind="Deployment", name="x", uid="stranger", controller=True)
    meta = ObjectMeta(name=f"digits-{role}", namespace="team", uid="s", owner_references=(owner,) if owned else ())
    world = World(training_job(), OWN)
    stranger = Job(metadata=meta) if role == "trainer" else ReplicaSet(metadata=meta)
    kind = JOBS if role == "trainer" else REPLICA_SETS
    world.store(kind, stranger)
    for _ in range(60):
        before = world.passes
        notes = world.decide().notes
        if not any([world.reconcile(), *(step() for step in (world.run_replica_sets, world.run_nodes))]):
            break
        taken = [note for note in notes if note.reason == "NameTaken"]
        assert all(note.warning for note in taken)
    assert before < 50, "no hot loop"
    assert condition(world.job, "Created") == ("False", "NameTaken")
    outcome = world.decide()
    assert (outcome.actions, outcome.notes) == ((), ())
    assert outcome.again_after is not None
    assert 1.0 <= outcome.again_after <= 60.0
    assert world.objects[kind.plural, meta.name].spec == stranger.spec
    # The stranger goes: the job goes on.
    del world.objects[kind.plural, meta.name]
    world.settle()
    assert world.job.status.phase == "running"


# --- success and failure ---


def test_success_needs_every_trainer_to_end_and_one_to_succeed() -> None:
    world = running(training_job(trainer={"entrypoint": "t", "min-instance": 3, "max-instance": 4}))
    world.settle()
    world.end_pod("trainer", "Succeeded")
    world.settle()
    assert world.job.status.phase == "running", "two still work, and that is no lack"
    world.end_pod("trainer", "Failed")
    world.end_pod("trainer", "Succeeded")
    world.settle()
    assert condition(world.job, "Succeeded") == ("True", "TrainersCompleted")
    assert world.job.status.completion_time == timestamps.render(NOW)


def with_pending_trainer(world: World) -> World:
    """Two trainers: one has succeeded, the other never got room."""
    world.scale(2)
    world.run_jobs()
    world.reconcile()
    world.end_pod("trainer", "Succeeded")
    world.run_jobs()
    assert sorted(pod.status.phase for pod in world.pods("trainer")) in (["", "Succeeded"], ["Pending", "Succeeded"])
    return world


@pytest.mark.parametrize(
    ("fault_tolerant", "passes", "finished", "reason"),
    [
        (True, 3, 3, "FinalPassRecorded"),
        (False, 3, 3, "FinalPassRecorded"),
        (True, 0, 0, "OthersNeverRan"),
        (True, 3, 2, ""),  # there is work left, for which the pending one may still come
        (False, 0, 0, ""),  # a strict job needs both
    ],
)
def test_a_trainer_that_never_got_room_does_not_hold_up_success(
    fault_tolerant: bool, passes: int, finished: int, reason: str
) -> None:
    low = 1 if fault_tolerant else 2
    job = training_job(
        fault_tolerant=fault_tolerant, trainer={"entrypoint": "t", "min-instance": low, "max-instance": 2}
    )
    world = World(job, SHARED)
    for _ in range(30):
        if world.pods("trainer") and world.pods("trainer")[0].status.phase == "Running":
            break
        world.reconcile()
        for step in (world.run_replica_sets, world.run_jobs, world.run_nodes):
            step()
    for pod in world.pods("trainer")[1:]:
        world.store(PODS, with_phase(pod, "Pending"))
    world = with_pending_trainer(world)
    heard = agents(2, passes=passes, passes_finished=finished)
    found = decide(world.job, world.children(), heard, SHARED, NOW)
    assert condition(found.status, "Succeeded") == (("True", reason) if reason else ("", ""))
    if reason:
        assert not found.actions, "an end is written down before anything is taken away"
        world.set_job(replace(world.job, status=found.status))
        world.settle()
        assert [pod.status.phase for pod in world.pods("trainer")] == ["Succeeded"]
        assert world.trainer_job is not None
        assert is_true(world.trainer_job.status.conditions, "Complete")


def test_a_strict_job_fails_with_its_first_trainer() -> None:
    world = running(training_job(fault_tolerant=False, trainer={"entrypoint": "t", "min-instance": 2}))
    world.end_pod("trainer", "Failed")
    world.settle()
    assert condition(world.job, "Failed") == ("True", "BackoffLimitExceeded")
    assert world.job.status.phase == "failed"
    assert not [pod for role in ("trainer", "pserver") for pod in world.pods(role) if pod.status.phase == "Running"]


def test_a_fault_tolerant_job_fails_when_failures_exceed_its_limit() -> None:
    world = running(training_job(backoffLimit=2))
    for _ in range(2):
        world.end_pod("trainer", "Failed")
        world.settle()
        assert world.job.status.phase == "running"
    world.end_pod("trainer", "Failed")
    world.settle()
    assert world.job.status.phase == "failed"


@pytest.mark.parametrize("role", ["pserver", "master"])
def test_a_failed_pserver_or_master_is_replaced_and_ends_nothing(role: str) -> None:
    world = running(training_job(fault_tolerant=False, trainer={"entrypoint": "t", "min-instance": 1}), OWN)
    world.end_pod(role, "Failed")
    world.reconcile()
    assert not is_true(world.job.status.conditions, "Failed")
    world.settle()
    assert world.job.status.phase == "running"
    states = {one.training_resource_type: one.resource_states for one in world.job.status.replica_statuses}
    assert states[role]["running"] == (2 if role == "pserver" else 1)


def test_an_end_is_final() -> None:
    world = running()
    world.end_pod("trainer", "Succeeded")
    world.settle()
    ended = world.job.status.conditions
    del world.objects["jobs", "digits-trainer"]
    world.set_job(edited(world.job, image="x:2", suspend=True))
    world.settle()
    assert world.job.status.phase == "succeeded"
    assert world.job.status.conditions == ended
    assert world.trainer_job is None


# --- edits ---


def test_a_new_image_rolls_the_trainers_and_waits_for_a_restart_of_the_pservers() -> None:
    world = running()
    world.scale(3)
    world.settle()
    pservers = {pod.metadata.uid for pod in world.pods("pserver")}
    world.set_job(edited(world.job, image="example.com/digits:2"))
    assert pass_by_pass(world) == ["patch digits-pserver template", "delete digits-trainer", "create digits-trainer"]
    assert {pod.metadata.uid for pod in world.pods("pserver")} == pservers, "they hold parameters"
    assert {pod.spec.containers[0].image for pod in world.pods("trainer")} == {"example.com/digits:2"}
    assert condition(world.job, "SpecApplied") == ("False", "AtNextRestart")
    world.lose_pod("pserver", 0)
    world.settle()
    world.lose_pod("pserver", 0)
    world.settle()
    assert {pod.spec.containers[0].image for pod in world.pods("pserver")} == {"example.com/digits:2"}
    assert condition(world.job, "SpecApplied") == ("True", "Applied")


def test_an_edit_that_removes_something_is_applied_too() -> None:
    world = running(training_job(NodeSelector={"disk": "ssd", "zone": "1"}))
    world.set_job(edited(world.job, NodeSelector=None))
    world.settle()
    for child in (world.replica_set("pserver"), world.trainer_job):
        assert child is not None
        assert child.spec.template.spec.node_selector == {}


def test_a_strict_jobs_trainers_take_an_edit_at_the_next_resume() -> None:
    world = running(training_job(fault_tolerant=False, trainer={"entrypoint": "t", "min-instance": 1}))
    world.set_job(edited(world.job, trainer={"image": "example.com/digits:2"}))
    assert pass_by_pass(world) == []
    assert condition(world.job, "SpecApplied") == ("False", "AtNextRestart")
    world.set_job(edited(world.job, suspend=True))
    world.settle()
    world.set_job(edited(world.job, suspend=False))
    assert pass_by_pass(world)[-2:] == ["delete digits-trainer", "create digits-trainer"]
    assert condition(world.job, "SpecApplied") == ("True", "Applied")


@pytest.mark.report("M37")
@pytest.mark.parametrize("pserver", [{"min-instance": 5, "max-instance": 5}, {"min-instance": 0}, None])
def test_the_number_of_pservers_stays(pserver: dict[str, int] | None) -> None:
    world = running(training_job(agent={"mode": "Launcher"}))
    if pserver is None:
        world.set_job(edited(world.job, pserver=None))
    else:
        world.set_job(edited(world.job, pserver=pserver))
    world.settle()
    assert condition(world.job, "SpecApplied") == ("False", "PserverCountFixed")
    assert len(world.pods("pserver")) == 2
    assert world.job.status.phase == "running"
    assert env_of(world.trainer_job)["PSERVERS"] == "2"


@pytest.mark.parametrize(("role", "count"), [("master", 1), ("pserver", 2)])
def test_replicas_changed_behind_our_back_are_put_right(role: str, count: int) -> None:
    world = running(settings=OWN)
    rs = world.replica_set(role)
    assert rs is not None
    world.store(REPLICA_SETS, replace(rs, spec=replace(rs.spec, replicas=7)))
    assert next_steps(world) == [f"patch digits-{role} replicas={count}"]


def test_once_a_trainer_has_succeeded_no_edit_replaces_the_others() -> None:
    world = running()
    world.scale(2)
    world.settle()
    world.end_pod("trainer", "Succeeded")
    world.settle()
    world.set_job(edited(world.job, image="example.com/digits:2"))
    assert pass_by_pass(world) == ["patch digits-pserver template"]
    assert condition(world.job, "SpecApplied") == ("False", "AtNextRestart")


def test_new_trainers_come_when_the_old_ones_have_gone() -> None:
    world = running()
    world.set_job(edited(world.job, trainer={"image": "example.com/digits:2"}))
    world.reconcile()
    assert world.trainer_job is None
    assert next_steps(world) == []
    world.reconcile()
    assert condition(world.job, "Created") == ("False", "TrainersLeaving")
    world.collect_garbage()
    assert next_steps(world) == [], "one is on its way out"
    world.run_nodes()
    assert next_steps(world) == ["create digits-trainer"]


# --- suspension, deletion, deadline, time to live ---


def test_suspend_takes_trainers_then_pservers_and_resume_brings_them_back() -> None:
    world = running(settings=OWN)
    world.scale(3)
    world.settle()
    world.set_job(edited(world.job, suspend=True))
    assert pass_by_pass(world) == ["patch digits-trainer suspend=True", "patch digits-pserver replicas=0"]
    assert condition(world.job, "Suspended") == ("True", "Suspended")
    assert condition(world.job, "Running") == ("False", "Suspended")
    assert (world.job.status.phase, world.job.status.start_time) == ("creating", None)
    assert [len(world.pods(role)) for role in ("master", "pserver", "trainer")] == [1, 0, 0]
    world.now += 100
    world.set_job(edited(world.job, suspend=False))
    assert pass_by_pass(world) == ["patch digits-pserver replicas=2", "patch digits-trainer suspend=False"]
    assert world.job.status.trainers == 3, "the number of trainers is kept"
    assert world.job.status.start_time == timestamps.render(NOW + 100)
    assert condition(world.job, "Suspended") == ("False", "Resumed")


def test_each_role_goes_when_the_pods_of_the_one_before_are_gone() -> None:
    world = running(settings=OWN)
    world.end_pod("trainer", "Succeeded")
    world.scale(2)
    (pod,) = world.pods("trainer")
    world.store(PODS, with_phase(pod, "Running", ready=True))
    job = replace(world.job, status=replace(world.job.status, conditions=(Condition(type="Succeeded", status="True"),)))
    world.set_job(job)
    for role, step in (("trainer", "suspend=True"), ("pserver", "replicas=0"), ("master", "replicas=0")):
        assert next_steps(world) == [f"patch digits-{role} {step}"]
        world.reconcile()
        assert next_steps(world) == []
        while world.pods(role):
            assert next_steps(world) == [], f"the {role} has pods"
            assert any(step() for step in world.others)


def test_a_job_that_is_submitted_suspended_makes_nothing() -> None:
    world = World(training_job(suspend=True), OWN)
    world.settle()
    assert world.children() == NO_CHILDREN
    assert condition(world.job, "Suspended")[0] == "True"
    world.set_job(edited(world.job, suspend=False))
    world.settle()
    assert world.job.status.phase == "running"


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    world = World(training_job(), OWN)
    going = replace(world.job, metadata=replace(world.job.metadata, deletion_timestamp="2027-01-15T08:00:00Z"))
    outcome = decide(going, NO_CHILDREN, agents(), OWN, NOW)
    assert (outcome.actions, outcome.status, outcome.notes) == ((), going.status, ())


def test_a_deadline_counts_from_the_start_and_not_while_suspended() -> None:
    world = running(training_job(activeDeadlineSeconds=100))
    again = world.decide().again_after
    assert again is not None
    assert again <= 100
    world.now += 99
    world.settle()
    assert world.job.status.phase == "running"
    world.set_job(edited(world.job, suspend=True))
    world.settle()
    world.now += 1000
    world.settle()
    assert world.job.status.phase == "creating"
    world.set_job(edited(world.job, suspend=False))
    world.settle()
    world.now += 100
    world.settle()
    assert condition(world.job, "Failed") == ("True", "DeadlineExceeded")
    assert not world.pods("trainer")


def test_a_job_is_deleted_when_its_time_after_the_end_is_over() -> None:
    world = running(training_job(ttlSecondsAfterFinished=60))
    world.end_pod("trainer", "Succeeded")
    world.settle()
    assert world.decide().again_after == 60
    world.now += 60
    (action,) = world.decide().actions
    assert isinstance(action, Delete)
    assert (action.kind.name, action.uid) == ("TrainingJob", "uid-1")
    world.settle()
    assert not world.exists


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        ("Running", ["patch digits-pserver replicas=0", "patch digits-master replicas=0"]),
        ("All", ["delete digits-trainer", "delete digits-pserver", "delete digits-master"]),
        ("None", []),
    ],
)
def test_what_is_cleaned_up_at_the_end_and_in_which_order(policy: str, steps: list[str]) -> None:
    world = running(training_job(cleanPodPolicy=policy), OWN)
    world.end_pod("trainer", "Succeeded")
    assert pass_by_pass(world) == steps
    assert len(world.pods("trainer")) == (0 if policy == "All" else 1), "a finished trainer's log is kept"


# --- the coordination state ---


def test_a_lost_master_restarts_all_roles_with_the_new_address() -> None:
    world = running(settings=OWN)
    old = {pod.metadata.uid for role in ("pserver", "trainer") for pod in world.pods(role)}
    world.lose_pod("master")
    world.reconcile()
    assert not world.decide().actions, "while there is no master nothing is touched"
    seen: list[tuple[str, str]] = []
    warnings: list[str] = []
    steps: list[str] = []
    for _ in range(60):
        outcome = world.decide()
        steps += [short(action) for action in outcome.actions]
        warnings += [note.action for note in outcome.notes if note.warning]
        if not any([world.reconcile(), *(step() for step in world.others)]):
            break
        found = condition(world.job, "CoordinationStateLost")
        seen += [found] if found not in seen[-1:] else []
    assert seen == [("", ""), ("True", "StoreReplaced"), ("False", "Restarted")]
    assert warnings == ["CoordinationStateLost"]
    assert [step for step in steps if "trainer-0" not in step] == [
        "patch digits-pserver replicas=0 template",
        "delete digits-trainer",
        "patch digits-pserver replicas=2",
        "create digits-trainer",
    ]
    assert not old & {pod.metadata.uid for role in ("pserver", "trainer") for pod in world.pods(role)}
    (master,) = world.pods("master")
    for pod in (*world.pods("pserver"), *world.pods("trainer")):
        found_env = {one.name: one.value for one in pod.spec.containers[0].env}
        assert found_env["EDL_ETCD_ENDPOINTS"] == f"http://{master.status.pod_ip}:2379"
        assert pod.metadata.annotations[COORDINATION_ANNOTATION] == master.metadata.uid
    assert world.job.status.phase == "running"


def test_a_restarted_container_of_the_master_is_no_loss() -> None:
    world = running(settings=OWN)
    (master,) = world.pods("master")
    world.store(PODS, with_phase(master, "Running"))
    world.reconcile()
    assert world.job.status.phase == "running"
    world.store(PODS, with_phase(master, "Running", ready=True))
    assert pass_by_pass(world) == []


def test_another_cluster_behind_the_external_endpoints_is_a_loss_too() -> None:
    world = running()
    other = agents(2, cluster_id=8)
    found = decide(world.job, world.children(), other, SHARED, NOW)
    assert [short(action) for action in found.actions] == [
        "patch digits-pserver replicas=0 template",
        "delete digits-trainer",
    ]
    assert condition(found.status, "CoordinationStateLost")[0] == "True"


def test_a_store_that_is_not_heard_is_no_loss() -> None:
    world = running()
    world.heard = False
    assert pass_by_pass(world) == []
    world = running(heard=False)
    world.heard = True
    assert pass_by_pass(world) == []
    world.heard = False
    assert pass_by_pass(world) == []


# --- the status ---


def test_the_status_counts_and_selects() -> None:
    world = running(settings=OWN)
    status = world.job.status
    assert (status.trainers, status.desired_trainers, status.pservers) == (1, 1, 2)
    assert status.trainer_selector == "paddle-job=digits,paddlepaddle.org/job-uid=uid-1,paddlepaddle.org/role=trainer"
    assert [(one.training_resource_type, one.state, one.resource_states) for one in status.replica_statuses] == [
        ("master", "running", {"running": 1}),
        ("pserver", "running", {"running": 2}),
        ("trainer", "running", {"running": 1}),
    ]
    assert status.observed_generation == world.job.metadata.generation
    assert status.agents is not None
    assert (status.agents.pservers, status.agents.lost_pservers) == (2, ())


def test_fresh_agents_with_no_news_cost_no_write_and_stale_ones_are_said_once() -> None:
    world = running()
    seen = decide(world.job, world.children(), agents(2, rate=100.0), SHARED, NOW).status
    job = replace(world.job, status=seen)
    later = decide(job, world.children(), agents(2, now=NOW + 20, rate=104.0), SHARED, NOW + 20)
    assert later.status == seen
    assert later.again_after is not None
    faster = decide(job, world.children(), agents(2, rate=150.0), SHARED, NOW).status.agents
    assert faster is not None
    assert faster.rate == "150"
    silent = agents(2, rate=100.0, error="no answer from 10.0.0.1")
    stale = decide(job, world.children(), silent, SHARED, NOW + 40)
    assert condition(stale.status, "AgentStateKnown") == ("False", "Stale")
    assert [note.reason for note in stale.notes if note.warning] == ["Stale"]
    job = replace(job, status=stale.status)
    other_words = agents(2, rate=100.0, error="no answer from 10.0.0.2")
    still = decide(job, world.children(), other_words, SHARED, NOW + 80)
    assert (still.status, still.notes) == (stale.status, ())


def test_what_others_wrote_into_the_status_stays() -> None:
    world = running()
    placeable = Condition(type="Placeable", status="True", reason="Fits")
    status = replace(world.job.status, conditions=(*world.job.status.conditions, placeable))
    world.set_job(replace(world.job, status=status))
    assert world.decide().status == status
    world.lose_pod("trainer")
    world.reconcile()
    assert condition(world.job, "Placeable") == ("True", "Fits")


def test_each_change_is_told_once() -> None:
    world = World(training_job(), SHARED)
    told: list[str] = []
    for _ in range(60):
        told += [f"{note.action} {note.reason}" for note in world.decide().notes]
        if not any([world.reconcile(), *(step() for step in world.others)]):
            break
    assert len(told) == len(set(told))
    assert told[0] == "Created PserversStarting"
    assert "Created ChildrenCreated" in told
    assert "Running EnoughReady" in told
