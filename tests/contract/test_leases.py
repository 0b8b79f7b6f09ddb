"""What an election needs of every cluster: one of two gets a Lease, and who is based on an old version does not."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest

from edl_controller.api.kinds import LEASES
from edl_controller.api.leases import Lease, LeaseSpec
from edl_controller.api.meta import ObjectMeta
from edl_controller.core.election import patch_of, released_spec
from edl_controller.errors import AlreadyExists, Conflict, NotFound
from tests.contract.world import World

STAMP = "2026-12-01T10:00:00.000001Z"
LATER = "2026-12-01T10:00:02.500000Z"


def lease(world: World, holder: str) -> Lease:
    spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=15, acquire_time=STAMP, renew_time=STAMP)
    return Lease(metadata=ObjectMeta(name="leader", namespace=world.namespace), spec=spec)


def renewal(holder: str, stamp: str = LATER) -> dict[str, object]:
    spec = LeaseSpec(
        holder_identity=holder,
        lease_duration_seconds=15,
        acquire_time=STAMP,
        renew_time=stamp,
        lease_transitions=1,
    )
    return patch_of(spec)


def test_a_lease_is_created_once_and_read_back_as_it_was_written(world: World) -> None:
    with pytest.raises(NotFound):
        world.cluster.get(LEASES, world.namespace, "leader")
    made = world.cluster.create(lease(world, "a"))
    with pytest.raises(AlreadyExists):
        world.cluster.create(lease(world, "b"))
    read = world.cluster.get(LEASES, world.namespace, "leader")
    assert read == made
    assert read.spec == lease(world, "a").spec


def test_of_two_who_create_it_at_once_one_has_it(world: World) -> None:
    together = threading.Barrier(4)

    def compete(holder: str) -> str:
        together.wait(30)
        try:
            return world.cluster.create(lease(world, holder)).spec.holder_identity
        except AlreadyExists:
            return ""

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        winners = [one for one in pool.map(compete, "abcd") if one]
    assert winners == [world.cluster.get(LEASES, world.namespace, "leader").spec.holder_identity]


def test_who_has_seen_an_older_version_writes_nothing(world: World) -> None:
    seen = world.cluster.create(lease(world, "a")).metadata
    patch, where = world.cluster.patch, world.namespace
    renewed = patch(LEASES, where, "leader", renewal("a"), resource_version=seen.resource_version, uid=seen.uid)
    assert renewed.spec.renew_time == LATER
    with pytest.raises(Conflict):
        patch(LEASES, where, "leader", renewal("b"), resource_version=seen.resource_version, uid=seen.uid)
    assert world.cluster.get(LEASES, where, "leader") == renewed


def test_a_released_lease_has_no_holder(world: World) -> None:
    made = world.cluster.create(lease(world, "a"))
    spec = released_spec(made.spec, 1_800_000_000.0)
    version = made.metadata.resource_version
    world.cluster.patch(LEASES, world.namespace, "leader", patch_of(spec), resource_version=version)
    assert world.cluster.get(LEASES, world.namespace, "leader").spec == spec


def test_a_deleted_lease_is_not_renewed_and_may_be_created_anew(world: World) -> None:
    first = world.cluster.create(lease(world, "a")).metadata
    world.cluster.delete(LEASES, world.namespace, "leader")
    version = first.resource_version
    with pytest.raises(NotFound):
        world.cluster.patch(LEASES, world.namespace, "leader", renewal("a"), resource_version=version, uid=first.uid)
    second = world.cluster.create(lease(world, "a")).metadata
    assert second.uid != first.uid
    with pytest.raises(Conflict):
        world.cluster.patch(LEASES, world.namespace, "leader", renewal("a"), resource_version=version, uid=first.uid)
