"""How a ReplicaSet behaves: every case is a fact about the real ReplicaSet controller."""

from __future__ import annotations

import msgspec

from edl_controller.api.kinds import EVENTS, PODS, REPLICA_SETS
from edl_controller.api.meta import ObjectMeta, OwnerReference
from edl_controller.api.pods import Pod
from tests.contract.objects import get_pod, get_replica_set, is_ready, names, pod_spec, pods_of, replica_set
from tests.contract.world import World, stays, until

COST = "controller.kubernetes.io/pod-deletion-cost"


def _started(world: World, name: str, replicas: int) -> tuple[Pod, ...]:
    """Create a ReplicaSet on a node of its own and wait until all its pods are ready and it has seen that."""
    world.add_node(f"{world.namespace}-n1", cpu="16")
    world.cluster.create(replica_set(world, name, replicas))
    until(world, lambda: get_replica_set(world, name).status.ready_replicas == replicas, what="ready replicas")
    return pods_of(world, name)


def _scale(world: World, name: str, replicas: int) -> None:
    world.cluster.patch(REPLICA_SETS, world.namespace, name, {"spec": {"replicas": replicas}})
    until(world, lambda: len(_kept(world, name)) == replicas, what=f"{replicas} pods")


def _kept(world: World, name: str) -> tuple[Pod, ...]:
    """Pods that have not ended and are not asked to."""
    found = pods_of(world, name)
    return tuple(
        p for p in found if p.metadata.deletion_timestamp is None and p.status.phase not in ("Succeeded", "Failed")
    )


def test_its_pods_are_named_labelled_and_owned(world: World) -> None:
    pods = _started(world, "a", 2)
    owner = get_replica_set(world, "a")

    assert len(pods) == 2
    for pod in pods:
        meta = pod.metadata
        assert meta.name.startswith("a-")
        assert len(meta.name) == len("a-") + 5
        assert meta.labels == {"app": "a"}
        assert meta.finalizers == ()
        assert meta.owner_references == (
            OwnerReference(
                api_version="apps/v1",
                kind="ReplicaSet",
                name="a",
                uid=owner.metadata.uid,
                controller=True,
                block_owner_deletion=True,
            ),
        )
    made = {e.reason for e in world.cluster.list(EVENTS, world.namespace).items if e.regarding.name == "a"}
    assert "SuccessfulCreate" in made


def test_its_status_counts_and_says_which_wish_it_has_seen(world: World) -> None:
    made = world.cluster.create(replica_set(world, "a", 2))
    assert (made.metadata.generation, made.status.replicas, made.status.observed_generation) == (1, 0, 0)
    world.add_node(f"{world.namespace}-n1")
    until(world, lambda: get_replica_set(world, "a").status.available_replicas == 2, what="two available replicas")

    status = get_replica_set(world, "a").status
    assert (status.replicas, status.ready_replicas, status.fully_labeled_replicas) == (2, 2, 2)
    assert status.observed_generation == 1

    pod = pods_of(world, "a")[0]
    world.set_ready(pod, False)
    until(world, lambda: get_replica_set(world, "a").status.ready_replicas == 1, what="one ready replica")
    assert get_replica_set(world, "a").status.replicas == 2

    world.cluster.patch(REPLICA_SETS, world.namespace, "a", {"spec": {"replicas": 0}})
    until(world, lambda: get_replica_set(world, "a").status.observed_generation == 2, what="the new wish to be seen")
    until(world, lambda: get_replica_set(world, "a").status.replicas == 0, what="no replicas")


def test_a_pod_that_waits_goes_first_then_one_that_is_not_ready_then_the_cheapest(world: World) -> None:
    world.add_node(f"{world.namespace}-n1", cpu="4")
    world.cluster.create(replica_set(world, "a", 4, pods=pod_spec(cpu="1200m", restart="Always")))
    until(world, lambda: get_replica_set(world, "a").status.ready_replicas == 3, what="three ready and one that waits")
    waits = [pod for pod in pods_of(world, "a") if not pod.spec.node_name]
    cheap, unready, last = [pod for pod in pods_of(world, "a") if pod.spec.node_name]
    annotations = {"metadata": {"annotations": {COST: "-5"}}}
    world.cluster.patch(PODS, world.namespace, cheap.metadata.name, annotations)
    world.set_ready(unready, False)
    until(world, lambda: get_replica_set(world, "a").status.ready_replicas == 2, what="two ready replicas")

    _scale(world, "a", 3)
    assert names(_kept(world, "a")) == names([cheap, unready, last]), "the one that waits goes first"
    assert len(waits) == 1
    _scale(world, "a", 2)
    assert names(_kept(world, "a")) == names([cheap, last]), "readiness comes before the cost"
    # The controller must have seen the annotation: it does after the rounds above.
    _scale(world, "a", 1)
    assert names(_kept(world, "a")) == names([last])


def test_the_fuller_node_gives_up_a_pod_first(world: World) -> None:
    """Only where somebody controls the ReplicaSet, as a TrainingJob does: the others are not told their siblings."""
    world.add_node(f"{world.namespace}-two", cpu="3")
    world.add_node(f"{world.namespace}-one", cpu="1500m")
    master = world.cluster.create(replica_set(world, "owner", 0)).metadata
    wish = replica_set(world, "a", 3, pods=pod_spec(cpu="1400m", restart="Always"))
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name=master.name, uid=master.uid, controller=True)
    owned = msgspec.structs.replace(wish.metadata, owner_references=(owner,))
    world.cluster.create(msgspec.structs.replace(wish, metadata=owned))
    until(world, lambda: get_replica_set(world, "a").status.ready_replicas == 3, what="three ready replicas")

    _scale(world, "a", 2)

    nodes = sorted(pod.spec.node_name.removeprefix(f"{world.namespace}-") for pod in _kept(world, "a"))
    assert nodes == ["one", "two"]


def test_a_failed_pod_is_replaced_at_once_and_its_object_stays(world: World) -> None:
    pods = _started(world, "a", 1)

    # With the policy Always no container stays down; a pod fails as a whole when its node evicts it.
    patch = {"status": {"phase": "Failed", "reason": "Evicted"}}
    world.cluster.patch(PODS, world.namespace, pods[0].metadata.name, patch, subresource="status")

    until(world, lambda: len(names(_kept(world, "a")) - names(pods)) == 1, 5, "a replacement")
    until(world, lambda: get_replica_set(world, "a").status.ready_replicas == 1, what="a ready replica")
    until(world, lambda: get_replica_set(world, "a").status.replicas == 1, what="one replica")
    assert get_pod(world, pods[0].metadata.name).status.phase == "Failed"


def test_a_deleted_pod_is_replaced_while_it_still_ends(world: World) -> None:
    pods = _started(world, "a", 1)
    world.hold_terminating()

    world.cluster.delete(PODS, world.namespace, pods[0].metadata.name)

    until(world, lambda: len(names(_kept(world, "a")) - names(pods)) == 1, 5, "a replacement")
    assert get_pod(world, pods[0].metadata.name).metadata.deletion_timestamp is not None
    until(world, lambda: get_replica_set(world, "a").status.terminating_replicas == 1, what="a terminating replica")
    until(world, lambda: get_replica_set(world, "a").status.ready_replicas == 1, what="a ready replica")
    world.let_terminate()
    until(world, lambda: len(pods_of(world, "a")) == 1, what="the end of the first")


def test_a_changed_template_leaves_the_pods_that_are_there(world: World) -> None:
    pods = _started(world, "a", 1)

    changed = world.cluster.patch(
        REPLICA_SETS,
        world.namespace,
        "a",
        {"spec": {"template": {"metadata": {"labels": {"app": "a", "version": "2"}}}}},
    )

    assert changed.metadata.generation == 2
    stays(world, lambda: names(pods_of(world, "a")) == names(pods), 1.0)
    world.cluster.delete(PODS, world.namespace, pods[0].metadata.name)
    until(world, lambda: get_replica_set(world, "a").status.ready_replicas == 1, what="a ready replica")
    until(world, lambda: [p.metadata.labels.get("version") for p in _kept(world, "a")] == ["2"], what="a new pod")


def test_pods_without_an_owner_are_adopted_and_let_go_by_their_labels(world: World) -> None:
    world.add_node(f"{world.namespace}-n1")
    meta = ObjectMeta(name="stray", namespace=world.namespace, labels={"app": "a"})
    world.cluster.create(Pod(metadata=meta, spec=pod_spec(restart="Always")))
    until(world, lambda: is_ready(get_pod(world, "stray")), what="a ready pod")

    owner = world.cluster.create(replica_set(world, "a", 1))
    until(world, lambda: get_pod(world, "stray").metadata.controller(), what="the adoption")
    reference = get_pod(world, "stray").metadata.controller()
    assert reference is not None
    assert reference.uid == owner.metadata.uid
    assert names(pods_of(world, "a")) == {"stray"}

    world.cluster.patch(PODS, world.namespace, "stray", {"metadata": {"labels": {"app": "other"}}})
    until(world, lambda: get_pod(world, "stray").metadata.controller() is None, what="the release")
    until(world, lambda: len(pods_of(world, "a")) == 1, what="another pod in its place")
