"""Each rule of the gRPC-level proxy, seen from raw gRPC calls to a real etcd."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.bench import protobuf_wire as pb
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.waiting import eventually, never

Code = grpc.StatusCode


class Raw:
    """Raw calls through a channel of its own."""

    def __init__(self, address: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(address, options=options)
        self._put: Any = self.channel.unary_unary("/etcdserverpb.KV/Put")
        self._range: Any = self.channel.unary_unary("/etcdserverpb.KV/Range")
        self._grant: Any = self.channel.unary_unary("/etcdserverpb.Lease/LeaseGrant")
        self._queues: list[queue.Queue[bytes | None]] = []

    def put(self, key: str, value: str, timeout: float = 5.0, **options: Any) -> None:
        self._put(pb.put_request(key, value), timeout=timeout, **options)

    def code_of_put(self, key: str, value: str, timeout: float = 5.0) -> Code:
        with pytest.raises(grpc.RpcError) as caught:
            self.put(key, value, timeout)
        code: Code = caught.value.code()
        return code

    def get(self, key: str) -> str | None:
        value = pb.field(self._range(pb.range_request(key), timeout=5.0), 2, 5)
        return value.decode() if isinstance(value, bytes) else None

    def grant(self, ttl: int) -> int:
        lease = pb.field(self._grant(pb.lease_grant_request(ttl), timeout=5.0), 2)
        assert isinstance(lease, int)
        return lease

    def stream(self, method: str) -> tuple[queue.Queue[bytes | None], Any]:
        requests: queue.Queue[bytes | None] = queue.Queue()
        self._queues.append(requests)
        call: Any = self.channel.stream_stream(method)
        return requests, call(iter(requests.get, None))

    def close(self) -> None:
        for requests in self._queues:
            requests.put(None)
        self.channel.close()


@pytest.fixture
def raw(etcd_proxy: EtcdProxy) -> Iterator[Raw]:
    calls = Raw(etcd_proxy.address)
    yield calls
    calls.close()


KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
WATCH = "/etcdserverpb.Watch/Watch"


def test_record_and_pass_through(raw: Raw, etcd_proxy: EtcdProxy, prefix: str) -> None:
    raw.put(prefix, "1", metadata=[("probe", "p1"), ("hasleader", "true")])
    assert raw.get(prefix) == "1"
    (call,) = etcd_proxy.calls("Put")
    assert call.request == pb.put_request(prefix, "1")
    assert call.metadata["probe"] == "p1"
    assert call.status is Code.OK
    assert call.forwarded
    assert call.peer
    assert etcd_proxy.count("KV/*") == 2
    assert etcd_proxy.count("/etcdserverpb.KV/Put") == 1
    etcd_proxy.clear()
    assert etcd_proxy.count() == 0


def test_errors_of_etcd_pass(raw: Raw, etcd_proxy: EtcdProxy) -> None:
    with pytest.raises(grpc.RpcError, match="requested lease not found"):
        raw._put(pb.put_request("k", "v", lease=12345), timeout=5)
    assert etcd_proxy.calls("Put")[0].status is Code.NOT_FOUND


def test_big_messages_pass(raw: Raw, etcd_proxy: EtcdProxy, prefix: str) -> None:
    for index in range(6):
        raw.put(f"{prefix}/{index}", "x" * 1_000_000)
    answer = raw._range(pb.range_request(f"{prefix}/", f"{prefix}0".encode()), timeout=10)
    assert len(answer) > 6_000_000


def test_fail_nth_every_when(raw: Raw, etcd_proxy: EtcdProxy, prefix: str) -> None:
    rule = etcd_proxy.fail("Put", Code.RESOURCE_EXHAUSTED, "no", nth=2)
    raw.put(prefix, "1")
    assert raw.code_of_put(prefix, "2") is Code.RESOURCE_EXHAUSTED
    raw.put(prefix, "3")
    assert (rule.seen, rule.fired) == (3, 1)
    rule.remove()
    every = etcd_proxy.fail("Put", times=None, every=2, when=lambda data, _: prefix.encode() in data)
    codes = []
    for _ in range(4):
        try:
            raw.put(prefix, "4")
            codes.append("ok")
        except grpc.RpcError:
            codes.append("failed")
    assert codes == ["failed", "ok", "failed", "ok"]
    raw.put("elsewhere", "5")
    every.remove()
    raw.put(prefix, "6")


def test_lost_answers_are_executed(raw: Raw, etcd_proxy: EtcdProxy, prefix: str) -> None:
    etcd_proxy.lose_answer("Put")
    assert raw.code_of_put(prefix, "told") is Code.UNAVAILABLE
    assert raw.get(prefix) == "told"
    etcd_proxy.lose_answer("Put", silent=True)
    assert raw.code_of_put(prefix, "silent", 0.5) is Code.DEADLINE_EXCEEDED
    assert raw.get(prefix) == "silent"


def test_ignored_calls_are_not_executed(raw: Raw, etcd_proxy: EtcdProxy, prefix: str) -> None:
    rule = etcd_proxy.ignore("Put")
    assert raw.code_of_put(prefix, "x", 0.3) is Code.DEADLINE_EXCEEDED
    rule.remove()
    assert raw.get(prefix) is None


def test_a_held_write_arrives_late(raw: Raw, etcd_proxy: EtcdProxy, prefix: str) -> None:
    hold = etcd_proxy.hold("Put")
    assert raw.code_of_put(prefix, "late", 0.3) is Code.DEADLINE_EXCEEDED
    hold.wait_held()
    raw.put(prefix, "newer")
    assert raw.get(prefix) == "newer"
    hold.release()
    assert hold.wait_delivered().code is Code.OK
    assert raw.get(prefix) == "late"
    dropped = etcd_proxy.hold("Put")
    assert raw.code_of_put(prefix, "never", 0.3) is Code.DEADLINE_EXCEEDED
    dropped.drop()
    never(lambda: raw.get(prefix) == "never", 0.3)


def test_a_waiting_client_gets_the_late_answer(raw: Raw, etcd_proxy: EtcdProxy, prefix: str) -> None:
    hold = etcd_proxy.hold("Put")
    pending = raw._put.future(pb.put_request(prefix, "late"), timeout=5)
    hold.wait_held()
    hold.release()
    assert pending.result()
    assert raw.get(prefix) == "late"


def test_delay(raw: Raw, etcd_proxy: EtcdProxy, prefix: str) -> None:
    etcd_proxy.delay("Put", 0.3, times=1)
    etcd_proxy.delay("Range", 0.3, answer=True, times=1)
    start = time.monotonic()
    raw.put(prefix, "1")
    assert 0.3 <= time.monotonic() - start < 2
    raw.get(prefix)
    assert time.monotonic() - start >= 0.6


def test_keepalive_rules(raw: Raw, etcd_proxy: EtcdProxy) -> None:
    lease = raw.grant(5)
    requests, answers = raw.stream(KEEP_ALIVE)
    requests.put(pb.lease_keep_alive_request(lease))
    assert pb.field(next(answers), 3) == 5
    swallowed = etcd_proxy.swallow_answers()
    requests.put(pb.lease_keep_alive_request(lease))
    swallowed.wait_fired()
    etcd_proxy.rewrite_answer("LeaseKeepAlive", lambda _: pb.encode((2, lease)))
    requests.put(pb.lease_keep_alive_request(lease))
    assert pb.field(next(answers), 3) is None
    assert etcd_proxy.count("LeaseKeepAlive") == 1
    assert etcd_proxy.count_messages("LeaseKeepAlive") == 3
    hold = etcd_proxy.hold("LeaseKeepAlive")
    requests.put(pb.lease_keep_alive_request(lease))
    hold.wait_held()
    answers.cancel()
    eventually(lambda: etcd_proxy.calls("LeaseKeepAlive")[0].status is Code.CANCELLED)
    hold.release()
    assert hold.wait_delivered().code is Code.OK


def test_watch_rules(raw: Raw, etcd_proxy: EtcdProxy, prefix: str) -> None:
    requests, answers = raw.stream(WATCH)
    requests.put(pb.watch_create_request(prefix))
    assert pb.field(next(answers), 3) == 1
    raw.put(prefix, "1")
    assert pb.field(next(answers), 11, 2, 5) == b"1"
    assert etcd_proxy.cancel_watch("because", compact_revision=7) == 1
    cancelled = next(answers)
    assert (pb.field(cancelled, 4), pb.field(cancelled, 5), pb.field(cancelled, 6)) == (1, 7, b"because")
    raw.put(prefix, "2")  # goes to a watch that is over
    requests.put(pb.watch_create_request(prefix))
    assert pb.field(next(answers), 3) == 1
    raw.put(prefix, "3")
    assert pb.field(next(answers), 11, 2, 5) == b"3"
    assert etcd_proxy.open_streams("Watch") == 1
    assert etcd_proxy.break_streams("Watch", Code.ABORTED) == 1
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert caught.value.code() is Code.ABORTED
    eventually(lambda: etcd_proxy.open_streams() == 0)


def test_only_lease_calls_fail(raw: Raw, etcd_proxy: EtcdProxy, prefix: str) -> None:
    _, answers = raw.stream(KEEP_ALIVE)
    eventually(lambda: etcd_proxy.open_streams("LeaseKeepAlive") == 1)
    etcd_proxy.fail("Lease/*", times=None, break_open=True)
    with pytest.raises(grpc.RpcError):
        next(answers)
    with pytest.raises(grpc.RpcError):
        raw.grant(5)
    _, again = raw.stream(KEEP_ALIVE)
    with pytest.raises(grpc.RpcError) as caught:
        next(again)
    assert caught.value.code() is Code.UNAVAILABLE
    raw.put(prefix, "1")


def test_etcd_going_away_is_told_and_forgotten(etcd_factory: Any, etcd_proxy_factory: Any, prefix: str) -> None:
    cluster: EtcdCluster = etcd_factory()
    proxy: EtcdProxy = etcd_proxy_factory(cluster.endpoints[0])
    raw = Raw(proxy.address)
    requests, answers = raw.stream(WATCH)
    requests.put(pb.watch_create_request(prefix))
    next(answers)
    cluster.members[0].kill()
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert caught.value.code() is Code.UNAVAILABLE
    assert raw.code_of_put(prefix, "1") is Code.UNAVAILABLE
    cluster.members[0].start()

    def works() -> bool:
        try:
            raw.put(prefix, "2")
        except grpc.RpcError:
            return False
        return True

    eventually(works, 5)
    other: EtcdCluster = etcd_factory()
    proxy.retarget(other.endpoints[0])
    assert raw.get(prefix) is None
    raw.close()
