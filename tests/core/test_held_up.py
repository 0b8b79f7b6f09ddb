"""Why pods wait, as it is said in a job's condition."""

from __future__ import annotations

import pytest

from edl_controller.api.meta import Condition, ObjectMeta
from edl_controller.api.pods import Pod, PodStatus
from edl_controller.api.workloads import Job, JobSpec, ReplicaSet, ReplicaSetSpec, ReplicaSetStatus
from edl_controller.core.children import NO_CHILDREN, Children
from edl_controller.core.held_up import held_up

CPU = "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. preemption: 0/3 nodes are."
LATER = "0/9 nodes are available: 4 Insufficient cpu, 5 node(s) had untolerated taint(s). no new claims."
REFUSED = 'pods "tj-pserver-{}" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2'


def pod(name: str, message: str = "", *, reason: str = "Unschedulable", phase: str = "Pending") -> Pod:
    conditions = (Condition(type="PodScheduled", status="False", reason=reason, message=message),) if message else ()
    return Pod(metadata=ObjectMeta(name=name), status=PodStatus(phase=phase, conditions=conditions))


def trainers(wanted: int, *pods: Pod, suspend: bool = False) -> Children:
    spec = JobSpec(parallelism=wanted, suspend=suspend)
    return Children(trainer=Job(metadata=ObjectMeta(name="tj-trainer"), spec=spec), trainer_pods=pods)


def pservers(wanted: int, refused: str = "", *pods: Pod) -> Children:
    conditions = (Condition(type="ReplicaFailure", status="True", message=refused),) if refused else ()
    status = ReplicaSetStatus(conditions=conditions)
    return Children(pserver=ReplicaSet(spec=ReplicaSetSpec(replicas=wanted), status=status), pserver_pods=pods)


NOT_CREATED = "; 2 of 3 trainers are not created (if for long, see the Events of Job tj-trainer)"


@pytest.mark.parametrize(
    ("children", "text"),
    [
        (NO_CHILDREN, ""),
        (trainers(2, pod("a"), pod("b", phase="Running")), ""),
        (trainers(3, pod("a")), NOT_CREATED),
        (trainers(3, pod("a"), pod("b", phase="Failed")), NOT_CREATED),
        (trainers(3, suspend=True), ""),
        (
            trainers(2, pod("a", CPU), pod("b")),
            "; 1 of 2 trainers wait for a node: Insufficient cpu, node(s) had untolerated taint(s)",
        ),
        (trainers(1, pod("a", "a scheduling gate", reason="SchedulingGated")), ""),
        (trainers(1, pod("a", "no nodes")), "; 1 of 1 trainers wait for a node: no nodes"),
        (
            pservers(3, REFUSED.format("x"), pod("a"), pod("b")),
            "; 1 of 3 pservers are refused: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2",
        ),
        (pservers(2, REFUSED.format("x"), pod("a"), pod("b")), ""),
    ],
)
def test_each_reason_is_told(children: Children, text: str) -> None:
    assert held_up(children) == text


def test_another_try_with_other_counts_and_names_reads_the_same() -> None:
    assert held_up(trainers(1, pod("a", CPU))) == held_up(trainers(1, pod("b", LATER)))
    assert held_up(pservers(1, REFUSED.format("x"))) == held_up(pservers(1, REFUSED.format("y")))


def test_a_long_text_of_others_is_cut() -> None:
    assert len(held_up(pservers(1, "x" * 10_000))) < 400
