"""The accounts of the nodes, and the sums of the contract."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_controller.api import quantity
from edl_controller.api.meta import Condition, ObjectMeta
from edl_controller.api.nodes import Node, NodeSpec, NodeStatus
from edl_controller.api.pods import Container, Pod, PodSpec, PodStatus, ResourceRequirements
from edl_controller.core.capacity import Accounts, ClusterResource, Nodes, add_resource_list, inquiry
from edl_controller.errors import InvalidQuantity


@dataclass(frozen=True)
class Change:
    type: str
    obj: Any


def node(name: str = "n1", cpu: str = "4", memory: str = "8Gi", cordoned: bool = False, ready: bool = True) -> Node:
    return Node(
        metadata=ObjectMeta(name=name),
        spec=NodeSpec(unschedulable=cordoned),
        status=NodeStatus(
            allocatable={"cpu": cpu, "memory": memory, "pods": "110", "nvidia.com/gpu": "2"},
            conditions=(Condition(type="Ready", status="True" if ready else "False"),),
        ),
    )


def pod(
    uid: str,
    where: str = "n1",
    cpu: str = "500m",
    memory: str = "100M",
    phase: str = "Running",
    leaving: bool = False,
    gpu: int = 0,
) -> Pod:
    limits: dict[str, str | int | float] = {"cpu": "1", "memory": memory} | ({"nvidia.com/gpu": gpu} if gpu else {})
    return Pod(
        metadata=ObjectMeta(name=uid, uid=uid, deletion_timestamp="2026-01-01T00:00:00Z" if leaving else None),
        spec=PodSpec(
            node_name=where,
            containers=(Container(name="c", resources=ResourceRequirements(requests={"cpu": cpu}, limits=limits)),),
        ),
        status=PodStatus(phase=phase),
    )


def test_resource_lists_add_up_exactly_and_in_place() -> None:
    total: dict[str, str | int | float] = {"cpu": "0.1", "memory": "1Gi"}
    add_resource_list(total, {"cpu": "200m", "gpu": 8})
    assert total == {"cpu": "300m", "memory": "1Gi", "gpu": "8"}
    with pytest.raises(InvalidQuantity):
        add_resource_list(total, {"memory": "1", "cpu": "many"})
    assert total == {"cpu": "300m", "memory": "1Gi", "gpu": "8"}
    assert quantity.parse(total["cpu"]) * 10 == 3


def test_nodes_as_text_and_inconsistent_nodes() -> None:
    nodes = Nodes({"b": 2, "a": 1}, {"a": 10, "b": 20})
    assert str(nodes) == "a: 1 milli CPU idle, 10 mega memory free\nb: 2 milli CPU idle, 20 mega memory free"
    assert str(Nodes()) == ""
    with pytest.raises(ValueError, match="only CPU or only memory is known of these nodes: b"):
        Nodes({"a": 1, "b": 2}, {"a": 1})
    nodes.nodes_cpu_idle_milli["c"] = 3
    with pytest.raises(ValueError, match=": c"):
        str(nodes)


def test_inquiry_adds_up_what_is_and_what_is_promised() -> None:
    found = inquiry(
        [node(), node("n2"), node("cordoned", cordoned=True), node("sick", ready=False)],
        [
            pod("a", gpu=1),
            pod("b", "n2"),
            pod("ended", phase="Succeeded"),
            pod("failed", phase="Failed"),
            pod("leaves", leaving=True),
            pod("waits", ""),
            pod("c", "cordoned"),
        ],
    )
    assert found == ClusterResource(
        node_count=2,
        gpu_request=1,
        gpu_limit=1,
        gpu_total=4,
        cpu_request_milli=1000,
        cpu_limit_milli=2000,
        cpu_total_milli=8000,
        memory_request_mega=200,
        memory_limit_mega=200,
        memory_total_mega=2 * 8 * 2**30 // 10**6,
        nodes=Nodes({"n1": 3000, "n2": 3500}, {"n1": (8 * 2**30 - 200 * 10**6) // 10**6, "n2": 8489}),
    )


def test_memory_is_added_up_in_bytes() -> None:
    """The original rounded each container up to 10^6 bytes: 1000 containers of 1 byte were a gigabyte."""
    found = inquiry([node()], [pod(f"p{number}", memory="1") for number in range(1000)])
    assert found.memory_request_mega == 1


def test_who_terminates_is_neither_free_nor_in_use() -> None:
    accounts = Accounts()
    accounts.put_node(node())
    accounts.put_pod(pod("a"))
    accounts.put_pod(pod("a", leaving=True))
    (room,) = accounts.nodes()
    assert (room.used, room.leaving["cpu"], room.room["cpu"]) == ({}, 500, 3500)
    accounts.remove_pod("a")
    (room,) = accounts.nodes()
    assert (room.leaving, room.room["cpu"]) == ({}, 4000)


def test_who_waits_is_listed_until_it_has_a_node() -> None:
    accounts = Accounts()
    accounts.apply(Change("ADDED", pod("a", "", phase="Pending")))
    assert [one.metadata.name for one in accounts.waiting()] == ["a"]
    accounts.apply(Change("MODIFIED", pod("a", "n1", phase="Pending")))
    assert accounts.waiting() == ()
    accounts.apply(Change("ADDED", node()))
    assert accounts.nodes()[0].room["cpu"] == 3500, "a pod may be seen before its node"


def test_a_pod_that_no_server_would_keep_does_not_stop_the_accounts() -> None:
    accounts = Accounts()
    accounts.put_node(node())
    accounts.put_pod(pod("bad", cpu="many"))
    accounts.put_pod(pod("good"))
    assert accounts.nodes()[0].used == {"cpu": 500, "memory": 10**8, "pods": 2}


CHANGES = st.lists(
    st.one_of(
        st.builds(
            pod,
            st.sampled_from("abcde"),
            st.sampled_from(["", "n1", "n2", "n3"]),
            st.sampled_from(["100m", "1", "2"]),
            phase=st.sampled_from(["Pending", "Running", "Failed"]),
            leaving=st.booleans(),
            gpu=st.integers(0, 1),
        ).map(lambda one: Change("MODIFIED", one)),
        st.builds(pod, st.sampled_from("abcde")).map(lambda one: Change("DELETED", one)),
        st.builds(node, st.sampled_from(["n1", "n2"]), st.sampled_from(["1", "8"]), cordoned=st.booleans()).map(
            lambda one: Change("MODIFIED", one)
        ),
        st.builds(node, st.sampled_from(["n1", "n2"])).map(lambda one: Change("DELETED", one)),
        st.just(Change("BOOKMARK", None)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(CHANGES)
def test_pod_by_pod_is_the_same_as_anew(changes: list[Change]) -> None:
    accounts = Accounts()
    pods: dict[str, Pod] = {}
    nodes: dict[str, Node] = {}
    for change in changes:
        accounts.apply(change)
        accounts.apply(change)  # a watch may say a thing twice
        gone = change.type == "DELETED"
        if isinstance(change.obj, Pod):
            uid = change.obj.metadata.uid
            pods = {**pods, uid: change.obj} if not gone else {key: one for key, one in pods.items() if key != uid}
        elif isinstance(change.obj, Node):
            name = change.obj.metadata.name
            nodes = {**nodes, name: change.obj} if not gone else {key: one for key, one in nodes.items() if key != name}
    anew = Accounts()
    for there in nodes.values():
        anew.put_node(there)
    for known in pods.values():
        anew.put_pod(known)
    by_name = {room.facts.name: room for room in accounts.nodes()}
    assert by_name == {room.facts.name: room for room in anew.nodes()}
    assert {one.metadata.uid for one in accounts.waiting()} == {one.metadata.uid for one in anew.waiting()}
