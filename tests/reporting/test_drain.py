"""Drain requests in a real etcd: told, answered, withdrawn, overdue, meant for somebody else, and through outages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl_agent import ConfigurationError, EtcdClient
from edl_agent.drain import Drain
from edl_agent.drain_request import DrainRequest
from tests.bench.clocks import FakeClock
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd

Make = Callable[..., EtcdClient]
KEY = "/edl/drain/me"


@pytest.fixture
def client_of(etcd: SharedEtcd, prefix: str) -> Iterator[Make]:
    made: list[EtcdClient] = []

    def make(endpoint: str = etcd.client_url, **options: Any) -> EtcdClient:
        settings: dict[str, Any] = {"prefix": prefix, "ttl": 3, "dial_timeout": 2.0} | options
        made.append(EtcdClient(endpoint, **settings))
        return made[-1]

    yield make
    for client in made:
        client.shutdown()


@pytest.fixture
def controller(client_of: Make) -> EtcdClient:
    return client_of()


@pytest.fixture
def drain(client_of: Make, monkeypatch: pytest.MonkeyPatch) -> Drain:
    monkeypatch.delenv("POD_UID", raising=False)
    drain = Drain(client_of(), "me")
    watching(drain)
    return drain


def watching(drain: Drain) -> None:
    """Wait until it has looked at etcd once."""
    eventually(lambda: drain._range.revision > 0, 5, "the first read")


def ask(controller: EtcdClient, decision: str, seconds: float, reason: str = "", pod_uid: str = "") -> None:
    controller.put_key(KEY, DrainRequest(decision, time.time() + seconds, reason, pod_uid).encode(), timeout=5)


def test_program_is_told_by_event_flag_and_callback_and_answers(drain: Drain, controller: EtcdClient) -> None:
    told: list[str] = []
    drain.on_request(lambda one: told.append(one.reason))
    assert (drain.ready, drain.state, drain.deadline, drain.reason, drain.expired) == (True, "none", None, "", False)
    assert drain.acknowledge() is False
    ask(controller, "d1", 30, "node wanted back")
    assert drain.requested.wait(2)
    assert (drain.ready, drain.state, drain.reason, drain.decision) == (False, "requested", "node wanted back", "d1")
    assert drain.deadline is not None
    assert 25 < drain.deadline <= 30
    eventually(lambda: told == ["node wanted back"], 2, "the callback")
    assert drain.acknowledge() is True
    assert (drain.state, drain.ready) == ("acked", False)


def test_request_that_is_withdrawn_leaves_nothing_behind(drain: Drain, controller: EtcdClient) -> None:
    back: list[Drain] = []
    drain.on_withdrawn(back.append)
    ask(controller, "d1", 30)
    assert drain.requested.wait(2)
    drain.acknowledge()
    controller.delete_key(KEY, timeout=5)
    eventually(lambda: back == [drain], 2, "the callback")
    assert (drain.requested.is_set(), drain.ready, drain.state, drain.deadline) == (False, True, "none", None)
    ask(controller, "d2", 30)
    assert drain.requested.wait(2)
    assert drain.state == "requested", "an old answer does not answer a new request"


def test_another_decision_wants_another_answer_the_same_one_only_moves_the_deadline(
    drain: Drain, controller: EtcdClient
) -> None:
    told: list[str | None] = []
    drain.on_request(lambda one: told.append(one.decision))
    ask(controller, "d1", 30)
    assert drain.requested.wait(2)
    drain.acknowledge()
    ask(controller, "d1", 300)
    eventually(lambda: (drain.deadline or 0) > 200, 2, "the new deadline")
    assert drain.state == "acked"
    ask(controller, "d2", 30)
    eventually(lambda: drain.state == "requested", 2, "the second decision")
    eventually(lambda: told == ["d1", "d2"], 2, lambda: f"two callbacks, not {told}")


def test_request_from_before_the_start_is_seen(client_of: Make, controller: EtcdClient) -> None:
    ask(controller, "d1", 30)
    drain = Drain(client_of(), "me")
    assert drain.requested.wait(5)
    told: list[Drain] = []
    drain.on_request(told.append)
    eventually(lambda: told == [drain], 2, "a callback that comes after the request")


@pytest.mark.parametrize(
    ("seconds", "asked_uid", "own_uid", "counts"),
    [(-60, "", "", False), (30, "older-pod", "this-pod", False), (-60, "this-pod", "this-pod", True)],
)
def test_request_for_an_earlier_pod_of_the_name_is_passed_over(
    client_of: Make,
    controller: EtcdClient,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    asked_uid: str,
    own_uid: str,
    counts: bool,
) -> None:
    monkeypatch.setenv("POD_UID", own_uid)
    ask(controller, "d1", seconds, pod_uid=asked_uid)
    drain = Drain(client_of(), "me")
    watching(drain)
    assert (drain.requested.is_set(), drain.ready, drain.expired) == (counts, not counts, counts)
    ask(controller, "d2", 30, pod_uid=own_uid)
    eventually(lambda: drain.decision == "d2", 2, "a request for this one")
    assert drain.ready is False


def test_past_the_deadline_it_has_expired_whatever_the_wall_clock_says(client_of: Make, controller: EtcdClient) -> None:
    clock = FakeClock(running=True)
    drain = Drain(client_of(clock=clock), "me")
    watching(drain)
    ask(controller, "d1", 30)
    assert drain.requested.wait(2)
    clock.jump_wall(3600)
    assert not drain.expired
    clock.advance(31)
    assert drain.expired
    assert drain.deadline is not None
    assert drain.deadline < 0
    assert drain.acknowledge(), "a late answer is better than none"


def test_local_start_cannot_be_withdrawn_and_the_earlier_deadline_counts(drain: Drain, controller: EtcdClient) -> None:
    told: list[Drain] = []
    drain.on_request(told.append)
    ask(controller, "d1", 300, "scaled down")
    assert drain.requested.wait(2)
    drain.start("SIGTERM", 20)
    drain.start("preStop", 200)
    assert drain.deadline is not None
    assert 15 < drain.deadline <= 20
    controller.delete_key(KEY, timeout=5)
    eventually(lambda: drain.decision is None, 2, "the withdrawal")
    assert (drain.requested.is_set(), drain.ready, drain.reason) == (True, False, "SIGTERM")
    assert told == [drain], "asked once, told once"
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigurationError):
            drain.start("x", bad)


def test_value_that_is_no_request_neither_asks_nor_withdraws(drain: Drain, controller: EtcdClient) -> None:
    controller.put_key(KEY, b"please", timeout=5)
    never(drain.requested.is_set, 0.3)
    ask(controller, "d1", 30)
    assert drain.requested.wait(2)
    controller.put_key(KEY, b"{}", timeout=5)
    never(lambda: not drain.requested.is_set(), 0.3)


def test_another_ones_request_is_not_mine(drain: Drain, controller: EtcdClient) -> None:
    controller.put_key(KEY + "-too", DrainRequest("d1", time.time() + 30).encode(), timeout=5)
    never(drain.requested.is_set, 0.3)


def test_request_and_withdrawal_during_outages_are_seen_after_them(
    proxy: TcpProxy, client_of: Make, controller: EtcdClient
) -> None:
    drain = Drain(client_of(proxy.endpoint), "me")
    watching(drain)
    proxy.refuse()
    proxy.drop_connections()
    ask(controller, "d1", 60)
    never(drain.requested.is_set, 0.3)
    proxy.pass_all()
    assert drain.requested.wait(5)
    proxy.refuse()
    proxy.drop_connections()
    controller.delete_key(KEY, timeout=5)
    proxy.pass_all()
    eventually(lambda: not drain.requested.is_set(), 5, "the withdrawal")


def test_shutdown_closes_it_and_what_was_asked_stays_readable(drain: Drain, controller: EtcdClient) -> None:
    ask(controller, "d1", 30)
    assert drain.requested.wait(2)
    drain._client.shutdown()
    assert (drain.requested.is_set(), drain.ready, drain.decision) == (True, False, "d1")
