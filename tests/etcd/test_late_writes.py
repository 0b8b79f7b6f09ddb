"""Late writes: each kind of write to etcd is kept back on its way, and delivered after another holder has claimed.

The one that is delivered late must be refused by etcd, or change nothing that the new holder relies on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from edl_agent import ANY, DeadlineExceeded, LeaseLost, UnknownOutcome
from tests.bench import protobuf_wire as pb
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import Delivery, EtcdProxy, Hold
from tests.bench.waiting import eventually
from tests.etcd.observed_client import Observed, both_versions

TTL = 2


class Scene:
    """One etcd, an *old* agent that reaches it through a proxy (port 7001), and a *new* one that needs none (7002)."""

    def __init__(self, cluster: EtcdCluster, proxy: EtcdProxy) -> None:
        self.cluster, self.proxy = cluster, proxy
        self._made: list[Observed] = []

    def old(self, **settings: Any) -> Observed:
        return self._make(self.proxy.endpoint, port=7001, **settings)

    def new(self, **settings: Any) -> Observed:
        return self._make(self.cluster.members[0].client_url, port=7002, **settings)

    def _make(self, endpoint: str, **settings: Any) -> Observed:
        self._made.append(Observed(endpoint, **{"ttl": TTL, "dial_timeout": 1, **settings}))
        return self._made[-1]

    def value(self, key: str) -> str:
        return self.cluster.etcdctl("get", key, "--print-value-only").strip()

    def cut_off(self) -> None:
        """The old agent's renewals are lost from now on, so that its lease ends; other calls pass."""
        self.proxy.ignore("LeaseKeepAlive")

    def taken_by_new(self, old: Observed) -> Observed:
        """Wait until the old one is out and the new one has the slot."""
        self.cut_off()
        old_lease = old.client.session.lease_id
        new = self.new()
        assert new.register(timeout=3 * TTL + 5) == 0
        assert f"{old_lease:016x}" not in self.cluster.leases()
        return new

    def assert_held(self, by: Observed) -> None:
        """Index 0 is held by that agent with the epoch and lease that it knows, and nobody else is in the table."""
        session = by.client.session
        assert session.index == 0
        keys = self.cluster.keys("/ps/")
        assert keys == ["/ps/0"]
        assert self.value("/ps/0") == f"127.0.0.1:{by.port}"
        by.client.guarded_put("/proof", b"the epoch and the lease are as known")
        assert not by.named("lost")

    def close(self) -> None:
        self.proxy.clear()
        for one in self._made:
            one.client.shutdown()


@pytest.fixture
def scene(etcd_factory: Callable[..., EtcdCluster], etcd_proxy_factory: Callable[[str], EtcdProxy]) -> Iterator[Scene]:
    cluster = etcd_factory(1)
    made = Scene(cluster, etcd_proxy_factory(cluster.members[0].client_url))
    yield made
    made.close()


def puts_to(key: str) -> Callable[[bytes, dict[str, str | bytes]], bool]:
    """Transactions that would put this key."""

    def matches(data: bytes, _: dict[str, str | bytes]) -> bool:
        operations = [value for number, value in pb.fields(data) if number == 2 and isinstance(value, bytes)]
        return any(pb.field(operation, 2, 1) == key.encode() for operation in operations)

    return matches


def would_create(key: str) -> Callable[[bytes, dict[str, str | bytes]], bool]:
    """Claims whose refusal creates this key, by a transaction within the transaction."""

    def matches(data: bytes, _: dict[str, str | bytes]) -> bool:
        refusals = [value for number, value in pb.fields(data) if number == 3 and isinstance(value, bytes)]
        return any(pb.field(operation, 4, 2, 2, 1) == key.encode() for operation in refusals)

    return matches


def delivered(hold: Hold) -> Delivery:
    hold.release()
    return hold.wait_delivered()


def txn_succeeded(delivery: Delivery) -> bool:
    assert delivery.code is grpc.StatusCode.OK, delivery
    return bool(pb.field(delivery.answer, 2))


def in_thread(call: Callable[[], object]) -> list[BaseException | object]:
    """Run a call beside the test; the list gets its result or error."""
    outcome: list[BaseException | object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    threading.Thread(target=run, name="test-call", daemon=True).start()
    return outcome


def test_a_late_lease_grant_carries_no_key_and_gives_no_time_that_etcd_does_not(scene: Scene) -> None:
    held = scene.proxy.hold("LeaseGrant")
    old = scene.old()
    with pytest.raises(DeadlineExceeded):
        old.register(timeout=0.5)
    new = scene.new()
    assert new.register() == 0
    assert delivered(held).code is grpc.StatusCode.OK
    scene.assert_held(new)
    # The stray lease holds nothing and ends by itself (or was revoked by whoever had asked for it).
    eventually(lambda: scene.cluster.leases() == [f"{new.client.session.lease_id:016x}"], 2 * TTL + 4, "only one lease")
    scene.assert_held(new)


def test_a_grant_that_had_been_applied_before_counts_from_then(scene: Scene) -> None:
    # etcd grants the lease, the answer is lost; the repetition 1 s later (dial_timeout) finds it granted.
    scene.proxy.lose_answer("LeaseGrant", silent=True)
    old = scene.old(ttl=5)
    outcome = in_thread(lambda: old.register(timeout=20))
    eventually(lambda: scene.proxy.count("LeaseGrant") >= 2 and old.client.session.deadline, 5.0, "the second grant")
    deadline = old.client.session.deadline
    calls = scene.proxy.calls("LeaseGrant")
    assert calls[1].time - calls[0].time > 0.9
    assert calls[0].request == calls[1].request, "not the same lease"
    assert deadline is not None
    if scene.proxy.count("LeaseKeepAlive") == 0:
        assert deadline <= calls[0].time + 5 + 0.1, "the agent believes in more time than etcd gave"
    eventually(lambda: outcome == [0], 10.0, "registered")
    assert not old.named("lost")


@pytest.mark.parametrize("seen", ["by a claimant", "on its own"])
def test_a_late_creation_of_the_count_is_refused(scene: Scene, seen: str) -> None:
    held = scene.proxy.hold("Txn", when=would_create("/ps_desired"))
    old = scene.old(num_pservers=5)
    outcome = in_thread(lambda: old.register(timeout=20))
    held.wait_held()
    if seen == "by a claimant":
        new = scene.new(num_pservers=1)
        assert new.register() == 0
    else:
        scene.cluster.etcdctl("put", "/ps_desired", "3")
    count = scene.value("/ps_desired")
    assert not txn_succeeded(delivered(held))
    assert scene.value("/ps_desired") == count
    if seen == "by a claimant":
        scene.assert_held(new)
        time.sleep(0.1)
        assert not outcome, "there is no free slot under the count that won"
    else:
        eventually(lambda: outcome == [0], 5.0, "registered under the count that won")


@pytest.mark.fault("I1")
@pytest.mark.parametrize("board", ["empty", "others hold slots"])
def test_a_late_claim_of_a_slot_that_another_has_claimed_is_refused(scene: Scene, board: str) -> None:
    count = 1 if board == "empty" else 2
    scene.cluster.etcdctl("put", "/ps_desired", str(count))
    if board != "empty":
        other = scene.new(num_pservers=None)
        assert other.register() == 0
    held = scene.proxy.hold("Txn", when=puts_to(f"/ps/{count - 1}"))
    old = scene.old(num_pservers=None)
    outcome = in_thread(lambda: old.register(timeout=20))
    held.wait_held()
    new = Observed(scene.cluster.members[0].client_url, port=7003, num_pservers=None, ttl=TTL, dial_timeout=1)
    with new:
        assert new.register() == count - 1
        assert not txn_succeeded(delivered(held))
        assert scene.value(f"/ps/{count - 1}") == "127.0.0.1:7003"
        assert len(scene.cluster.keys("/ps/")) == count
        assert not outcome
        new.client.guarded_put("/proof", b"still mine")
    eventually(lambda: outcome == [count - 1], 5.0, "registered after the other left")


def test_a_late_claim_does_not_come_on_top_of_its_own_repetition(scene: Scene) -> None:
    scene.cluster.etcdctl("put", "/ps_desired", "2")
    held = scene.proxy.hold("Txn", when=puts_to("/ps/0"))
    old = scene.old(num_pservers=None)
    # The answer does not come within dial_timeout; the agent looks, finds nothing, and claims again.
    index = old.register(timeout=10)
    assert not txn_succeeded(delivered(held))
    assert scene.cluster.keys("/ps/") == [f"/ps/{index}"]
    old.client.guarded_put("/proof", b"still mine")


def test_a_late_claim_under_a_lease_that_was_given_back_is_refused(scene: Scene) -> None:
    held = scene.proxy.hold("Txn", when=puts_to("/ps/0"))
    old = scene.old()
    scene.cluster.etcdctl("put", "/ps_desired", "1")
    with pytest.raises(DeadlineExceeded):
        old.register(timeout=0.5)
    eventually(lambda: scene.cluster.leases() == [], 3.0, "the lease of the abandoned registration is given back")
    delivery = delivered(held)
    assert delivery.code is grpc.StatusCode.NOT_FOUND
    assert "lease not found" in delivery.details
    assert scene.cluster.keys("/ps/") == []


def test_a_late_takeover_of_its_old_key_is_refused_once_a_newer_twin_has_it(scene: Scene) -> None:
    # Three processes with one address, one after the other: the second one's takeover comes after the third one's.
    first = scene.old()
    assert first.register() == 0
    held = scene.proxy.hold("Txn", when=puts_to("/ps/0"))
    second = Observed(scene.proxy.endpoint, port=7001, ttl=TTL, dial_timeout=1)
    with second:
        outcome = in_thread(lambda: second.register(timeout=20))
        held.wait_held()
        third = Observed(scene.cluster.members[0].client_url, port=7001, ttl=TTL, dial_timeout=1)
        with third:
            assert third.register() == 0
            epoch = third.client.session.epoch
            assert not txn_succeeded(delivered(held))
            assert not outcome or isinstance(outcome[0], int | BaseException)
            # The second may take over in its turn, as the newest that asks; but with a transaction of its own, which
            # saw the third one's key, and with a higher epoch.
            eventually(lambda: bool(outcome), 5.0, "the second one's registration ends")
            assert outcome == [0]
            assert (second.client.session.epoch or 0) > (epoch or 0)
            eventually(lambda: third.named("lost"), 3.0, "the third one is told")
            assert scene.cluster.keys("/ps/") == ["/ps/0"]


@pytest.mark.fault("I1")
def test_a_late_takeover_of_a_key_that_has_gone_to_another_address_is_refused(scene: Scene) -> None:
    old = scene.old()
    assert old.register() == 0
    # The session is lost; the takeover of the own old key is on its way when that key ends and another claims the slot.
    scene.proxy.swallow_answers("LeaseKeepAlive", times=None)
    held = scene.proxy.hold("Txn", when=puts_to("/ps/0"))
    eventually(lambda: old.named("lost"), TTL + 2.0, "lost")
    held.wait_held(5.0)
    scene.cluster.etcdctl("del", "/ps/0")
    new = scene.new()
    assert new.register() == 0
    assert not txn_succeeded(delivered(held))
    scene.assert_held(new)


@both_versions
def test_a_late_put_is_told_as_unknown_and_touches_no_slot(
    etcd_factory: Callable[..., EtcdCluster], etcd_proxy_factory: Callable[[str], EtcdProxy], version: str
) -> None:
    cluster = etcd_factory(1, version=version)
    scene = Scene(cluster, etcd_proxy_factory(cluster.members[0].client_url))
    try:
        old = scene.old()
        assert old.register() == 0
        held = scene.proxy.hold("Put")
        with pytest.raises(UnknownOutcome):
            old.client.put_key("/checkpoints/0", b"old", timeout=0.3)
        new = scene.taken_by_new(old)
        assert delivered(held).code is grpc.StatusCode.OK
        # A plain put is not fenced: that is what guarded writes are for. It is applied once and nowhere else.
        assert scene.value("/checkpoints/0") == "old"
        assert scene.proxy.count("Put") == 1
        scene.assert_held(new)
    finally:
        scene.close()


def test_a_late_put_under_the_old_lease_is_refused(scene: Scene) -> None:
    old = scene.old()
    assert old.register() == 0
    held = scene.proxy.hold("Put")
    with pytest.raises(UnknownOutcome):
        old.client.put_key("/trainers/0", b"old", timeout=0.3, with_lease=True)
    new = scene.taken_by_new(old)
    new.client.put_key("/trainers/0", b"new", with_lease=True)
    delivery = delivered(held)
    assert delivery.code is grpc.StatusCode.NOT_FOUND
    assert "lease not found" in delivery.details
    assert scene.value("/trainers/0") == "new"
    scene.assert_held(new)


@pytest.mark.fault("I1")
@pytest.mark.parametrize("expected", ["any", "absent", "value"])
def test_a_late_guarded_write_is_refused(scene: Scene, expected: str) -> None:
    old = scene.old()
    assert old.register() == 0
    if expected == "value":
        old.client.put_key("/checkpoints/0", b"same")
    held = scene.proxy.hold("Txn", when=puts_to("/checkpoints/0"))
    expectation = {"any": ANY, "absent": None, "value": b"same"}[expected]
    with pytest.raises(UnknownOutcome):
        old.client.compare_and_set("/checkpoints/0", b"old", expected=expectation, timeout=0.3)
    new = scene.taken_by_new(old)
    before = scene.value("/checkpoints/0")
    assert not txn_succeeded(delivered(held))
    assert scene.value("/checkpoints/0") == before
    scene.assert_held(new)


@pytest.mark.fault("I1")
def test_a_guarded_write_that_is_late_while_its_caller_waits_ends_in_lease_lost(scene: Scene) -> None:
    old = scene.old()
    assert old.register() == 0
    held = scene.proxy.hold("Txn", when=puts_to("/checkpoints/0"))
    outcome = in_thread(lambda: old.client.guarded_put("/checkpoints/0", b"old", timeout=30))
    held.wait_held()
    new = scene.taken_by_new(old)
    assert not txn_succeeded(delivered(held))
    eventually(lambda: bool(outcome), 5.0, "the end of the call")
    assert isinstance(outcome[0], LeaseLost), outcome
    assert scene.value("/checkpoints/0") == ""
    scene.assert_held(new)


def test_a_late_delete_is_told_as_unknown_and_deletes_its_own_key_only(scene: Scene) -> None:
    old = scene.old()
    assert old.register() == 0
    old.client.put_key("/checkpoints/0", b"old")
    held = scene.proxy.hold("DeleteRange")
    with pytest.raises(UnknownOutcome):
        old.client.delete_key("/checkpoints/0", timeout=0.3)
    new = scene.taken_by_new(old)
    new.client.put_key("/checkpoints/1", b"new")
    assert delivered(held).code is grpc.StatusCode.OK
    assert scene.value("/checkpoints/0") == ""
    assert scene.value("/checkpoints/1") == "new"
    assert scene.proxy.count("DeleteRange") == 1
    scene.assert_held(new)


@pytest.mark.parametrize("by", ["shutdown", "the loss"])
def test_a_late_revoke_ends_the_old_lease_only(scene: Scene, by: str) -> None:
    old = scene.old()
    assert old.register() == 0
    held = scene.proxy.hold("LeaseRevoke")
    if by == "shutdown":
        begun = time.monotonic()
        old.client.shutdown()
        assert time.monotonic() - begun < 1 + 1 + 0.7, "shutdown is bounded by dial_timeout + 1 s"
    else:
        scene.cluster.etcdctl("put", "/ps/0", "10.0.0.9:1")  # overwritten: lost, and the lease is given back
        eventually(lambda: old.named("lost"), 3.0, "lost")
        scene.cluster.etcdctl("del", "/ps/0")
        old_again = eventually(lambda: old.client.session.index == 0, 10.0, "the old one comes back")
        assert old_again
    held.wait_held()
    if by == "shutdown":
        new = scene.new()
        assert new.register(timeout=3 * TTL + 5) == 0
    else:
        new = old
        new.events.clear()
    delivery = delivered(held)
    assert delivery.code in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND)
    eventually(lambda: scene.cluster.leases() == [f"{new.client.session.lease_id:016x}"], 2 * TTL + 4, "one lease")
    scene.assert_held(new)
