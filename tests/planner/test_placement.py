"""What a pod asks for, and on which nodes it may run."""

import pytest

from edl_controller.api.meta import Condition, Json, ObjectMeta
from edl_controller.api.nodes import Node, NodeSpec, NodeStatus, Taint
from edl_controller.api.pods import Container, PodSpec, Quantities, ResourceRequirements, Toleration
from edl_controller.core.placement import (
    Rules,
    facts_of,
    insufficient,
    pod_limits,
    pod_requests,
    rules_of,
    shape_of,
    slots,
    why_not,
)


def container(name: str = "main", sidecar: bool = False, limits: Quantities | None = None, **asked: str) -> Container:
    return Container(
        name=name,
        resources=ResourceRequirements(requests=dict(asked), limits=limits or {}),
        restart_policy="Always" if sidecar else None,
    )


def cpu(spec: PodSpec) -> int:
    return pod_requests(spec)["cpu"]


def test_the_containers_add_up_exactly_and_each_pod_takes_one_place() -> None:
    spec = PodSpec(containers=(container(cpu="100m", memory="1Gi"), container("b", cpu="0.3", memory="1")))
    assert pod_requests(spec) == {"cpu": 400, "memory": 2**30 + 1, "pods": 1}
    assert pod_requests(PodSpec(containers=(Container(name="free"),))) == {"pods": 1}


def test_a_limit_without_a_request_is_the_request() -> None:
    spec = PodSpec(containers=(container(limits={"nvidia.com/gpu": 2, "cpu": "2"}, cpu="1"),))
    assert pod_requests(spec) == {"cpu": 1000, "nvidia.com/gpu": 2, "pods": 1}
    assert pod_limits(spec) == {"cpu": 2000, "nvidia.com/gpu": 2}


def test_the_largest_init_container_counts_and_not_their_sum() -> None:
    main = container(cpu="2")
    assert cpu(PodSpec(containers=(main,), init_containers=(container("i", cpu="1"), container("j", cpu="1")))) == 2000
    assert cpu(PodSpec(containers=(main,), init_containers=(container("i", cpu="3"), container("j", cpu="1")))) == 3000


def test_a_native_sidecar_counts_beside_all_that_start_after_it() -> None:
    sidecar, big = container("s", sidecar=True, cpu="1"), container("i", cpu="3")
    main = container(cpu="2")
    assert cpu(PodSpec(containers=(main,), init_containers=(sidecar,))) == 3000
    assert cpu(PodSpec(containers=(main,), init_containers=(big, sidecar))) == 3000
    assert cpu(PodSpec(containers=(main,), init_containers=(sidecar, big))) == 4000


def test_the_overhead_of_the_runtime_comes_on_top() -> None:
    spec = PodSpec(
        containers=(container(cpu="2"),), init_containers=(container("i", cpu="3"),), overhead={"cpu": "250m"}
    )
    assert cpu(spec) == 3250


def node(
    labels: dict[str, str] | None = None, *taints: Taint, cordoned: bool = False, ready: str = "True", name: str = "n1"
) -> Node:
    return Node(
        metadata=ObjectMeta(name=name, labels=labels or {}),
        spec=NodeSpec(unschedulable=cordoned, taints=taints),
        status=NodeStatus(conditions=(Condition(type="Ready", status=ready),)),
    )


def affinity(*terms: Json) -> Json:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


GPU_TAINT = Taint(key="gpu", value="yes", effect="NoSchedule")


@pytest.mark.parametrize(
    ("spec", "where", "reason"),
    [
        (PodSpec(), node(), ""),
        (PodSpec(), node(cordoned=True), "cordoned"),
        (PodSpec(tolerations=(Toleration(operator="Exists"),)), node(cordoned=True), ""),
        (PodSpec(), node(ready="False"), "not ready"),
        (PodSpec(), node(ready="Unknown"), "not ready"),
        (PodSpec(), node(None, GPU_TAINT), "taint gpu=yes:NoSchedule"),
        (PodSpec(), node(None, Taint(key="gpu", effect="PreferNoSchedule")), ""),
        (PodSpec(tolerations=(Toleration(key="gpu", value="yes"),)), node(None, GPU_TAINT), ""),
        (PodSpec(tolerations=(Toleration(key="gpu", value="no"),)), node(None, GPU_TAINT), "taint"),
        (PodSpec(tolerations=(Toleration(key="gpu", operator="Exists"),)), node(None, GPU_TAINT), ""),
        (
            PodSpec(tolerations=(Toleration(key="gpu", operator="Exists", effect="NoExecute"),)),
            node(None, GPU_TAINT),
            "t",
        ),
        (PodSpec(tolerations=(Toleration(value="yes"),)), node(None, GPU_TAINT), "taint"),
        (PodSpec(node_selector={"disk": "ssd"}), node({"disk": "ssd"}), ""),
        (PodSpec(node_selector={"disk": "ssd"}), node(), "selector"),
        (PodSpec(affinity=affinity(expression("zone", "In", "a", "b"))), node({"zone": "b"}), ""),
        (PodSpec(affinity=affinity(expression("zone", "In", "a"))), node({"zone": "b"}), "affinity"),
        (
            PodSpec(affinity=affinity(expression("zone", "In", "a"), expression("zone", "Exists"))),
            node({"zone": "b"}),
            "",
        ),
        (PodSpec(affinity=affinity(expression("zone", "NotIn", "a"))), node(), ""),
        (PodSpec(affinity=affinity(expression("zone", "DoesNotExist"))), node({"zone": "a"}), "affinity"),
        (PodSpec(affinity=affinity(expression("cores", "Gt", "8"))), node({"cores": "16"}), ""),
        (PodSpec(affinity=affinity(expression("cores", "Lt", "8"))), node({"cores": "many"}), "affinity"),
        (PodSpec(affinity=affinity({})), node(), "affinity"),
        (PodSpec(affinity=affinity()), node(), "affinity"),
        (
            PodSpec(affinity=affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]})),
            node(name="n2"),
            "",
        ),
    ],
)
def test_where_a_pod_may_run(spec: PodSpec, where: Node, reason: str) -> None:
    found = why_not(rules_of(spec), facts_of(where))
    assert (reason in found) if reason else found == ""


def test_a_node_that_says_nothing_is_not_ready() -> None:
    assert why_not(Rules(), facts_of(Node(metadata=ObjectMeta(name="new")))) == "node is not ready"


def test_what_is_not_asked_for_never_fails_to_fit() -> None:
    assert insufficient({"cpu": 0, "memory": 5}, {"cpu": -10, "memory": 5}) == ()
    assert insufficient({"cpu": 1, "nvidia.com/gpu": 1}, {"cpu": 1}) == ("nvidia.com/gpu",)
    assert slots({"cpu": 300, "pods": 1}, {"cpu": 1000, "pods": 2}) == 2
    assert slots({"cpu": 300, "pods": 1}, {"cpu": 1000, "pods": 20}) == 3
    assert slots({"cpu": 300, "pods": 1}, {"cpu": -1000, "pods": 20}) == 0


def test_pods_of_one_template_have_one_shape() -> None:
    spec = PodSpec(containers=(container(cpu="1"),), node_selector={"a": "1", "b": "2"})
    same = PodSpec(containers=(container(cpu="1000m"),), node_selector={"b": "2", "a": "1"})
    assert shape_of(spec) == shape_of(same)
    assert hash(shape_of(spec)) == hash(shape_of(same))
    assert rules_of(spec).label_keys() == {"a", "b"}
