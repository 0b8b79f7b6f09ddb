"""What becomes of a Job: narrated, one decision or a few at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from edl_controller.api.meta import Condition
from edl_controller.api.pods import Pod, PodTemplateSpec
from edl_controller.api.workloads import Job
from edl_controller.core.semantics.failure_back_off import FailureMemory
from edl_controller.core.semantics.job import TRACKING, JobDecision, decide, is_finished
from edl_controller.core.semantics.new_pod import MOST_AT_ONCE
from tests.semantics.objects import NOW, at, job, job_owner, pod, spec_of, with_job_status

IGNORE_DISRUPTIONS = {
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}
FAIL_ON_42 = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
DISRUPTED = Condition(type="DisruptionTarget", status="True")


def names(pods: Sequence[Pod]) -> list[str]:
    return [one.metadata.name for one in pods]


def running(count: int, **more: Any) -> list[Pod]:
    return [pod(f"p{number}", ready=-number, **more) for number in range(count)]


def failed(name: str = "f", **more: Any) -> Pod:
    return pod(name, "Failed", **{"exit_code": 1, **more})


def conditions(decision: JobDecision) -> list[str]:
    return [condition.type for condition in decision.status.conditions if condition.status == "True"]


def after(one: Job, decision: JobDecision) -> Job:
    """The Job once the status is written."""
    return msgspec.structs.replace(one, status=decision.status)


def released(pods: Sequence[Pod], decision: JobDecision) -> list[Pod]:
    """The pods once the decision is carried out: those to release and to delete."""
    let_go = {one.metadata.uid for one in decision.release}
    deleted = {one.metadata.uid for one in decision.delete}
    result = []
    for one in pods:
        meta = one.metadata
        if meta.uid in let_go:
            meta = msgspec.structs.replace(meta, finalizers=())
        if meta.uid in deleted:
            meta = msgspec.structs.replace(meta, deletion_timestamp=at(30))
        result.append(msgspec.structs.replace(one, metadata=meta))
    return result


# -- creating and cutting ----------------------------------------------------------------------------------------------


def test_missing_pods_are_created_tracked_and_owned() -> None:
    decision = decide(job(3), running(1), NOW)

    assert len(decision.create) == 2
    new = decision.create[0]
    assert new.metadata.generate_name == "j-"
    assert new.metadata.namespace == "default"
    assert new.metadata.finalizers == (TRACKING,)
    assert new.metadata.labels["batch.kubernetes.io/job-name"] == "j"
    owner = new.metadata.controller()
    assert owner is not None
    assert (owner.kind, owner.uid, owner.block_owner_deletion) == ("Job", "job-uid", True)
    assert (decision.status.active, decision.status.ready, decision.status.start_time) == (3, 1, at(0))


def test_one_decision_makes_or_removes_some_hundreds_and_the_next_goes_on() -> None:
    """Of a Job of thousands: others have their turn in between, and an edit or the end of it is seen."""
    decision = decide(job(2 * MOST_AT_ONCE + 1), [], NOW)
    assert (len(decision.create), decision.status.active) == (MOST_AT_ONCE, MOST_AT_ONCE)
    then = decide(after(job(2 * MOST_AT_ONCE + 1), decision), running(2 * MOST_AT_ONCE), NOW)
    assert len(then.create) == 1
    for cut in (job(0), job(3000, suspend=True)):
        decision = decide(cut, running(2 * MOST_AT_ONCE), NOW)
        assert (len(decision.cut), decision.status.active) == (MOST_AT_ONCE, MOST_AT_ONCE)
        assert conditions(decision) in ([], ["Suspended"])


def test_a_cut_takes_those_that_rank_first_uncounted() -> None:
    pods = [pod("old", ready=-50), pod("new", ready=-1), pod("unready"), pod("pending", "Pending", node="")]

    decision = decide(job(1), pods, NOW)

    assert names(decision.cut) == ["pending", "unready", "new"]
    status = decision.status
    assert (status.active, status.ready, status.terminating, status.failed) == (1, 1, 3, 0)
    assert decision.release == decision.delete == decision.create == ()
    # Once they are without finalizer and asked to end, nothing is left to do, whatever becomes of them.
    for phase, code in (("Running", None), ("Failed", 143), ("Succeeded", 0)):
        gone = [pod(one.metadata.name, phase, deleted=True, tracked=False, exit_code=code) for one in decision.cut]
        then = decide(after(job(1), decision), [pods[0], *gone], NOW + 1)
        assert (then.status.succeeded, then.status.failed, then.create, then.cut) == (0, 0, (), ())


def test_parallelism_0_cuts_all_and_the_job_goes_on() -> None:
    decision = decide(job(0), running(2), NOW)

    assert len(decision.cut) == 2
    assert conditions(decision) == []


def test_only_own_pods_are_looked_at() -> None:
    foreign = pod("foreign", owner=job_owner("another-uid"))
    orphan = msgspec.structs.replace(foreign, metadata=msgspec.structs.replace(foreign.metadata, owner_references=()))

    decision = decide(job(0), [foreign, orphan], NOW)

    assert decision.cut == decision.release == ()


def test_a_deleted_job_makes_no_pods_and_lets_all_go() -> None:
    leaving = job(2)
    leaving = msgspec.structs.replace(
        leaving, metadata=msgspec.structs.replace(leaving.metadata, deletion_timestamp=at(0))
    )

    decision = decide(leaving, running(1), NOW)

    assert decision.create == decision.cut == ()
    assert names(decision.release) == ["p0"]


def test_an_indexed_job_is_left_alone() -> None:
    indexed = job(2, completion_mode="Indexed", completions=2)

    assert decide(indexed, [], NOW) == JobDecision(indexed.status)


# -- counting ----------------------------------------------------------------------------------------------------------


def test_an_end_is_named_then_released_then_counted() -> None:
    one, pods = job(2), [*running(1), pod("done", "Succeeded", exit_code=0)]

    named = decide(one, pods, NOW)
    assert named.status.uncounted_terminated_pods == {"succeeded": ["uid-done"]}
    assert (named.status.succeeded, names(named.release)) == (0, ["done"])

    # A crash before the release: the next pass does the same again and counts nothing twice.
    again = decide(after(one, named), pods, NOW)
    assert (again.status, again.release) == (named.status, named.release)

    counted = decide(after(one, named), released(pods, named), NOW)
    assert (counted.status.succeeded, counted.status.uncounted_terminated_pods) == (1, {})
    assert decide(after(one, counted), released(pods, named), NOW).status == counted.status


def test_an_end_is_counted_too_when_the_pod_is_gone_altogether() -> None:
    one = with_job_status(job(1), uncounted_terminated_pods={"failed": ["uid-gone"]}, failed=2)

    assert decide(one, running(1), NOW).status.failed == 3


@pytest.mark.parametrize(
    ("policy", "failures", "missing"),
    [
        # By default a deleted pod is a failure at once, and replaced after the back-off.
        ({}, ["uid-d"], 0),
        # Where only failed pods are replaced, it counts once it has ended.
        ({"pod_replacement_policy": "Failed"}, [], 0),
        ({"pod_failure_policy": IGNORE_DISRUPTIONS}, [], 0),
    ],
)
def test_a_pod_deleted_by_hand(policy: dict[str, Any], failures: list[str], missing: int) -> None:
    decision = decide(job(1, **policy), [pod("d", deleted=True)], NOW)

    assert (decision.status.uncounted_terminated_pods or {}).get("failed", []) == failures
    assert decision.status.terminating == 1
    assert len(decision.create) == missing


def test_a_terminating_pod_takes_a_place_where_only_failed_ones_are_replaced() -> None:
    pods = [pod("cut", deleted=True, tracked=False)]

    assert len(decide(job(1), pods, NOW).create) == 1
    assert decide(job(1, pod_replacement_policy="Failed"), pods, NOW).create == ()


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_failed_pod_is_replaced_after_the_back_off() -> None:
    one, pods = job(1), [failed(ended=0)]

    at_once = decide(one, pods, NOW + 1)
    assert (at_once.create, at_once.again_after) == ((), 9.0)

    early = decide(after(one, at_once), released(pods, at_once), NOW + 9, at_once.memory)
    assert (early.create, early.again_after) == ((), 1.0)

    late = decide(after(one, at_once), released(pods, at_once), NOW + 10, at_once.memory)
    assert len(late.create) == 1


@pytest.mark.parametrize(
    ("failures", "wait"), [(0, 0), (1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (100, 600), (10_000, 600)]
)
def test_the_back_off_doubles_up_to_ten_minutes(failures: int, wait: float) -> None:
    assert FailureMemory(failures, NOW).wait(NOW) == wait


def test_a_success_forgets_the_failures_before_it() -> None:
    memory = FailureMemory(5, NOW)

    forgotten = memory.after([pod("s", "Succeeded", exit_code=0, ended=5)], [])
    assert (forgotten.failures, forgotten.last) == (0, 0.0)
    mixed = memory.after([pod("s", "Succeeded", exit_code=0, ended=5)], [failed(ended=4), failed(ended=6)])
    assert (mixed.failures, mixed.last) == (1, NOW + 6)


def test_a_pod_that_a_broken_off_pass_sees_again_is_one_failure() -> None:
    once = FailureMemory().after([], [failed(ended=4)])

    assert once.after([], [failed(ended=4)]).failures == 1


def test_the_limit_of_failures_ends_the_job() -> None:
    one, pods = job(2, backoff_limit=0), [failed(), *running(1)]

    target = decide(one, pods, NOW)
    assert conditions(target) == ["FailureTarget"]
    assert names(target.delete) == ["p0"]
    # The one that ran is a failure, too.
    assert target.status.uncounted_terminated_pods == {"failed": ["uid-f", "uid-p0"]}
    assert (target.status.active, target.status.terminating) == (0, 1)

    counted = decide(after(one, target), released(pods, target), NOW + 1)
    assert (counted.status.failed, conditions(counted)) == (2, ["FailureTarget"]), "p0 is still there"

    over = decide(after(one, counted), [released(pods, target)[0]], NOW + 2)
    assert conditions(over) == ["FailureTarget", "Failed"]
    assert over.status.conditions[-1].reason == "BackoffLimitExceeded"
    assert is_finished(after(one, over))


def test_restarts_count_where_containers_are_restarted() -> None:
    template = PodTemplateSpec(spec=spec_of({}, restart_policy="OnFailure"))

    assert conditions(decide(job(1, backoff_limit=3, template=template), [pod("a", restarts=2)], NOW)) == []
    ended = decide(job(1, backoff_limit=3, template=template), [pod("a", restarts=3)], NOW)
    assert conditions(ended) == ["FailureTarget"]


def test_a_disruption_is_not_counted_where_it_is_ignored() -> None:
    one = job(1, backoff_limit=0, pod_failure_policy=IGNORE_DISRUPTIONS)

    ignored = decide(one, [failed(conditions=(DISRUPTED,))], NOW)
    assert (conditions(ignored), ignored.status.uncounted_terminated_pods) == ([], {})
    assert names(ignored.release) == ["f"]
    assert ignored.memory.failures == 1, "the back-off is kept all the same"

    assert conditions(decide(one, [failed()], NOW)) == ["FailureTarget"]


def test_a_rule_may_end_the_job() -> None:
    decision = decide(job(1, pod_failure_policy=FAIL_ON_42), [failed(exit_code=42)], NOW)

    assert conditions(decision) == ["FailureTarget"]
    assert decision.status.conditions[0].reason == "PodFailurePolicy"
    assert decision.status.conditions[0].message == (
        "Container main for pod default/f failed with exit code 42 matching FailJob rule at index 0"
    )
    assert conditions(decide(job(1, pod_failure_policy=FAIL_ON_42), [failed(exit_code=41)], NOW)) == []


# -- success -----------------------------------------------------------------------------------------------------------


def test_the_first_success_ends_scaling_in_both_directions() -> None:
    pods = [pod("done", "Succeeded", exit_code=0), *running(2)]

    for parallelism in (0, 1, 2, 9):
        decision = decide(job(parallelism), pods, NOW)
        assert (decision.create, decision.cut, conditions(decision)) == ((), (), [])


def test_after_a_success_the_last_end_completes_the_job() -> None:
    one = with_job_status(job(2), succeeded=1)
    pods = [pod("last", "Failed", exit_code=1)]

    met = decide(one, pods, NOW)
    assert conditions(met) == ["SuccessCriteriaMet"]
    complete = decide(after(one, met), released(pods, met), NOW)
    assert conditions(complete) == ["SuccessCriteriaMet", "Complete"]
    assert (complete.status.completion_time, complete.status.failed) == (at(0), 1)


def test_completions_bound_the_pods() -> None:
    one = with_job_status(job(5, completions=7), succeeded=4)

    assert len(decide(one, [], NOW).create) == 3
    assert conditions(decide(with_job_status(one, succeeded=7), [], NOW)) == ["SuccessCriteriaMet"]


def test_a_terminating_pod_delays_the_end() -> None:
    one = with_job_status(job(1), succeeded=1)
    leaving = [pod("cut", deleted=True, tracked=False)]

    met = decide(one, leaving, NOW)
    assert conditions(decide(after(one, met), leaving, NOW)) == ["SuccessCriteriaMet"]
    assert conditions(decide(after(one, met), [], NOW)) == ["SuccessCriteriaMet", "Complete"]


# -- suspension, deadline, time to live --------------------------------------------------------------------------------


def test_suspension_cuts_all_uncounted_and_stops_the_clock() -> None:
    one = with_job_status(job(2, suspend=True, active_deadline_seconds=10), start_time=at(-100))

    decision = decide(one, running(2), NOW)

    assert len(decision.cut) == 2
    assert conditions(decision) == ["Suspended"]
    assert (decision.status.start_time, decision.again_after) == (None, None)


def test_resumption_starts_the_clock_anew() -> None:
    suspended = with_job_status(
        job(2, active_deadline_seconds=10),
        conditions=(Condition(type="Suspended", status="True", reason="JobSuspended"),),
    )

    decision = decide(suspended, [], NOW)

    assert len(decision.create) == 2
    assert [(c.type, c.status, c.reason) for c in decision.status.conditions] == [("Suspended", "False", "JobResumed")]
    assert (decision.status.start_time, decision.again_after) == (at(0), 10.0)


def test_the_deadline_ends_the_job() -> None:
    one = with_job_status(job(1, active_deadline_seconds=10), start_time=at(0))

    assert decide(one, running(1), NOW + 9).again_after == 1.0
    over = decide(one, running(1), NOW + 10)
    assert [(c.type, c.reason) for c in over.status.conditions] == [("FailureTarget", "DeadlineExceeded")]
    assert names(over.delete) == ["p0"]


def test_a_finished_job_goes_when_its_time_is_over() -> None:
    done = with_job_status(
        job(1, ttl_seconds_after_finished=60),
        conditions=(Condition(type="Complete", status="True", last_transition_time=at(0)),),
    )

    assert decide(done, [], NOW + 59) == JobDecision(done.status, again_after=1.0)
    assert decide(done, [], NOW + 60).delete_job
    assert decide(done, running(1), NOW).cut == (), "nothing is done for it any more"
