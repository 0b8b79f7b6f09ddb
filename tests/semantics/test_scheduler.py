"""Where a pod goes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_controller.api.meta import ObjectMeta
from edl_controller.api.nodes import Node, Taint
from edl_controller.api.pods import Pod, PodStatus, Toleration
from edl_controller.core.capacity import Accounts
from edl_controller.core.semantics.scheduler import Verdicts, place
from tests.semantics.objects import node, spec_of

NO_SCHEDULE = Taint(key="only", value="gpu", effect="NoSchedule")


def wish(cpu: str = "1", memory: str = "1Gi", name: str = "p", **spec: Any) -> Pod:
    requests = {key: value for key, value in {"cpu": cpu, "memory": memory}.items() if value}
    return Pod(
        metadata=ObjectMeta(name=name, uid=name), spec=spec_of(requests, **spec), status=PodStatus(phase="Pending")
    )


def accounts(*nodes: Node, pods: tuple[Pod, ...] = ()) -> Accounts:
    result = Accounts()
    for each in nodes:
        result.put_node(each)
    for one in pods:
        result.put_pod(one)
    return result


def test_the_emptiest_node_is_chosen() -> None:
    running = wish("2", name="other", node_name="a")

    assert place(wish(), accounts(node("a"), node("b"), pods=(running,))).node == "b"
    assert place(wish(), accounts(node("a", cpu="16", memory="32Gi"), node("b"), pods=(running,))).node == "a"


def test_a_node_whose_use_becomes_more_even_is_better() -> None:
    # Both have the same share left on average; a's CPU is used, b's memory is: a pod that wants CPU goes to b.
    uneven = (
        wish("2", "", name="on-a", node_name="a"),
        wish("", "4Gi", name="on-b", node_name="b"),
    )

    assert place(wish("1", "1Mi"), accounts(node("a"), node("b"), pods=uneven)).node == "b"


def test_equal_nodes_by_pods_and_then_by_name() -> None:
    assert place(wish("", ""), accounts(node("b"), node("a"))).node == "a"
    crowded = wish("", "", name="other", node_name="a")
    assert place(wish("", ""), accounts(node("b"), node("a"), pods=(crowded,))).node == "b"


def test_a_gated_pod_is_not_placed() -> None:
    placement = place(wish(scheduling_gates=({"name": "wait"},)), accounts(node("a")))

    assert (placement.node, placement.reason) == (None, "SchedulingGated")


def test_a_pod_that_leaves_still_has_its_room() -> None:
    one = wish("4", name="other", node_name="a")
    meta = msgspec.structs.replace(one.metadata, deletion_timestamp="2017-07-14T02:40:00Z")

    leaving = msgspec.structs.replace(one, metadata=meta)

    assert place(wish(), accounts(node("a"), pods=(leaving,))).node is None


@pytest.mark.parametrize(
    ("pod", "nodes", "message"),
    [
        (wish(), [], "no nodes available to schedule pods"),
        (wish("5"), [node("a"), node("b")], "0/2 nodes are available: 2 Insufficient cpu."),
        (wish("5", "9Gi"), [node("a")], "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."),
        (wish(), [node("a", cordoned=True)], "0/1 nodes are available: 1 node(s) were unschedulable."),
        (wish(), [node("a", pods=0)], "0/1 nodes are available: 1 Too many pods."),
        (
            wish("5", node_selector={"disk": "ssd"}),
            [node("a"), node("b", labels={"disk": "ssd"}), node("c", taints=(NO_SCHEDULE,), labels={"disk": "ssd"})],
            "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector, "
            "1 node(s) had untolerated taint(s).",
        ),
        (wish("much"), [node("a")], ""),
    ],
)
def test_a_pod_without_a_place_is_told_why(pod: Pod, nodes: list[Node], message: str) -> None:
    placement = place(pod, accounts(*nodes))

    assert (placement.node, placement.reason) == (None, "Unschedulable")
    assert placement.message.startswith(message)


def test_tolerations_open_tainted_nodes_and_soft_taints_only_deter() -> None:
    soft = Taint(key="soft", effect="PreferNoSchedule")
    tolerant = wish(tolerations=(Toleration(key="only", operator="Equal", value="gpu"),))

    assert place(tolerant, accounts(node("a", taints=(NO_SCHEDULE,)))).node == "a"
    assert place(wish(), accounts(node("a", cpu="64", taints=(soft,)), node("b", cpu="2"))).node == "b"
    assert place(wish(), accounts(node("a", taints=(soft,)))).node == "a"


_SIZES = st.lists(st.tuples(st.sampled_from(["1", "2", "500m"]), st.sampled_from(["", "1Gi", "3Gi"])), max_size=12)


@given(sizes=_SIZES)
def test_earlier_verdicts_change_nothing_and_no_node_is_overfilled(sizes: list[tuple[str, str]]) -> None:
    booked, verdicts = accounts(node("a"), node("b", cpu="3"), node("c", memory="2Gi")), Verdicts()

    for number, (cpu, memory) in enumerate(sizes):
        one = wish(cpu, memory, name=f"p{number}")
        placement = place(one, booked, verdicts)
        assert placement == place(one, booked)
        if placement.node is not None:
            booked.put_pod(wish(cpu, memory, name=f"p{number}", node_name=placement.node))
        else:
            assert not any(place(one, [room]).node for room in booked)

    assert all(amount >= 0 for room in booked for amount in room.room.values())
