"""How a Job behaves: every case is a fact about the real Job controller."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edl_controller.api.kinds import EVENTS, JOBS, PODS
from edl_controller.api.meta import OwnerReference, find_condition, is_true
from edl_controller.api.pods import Pod
from edl_controller.api.workloads import Job, JobStatus
from edl_controller.errors import Invalid, NotFound
from tests.contract.objects import (
    GATE,
    JOB_TRACKING,
    get_job,
    get_pod,
    is_ready,
    job,
    names,
    pod_spec,
    pods_of,
    set_gate,
)
from tests.contract.world import World, stays, until

BACK_OFF = 25.0
"""Seconds within which a failed pod is surely replaced: the first back-off is 10 s."""
CONTAINER: Any = msgspec.to_builtins(pod_spec().containers[0])
IN_ZONE_A = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    }
}
BESIDE_OTHERS = {
    "requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "other"}}, "topologyKey": "kubernetes.io/hostname"}
    ]
}


def _running(world: World, name: str) -> tuple[Pod, ...]:
    """Pods of a Job that run and are not asked to end."""
    found = pods_of(world, name)
    return tuple(p for p in found if p.status.phase == "Running" and p.metadata.deletion_timestamp is None)


def _counts(job: Job) -> tuple[int, int, int]:
    """Active, succeeded, failed."""
    return job.status.active, job.status.succeeded, job.status.failed


def _started(world: World, name: str, parallelism: int, **spec: Any) -> tuple[Pod, ...]:
    """Create a Job on a node of its own and wait until all its pods are ready and the Job has seen it."""
    world.add_node(f"{world.namespace}-n1", cpu="16")
    world.cluster.create(job(world, name, parallelism, **spec))
    until(world, lambda: get_job(world, name).status.ready == parallelism, what=f"{parallelism} ready pods")
    return _running(world, name)


def _set_parallelism(world: World, name: str, parallelism: int) -> None:
    world.cluster.patch(JOBS, world.namespace, name, {"spec": {"parallelism": parallelism}})


def _conditions(status: JobStatus) -> list[tuple[str, str]]:
    return [(condition.type, condition.reason) for condition in status.conditions if condition.status == "True"]


def _reasons(world: World, name: str) -> set[str]:
    return {e.reason for e in world.cluster.list(EVENTS, world.namespace).items if e.regarding.name == name}


# -- what is made ------------------------------------------------------------------------------------------------------


def test_a_new_job_has_the_defaults_of_kubernetes(world: World) -> None:
    made = world.cluster.create(job(world, "a", 0))

    labels = {
        "app": "a",
        "batch.kubernetes.io/controller-uid": made.metadata.uid,
        "batch.kubernetes.io/job-name": "a",
        "controller-uid": made.metadata.uid,
        "job-name": "a",
    }
    assert made.spec.template.metadata.labels == labels
    assert made.spec.selector is not None
    assert made.spec.selector.match_labels == {"batch.kubernetes.io/controller-uid": made.metadata.uid}
    assert (made.spec.parallelism, made.spec.completions, made.spec.backoff_limit) == (0, None, 6)
    assert (made.spec.completion_mode, made.spec.suspend) == ("NonIndexed", False)
    assert made.spec.pod_replacement_policy == "TerminatingOrFailed"
    assert made.status == JobStatus()


def test_a_failure_policy_waits_for_the_end_of_a_pod_before_its_replacement(world: World) -> None:
    rules = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}

    made = world.cluster.create(job(world, "a", 0, pod_failure_policy=rules))

    assert made.spec.pod_replacement_policy == "Failed"


def test_its_pods_are_named_labelled_owned_and_tracked(world: World) -> None:
    pods = _started(world, "a", 2)
    owner = get_job(world, "a")

    assert len(pods) == 2
    for pod in pods:
        meta = pod.metadata
        assert meta.name.startswith("a-")
        assert len(meta.name) == len("a-") + 5
        assert meta.labels == owner.spec.template.metadata.labels
        assert meta.owner_references == (
            OwnerReference(
                api_version="batch/v1",
                kind="Job",
                name="a",
                uid=owner.metadata.uid,
                controller=True,
                block_owner_deletion=True,
            ),
        )
        assert meta.finalizers == (JOB_TRACKING,)
    status = owner.status
    assert (status.active, status.ready, status.terminating, status.succeeded, status.failed) == (2, 2, 0, 0, 0)
    assert status.start_time is not None
    assert status.conditions == ()
    until(world, lambda: "SuccessfulCreate" in _reasons(world, "a"), what="the event of a creation")


# -- cuts --------------------------------------------------------------------------------------------------------------


def test_pods_removed_by_a_cut_are_not_counted_and_come_again(world: World) -> None:
    first = _started(world, "a", 3)

    _set_parallelism(world, "a", 1)
    until(world, lambda: len(pods_of(world, "a")) == 1, what="one pod")
    until(world, lambda: get_job(world, "a").status.ready == 1, what="one ready pod")
    until(world, lambda: get_job(world, "a").status.terminating == 0, what="the Job to see that they are gone")
    assert _counts(get_job(world, "a")) == (1, 0, 0)

    _set_parallelism(world, "a", 2)
    until(world, lambda: get_job(world, "a").status.ready == 2, what="two ready pods")
    assert len(names(pods_of(world, "a")) - names(first)) == 1
    _set_parallelism(world, "a", 0)
    until(world, lambda: not pods_of(world, "a") and get_job(world, "a").status.ready == 0, what="no pod")
    assert _counts(get_job(world, "a")) == (0, 0, 0)
    assert _conditions(get_job(world, "a").status) == []


def test_a_pod_that_ends_well_while_it_is_cut_is_not_counted_either(world: World) -> None:
    _started(world, "a", 2)
    world.let_terminate(exit_code=0)

    _set_parallelism(world, "a", 1)

    until(world, lambda: len(pods_of(world, "a")) == 1, what="one pod")
    world.settle(1.5)
    assert _counts(get_job(world, "a")) == (1, 0, 0)


def test_a_cut_takes_pods_that_wait_for_a_node_first(world: World) -> None:
    world.add_node(f"{world.namespace}-n1", cpu="2")
    world.cluster.create(job(world, "a", 3, pods=pod_spec(cpu="900m")))
    until(world, lambda: get_job(world, "a").status.ready == 2, what="two ready pods and one without room")
    running = names(_running(world, "a"))

    _set_parallelism(world, "a", 2)

    until(world, lambda: names(pods_of(world, "a")) == running, 5, what="the pod without a node to go")


@pytest.mark.parametrize("victim", [0, 2])
def test_a_cut_takes_the_pod_that_is_not_ready(world: World, victim: int) -> None:
    pods = _started(world, "a", 3)
    world.set_ready(pods[victim], False)
    until(world, lambda: not is_ready(get_pod(world, pods[victim].metadata.name)), what="a pod that is not ready")

    _set_parallelism(world, "a", 2)

    until(world, lambda: len(pods_of(world, "a")) == 2, what="two pods")
    assert pods[victim].metadata.name not in names(pods_of(world, "a"))
    world.settle(1.5)
    assert _counts(get_job(world, "a")) == (2, 0, 0)


def test_a_readiness_gate_names_the_victim(world: World) -> None:
    world.add_node(f"{world.namespace}-n1", cpu="16")
    world.cluster.create(job(world, "a", 4, pods=pod_spec(gates=[GATE])))
    until(world, lambda: len(_running(world, "a")) == 4, what="four running pods")
    pods = _running(world, "a")
    assert not any(is_ready(pod) for pod in pods), "a gate that nobody has set holds"
    for pod in pods:
        set_gate(world, pod.metadata.name, True)
    until(world, lambda: get_job(world, "a").status.ready == 4, what="four ready pods")
    chosen = {pods[1].metadata.name, pods[2].metadata.name}

    for name in chosen:
        set_gate(world, name, False)
    until(world, lambda: not any(is_ready(get_pod(world, name)) for name in chosen), what="the chosen not to be ready")
    _set_parallelism(world, "a", 2)

    until(world, lambda: len(pods_of(world, "a")) == 2, what="two pods")
    assert names(pods_of(world, "a")) == names(pods) - chosen
    until(world, lambda: get_job(world, "a").status.ready == 2, what="the Job to see it")
    assert _counts(get_job(world, "a")) == (2, 0, 0)


def test_of_ready_pods_the_one_that_became_ready_last_goes(world: World) -> None:
    (old,) = _started(world, "a", 1)
    world.settle(1.2)  # times are whole seconds
    _set_parallelism(world, "a", 2)
    until(world, lambda: get_job(world, "a").status.ready == 2, what="two ready pods")
    world.settle(1.2)
    world.set_ready(old, False)
    until(world, lambda: not is_ready(get_pod(world, old.metadata.name)), what="the old pod not to be ready")
    world.set_ready(old, True)
    until(world, lambda: is_ready(get_pod(world, old.metadata.name)), what="the old pod to be ready again")

    _set_parallelism(world, "a", 1)

    until(world, lambda: len(pods_of(world, "a")) == 1, what="one pod")
    assert old.metadata.name not in names(pods_of(world, "a")), "the oldest pod was ready for the shortest time"


@pytest.mark.parametrize(("policy", "waits"), [("TerminatingOrFailed", False), ("Failed", True)])
def test_growth_after_a_cut_waits_for_pods_that_still_end_only_if_the_policy_says_so(
    world: World, policy: str, waits: bool
) -> None:
    _started(world, "a", 2, pod_replacement_policy=policy)
    world.hold_terminating()
    _set_parallelism(world, "a", 1)
    until(world, lambda: len([p for p in pods_of(world, "a") if p.metadata.deletion_timestamp]) == 1, what="the cut")

    _set_parallelism(world, "a", 2)

    if waits:
        stays(world, lambda: len(_running(world, "a")) == 1, 2.0)
        world.let_terminate()
    until(world, lambda: len(_running(world, "a")) == 2, 5, "growth")
    world.let_terminate()
    until(world, lambda: get_job(world, "a").status.terminating == 0, what="the end of the first")
    assert _counts(get_job(world, "a")) == (2, 0, 0)


def test_the_deletion_cost_means_nothing_to_a_job(world: World) -> None:
    pods = _started(world, "a", 2)
    cheap = pods[0].metadata.name
    annotations = {"controller.kubernetes.io/pod-deletion-cost": "-1000"}
    world.cluster.patch(PODS, world.namespace, cheap, {"metadata": {"annotations": annotations}})
    dear = pods[1]
    world.set_ready(dear, False)
    until(world, lambda: not is_ready(get_pod(world, dear.metadata.name)), what="a pod that is not ready")

    _set_parallelism(world, "a", 1)

    until(world, lambda: names(pods_of(world, "a")) == {cheap}, what="the cheap pod alone")


# -- success -----------------------------------------------------------------------------------------------------------


def test_the_first_success_ends_all_scaling_of_a_work_queue(world: World) -> None:
    pods = _started(world, "a", 3)
    world.finish(pods[0], 0)
    until(world, lambda: get_job(world, "a").status.succeeded == 1, what="a success")
    assert get_pod(world, pods[0].metadata.name).metadata.finalizers == ()

    for parallelism in (5, 1):
        _set_parallelism(world, "a", parallelism)
        stays(world, lambda: names(_running(world, "a")) == {pods[1].metadata.name, pods[2].metadata.name}, 1.5)
    world.finish(pods[1], 1)
    until(world, lambda: get_job(world, "a").status.failed == 1, what="a failure")
    stays(world, lambda: len(pods_of(world, "a")) == 3, 1.5, "no pod is made anew")
    assert _conditions(get_job(world, "a").status) == []

    world.finish(pods[2], 0)
    until(world, lambda: get_job(world, "a").status.completion_time, what="the end")
    status = get_job(world, "a").status
    assert _conditions(status) == [
        ("SuccessCriteriaMet", "CompletionsReached"),
        ("Complete", "CompletionsReached"),
    ]
    assert (status.active, status.ready, status.succeeded, status.failed) == (0, 0, 2, 1)
    assert [p.status.phase for p in pods_of(world, "a")].count("Succeeded") == 2
    assert all(not p.metadata.finalizers for p in pods_of(world, "a"))


def test_with_completions_the_last_ones_come_without_waiting_pods(world: World) -> None:
    pods = _started(world, "a", 2, completions=3)
    world.finish(pods[0], 0)
    until(world, lambda: get_job(world, "a").status.succeeded == 1 and len(_running(world, "a")) == 2, what="a third")

    for pod in _running(world, "a"):
        world.finish(pod, 0)

    until(world, lambda: is_true(get_job(world, "a").status.conditions, "Complete"), what="the end")
    assert _counts(get_job(world, "a")) == (0, 3, 0)
    assert len(pods_of(world, "a")) == 3


def test_a_finished_job_goes_after_its_time_to_live(world: World) -> None:
    pods = _started(world, "a", 1, ttl_seconds_after_finished=1)

    world.finish(pods[0], 0)

    def gone() -> bool:
        try:
            get_job(world, "a")
        except NotFound:
            return True
        return False

    until(world, gone, what="the end of the Job")
    until(world, lambda: not pods_of(world, "a"), what="the end of its pods")


# -- failure -----------------------------------------------------------------------------------------------------------


def test_a_failed_pod_is_counted_kept_and_replaced_after_a_back_off(world: World) -> None:
    pods = _started(world, "a", 2)

    world.finish(pods[0], 1)

    until(world, lambda: get_job(world, "a").status.failed == 1, what="a failure")
    stays(world, lambda: len(pods_of(world, "a")) == 2, 4.0, "no pod in its place at once")
    assert _counts(get_job(world, "a")) == (1, 0, 1)
    until(world, lambda: get_job(world, "a").status.ready == 2, BACK_OFF, "a replacement")
    assert get_pod(world, pods[0].metadata.name).status.phase == "Failed"
    assert _counts(get_job(world, "a")) == (2, 0, 1)


def test_too_many_failures_end_the_job_and_its_other_pods(world: World) -> None:
    pods = _started(world, "a", 3, backoff_limit=1)
    world.hold_terminating()

    world.finish(pods[0], 1)
    world.finish(pods[1], 1)

    until(world, lambda: find_condition(get_job(world, "a").status.conditions, "FailureTarget"), what="the verdict")
    until(
        world, lambda: get_pod(world, pods[2].metadata.name).metadata.deletion_timestamp, what="the third to be asked"
    )
    assert _conditions(get_job(world, "a").status) == [("FailureTarget", "BackoffLimitExceeded")]
    world.let_terminate()
    until(world, lambda: is_true(get_job(world, "a").status.conditions, "Failed"), what="the end")
    status = get_job(world, "a").status
    assert _conditions(status)[-1] == ("Failed", "BackoffLimitExceeded")
    assert (status.active, status.ready, status.terminating) == (0, 0, 0)
    assert status.failed == 3, "the pod that was ended counts, too"
    assert status.completion_time is None


def test_a_pod_deleted_by_hand_counts_as_a_failure(world: World) -> None:
    pods = _started(world, "a", 2)

    world.cluster.delete(PODS, world.namespace, pods[0].metadata.name)

    until(world, lambda: get_job(world, "a").status.failed == 1, 5, "a failure")
    until(world, lambda: get_job(world, "a").status.ready == 2, BACK_OFF, "a replacement")


def test_a_disrupted_pod_can_be_left_uncounted(world: World) -> None:
    rules = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
    pods = _started(world, "a", 2, backoff_limit=0, pod_failure_policy=rules)
    victim = pods[0].metadata.name
    # Kubernetes withdraws the condition from pods that live on for two minutes after it; without a time, at once.
    since = pods[0].metadata.creation_timestamp
    disrupted = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": since}
    conditions = PODS.to_json(get_pod(world, victim))["status"]["conditions"]
    patch = {"status": {"conditions": [*conditions, disrupted]}}
    world.cluster.patch(PODS, world.namespace, victim, patch, subresource="status")

    world.cluster.delete(PODS, world.namespace, victim)

    until(world, lambda: victim not in names(pods_of(world, "a")), what="the end of the pod")
    until(world, lambda: get_job(world, "a").status.ready == 2, BACK_OFF, "a replacement")
    assert _counts(get_job(world, "a")) == (2, 0, 0)


def test_a_failure_policy_can_end_the_job_at_an_exit_code(world: World) -> None:
    rules = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
    pods = _started(world, "a", 2, pod_failure_policy=rules)

    world.finish(pods[0], 42)

    until(world, lambda: is_true(get_job(world, "a").status.conditions, "Failed"), what="the end")
    failed = find_condition(get_job(world, "a").status.conditions, "Failed")
    assert failed is not None
    assert failed.reason == "PodFailurePolicy"
    name = f"{world.namespace}/{pods[0].metadata.name}"
    assert failed.message == f"Container main for pod {name} failed with exit code 42 matching FailJob rule at index 0"


def test_a_deadline_ends_the_job(world: World) -> None:
    _started(world, "a", 2, active_deadline_seconds=2)

    until(world, lambda: is_true(get_job(world, "a").status.conditions, "Failed"), what="the end")

    assert _conditions(get_job(world, "a").status) == [
        ("FailureTarget", "DeadlineExceeded"),
        ("Failed", "DeadlineExceeded"),
    ]
    assert pods_of(world, "a") == ()


# -- suspend -----------------------------------------------------------------------------------------------------------


def test_a_suspended_job_gives_up_its_pods_and_gets_new_ones(world: World) -> None:
    first = _started(world, "a", 2)

    world.cluster.patch(JOBS, world.namespace, "a", {"spec": {"suspend": True}})
    until(world, lambda: not pods_of(world, "a"), what="no pod")
    until(world, lambda: get_job(world, "a").status.ready == 0, what="the Job to see it")
    suspended = get_job(world, "a").status
    assert _conditions(suspended) == [("Suspended", "JobSuspended")]
    assert suspended.start_time is None
    assert _counts(get_job(world, "a")) == (0, 0, 0)

    world.cluster.patch(JOBS, world.namespace, "a", {"spec": {"suspend": False}})
    until(world, lambda: get_job(world, "a").status.ready == 2, what="two ready pods")
    resumed = get_job(world, "a").status
    assert _conditions(resumed) == []
    found = find_condition(resumed.conditions, "Suspended")
    assert found is not None
    assert (found.status, found.reason) == ("False", "JobResumed")
    assert resumed.start_time is not None
    assert not names(pods_of(world, "a")) & names(first)
    assert _counts(get_job(world, "a")) == (2, 0, 0)


def test_a_job_made_suspended_waits(world: World) -> None:
    world.add_node(f"{world.namespace}-n1")
    world.cluster.create(job(world, "a", 2, suspend=True))

    until(world, lambda: is_true(get_job(world, "a").status.conditions, "Suspended"), what="the condition")
    stays(world, lambda: not pods_of(world, "a"), 1.0)
    assert get_job(world, "a").status.start_time is None


# -- deletion ----------------------------------------------------------------------------------------------------------


def test_the_pods_of_a_deleted_job_end_in_their_own_time(world: World) -> None:
    _started(world, "a", 2)
    world.hold_terminating()

    world.cluster.delete(JOBS, world.namespace, "a")

    until(world, lambda: all(p.metadata.deletion_timestamp for p in pods_of(world, "a")), what="the pods to be asked")
    assert len(pods_of(world, "a")) == 2
    world.let_terminate()
    until(world, lambda: not pods_of(world, "a"), what="the end of the pods")


def test_the_template_of_a_job_stays_as_it_is(world: World) -> None:
    _started(world, "a", 1)
    template = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 7}}}}

    with pytest.raises(Invalid):
        world.cluster.patch(JOBS, world.namespace, "a", template)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"metadata": {"labels": {"more": "labels"}}}, id="labels"),
        pytest.param({"metadata": {"annotations": {"more": "notes"}}}, id="annotations"),
        pytest.param({"spec": {"nodeSelector": {"some": "where"}}}, id="node selector"),
        pytest.param({"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}}, id="tolerations"),
        pytest.param({"spec": {"schedulingGates": [{"name": "example.org/wait"}]}}, id="scheduling gates"),
        pytest.param({"spec": {"affinity": {"nodeAffinity": IN_ZONE_A}}}, id="node affinity"),
        pytest.param({"spec": {"containers": [CONTAINER | {"resources": {"requests": {"cpu": "2"}}}]}}, id="resources"),
    ],
)
def test_where_the_pods_of_a_job_go_may_change_as_long_as_it_was_never_started(
    world: World, change: dict[str, Any]
) -> None:
    """A scheduler of queues decides before the first pod is made."""
    world.cluster.create(job(world, "a", 2, suspend=True))

    after = world.cluster.patch(JOBS, world.namespace, "a", {"spec": {"template": change}})

    assert after.metadata.generation == 2


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": {"containers": [{**CONTAINER, "image": "registry.invalid/other"}]}}, id="image"),
        pytest.param({"spec": {"containers": [{**CONTAINER, "command": ["true"]}]}}, id="command"),
        pytest.param({"spec": {"containers": [{**CONTAINER, "name": "other"}]}}, id="name of a container"),
        pytest.param({"spec": {"containers": [CONTAINER, {**CONTAINER, "name": "two"}]}}, id="one more container"),
        pytest.param({"spec": {"terminationGracePeriodSeconds": 7}}, id="grace"),
        pytest.param({"spec": {"restartPolicy": "OnFailure"}}, id="restart policy"),
        pytest.param({"spec": {"affinity": {"podAffinity": BESIDE_OTHERS}}}, id="affinity to other pods"),
    ],
)
def test_what_the_pods_of_a_job_do_stays_even_before_it_is_started(world: World, change: dict[str, Any]) -> None:
    made = world.cluster.create(job(world, "a", 2, suspend=True))

    with pytest.raises(Invalid):
        world.cluster.patch(JOBS, world.namespace, "a", {"spec": {"template": change}})

    assert get_job(world, "a").spec == made.spec


def test_a_job_that_was_stopped_may_go_elsewhere_once_its_pods_are_gone(world: World) -> None:
    _started(world, "a", 1)
    elsewhere = {"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": f"{world.namespace}-n2"}}}}}
    with pytest.raises(Invalid):
        world.cluster.patch(JOBS, world.namespace, "a", elsewhere)
    world.cluster.patch(JOBS, world.namespace, "a", {"spec": {"suspend": True}})
    until(world, lambda: is_true(get_job(world, "a").status.conditions, "Suspended"), what="the Job to be suspended")
    until(world, lambda: get_job(world, "a").status.active == 0, what="no active pod")
    world.add_node(f"{world.namespace}-n2")

    world.cluster.patch(JOBS, world.namespace, "a", elsewhere)
    world.cluster.patch(JOBS, world.namespace, "a", {"spec": {"suspend": False}})

    until(world, lambda: get_job(world, "a").status.ready == 1, what="a ready pod")
    assert {pod.spec.node_name for pod in _running(world, "a")} == {f"{world.namespace}-n2"}
