"""What becomes of a ReplicaSet."""

from __future__ import annotations

from typing import Any

import msgspec

from edl_controller.api.meta import OwnerReference
from edl_controller.api.pods import Pod
from edl_controller.core.semantics.new_pod import MOST_AT_ONCE
from edl_controller.core.semantics.replica_set import decide
from tests.semantics.objects import NOW, at, pod, replica_set

OWNER = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="r", uid="rs-uid", controller=True)


def own(name: str, phase: str = "Running", **more: Any) -> Pod:
    return pod(name, phase, **{"owner": OWNER, "tracked": False, "labels": {"app": "r"}, **more})


def orphan(name: str, **more: Any) -> Pod:
    one = own(name, **more)
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, owner_references=()))


def test_ended_and_leaving_pods_are_replaced_at_once() -> None:
    pods = [own("good", ready=0), own("failed", "Failed"), own("done", "Succeeded"), own("leaving", deleted=True)]

    decision = decide(replica_set(3), pods, NOW)

    assert len(decision.create) == 2
    assert decision.create[0].metadata.generate_name == "r-"
    assert decision.create[0].metadata.finalizers == ()
    assert decision.delete == ()
    status = decision.status
    assert (status.replicas, status.ready_replicas, status.available_replicas) == (1, 1, 1)
    assert (status.terminating_replicas, status.fully_labeled_replicas, status.observed_generation) == (1, 1, 1)


def test_too_many_are_removed_by_their_rank() -> None:
    pods = [own("dear", ready=-1, cost="10"), own("cheap", ready=-9, cost="1"), own("unready", cost="99")]

    assert [one.metadata.name for one in decide(replica_set(1), pods, NOW).delete] == ["unready", "cheap"]


def test_one_decision_makes_or_removes_some_hundreds_and_the_next_goes_on() -> None:
    assert len(decide(replica_set(2 * MOST_AT_ONCE), [], NOW).create) == MOST_AT_ONCE
    pods = [own(f"p{number}") for number in range(MOST_AT_ONCE + 3)]
    assert len(decide(replica_set(2 * MOST_AT_ONCE), pods, NOW).create) == MOST_AT_ONCE - 3
    assert len(decide(replica_set(0), pods, NOW).delete) == MOST_AT_ONCE
    assert len(decide(replica_set(0), pods[:3], NOW).delete) == 3


def test_pods_of_others_are_left_alone() -> None:
    other = msgspec.structs.replace(OWNER, uid="other")

    decision = decide(replica_set(0), [own("foreign", owner=other)], NOW)

    assert decision.delete == decision.adopt == decision.release == ()


def test_a_pod_without_a_manager_that_fits_is_adopted_and_counts() -> None:
    decision = decide(replica_set(1), [orphan("fits"), orphan("other", labels={"app": "x"})], NOW)

    assert [one.metadata.name for one in decision.adopt] == ["fits"]
    assert decision.owner.uid == "rs-uid"
    assert decision.create == ()


def test_a_pod_that_no_longer_fits_is_released_and_replaced() -> None:
    decision = decide(replica_set(1), [own("relabelled", labels={})], NOW)

    assert [one.metadata.name for one in decision.release] == ["relabelled"]
    assert len(decision.create) == 1
    assert decision.delete == ()


def test_a_deleted_replica_set_makes_and_takes_nothing() -> None:
    one = replica_set(2)
    leaving = msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, deletion_timestamp=at(0)))

    decision = decide(leaving, [own("a"), orphan("b")], NOW)

    assert decision.create == decision.delete == decision.adopt == ()


def test_availability_takes_its_time() -> None:
    decision = decide(replica_set(2, min_ready_seconds=10), [own("a", ready=-3), own("b", ready=-10)], NOW)

    assert (decision.status.ready_replicas, decision.status.available_replicas) == (2, 1)
    assert decision.again_after == 7.0


def test_at_rest_nothing_is_done() -> None:
    one, pods = replica_set(1), [own("a", ready=0)]

    rest = msgspec.structs.replace(one, status=decide(one, pods, NOW).status)

    decision = decide(rest, pods, NOW + 100)
    assert (decision.create, decision.delete, decision.status, decision.again_after) == ((), (), rest.status, None)
