"""The claim key and the queue: one slot for an address however late a write arrives, and whoever put the slot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from edl_agent import errors
from edl_agent.claiming import Claims, Held
from edl_agent.clock import SystemClock
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.endpoints import parse_endpoints
from edl_agent.etcd.kv import Kv
from edl_agent.etcd.lease import Leases
from edl_agent.keys import KeySchema
from edl_agent.slots import Claimant
from tests.bench import protobuf_wire as pb
from tests.bench.etcd_proxy import EtcdProxy
from tests.conftest import SharedEtcd

ME = b"10.0.0.1:7164"
_clock = SystemClock()
Connect = Callable[[str], Connection]


def soon() -> float:
    return _clock.monotonic() + 10


@pytest.fixture
def connect() -> Iterator[Connect]:
    made: list[Connection] = []

    def connect(url: str) -> Connection:
        made.append(Connection(parse_endpoints(url, tls=False), tls=None, login=None, dial_timeout=5.0, clock=_clock))
        return made[-1]

    yield connect
    for one in made:
        one.close()


@pytest.fixture
def store(etcd: SharedEtcd, connect: Connect) -> Connection:
    """A way to etcd that no fault is put into."""
    return connect(etcd.client_url)


def lease(connection: Connection, number: int) -> int:
    Leases(connection).grant(number, 60, soon())
    return number


def slots(connection: Connection, prefix: str) -> dict[int, bytes]:
    board = Claims(Kv(connection), KeySchema(prefix).pservers, _clock, 5.0).look()
    return {slot.index: slot.address for slot in board.slots}


def keys_below(connection: Connection, prefix: str) -> list[bytes]:
    start = f"{prefix}/edl/".encode()
    return [pair.key for pair in Kv(connection).range(start, start[:-1] + b"0", soon())[0]]


@pytest.mark.fault("I4")
@pytest.mark.fault("A16")
@pytest.mark.parametrize("told", [True, False], ids=["count-told", "count-read"])
def test_a_first_claim_that_arrives_late_is_refused(
    etcd_proxy: EtcdProxy, store: Connection, connect: Connect, prefix: str, told: bool
) -> None:
    kv, family = Kv(store), KeySchema(prefix).pservers
    assert family.desired is not None
    kv.put(family.desired, b"3", soon())
    hold = etcd_proxy.hold("Txn")
    claims = Claims(Kv(connect(etcd_proxy.endpoint)), family, _clock, 1.0)
    mine = lease(store, 71 + told)
    me = Claimant(ME, 3 if told else None, own_leases=frozenset((mine,)))
    outcome = claims.attempt(mine, me)
    assert isinstance(outcome, Held)
    hold.wait_held()
    # Its slot is free again by hand, so that nothing but the claim key speaks against the late one.
    kv.delete(family.key(outcome.index), soon())
    hold.release()
    assert not pb.field(hold.wait_delivered().answer, 2), "the late claim succeeded"
    assert slots(store, prefix) == {}


@pytest.mark.fault("I4")
def test_an_answer_that_was_lost_is_found_again(
    etcd_proxy: EtcdProxy, store: Connection, connect: Connect, prefix: str
) -> None:
    family = KeySchema(prefix).pservers
    assert family.desired is not None
    Kv(store).put(family.desired, b"3", soon())
    etcd_proxy.lose_answer("Txn")
    mine = lease(store, 81)
    outcome = Claims(Kv(connect(etcd_proxy.endpoint)), family, _clock, 5.0).attempt(mine, Claimant(ME, 3))
    assert isinstance(outcome, Held)
    assert slots(store, prefix) == {outcome.index: ME} == {0: ME}


@pytest.mark.fault("A34")
def test_a_claim_key_whose_slot_was_deleted_does_not_lock_its_address_out(store: Connection, prefix: str) -> None:
    family = KeySchema(prefix).pservers
    claims = Claims(Kv(store), family, _clock, 5.0)
    assert isinstance(claims.attempt(lease(store, 91), Claimant(ME, 3)), Held)
    Kv(store).delete(family.key(0), soon())
    outcome = claims.attempt(lease(store, 92), Claimant(ME, 3))
    assert isinstance(outcome, Held)
    assert slots(store, prefix) == {0: ME}


@pytest.mark.fault("A27")
@pytest.mark.fault("I4")
def test_a_slot_put_by_another_program_for_this_address_is_taken_over_in_a_crowd(
    store: Connection, prefix: str
) -> None:
    kv, family = Kv(store), KeySchema(prefix).pservers
    assert family.desired is not None
    kv.put(family.desired, b"20", soon())
    kv.put(family.key(0), b"10.9.9.9:1", soon(), lease(store, 100))
    kv.put(family.key(7), ME, soon(), lease(store, 101))
    crowd = [Claimant(ME, 20)] + [Claimant(b"10.0.1.%d:1" % number, 20) for number in range(15)]
    held = claim_at_once(store, family_prefix=prefix, crowd=crowd, first_lease=200)
    assert held[0] == 7
    found = slots(store, prefix)
    assert len(set(found.values())) == len(found) == 17
    assert {index: found[index] for index in held} == dict(zip(held, (one.address for one in crowd), strict=True))


@pytest.mark.fault("A28")
@pytest.mark.fault("I2")
@pytest.mark.parametrize("told", [True, False], ids=["count-told", "count-read"])
def test_a_crowd_fills_the_holes_and_leaves_no_queue(store: Connection, prefix: str, told: bool) -> None:
    kv, family = Kv(store), KeySchema(prefix).pservers
    assert family.desired is not None
    kv.put(family.desired, b"40", soon())
    holders = [Claimant(b"10.0.2.%d:1" % number, 40) for number in range(10)]
    for index in claim_at_once(store, family_prefix=prefix, crowd=holders, first_lease=300 + 1000 * told):
        if index % 3 == 0:
            Leases(store).revoke(_lease_of(store, prefix, index), soon())
    crowd = [Claimant(b"10.0.3.%d:1" % number, 40 if told else None) for number in range(34)]
    held = claim_at_once(store, family_prefix=prefix, crowd=crowd, first_lease=400 + 1000 * told)
    assert sorted(slots(store, prefix)) == list(range(40))
    assert len(set(held)) == 34
    assert not [key for key in keys_below(store, prefix) if b"/edl/queue/" in key]
    assert len([key for key in keys_below(store, prefix) if b"/edl/claims/" in key]) == 40


def test_alone_after_a_crowd_the_lowest_free_index(store: Connection, prefix: str) -> None:
    crowd = [Claimant(b"10.0.4.%d:1" % number, 12) for number in range(10)]
    held = claim_at_once(store, family_prefix=prefix, crowd=crowd, first_lease=500)
    for index in held[2:4]:
        Leases(store).revoke(_lease_of(store, prefix, index), soon())
    free = sorted(set(range(12)) - set(slots(store, prefix)))
    assert len(free) == 4
    claims = Claims(Kv(store), KeySchema(prefix).pservers, _clock, 5.0)
    found = [claims.attempt(lease(store, 600 + number), Claimant(b"10.0.5.%d:1" % number, 12)) for number in range(4)]
    assert [one.index for one in found if isinstance(one, Held)] == free
    assert not isinstance(claims.attempt(lease(store, 610), Claimant(b"10.0.5.9:1", 12)), Held)
    assert not [key for key in keys_below(store, prefix) if b"/edl/queue/" in key], "who waits has left the queue"


def _lease_of(store: Connection, prefix: str, index: int) -> int:
    board = Claims(Kv(store), KeySchema(prefix).pservers, _clock, 5.0).look()
    return next(slot.lease for slot in board.slots if slot.index == index)


def claim_at_once(store: Connection, *, family_prefix: str, crowd: list[Claimant], first_lease: int) -> list[int]:
    """All together; returns the indices in the order of the crowd."""
    claims = Claims(Kv(store), KeySchema(family_prefix).pservers, _clock, 5.0)
    leases = [lease(store, first_lease + number) for number in range(len(crowd))]
    barrier = threading.Barrier(len(crowd))
    held: list[int | BaseException] = [-1] * len(crowd)

    def work(number: int) -> None:
        draw = [(number * 7 + turn * 3) % 11 / 11 for turn in range(8)]
        barrier.wait()
        try:
            outcome = claims.attempt(leases[number], crowd[number], draw)
            assert isinstance(outcome, Held)
            held[number] = outcome.index
        except (errors.EdlAgentError, AssertionError) as error:
            held[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(crowd))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(one, int) for one in held), held
    return [one for one in held if isinstance(one, int)]
