"""Who initialises, on a real etcd: exactly one, again when all is lost, in step with the original's clients."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable

import pytest

from edl_agent import ConfigurationError, DeadlineExceeded, EtcdClient, LeaseLost, UnknownOutcome
from edl_agent.initialisation import Initialisation
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.waiting import eventually, never
from tests.etcd.client_room import side_by_side

HOST = "127.0.0.1"
Make = Callable[..., EtcdClient]


def pserver(client_of: Make, port: int, count: int = 2) -> EtcdClient:
    client = client_of(num_pservers=count)
    client.register(port, host=HOST, timeout=10)
    return client


def trainer(client_of: Make, endpoint: str | None = None, **options: float) -> Initialisation:
    client = client_of(endpoint) if endpoint else client_of()
    client.open(timeout=10)
    return Initialisation(client, grace=options.pop("grace", 0.5), **options)  # type: ignore[arg-type]


@pytest.fixture
def pservers(client_of: Make) -> list[EtcdClient]:
    return [pserver(client_of, port) for port in (7164, 7165)]


@pytest.fixture
def reader(client_of: Make) -> EtcdClient:
    return client_of()


def epochs(pservers: list[EtcdClient]) -> dict[int, int]:
    return {one.session.index or 0: one.session.epoch or 0 for one in pservers}


def test_exactly_one_of_many_initialises_and_the_others_wait_for_it(
    client_of: Make, pservers: list[EtcdClient], reader: EtcdClient
) -> None:
    working = threading.Lock()
    worked: list[int] = []

    def run(place: int, one: Initialisation) -> bool:
        duty = one.begin(timeout=20)
        if duty is None:
            assert worked, "told that it is done before it was"
            return False
        assert working.acquire(blocking=False), "two at a time"
        assert duty.epochs == epochs(pservers)
        assert not duty.again
        time.sleep(0.3)
        worked.append(place)
        working.release()
        one.finish()
        return True

    trainers = [trainer(client_of) for _ in range(8)]
    results = side_by_side([functools.partial(run, place, one) for place, one in enumerate(trainers)])
    assert sorted(map(str, results)) == ["False"] * 7 + ["True"]
    assert reader.get_key("/init_ps/done", timeout=5) == b"1"
    eventually(lambda: not reader.get_prefix("/init_ps/lock/"), 3, "all locks given back")
    assert trainer(client_of).begin(timeout=5) is None


def test_waits_for_all_pservers(client_of: Make) -> None:
    pserver(client_of, 7164)
    one = trainer(client_of)
    with pytest.raises(DeadlineExceeded, match="pserver 1 to come"):
        one.begin(timeout=0.4)
    second: list[EtcdClient] = []
    threading.Timer(0.3, lambda: second.append(pserver(client_of, 7165))).start()
    duty = one.begin(timeout=10)
    assert duty is not None
    assert sorted(duty.epochs) == [0, 1]


def test_turn_of_an_initialiser_that_dies_passes_on(client_of: Make, pservers: list[EtcdClient]) -> None:
    first, second = trainer(client_of), trainer(client_of)
    assert first.begin(timeout=5) is not None
    with pytest.raises(DeadlineExceeded, match="the trainer with lease"):
        second.begin(timeout=0.4)
    first._client.shutdown()
    assert second.begin(timeout=5) is not None


def test_turn_that_is_given_up_passes_on(client_of: Make, pservers: list[EtcdClient]) -> None:
    first, second = trainer(client_of), trainer(client_of)
    assert first.begin(timeout=5) is not None
    first.give_up()
    assert second.begin(timeout=5) is not None
    with pytest.raises(ConfigurationError):
        first.finish()


def test_done_again_when_all_pservers_lost_their_parameters(
    client_of: Make, pservers: list[EtcdClient], reader: EtcdClient
) -> None:
    first = trainer(client_of)
    assert first.begin(timeout=5) is not None
    first.finish()
    for one in pservers:
        one.shutdown()
    again = [pserver(client_of, port) for port in (7164, 7165)]
    for one in again:
        Initialisation(one).declare("empty")
    duty = trainer(client_of).begin(timeout=5)
    assert duty is not None
    assert duty.again
    assert duty.epochs == epochs(again)
    assert reader.get_key("/init_ps/done", timeout=5) is None, "old clients must not train on empty pservers"


def test_not_done_again_while_one_pserver_has_its_parameters_or_restored_them(
    client_of: Make, pservers: list[EtcdClient]
) -> None:
    first = trainer(client_of)
    assert first.begin(timeout=5) is not None
    first.finish()
    pservers[0].shutdown()
    Initialisation(pserver(client_of, 7170)).declare("empty")
    assert trainer(client_of).begin(timeout=5) is None
    partly = trainer(client_of, partial=True)
    duty = partly.begin(timeout=5)
    assert duty is not None
    assert list(duty.epochs) == [0]
    partly.finish()
    assert trainer(client_of, partial=True).begin(timeout=5) is None


def test_restoring_is_waited_for(client_of: Make, pservers: list[EtcdClient], reader: EtcdClient) -> None:
    first = trainer(client_of)
    assert first.begin(timeout=5) is not None
    first.finish()
    for one in pservers:
        one.shutdown()
    again = [Initialisation(pserver(client_of, port)) for port in (7164, 7165)]
    again[0].declare("restoring")
    again[1].declare("empty")
    waiting = trainer(client_of)
    with pytest.raises(DeadlineExceeded, match="pserver 0 to restore"):
        waiting.begin(timeout=1.0)
    threading.Timer(0.3, lambda: again[0].declare("ready")).start()
    assert waiting.begin(timeout=5) is None


def test_etcd_that_lost_everything_is_marked_anew_without_initialising(
    client_of: Make, pservers: list[EtcdClient], reader: EtcdClient
) -> None:
    for one in pservers:
        Initialisation(one).declare("ready")
    trainers = [trainer(client_of) for _ in range(4)]
    assert side_by_side([functools.partial(one.begin, 5) for one in trainers]) == [None] * 4
    assert reader.get_key("/init_ps/done", timeout=5) == b"1"
    eventually(lambda: not reader.get_prefix("/init_ps/lock/"), 3)


def test_keeps_step_with_the_originals_client(client_of: Make, pservers: list[EtcdClient], reader: EtcdClient) -> None:
    """The original's mutex: /init_ps/lock/<lease in hex> under the lease, the oldest key holds it."""
    old = client_of()
    old.open(timeout=10)
    lock = f"/init_ps/lock/{old.session.lease_id:x}"
    old.put_key(lock, b"", timeout=5, with_lease=True)
    ours = trainer(client_of)
    with pytest.raises(DeadlineExceeded, match=f"lease {old.session.lease_id:x}"):
        ours.begin(timeout=0.4)
    old.put_key("/init_ps/done", b"1", timeout=5)
    old.delete_key(lock, timeout=5)
    assert ours.begin(timeout=5) is None
    # And it waits for ours: while ours is at it, its own key is not the oldest one, and the mark is missing.
    old.delete_key("/init_ps/done", timeout=5)
    assert ours.begin(timeout=5) is not None
    [pair] = reader.get_prefix("/init_ps/lock/")
    assert pair.key == f"/init_ps/lock/{ours._client.session.lease_id:x}".encode()
    assert pair.lease == ours._client.session.lease_id
    ours.finish()
    assert reader.get_key("/init_ps/done", timeout=5) == b"1"


def test_who_lost_the_lock_records_nothing(client_of: Make, pservers: list[EtcdClient], reader: EtcdClient) -> None:
    one = trainer(client_of)
    assert one.begin(timeout=5) is not None
    [pair] = reader.get_prefix("/init_ps/lock/")
    reader.delete_key(pair.key, timeout=5)
    with pytest.raises(LeaseLost):
        one.finish()
    assert reader.get_key("/init_ps/done", timeout=5) is None


def test_finish_whose_answer_is_lost_is_recorded_once(
    etcd_proxy: EtcdProxy, client_of: Make, pservers: list[EtcdClient], reader: EtcdClient
) -> None:
    one = trainer(client_of, etcd_proxy.endpoint)
    assert one.begin(timeout=5) is not None
    lost = etcd_proxy.lose_answer("Txn")
    one.finish(timeout=5)
    assert lost.fired
    assert reader.get_key("/init_ps/done", timeout=5) == b"1"
    assert not reader.get_prefix("/init_ps/lock/")


def test_finish_that_arrives_after_the_lease_has_ended_records_nothing(
    etcd_proxy: EtcdProxy, client_of: Make, pservers: list[EtcdClient], reader: EtcdClient
) -> None:
    one = trainer(client_of, etcd_proxy.endpoint)
    assert one.begin(timeout=5) is not None
    held = etcd_proxy.hold("Txn")
    with pytest.raises(UnknownOutcome):
        one.finish(timeout=1.0)
    held.wait_held()
    one._client.shutdown()
    second = trainer(client_of)
    assert second.begin(timeout=5) is not None
    held.release()
    held.wait_delivered()
    assert reader.get_key("/init_ps/done", timeout=5) is None, "the second is still at it"
    second.finish()
    assert reader.get_key("/init_ps/done", timeout=5) == b"1"


def test_lock_that_is_put_late_does_not_take_the_turn_after_somebody_has_finished(
    etcd_proxy: EtcdProxy, client_of: Make, pservers: list[EtcdClient], reader: EtcdClient
) -> None:
    late = trainer(client_of, etcd_proxy.endpoint)
    held = etcd_proxy.hold("Txn", nth=2)  # the first reads
    with pytest.raises(DeadlineExceeded):
        late.begin(timeout=0.5)
    held.wait_held()
    other = trainer(client_of)
    assert other.begin(timeout=5) is not None
    other.finish()
    held.release()
    held.wait_delivered()
    never(lambda: reader.get_prefix("/init_ps/lock/"), 0.3)


def test_declaration_that_arrives_late_changes_nothing(
    etcd_proxy: EtcdProxy, client_of: Make, reader: EtcdClient
) -> None:
    client = client_of(etcd_proxy.endpoint, num_pservers=1)
    client.register(7164, host=HOST, timeout=10)
    one = Initialisation(client)
    held = etcd_proxy.hold("Txn")
    with pytest.raises(UnknownOutcome):
        one.declare("restoring", timeout=0.5)
    one.declare("ready")
    before = reader.get_key("/edl/init/0", timeout=5)
    held.release()
    held.wait_delivered()
    assert reader.get_key("/edl/init/0", timeout=5) == before
    assert before is not None
    assert b"ready" in before


def test_without_a_session_or_slot_it_says_so(client_of: Make) -> None:
    with pytest.raises(LeaseLost):
        Initialisation(client_of()).begin(timeout=1)
    with pytest.raises(LeaseLost):
        trainer(client_of).declare("ready")
