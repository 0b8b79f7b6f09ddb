"""What is collected when owners go, and what becomes of the pods of lost nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edl_controller.api.configuration import ConfigMap
from edl_controller.api.meta import Condition, ObjectMeta, OwnerReference, find_condition, is_true
from edl_controller.api.nodes import Taint
from edl_controller.api.pods import Pod, Toleration
from edl_controller.core.semantics import garbage, node_lifecycle
from edl_controller.core.semantics.storage import FOREGROUND, ORPHAN
from tests.semantics.objects import NOW, at, node, pod


def ref(uid: str, *, blocks: bool = True) -> OwnerReference:
    return OwnerReference(api_version="apps/v1", kind="ReplicaSet", name=uid, uid=uid, block_owner_deletion=blocks)


def owned(*owners: OwnerReference, **meta: Any) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name="c", uid="c", owner_references=owners, **meta))


def owner(*finalizers: str) -> ObjectMeta:
    return ObjectMeta(name="o", uid="o", deletion_timestamp=at(0), finalizers=finalizers)


@pytest.mark.parametrize(
    ("owners", "live", "collected"),
    [
        ((), set(), False),
        (("a",), {"a"}, False),
        (("a",), set(), True),
        (("a", "b"), {"b"}, False),
        (("a", "b"), set(), True),
    ],
)
def test_what_has_lost_all_its_owners_is_garbage(owners: tuple[str, ...], live: set[str], collected: bool) -> None:
    assert garbage.is_garbage(owned(*map(ref, owners)), live) is collected


def test_in_the_foreground_the_owner_waits_for_what_blocks_it() -> None:
    fresh, leaving = owned(ref("o")), owned(ref("o"), deletion_timestamp=at(0))
    loose = owned(ref("o", blocks=False))

    assert garbage.owner_step(owner(FOREGROUND), [fresh]) == garbage.OwnerStep(delete=(fresh,))
    assert garbage.owner_step(owner(FOREGROUND), [leaving]) == garbage.OwnerStep()
    assert garbage.owner_step(owner(FOREGROUND), []) == garbage.OwnerStep(release=FOREGROUND)
    step = garbage.owner_step(owner(FOREGROUND), [loose])
    assert step == garbage.OwnerStep(delete=(loose,), release=FOREGROUND)


def test_in_the_foreground_what_has_another_owner_stays() -> None:
    shared = owned(ref("o"), ref("other"))

    step = garbage.owner_step(owner(FOREGROUND), [shared])

    assert step == garbage.OwnerStep(orphan=(shared,), release=FOREGROUND)


def test_orphans_lose_their_owner_and_stay() -> None:
    one, stranger = owned(ref("o")), owned(ref("other"))

    step = garbage.owner_step(owner(ORPHAN), [one, stranger])

    assert step == garbage.OwnerStep(orphan=(one,), release=ORPHAN)
    assert garbage.without_owner(one.metadata, "o").owner_references == ()
    assert garbage.without_owner(stranger.metadata, "o") == stranger.metadata


def test_only_deleted_owners_with_a_finalizer_of_the_collector_wait() -> None:
    assert garbage.waits_for_dependents(owner(FOREGROUND))
    assert garbage.waits_for_dependents(owner(ORPHAN))
    assert not garbage.waits_for_dependents(owner("example.org/other"))
    assert not garbage.waits_for_dependents(ObjectMeta(finalizers=(FOREGROUND,)))


# -- nodes -------------------------------------------------------------------------------------------------------------


def no_execute(key: str, since: float = 0.0) -> Taint:
    return Taint(key=key, effect="NoExecute", time_added=at(since))


def tolerant(*tolerations: Toleration) -> Pod:
    one = pod(ready=0)
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, tolerations=tolerations))


EVERYTHING = Toleration(operator="Exists")
FOR_A_MINUTE = Toleration(key=node_lifecycle.NOT_READY, operator="Exists", toleration_seconds=60)


@pytest.mark.parametrize(
    ("why", "tolerations", "taints", "seconds"),
    [
        ("no taint", (), (), None),
        ("only NoSchedule", (), (Taint(key="x", effect="NoSchedule"),), None),
        ("not ready: 300 s by default", (), (no_execute(node_lifecycle.NOT_READY),), 290.0),
        ("not ready: its own patience", (FOR_A_MINUTE,), (no_execute(node_lifecycle.NOT_READY),), 50.0),
        ("another taint: at once", (), (no_execute("x"),), 0.0),
        ("all tolerated for ever", (EVERYTHING,), (no_execute("x"),), None),
        ("the shorter patience", (EVERYTHING, FOR_A_MINUTE), (no_execute(node_lifecycle.NOT_READY),), 50.0),
        ("long over", (FOR_A_MINUTE,), (no_execute(node_lifecycle.NOT_READY, since=-100),), 0.0),
    ],
)
def test_how_long_a_pod_stays(
    why: str, tolerations: tuple[Toleration, ...], taints: tuple[Taint, ...], seconds: float | None
) -> None:
    assert node_lifecycle.stays_for(tolerant(*tolerations), node("n1", taints=taints), NOW + 10) == seconds, why


def test_pods_of_a_silent_node_are_not_ready() -> None:
    after = node_lifecycle.without_readiness(pod(ready=-50), NOW)

    ready = find_condition(after.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.last_transition_time, after.status.phase) == ("False", at(0), "Running")
    assert node_lifecycle.without_readiness(after, NOW + 9) is after


def test_evicted_and_lost_pods_are_disruptions() -> None:
    evicted, lost = node_lifecycle.evicted(pod(ready=0), NOW), node_lifecycle.lost(pod(ready=0), NOW)

    assert is_true(evicted.status.conditions, "DisruptionTarget")
    assert evicted.status.phase == "Running"
    assert is_true(lost.status.conditions, "DisruptionTarget")
    assert lost.status.phase == "Failed"
    assert node_lifecycle.lost(pod("done", "Succeeded"), NOW).status.phase == "Succeeded"


def test_a_condition_that_says_the_same_keeps_its_time() -> None:
    old = (Condition(type="A", status="True", last_transition_time=at(-9)),)

    same = node_lifecycle.with_condition(old, Condition(type="A", status="True", last_transition_time=at(0)))
    reason = node_lifecycle.with_condition(old, Condition(type="A", status="True", reason="R"))
    other = node_lifecycle.with_condition(old, Condition(type="A", status="False", last_transition_time=at(0)))

    assert same is old
    assert (reason[0].reason, reason[0].last_transition_time) == ("R", at(-9))
    assert (other[0].status, other[0].last_transition_time) == ("False", at(0))
