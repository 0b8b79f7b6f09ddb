"""Where pods go, and why they wait: every case is a fact about the real scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from edl_controller.api.kinds import EVENTS, NODES, PODS
from edl_controller.api.meta import Condition, find_condition
from edl_controller.api.nodes import Taint
from edl_controller.api.pods import ResourceRequirements, Toleration
from edl_controller.errors import Invalid
from tests.contract.objects import get_pod, pod
from tests.contract.world import World, stays, until

GPU_ONLY = Taint(key="gpu", value="only", effect="NoSchedule")
TOLERATES_GPU = Toleration(key="gpu", operator="Exists")


def _node_of(world: World, name: str) -> str:
    """Wait until the pod is bound and return the end of its node's name."""
    node = until(world, lambda: get_pod(world, name).spec.node_name, what=f"a node for {name}")
    return node.removeprefix(f"{world.namespace}-")


def _waits(world: World, name: str) -> Condition:
    """Wait until the scheduler has said why the pod waits, and return that."""

    def verdict() -> Condition | None:
        found = find_condition(get_pod(world, name).status.conditions, "PodScheduled")
        return found if found is not None and found.status == "False" else None

    return until(world, verdict, what=f"a verdict on {name}")  # type: ignore[return-value]


def _add_nodes(world: World, **cpus: str) -> None:
    for name, cpu in cpus.items():
        world.add_node(f"{world.namespace}-{name}", cpu=cpu, labels={"place": f"{world.namespace}-{name}"})


def _reasons(message: str) -> str:
    """The part of a verdict that names the nodes' reasons; what follows it is about claims and preemption."""
    return message.split(". ")[0]


def test_a_bound_pod_says_so(world: World) -> None:
    _add_nodes(world, n1="4")
    world.cluster.create(pod(world, "a"))

    assert _node_of(world, "a") == "n1"

    scheduled = find_condition(get_pod(world, "a").status.conditions, "PodScheduled")
    assert scheduled is not None
    assert (scheduled.status, scheduled.reason, scheduled.message) == ("True", "", "")
    until(world, lambda: _event(world, "a", "Scheduled"), what="the event")
    assert _event(world, "a", "Scheduled") == [
        ("Normal", f"Successfully assigned {world.namespace}/a to {world.namespace}-n1")
    ]


def _event(world: World, name: str, reason: str) -> list[tuple[str, str]]:
    found = world.cluster.list(EVENTS, world.namespace).items
    return [(e.type, e.note) for e in found if e.regarding.name == name and e.reason == reason]


def test_without_nodes_pods_wait(world: World) -> None:
    world.cluster.create(pod(world, "a"))

    verdict = _waits(world, "a")

    assert verdict.reason == "Unschedulable"
    assert _reasons(verdict.message) == "no nodes available to schedule pods"
    assert get_pod(world, "a").status.phase == "Pending"


@pytest.mark.parametrize(
    ("spec", "reasons"),
    [
        pytest.param(
            {"cpu": "100"}, ["1 node(s) had untolerated taint(s)", "2 Insufficient cpu"], id="more than any node has"
        ),
        pytest.param(
            {"node_selector": {"disk": "hdd"}},
            ["1 node(s) had untolerated taint(s)", "2 node(s) didn't match Pod's node affinity/selector"],
            id="a label that no node has",
        ),
        pytest.param(
            {"cpu": "3", "node_selector": {"disk": "ssd"}},
            [
                "1 Insufficient cpu",
                "1 node(s) didn't match Pod's node affinity/selector",
                "1 node(s) had untolerated taint(s)",
            ],
            id="a label whose node is too small",
        ),
        pytest.param(
            {"cpu": "100", "tolerations": (TOLERATES_GPU,)}, ["3 Insufficient cpu"], id="a tainted node is small, too"
        ),
    ],
)
def test_a_pod_that_fits_nowhere_is_told_why(world: World, spec: dict[str, Any], reasons: Sequence[str]) -> None:
    world.add_node(f"{world.namespace}-n1", cpu="4")
    world.add_node(f"{world.namespace}-n2", cpu="2", labels={"disk": "ssd"})
    world.add_node(f"{world.namespace}-n3", cpu="8", taints=[GPU_ONLY])
    world.cluster.create(pod(world, "a", **spec))

    verdict = _waits(world, "a")

    assert verdict.reason == "Unschedulable"
    assert _reasons(verdict.message) == f"0/3 nodes are available: {', '.join(reasons)}"
    assert get_pod(world, "a").status.phase == "Pending"
    until(world, lambda: _event(world, "a", "FailedScheduling"), what="the event")
    assert _event(world, "a", "FailedScheduling")[0][0] == "Warning"


def test_a_waiting_pod_is_bound_as_soon_as_there_is_room(world: World) -> None:
    _add_nodes(world, n1="2")
    world.cluster.create(pod(world, "first", cpu="1500m"))
    assert _node_of(world, "first") == "n1"
    world.cluster.create(pod(world, "second", cpu="1500m"))
    assert _waits(world, "second").reason == "Unschedulable"

    world.cluster.delete(PODS, world.namespace, "first")

    assert _node_of(world, "second") == "n1"


def test_a_pod_that_still_ends_keeps_its_room(world: World) -> None:
    _add_nodes(world, n1="2")
    world.cluster.create(pod(world, "first", cpu="1500m"))
    until(world, lambda: get_pod(world, "first").status.phase == "Running", what="a running pod")
    world.hold_terminating()
    world.cluster.create(pod(world, "second", cpu="1500m"))
    _waits(world, "second")

    world.cluster.delete(PODS, world.namespace, "first")

    stays(world, lambda: not get_pod(world, "second").spec.node_name, 1.0)
    world.let_terminate()
    assert _node_of(world, "second") == "n1"


def test_a_pod_that_has_ended_gives_its_room_back(world: World) -> None:
    _add_nodes(world, n1="2")
    world.cluster.create(pod(world, "first", cpu="1500m"))
    until(world, lambda: get_pod(world, "first").status.phase == "Running", what="a running pod")
    world.cluster.create(pod(world, "second", cpu="1500m"))
    _waits(world, "second")

    world.finish(get_pod(world, "first"), 0)

    assert _node_of(world, "second") == "n1"
    assert get_pod(world, "first").status.phase == "Succeeded"


def test_a_pod_that_is_shrunk_in_place_makes_room(world: World) -> None:
    _add_nodes(world, n1="2")
    world.cluster.create(pod(world, "first", cpu="1500m"))
    until(world, lambda: get_pod(world, "first").status.phase == "Running", what="a running pod")
    before = get_pod(world, "first")
    world.cluster.create(pod(world, "second", cpu="1"))
    _waits(world, "second")

    container = PODS.to_json(before)["spec"]["containers"][0]
    patch = {"spec": {"containers": [{**container, "resources": {"requests": {"cpu": "500m"}}}]}}
    world.cluster.patch(PODS, world.namespace, "first", patch, subresource="resize")

    assert _node_of(world, "second") == "n1"
    after = get_pod(world, "first")
    assert after.spec.containers[0].resources.requests == {"cpu": "500m"}
    assert (after.metadata.uid, after.status.phase) == (before.metadata.uid, "Running")
    assert after.metadata.generation == before.metadata.generation + 1


def test_a_new_node_takes_what_waits(world: World) -> None:
    _add_nodes(world, n1="1")
    world.cluster.create(pod(world, "a", cpu="2"))
    _waits(world, "a")

    _add_nodes(world, n2="4")

    assert _node_of(world, "a") == "n2"


def test_the_emptier_node_is_taken(world: World) -> None:
    _add_nodes(world, small="4", big="16")

    for name in ("a", "b"):
        world.cluster.create(pod(world, name, cpu="1"))
        assert _node_of(world, name) == "big"


def test_memory_counts_like_cpu(world: World) -> None:
    world.add_node(f"{world.namespace}-n1", cpu="64", memory="100Mi")
    wish = pod(world, "a")
    room = ResourceRequirements(requests={"memory": "200Mi"})
    container = msgspec.structs.replace(wish.spec.containers[0], resources=room)
    spec = msgspec.structs.replace(wish.spec, containers=(container,))

    world.cluster.create(msgspec.structs.replace(wish, spec=spec))

    assert _reasons(_waits(world, "a").message) == "0/1 nodes are available: 1 Insufficient memory"


def test_a_selector_decides(world: World) -> None:
    _add_nodes(world, big="16", small="2")

    world.cluster.create(pod(world, "a", node_selector={"place": f"{world.namespace}-small"}))

    assert _node_of(world, "a") == "small"


def test_a_taint_keeps_away_who_does_not_tolerate_it(world: World) -> None:
    _add_nodes(world, n1="2")
    world.add_node(f"{world.namespace}-gpu", cpu="16", taints=[GPU_ONLY])

    world.cluster.create(pod(world, "plain"))
    world.cluster.create(pod(world, "tolerant", tolerations=(TOLERATES_GPU,)))

    assert _node_of(world, "plain") == "n1"
    assert _node_of(world, "tolerant") == "gpu"


def test_a_cordoned_node_takes_nothing_new_and_keeps_what_runs(world: World) -> None:
    _add_nodes(world, n1="4")
    world.cluster.create(pod(world, "before"))
    until(world, lambda: get_pod(world, "before").status.phase == "Running", what="a running pod")

    world.cluster.patch(NODES, "", f"{world.namespace}-n1", {"spec": {"unschedulable": True}})
    world.settle(0.5)
    world.cluster.create(pod(world, "after"))

    assert _reasons(_waits(world, "after").message) == "0/1 nodes are available: 1 node(s) were unschedulable"
    assert get_pod(world, "before").status.phase == "Running"
    world.cluster.patch(NODES, "", f"{world.namespace}-n1", {"spec": {"unschedulable": None}})
    assert _node_of(world, "after") == "n1"


def test_equals_are_not_pushed_out(world: World) -> None:
    _add_nodes(world, n1="2")
    world.cluster.create(pod(world, "first", cpu="1500m"))
    until(world, lambda: get_pod(world, "first").status.phase == "Running", what="a running pod")

    world.cluster.create(pod(world, "second", cpu="1500m"))

    _waits(world, "second")
    stays(world, lambda: get_pod(world, "first").metadata.deletion_timestamp is None, 1.0)


def test_a_pod_with_a_node_of_its_own_choice_is_not_scheduled(world: World) -> None:
    _add_nodes(world, n1="4", n2="4")

    world.cluster.create(pod(world, "a", node_name=f"{world.namespace}-n2", cpu="100m"))

    until(world, lambda: get_pod(world, "a").status.phase == "Running", what="a running pod")
    assert get_pod(world, "a").spec.node_name == f"{world.namespace}-n2"


def test_a_gated_pod_is_not_looked_at(world: World) -> None:
    _add_nodes(world, n1="4")
    world.cluster.create(pod(world, "a", scheduling_gates=({"name": "example.org/wait"},)))

    verdict = _waits(world, "a")

    assert verdict.reason == "SchedulingGated"
    assert verdict.message == "Scheduling is blocked due to non-empty scheduling gates"
    world.cluster.patch(PODS, world.namespace, "a", {"spec": {"schedulingGates": None}})
    assert _node_of(world, "a") == "n1"


def _zones(*expressions: tuple[str, ...]) -> dict[str, Any]:
    """An affinity of one term: (key, value, ...) each."""
    wanted = [{"key": key, "operator": "In", "values": list(values)} for key, *values in expressions]
    terms = [{"matchExpressions": wanted}] if wanted else []
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


ZONE_AND_DISK = _zones(("zone", "a", "b"), ("disk", "ssd"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"nodeSelector": {"more": "narrow"}}, id="one more label of the node"),
        pytest.param({"affinity": ZONE_AND_DISK}, id="one more requirement"),
        pytest.param({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, id="one more toleration"),
        pytest.param({"schedulingGates": [{"name": "example.org/wait"}]}, id="one gate less"),
    ],
)
def test_a_gated_pod_may_be_told_more_closely_where_to_go(world: World, change: dict[str, Any]) -> None:
    world.cluster.create(_gated(world))

    after = world.cluster.patch(PODS, world.namespace, "a", {"spec": change})

    assert after.metadata.generation == 2


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"nodeSelector": {"place": None}}, id="a label less"),
        pytest.param({"nodeSelector": {"place": "other"}}, id="another label"),
        pytest.param({"affinity": _zones(("zone", "a"))}, id="another requirement, even a narrower one"),
        pytest.param({"affinity": _zones(("disk", "ssd"), ("zone", "a", "b"))}, id="a new requirement before the old"),
        pytest.param({"affinity": None}, id="no affinity"),
        pytest.param({"schedulingGates": [{"name": "example.org/new"}]}, id="a gate more"),
        pytest.param({"terminationGracePeriodSeconds": 7}, id="grace"),
        pytest.param({"priority": 7}, id="priority"),
    ],
)
def test_a_gated_pod_may_not_be_told_less(world: World, change: dict[str, Any]) -> None:
    made = world.cluster.create(_gated(world))

    with pytest.raises(Invalid):
        world.cluster.patch(PODS, world.namespace, "a", {"spec": change})

    assert get_pod(world, "a").spec == made.spec


def test_where_a_pod_may_go_stays_once_it_has_no_gate(world: World) -> None:
    world.cluster.create(pod(world, "a", node_selector={"no": "where"}))

    for change in ({"nodeSelector": {"more": "narrow"}}, {"affinity": ZONE_AND_DISK}):
        with pytest.raises(Invalid):
            world.cluster.patch(PODS, world.namespace, "a", {"spec": change})


def _gated(world: World) -> Any:
    gates = ({"name": "example.org/wait"}, {"name": "example.org/more"})
    return pod(world, "a", scheduling_gates=gates, node_selector={"place": "here"}, affinity=_zones(("zone", "a", "b")))
