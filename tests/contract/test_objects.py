"""What every cluster owes for any object: identity, versions, preconditions, watches, owners, the end of pods."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from edl_controller.api.configuration import ConfigMap
from edl_controller.api.kinds import CONFIG_MAPS, JOBS, PODS, REPLICA_SETS
from edl_controller.api.meta import LabelSelector, ObjectMeta, OwnerReference
from edl_controller.api.workloads import ReplicaSetStatus
from edl_controller.cluster.port import Change, Propagation
from edl_controller.errors import AlreadyExists, Conflict, Gone, Invalid, NotFound
from tests.bench.waiting import eventually
from tests.contract.objects import (
    config_map,
    get_pod,
    job,
    pod,
    pod_spec,
    pods_of,
    replica_set,
)
from tests.contract.world import World, stays, until

OTHER_UID = "11111111-1111-1111-1111-111111111111"


# -- create and read ---------------------------------------------------------------------------------------------------


def test_a_created_object_has_identity_and_is_read_back(world: World) -> None:
    made = world.cluster.create(config_map(world, "a", x="1"))

    assert made.metadata.uid
    assert made.metadata.resource_version
    assert made.metadata.creation_timestamp is not None
    assert made.metadata.creation_timestamp.endswith("Z")
    assert made.data == {"x": "1"}
    assert world.cluster.get(CONFIG_MAPS, world.namespace, "a") == made


@pytest.mark.parametrize("namespace", ["a/b", "../x", "-a"])
def test_what_cannot_be_a_namespace_is_none(world: World, namespace: str) -> None:
    """A slash in it would be a key, or a path, of something else."""
    with pytest.raises((Invalid, NotFound)):
        world.cluster.create(ConfigMap(metadata=ObjectMeta(name="a", namespace=namespace), data={"x": "1"}))


def test_a_name_is_taken_once(world: World) -> None:
    first = world.cluster.create(config_map(world, "a"))

    with pytest.raises(AlreadyExists):
        world.cluster.create(config_map(world, "a", other="data"))

    assert world.cluster.get(CONFIG_MAPS, world.namespace, "a") == first


def test_a_generated_name_begins_as_wished_and_differs(world: World) -> None:
    wish = ConfigMap(metadata=ObjectMeta(generate_name="pre-", namespace=world.namespace))

    made = {world.cluster.create(wish).metadata.name for _ in range(5)}

    assert len(made) == 5
    assert all(name.startswith("pre-") and len(name) == len("pre-") + 5 for name in made)


def test_what_is_not_there_is_not_found(world: World) -> None:
    cluster, where = world.cluster, world.namespace

    with pytest.raises(NotFound):
        cluster.get(CONFIG_MAPS, where, "none")
    with pytest.raises(NotFound):
        cluster.patch(CONFIG_MAPS, where, "none", {"data": {"x": "1"}})
    with pytest.raises(NotFound):
        cluster.delete(CONFIG_MAPS, where, "none")


def test_the_same_name_again_is_another_object(world: World) -> None:
    first = world.cluster.create(config_map(world, "a"))
    world.cluster.delete(CONFIG_MAPS, world.namespace, "a")
    second = world.cluster.create(config_map(world, "a"))

    assert first.metadata.uid != second.metadata.uid
    assert int(first.metadata.resource_version) < int(second.metadata.resource_version)


def test_lists_are_by_namespace_and_labels_and_say_from_where_to_watch(world: World) -> None:
    cluster = world.cluster
    for name, color in (("a", "red"), ("b", "blue"), ("c", "red")):
        meta = ObjectMeta(name=name, namespace=world.namespace, labels={"color": color, "test": world.namespace})
        cluster.create(ConfigMap(metadata=meta))

    red = cluster.list(CONFIG_MAPS, world.namespace, labels={"color": "red", "test": world.namespace})
    everywhere = cluster.list(CONFIG_MAPS, labels={"test": world.namespace})
    elsewhere = cluster.list(CONFIG_MAPS, "another-namespace")

    assert [item.metadata.name for item in red.items] == ["a", "c"]
    assert [item.metadata.name for item in everywhere.items] == ["a", "b", "c"]
    assert elsewhere.items == ()
    newest = max(int(item.metadata.resource_version) for item in everywhere.items)
    assert int(everywhere.resource_version) >= newest


# -- faults that are refused -------------------------------------------------------------------------------------------


def _negative_parallelism(world: World) -> Any:
    return job(world, "bad", -1)


def _always_in_a_job(world: World) -> Any:
    return job(world, "bad", 1, pods=pod_spec(restart="Always"))


def _never_in_a_replica_set(world: World) -> Any:
    return replica_set(world, "bad", 1, pods=pod_spec(restart="Never"))


def _selector_of_others(world: World) -> Any:
    plain = replica_set(world, "bad", 1)
    other = msgspec.structs.replace(plain.spec, selector=LabelSelector(match_labels={"app": "other"}))
    return msgspec.structs.replace(plain, spec=other)


def _no_containers(world: World) -> Any:
    plain = pod(world, "bad")
    return msgspec.structs.replace(plain, spec=msgspec.structs.replace(plain.spec, containers=()))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda world: config_map(world, "A_b"), id="name with capitals"),
        pytest.param(lambda world: config_map(world, "x" * 254), id="name of 254 characters"),
        pytest.param(lambda world: config_map(world, ""), id="no name"),
        pytest.param(_negative_parallelism, id="negative parallelism"),
        pytest.param(_always_in_a_job, id="restart policy Always in a Job"),
        pytest.param(_never_in_a_replica_set, id="restart policy Never in a ReplicaSet"),
        pytest.param(_selector_of_others, id="selector that does not match the template"),
        pytest.param(_no_containers, id="no containers"),
        pytest.param(lambda world: pod(world, "bad", cpu="-1"), id="negative request"),
        pytest.param(lambda world: pod(world, "bad", {"label": "b b"}), id="label with a blank"),
    ],
)
def test_a_faulty_object_is_refused(world: World, make: Callable[[World], Any]) -> None:
    with pytest.raises(Invalid):
        world.cluster.create(make(world))


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param({"spec": {"parallelism": -1}}, id="negative parallelism"),
        pytest.param({"spec": {"parallelism": "two"}}, id="another type"),
        pytest.param({"spec": {"template": {"metadata": {"labels": {"more": "labels"}}}}}, id="template"),
        pytest.param({"spec": {"completions": 2}}, id="completions"),
        pytest.param({"metadata": {"name": "other"}}, id="name"),
    ],
)
def test_a_faulty_patch_is_refused_and_changes_nothing(world: World, patch: dict[str, Any]) -> None:
    made = world.cluster.create(job(world, "a", 0))
    world.settle()

    with pytest.raises(Invalid):
        world.cluster.patch(JOBS, world.namespace, "a", patch)

    assert world.cluster.get(JOBS, world.namespace, "a").spec == made.spec


# -- patches -----------------------------------------------------------------------------------------------------------


def test_a_merge_patch_adds_replaces_and_removes(world: World) -> None:
    before = world.cluster.create(config_map(world, "a", x="1", y="2"))

    after = world.cluster.patch(CONFIG_MAPS, world.namespace, "a", {"data": {"x": None, "y": "3", "z": "4"}})

    assert after.data == {"y": "3", "z": "4"}
    assert after.metadata.uid == before.metadata.uid
    assert int(after.metadata.resource_version) > int(before.metadata.resource_version)
    assert world.cluster.get(CONFIG_MAPS, world.namespace, "a") == after


def test_a_patch_that_changes_nothing_writes_nothing(world: World) -> None:
    before = world.cluster.create(config_map(world, "a", x="1"))

    after = world.cluster.patch(CONFIG_MAPS, world.namespace, "a", {"data": {"x": "1", "absent": None}})

    assert after == before


def test_generation_counts_changes_of_the_spec_only(world: World) -> None:
    def generation_after(patch: dict[str, Any], **options: Any) -> int:
        return world.cluster.patch(JOBS, world.namespace, "a", patch, **options).metadata.generation

    assert world.cluster.create(job(world, "a", 0)).metadata.generation == 1
    assert generation_after({"spec": {"parallelism": 0}}) == 1
    assert generation_after({"metadata": {"labels": {"more": "labels"}}}) == 1
    assert generation_after({"spec": {"backoffLimit": 7}}) == 2
    assert generation_after({"status": {"ready": 0}}, subresource="status") == 2


def test_status_and_the_rest_are_written_apart(world: World) -> None:
    world.cluster.create(replica_set(world, "a", 0))
    world.settle()

    whole = world.cluster.patch(
        REPLICA_SETS, world.namespace, "a", {"spec": {"minReadySeconds": 1}, "status": {"readyReplicas": 7}}
    )
    assert (whole.spec.min_ready_seconds, whole.status.ready_replicas) == (1, 0)

    world.cluster.create(pod(world, "solo", node_selector={"no": "where"}))
    patch = {"spec": {"nodeSelector": {"some": "where"}}, "status": {"message": "hello"}}
    part = world.cluster.patch(PODS, world.namespace, "solo", patch, subresource="status")
    assert part.status.message == "hello"
    assert part.spec.node_selector == {"no": "where"}
    assert get_pod(world, "solo").spec.node_selector == {"no": "where"}


def test_a_status_sent_with_a_new_object_is_dropped(world: World) -> None:
    wish = msgspec.structs.replace(replica_set(world, "a", 0), status=ReplicaSetStatus(replicas=5, ready_replicas=5))

    made = world.cluster.create(wish)

    assert (made.status.replicas or 0, made.status.ready_replicas) == (0, 0)


def test_the_conditions_of_a_patch_replace_the_list(world: World) -> None:
    world.cluster.create(pod(world, "a", node_selector={"no": "where"}))

    def patched(*kinds: str) -> list[str]:
        conditions = [{"type": kind, "status": "True"} for kind in kinds]
        patch = {"status": {"conditions": conditions}}
        after = world.cluster.patch(PODS, world.namespace, "a", patch, subresource="status")
        return [condition.type for condition in after.status.conditions]

    assert patched("example.org/One", "example.org/Two") == ["example.org/One", "example.org/Two"]
    assert patched("example.org/Two") == ["example.org/Two"]


# -- preconditions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["resource_version", "uid"])
def test_a_write_on_a_wrong_assumption_is_a_conflict(world: World, wrong: str) -> None:
    old = world.cluster.create(config_map(world, "a", x="1"))
    new = world.cluster.patch(CONFIG_MAPS, world.namespace, "a", {"data": {"x": "2"}})
    assumption: Any = {wrong: {"resource_version": old.metadata.resource_version, "uid": OTHER_UID}[wrong]}

    with pytest.raises(Conflict) as patched:
        world.cluster.patch(CONFIG_MAPS, world.namespace, "a", {"data": {"x": "3"}}, **assumption)
    with pytest.raises(Conflict):
        world.cluster.delete(CONFIG_MAPS, world.namespace, "a", **assumption)

    assert not isinstance(patched.value, AlreadyExists)
    assert world.cluster.get(CONFIG_MAPS, world.namespace, "a") == new


def test_a_write_on_a_right_assumption_is_done(world: World) -> None:
    meta = world.cluster.create(config_map(world, "a", x="1")).metadata
    right: Any = {"resource_version": meta.resource_version, "uid": meta.uid}

    after = world.cluster.patch(CONFIG_MAPS, world.namespace, "a", {"data": {"x": "2"}}, **right)
    right["resource_version"] = after.metadata.resource_version
    world.cluster.delete(CONFIG_MAPS, world.namespace, "a", **right)

    with pytest.raises(NotFound):
        world.cluster.get(CONFIG_MAPS, world.namespace, "a")


def test_of_many_writers_that_read_the_same_version_one_wins(world: World) -> None:
    world.cluster.create(config_map(world, "a", counter="0"))

    def add_one() -> None:
        while True:
            seen = world.cluster.get(CONFIG_MAPS, world.namespace, "a")
            patch = {"data": {"counter": str(int(seen.data["counter"]) + 1)}}
            try:
                version = seen.metadata.resource_version
                world.cluster.patch(CONFIG_MAPS, world.namespace, "a", patch, resource_version=version)
            except Conflict:
                continue
            return

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(add_one) for _ in range(20)]:
            future.result()

    assert world.cluster.get(CONFIG_MAPS, world.namespace, "a").data == {"counter": "20"}


# -- watches -----------------------------------------------------------------------------------------------------------


class Watching:
    """A watch of the namespace's config maps in a thread of its own."""

    def __init__(self, world: World, version: str) -> None:
        self.changes: list[Change[ConfigMap]] = []
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(world, version), daemon=True)

    def _run(self, world: World, version: str) -> None:
        try:
            while not self._stop.is_set():
                for change in world.cluster.watch(CONFIG_MAPS, world.namespace, version, self._stop):
                    version = change.resource_version
                    if change.obj is not None:
                        self.changes.append(change)
        except Exception as error:
            self.error = error

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10.0)
        assert not self._thread.is_alive(), "the watch did not end within 10 s after it was told to"


def test_a_watch_yields_every_change_in_order(world: World) -> None:
    cluster = world.cluster
    cluster.create(config_map(world, "before"))
    version = cluster.list(CONFIG_MAPS, world.namespace).resource_version

    with Watching(world, version) as watching:
        cluster.create(config_map(world, "a", x="1"))
        cluster.patch(CONFIG_MAPS, world.namespace, "a", {"data": {"x": "2"}})
        cluster.create(config_map(world, "b"))
        cluster.patch(CONFIG_MAPS, world.namespace, "a", {"data": {"x": "2"}})
        cluster.delete(CONFIG_MAPS, world.namespace, "a")
        eventually(lambda: len(watching.changes) >= 4 or watching.error, 15, "four changes")

    assert watching.error is None
    seen = [(change.type, change.obj.metadata.name) for change in watching.changes if change.obj is not None]
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    last = watching.changes[-1].obj
    assert last is not None
    assert last.data == {"x": "2"}, "DELETED carries the last state"
    versions = [int(change.resource_version) for change in watching.changes]
    assert versions == sorted(set(versions))
    assert int(version) < versions[0]


def test_a_watch_goes_on_from_any_version_that_was_seen(world: World) -> None:
    cluster = world.cluster
    first = cluster.create(config_map(world, "a"))
    cluster.create(config_map(world, "b"))
    cluster.delete(CONFIG_MAPS, world.namespace, "a")

    with Watching(world, first.metadata.resource_version) as watching:
        eventually(lambda: len(watching.changes) >= 2 or watching.error, 15, "the changes that were missed")

    seen = [(change.type, change.obj.metadata.name) for change in watching.changes if change.obj is not None]
    assert seen == [("ADDED", "b"), ("DELETED", "a")]


def test_a_watch_of_a_namespace_does_not_see_others(world: World) -> None:
    cluster = world.cluster
    version = cluster.list(CONFIG_MAPS, "default").resource_version

    with Watching(world, version) as watching:
        meta = ObjectMeta(generate_name="elsewhere-", namespace="default")
        elsewhere = cluster.create(ConfigMap(metadata=meta))
        cluster.delete(CONFIG_MAPS, "default", elsewhere.metadata.name)
        cluster.create(config_map(world, "a"))
        eventually(lambda: watching.changes or watching.error, 15, "a change")

    names = [change.obj.metadata.name for change in watching.changes if change.obj is not None]
    assert "a" in names
    assert elsewhere.metadata.name not in names


def test_a_version_that_is_no_longer_kept_is_gone(world: World) -> None:
    world.cluster.create(config_map(world, "a"))

    with pytest.raises(Gone):
        for _ in world.cluster.watch(CONFIG_MAPS, world.namespace, world.old_version(), threading.Event()):
            pass


# -- owners ------------------------------------------------------------------------------------------------------------


def _owned(world: World, *, blocking: bool = True) -> OwnerReference:
    owner = world.cluster.create(replica_set(world, "owner", 0))
    reference = OwnerReference(
        api_version="apps/v1",
        kind="ReplicaSet",
        name="owner",
        uid=owner.metadata.uid,
        controller=True,
        block_owner_deletion=blocking,
    )
    world.cluster.create(config_map(world, "owned", owner=reference))
    # The garbage collector must know of both before the owner goes, or it looks for them one by one.
    world.settle()
    return reference


def _there(world: World, kind: Any, name: str) -> bool:
    try:
        world.cluster.get(kind, world.namespace, name)
    except NotFound:
        return False
    return True


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_dependents_go_with_their_owner(world: World, propagation: Propagation) -> None:
    _owned(world)

    world.cluster.delete(REPLICA_SETS, world.namespace, "owner", propagation=propagation)

    until(world, lambda: not _there(world, CONFIG_MAPS, "owned"), what="the end of the dependent")
    until(world, lambda: not _there(world, REPLICA_SETS, "owner"), what="the end of the owner")


def test_orphans_stay_and_forget_their_owner(world: World) -> None:
    _owned(world)

    world.cluster.delete(REPLICA_SETS, world.namespace, "owner", propagation="Orphan")

    until(world, lambda: not _there(world, REPLICA_SETS, "owner"), what="the end of the owner")
    orphan = world.cluster.get(CONFIG_MAPS, world.namespace, "owned")
    assert orphan.metadata.owner_references == ()
    stays(world, lambda: _there(world, CONFIG_MAPS, "owned"), 1.0)


def test_an_owner_deleted_in_the_foreground_waits_for_its_dependents(world: World) -> None:
    world.add_node(f"{world.namespace}-n1")
    world.cluster.create(replica_set(world, "owner", 2))
    until(world, lambda: [p.status.phase for p in pods_of(world, "owner")] == ["Running"] * 2, what="two pods")
    world.hold_terminating()

    world.cluster.delete(REPLICA_SETS, world.namespace, "owner", propagation="Foreground")
    until(world, lambda: all(p.metadata.deletion_timestamp for p in pods_of(world, "owner")), what="the pods' deletion")

    owner = world.cluster.get(REPLICA_SETS, world.namespace, "owner")
    assert owner.metadata.deletion_timestamp is not None
    assert owner.metadata.finalizers == ("foregroundDeletion",)
    assert len(pods_of(world, "owner")) == 2
    world.let_terminate()
    until(world, lambda: not _there(world, REPLICA_SETS, "owner"), what="the end of the owner")
    assert pods_of(world, "owner") == ()


def test_a_dependent_of_an_owner_that_never_was_is_collected(world: World) -> None:
    never = OwnerReference(api_version="batch/v1", kind="Job", name="never", uid=OTHER_UID)

    world.cluster.create(config_map(world, "owned", owner=never))

    until(world, lambda: not _there(world, CONFIG_MAPS, "owned"), what="the end of the dependent")


# -- the end of a pod --------------------------------------------------------------------------------------------------


def test_a_pod_is_asked_to_end_and_goes_when_its_node_says_so(world: World) -> None:
    world.add_node(f"{world.namespace}-n1")
    world.cluster.create(pod(world, "a"))
    until(world, lambda: get_pod(world, "a").status.phase == "Running", what="a running pod")
    before = get_pod(world, "a")
    assert before.metadata.generation == 1
    world.hold_terminating()

    world.cluster.delete(PODS, world.namespace, "a")

    asked = get_pod(world, "a")
    assert asked.metadata.deletion_timestamp is not None
    assert asked.metadata.deletion_grace_period_seconds == 5
    assert asked.metadata.generation == 2
    assert asked.status.phase == "Running"
    world.cluster.delete(PODS, world.namespace, "a")  # once more changes nothing
    assert get_pod(world, "a").metadata.deletion_timestamp == asked.metadata.deletion_timestamp
    world.let_terminate()
    until(world, lambda: not _there(world, PODS, "a"), what="the end of the pod")


def test_a_pod_without_a_node_goes_at_once(world: World) -> None:
    world.cluster.create(pod(world, "a", node_selector={"no": "where"}))
    world.settle()

    world.cluster.delete(PODS, world.namespace, "a")

    assert not _there(world, PODS, "a")


def test_no_grace_removes_a_pod_at_once(world: World) -> None:
    world.add_node(f"{world.namespace}-n1")
    world.cluster.create(pod(world, "a"))
    until(world, lambda: get_pod(world, "a").status.phase == "Running", what="a running pod")
    world.hold_terminating()

    world.cluster.delete(PODS, world.namespace, "a", grace_seconds=0)

    assert not _there(world, PODS, "a")


def test_a_finalizer_keeps_a_deleted_object(world: World) -> None:
    meta = ObjectMeta(name="a", namespace=world.namespace, finalizers=("example.org/hold",))
    world.cluster.create(ConfigMap(metadata=meta))

    world.cluster.delete(CONFIG_MAPS, world.namespace, "a")

    kept = world.cluster.get(CONFIG_MAPS, world.namespace, "a")
    assert kept.metadata.deletion_timestamp is not None
    world.cluster.patch(CONFIG_MAPS, world.namespace, "a", {"metadata": {"finalizers": None}})
    assert not _there(world, CONFIG_MAPS, "a")


@pytest.mark.parametrize("what", ["node selector", "resources", "readiness gates"])
def test_the_spec_of_a_pod_is_not_changed(world: World, what: str) -> None:
    made = world.cluster.create(pod(world, "a", node_selector={"no": "where"}))
    container = PODS.to_json(made)["spec"]["containers"][0]
    patches: dict[str, dict[str, Any]] = {
        "node selector": {"nodeSelector": {"some": "where"}},
        "resources": {"containers": [{**container, "resources": {"requests": {"cpu": "50m"}}}]},
        "readiness gates": {"readinessGates": [{"conditionType": "example.org/more"}]},
    }

    with pytest.raises(Invalid):
        world.cluster.patch(PODS, world.namespace, "a", {"spec": patches[what]})

    assert get_pod(world, "a").spec == made.spec
