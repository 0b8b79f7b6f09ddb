"""Limits and odd settings: full etcd, requests too large or too many, bad counts, odd lease times, moved clocks."""

from __future__ import annotations

import ast
import logging
import resource
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

import edl_agent
from edl_agent import (
    ClientClosed,
    ConfigurationError,
    DeadlineExceeded,
    EtcdClient,
    InvalidDesiredCount,
    LeaseLost,
    NoSpace,
    RequestTooLarge,
    SessionState,
    TooManyRequests,
)
from edl_agent import registration as registration_module
from tests.bench import protobuf_wire as pb
from tests.bench.agent_process import AgentProcess
from tests.bench.clocks import FakeClock
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never, resource_counts
from tests.conftest import SharedEtcd
from tests.etcd.client_room import HOST, Room
from tests.etcd.observed_client import Observed

Factory = Callable[..., EtcdCluster]


@pytest.fixture
def room(etcd: SharedEtcd, prefix: str, etcd_proxy: EtcdProxy) -> Iterator[Room]:
    # The proxy is named here so that it outlives the clients: their shutdown needs the way to etcd.
    with Room(etcd.client_url, prefix) as room:
        yield room


def messages(caplog: pytest.LogCaptureFixture, part: str, level: int = logging.INFO) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= level and part in r.getMessage()]


# --- etcd's space is used up (A24) ---


@pytest.mark.fault("A24")
def test_with_etcd_full_holders_stay_newcomers_are_told_and_all_recover(
    etcd_factory: Factory, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = etcd_factory(quota=16 * 2**20)
    with (
        Observed(cluster.endpoints, port=7164, num_pservers=3, ttl=2) as holder,
        Observed(cluster.endpoints, port=7165, num_pservers=3, ttl=2) as leaver,
        Observed(cluster.endpoints, port=7166, num_pservers=3, ttl=2) as newcomer,
        Observed(cluster.endpoints, port=7167, num_pservers=3, ttl=2) as robbed,
    ):
        assert [holder.register(), leaver.register(), robbed.register()] == [0, 1, 2]
        lease = holder.client.session.lease_id
        cluster.fill_quota()

        started = time.monotonic()
        with pytest.raises(NoSpace, match="space"):
            newcomer.client.register(7166, timeout=10)
        assert time.monotonic() - started < 2, "told at once"
        with pytest.raises(NoSpace):
            holder.client.put_key("/x", b"x", timeout=3)
        with pytest.raises(NoSpace):
            holder.client.guarded_put("/x", b"x", timeout=3)
        assert holder.client.get_key("/ps_desired", timeout=3) == b"3"
        assert holder.client.delete_key("/nothing", timeout=3) is False

        leaver.client.shutdown()
        assert sorted(cluster.keys("/ps/")) == ["/ps/0", "/ps/2"], "shutdown deletes its slot all the same"

        cluster.etcdctl("lease", "revoke", f"{robbed.client.session.lease_id:x}")
        eventually(lambda: "space" in robbed.client.waiting_for, 3.0, "the reason why the slot is not claimed again")
        never(lambda: holder.client.session.state is not SessionState.CONNECTED, 2.5, "a disturbed holder")
        assert robbed.client.session.state is SessionState.LOST
        assert len(messages(caplog, "Registration failed", logging.WARNING)) == 1, "one line, then detail"

        cluster.free_quota()
        eventually(lambda: robbed.client.session.index is not None, 15.0, "the slot claimed again")
        assert newcomer.client.register(7166, timeout=5) in (1, 2)
        holder.assert_undisturbed(lease)


# --- too large, too many (A25) ---


@pytest.mark.fault("A25")
@pytest.mark.parametrize("size", [1_600_000, 2 * 2**20, 5 * 2**20], ids=["above etcd's", "above gRPC's", "5 MiB"])
def test_a_request_that_is_too_large_is_refused_once_and_for_all(
    size: int, etcd_proxy: EtcdProxy, room: Room, prefix: str
) -> None:
    one = room.pserver(7164, endpoints=etcd_proxy.endpoint, num_pservers=1)
    one.register()
    lease = one.client.session.lease_id
    etcd_proxy.clear()
    started = time.monotonic()
    with pytest.raises(RequestTooLarge):
        one.client.put_key("/big", b"x" * size, timeout=10)
    with pytest.raises(RequestTooLarge):
        one.client.guarded_put("/big", b"x" * size, timeout=10)
    assert time.monotonic() - started < 5
    assert (etcd_proxy.count("Put"), etcd_proxy.count("Txn")) == (1, 1), "not retried"
    assert one.client.get_key("/big", timeout=3) is None
    one.client.put_key("/big", b"x" * 1_000_000, timeout=5)
    assert one.client.session.lease_id == lease
    assert one.losses == []


TOO_MANY = "etcdserver: too many requests"


@pytest.mark.fault("A25")
def test_a_later_error_does_not_carry_the_reason_of_an_earlier_one(etcd_proxy: EtcdProxy, prefix: str) -> None:
    with EtcdClient(etcd_proxy.endpoint, prefix=prefix) as client:

        def told() -> str:
            with pytest.raises(DeadlineExceeded) as late:
                client.get_key("/x", timeout=1e-9)
            return str(late.value)

        client.put_key("/x", b"0", timeout=5)
        with pytest.raises(RequestTooLarge):
            client.put_key("/big", b"x" * 2_000_000, timeout=10)
        assert "large" not in told()
        rule = etcd_proxy.fail("Range", grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY, times=None)
        with pytest.raises(DeadlineExceeded, match="too many requests"):  # why it was repeated to the end
            client.get_key("/x", timeout=0.5)
        rule.remove()
        assert client.get_key("/x", timeout=5) == b"0"
        assert "too many" not in told()


@pytest.mark.fault("A25")
def test_too_many_requests_backs_off_and_succeeds_when_etcd_has_time_again(etcd_proxy: EtcdProxy, prefix: str) -> None:
    with EtcdClient(etcd_proxy.endpoint, prefix=prefix) as client:
        client.put_key("/x", b"0", timeout=5)
        for method, call in (
            ("Put", lambda: client.put_key("/x", b"1", timeout=5)),
            ("Range", lambda: client.get_key("/x", timeout=5)),
            ("Txn", lambda: client.compare_and_set("/x", b"2", expected=b"1", guarded=False, timeout=5)),
        ):
            etcd_proxy.clear()
            rule = etcd_proxy.fail(method, grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY, times=3)
            call()
            rule.remove()
            times = [one.time for one in etcd_proxy.calls(method)]
            assert len(times) == 4, f"{method}: refused three times, then through"
        assert client.get_key("/x", timeout=5) == b"2"


@pytest.mark.fault("A25")
def test_too_many_requests_until_the_deadline_is_no_storm_and_names_the_reason(
    etcd_proxy: EtcdProxy, prefix: str
) -> None:
    with EtcdClient(etcd_proxy.endpoint, prefix=prefix) as client:
        client.put_key("/x", b"0", timeout=5)
        etcd_proxy.clear()
        rule = etcd_proxy.fail("Put", grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY, times=None)
        with pytest.raises((DeadlineExceeded, TooManyRequests), match="too many requests"):
            client.put_key("/x", b"1", timeout=4)
        assert etcd_proxy.count("Put") <= 20, "at most 5 a second (I6)"
        rule.remove()
        assert client.get_key("/x", timeout=5) == b"0", "never applied, and the error does not say it might be"


# --- the count is missing (A30, M31) ---


@pytest.mark.fault("A30")
@pytest.mark.report("M31")
def test_a_missing_count_is_waited_for_by_watching_with_few_lines(
    room: Room,
    etcd_proxy: EtcdProxy,
    etcdctl: Callable[..., str],
    prefix: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scaled by ten: a line after 0.2 s, then each 3 s at most."""
    monkeypatch.setattr(registration_module, "_FIRST_LINE", 0.2)
    monkeypatch.setattr(registration_module, "_NEXT_LINE", 3.0)
    caplog.set_level(logging.INFO)
    one = room.pserver(7164, endpoints=etcd_proxy.endpoint, ttl=9).begin()
    eventually(lambda: one.client.waiting_for == "/ps_desired to be set", 5.0, "the state says what is waited for")
    before, reads = time.monotonic(), etcd_proxy.count("Range")
    never(lambda: one.index is not None, 4.0, "an index without a count")
    assert etcd_proxy.count("Range") == reads, "watched, not polled"
    lines = messages(caplog, "Waiting for /ps_desired")
    assert 1 <= len(lines) <= 1 + (time.monotonic() - before) / 3.0, lines
    etcdctl("put", f"{prefix}/ps_desired", "1")
    eventually(lambda: one.index == 0, 1.0, "the slot as soon as the count is there")
    assert one.join() == 0
    assert one.client.waiting_for == ""


@pytest.mark.fault("A30")
@pytest.mark.report("M31")
def test_waiting_for_the_count_ends_at_once_on_shutdown_and_at_the_timeout(
    room: Room, etcdctl: Callable[..., str], prefix: str
) -> None:
    one = room.pserver(7164)
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="/ps_desired to be set"):
        one.register(timeout=1.0)
    assert 0.9 < time.monotonic() - started < 2.0
    one.begin()
    eventually(lambda: one.client.waiting_for == "/ps_desired to be set", 5.0, "waiting")
    started = time.monotonic()
    one.client.shutdown()
    assert isinstance(one.join(1.0), ClientClosed)
    assert time.monotonic() - started < 1.0
    assert etcdctl("get", prefix, "--prefix=true", "--keys-only").split() == []


@pytest.mark.soak
@pytest.mark.report("M31")
def test_five_minutes_without_a_count_give_at_most_eleven_lines(
    room: Room, etcd_proxy: EtcdProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = room.pserver(7164, endpoints=etcd_proxy.endpoint).begin()
    eventually(lambda: one.client.waiting_for == "/ps_desired to be set", 5.0, "waiting")
    reads, before = etcd_proxy.count("Range"), resource_counts()
    time.sleep(300)
    assert 9 <= len(messages(caplog, "Waiting for")) <= 11
    assert etcd_proxy.count("Range") == reads
    assert resource_counts().threads <= before.threads
    started = time.monotonic()
    one.client.shutdown()
    assert time.monotonic() - started < 1.0
    one.join()


# --- the count is bad (A32) ---

BAD_COUNTS = [b"", b"abc", b"0", b"-1", b"1e9", b"1000000000", b"99999999999999999999", b"10001", b"3\n", b" 3", b"3.0",
              b"+3", b"0x3", b"\xff\xfe", "\uff13".encode(), b"3\x1b[31m\nINJECTED", b"x" * 100_000]  # fmt: skip


@pytest.mark.fault("A32")
@pytest.mark.parametrize("raw", BAD_COUNTS, ids=lambda raw: repr(raw[:20]))
def test_a_bad_count_is_a_typed_error_at_once_and_its_value_costs_nothing(
    raw: bytes, room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    operator, one = room.pserver(7000), room.pserver(7164)
    operator.client.put_key("/ps_desired", raw)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    with pytest.raises(InvalidDesiredCount) as refused:
        one.register(timeout=5)
    assert time.monotonic() - started < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 30 * 1024, "KiB"
    text = str(refused.value)
    assert "/ps_desired" in text
    assert len(text) < 300
    for line in [text, *(record.getMessage() for record in caplog.records)]:
        assert "\n" not in line, "no line injection"
        assert "\x1b" not in line
    assert one.client.session.state is not SessionState.CONNECTED, "nothing is kept that is not used"
    operator.client.put_key("/ps_desired", b"1")
    assert one.register(timeout=5) == 0, "the same client goes on when the count is mended"


@pytest.mark.fault("A32")
def test_a_count_that_turns_bad_takes_no_slot_from_anybody(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    operator, holder = room.pserver(7000), room.pserver(7164, num_pservers=1)
    holder.register()
    for raw in (b"", b"abc", b"0", b"-1", b"1e9", b"1000000000", b"\xff\x1b\n"):
        operator.client.put_key("/ps_desired", raw)
    operator.client.delete_key("/ps_desired")
    operator.client.put_key("/ps_desired", b"2")
    eventually(lambda: holder.counts == [2], 3.0, lambda: f"only the good count is passed on, not {holder.counts}")
    assert holder.losses == []
    assert holder.index == 0
    told = messages(caplog, "/ps_desired", logging.WARNING)
    assert len(told) == 8
    assert not any("\n" in line or "\x1b" in line for line in told)


# --- a key without a lease (A33) ---


@pytest.mark.fault("A33")
def test_a_slot_key_without_a_lease_is_reported_and_never_overwritten(
    room: Room, etcdctl: Callable[..., str], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    etcdctl("put", f"{prefix}/ps/0", "10.0.0.1:7164")
    etcdctl("put", f"{prefix}/ps_desired", "2")
    first, second = room.pserver(7164), room.pserver(7165)
    assert first.register() == 1, "the next free one"
    second.begin()
    eventually(lambda: "etcdctl del" in second.client.waiting_for, 5.0, "the report names the way out")
    assert "[0]" in second.client.waiting_for
    never(lambda: second.index is not None, 1.0)
    assert etcdctl("get", f"{prefix}/ps/0", "--print-value-only").strip() == "10.0.0.1:7164"
    etcdctl("del", f"{prefix}/ps/0")
    eventually(lambda: second.index == 0, 1.0, "the freed slot")
    assert second.join() == 0


@pytest.mark.fault("A33")
def test_a_key_without_a_lease_with_the_own_address_is_not_taken_over_either(
    room: Room, etcdctl: Callable[..., str], prefix: str
) -> None:
    etcdctl("put", f"{prefix}/ps/0", f"{HOST}:7164")
    etcdctl("put", f"{prefix}/ps_desired", "2")
    one = room.pserver(7164)
    with pytest.raises(DeadlineExceeded, match=r"slot 0.*etcdctl del"):
        one.register(timeout=1.0)
    assert etcdctl("get", f"{prefix}/ps/", "--prefix=true", "--keys-only").split() == [f"{prefix}/ps/0"]
    etcdctl("del", f"{prefix}/ps/0")
    assert one.register() == 0


# --- lease times (A44) ---


@pytest.mark.fault("A44")
@pytest.mark.parametrize(
    "ttl", [0, -1, -0.0, float("nan"), float("inf"), -float("inf"), 86_401, 1e18, 2**63, "5", None, True, 10j]
)
def test_a_lease_time_that_cannot_be_meant_is_refused_at_construction(ttl: object) -> None:
    with pytest.raises(ConfigurationError, match="ttl"):
        EtcdClient("http://127.0.0.1:1", 1, ttl=ttl)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="dial_timeout"):
        EtcdClient("http://127.0.0.1:1", 1, dial_timeout=ttl)  # type: ignore[arg-type]


@pytest.mark.fault("A44")
@pytest.mark.parametrize(
    ("wanted", "granted"), [(0.01, 2), (1, 2), (2, 2), (2.4, 3), (86_400, 86_400)], ids=lambda value: f"{value:g}"
)
def test_the_granted_time_is_the_one_that_counts(
    wanted: float, granted: float, etcd: SharedEtcd, etcd_proxy: EtcdProxy, prefix: str
) -> None:
    """etcd raises small ones to 1.5 election timeouts in whole seconds (F2)."""
    with Observed(etcd_proxy.endpoint, ttl=wanted, prefix=prefix) as observed:
        observed.register()
        session = observed.client.session
        lease = session.lease_id
        assert session.ttl == granted
        assert session.deadline is not None
        assert granted - 1 < session.deadline - time.monotonic() <= granted
        if granted == 2:
            never(lambda: session.state is not SessionState.CONNECTED, 2.6, "a lease that ends")
            assert 2 <= etcd_proxy.count("LeaseKeepAlive") <= 6, "renewed by the granted time, not in haste"
        observed.assert_undisturbed(lease)


@pytest.mark.fault("A44")
def test_timers_follow_a_server_that_grants_much_more_than_asked(
    etcd_factory: Factory, etcd_proxy_factory: Callable[[str], EtcdProxy]
) -> None:
    cluster = etcd_factory(heartbeat_ms=400, election_ms=4000)
    proxy = etcd_proxy_factory(cluster.members[0].client_url)
    with Observed(proxy.endpoint, ttl=1) as observed:
        observed.register()
        session = observed.client.session
        assert session.ttl == 6
        assert session.deadline is not None
        assert session.deadline - time.monotonic() > 5
        never(lambda: session.state is not SessionState.CONNECTED, 2.8)
        assert proxy.count("LeaseKeepAlive") == 1, "a third of 6 s, not of 1 s"


# --- clocks (A17, A18) ---


@pytest.mark.fault("A17")
def test_a_jump_of_the_wall_clock_changes_nothing(etcd: SharedEtcd, prefix: str) -> None:
    clock = FakeClock(running=True)
    with Observed(etcd.client_url, ttl=2, prefix=prefix, clock=clock) as observed:
        observed.register()
        lease = observed.client.session.lease_id
        for jump in (3600, -7200, 3600):
            clock.jump_wall(jump)
            observed.client.put_key("/x", b"1", timeout=1, with_lease=True)
            never(lambda: observed.client.session.state is not SessionState.CONNECTED, 1.0)
        observed.assert_undisturbed(lease)


@pytest.mark.fault("A17")
def test_nothing_is_decided_by_the_wall_clock() -> None:
    """It is read by the clock that is injected above, and for what people read: the command's output, "time" stamps."""
    readers = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today",
               "time.localtime", "time.gmtime", "time.ctime"}  # fmt: skip
    found = []
    for path in sorted(Path(edl_agent.__file__).parent.rglob("*.py")):
        if "cli" in path.parts:
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        stamps = {
            value
            for node in nodes
            if isinstance(node, ast.Dict)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and key.value == "time"
        }
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                assert "time" not in [name.name for name in node.names], path
            called = isinstance(node, ast.Call) and ".".join(ast.unparse(node.func).split(".")[-2:])
            if called in readers and node not in stamps:
                found.append((path.name, ast.unparse(node)))
    assert found == [("clock.py", "time.time()")]


@pytest.mark.fault("A17")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler, which makes the wall clock that jumps")
def test_jumps_of_an_agents_real_wall_clock_while_it_waits_and_while_it_holds(
    etcd: SharedEtcd,
    etcdctl: Callable[..., str],
    prefix: str,
    tmp_path: Path,
    agent_factory: Callable[..., AgentProcess],
) -> None:
    """The whole process is meant, gRPC's core included. (faketime 0.9.10 breaks `sleep` and waiting in Python 3.11.)"""
    library, ahead = tmp_path / "wall_clock.so", tmp_path / "ahead"
    source = Path(__file__).with_name("wall_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)

    def set_ahead(seconds: int) -> None:
        with ahead.open("r+b") as file:
            file.write(struct.pack("l", seconds))

    ahead.write_bytes(struct.pack("l", 0))
    environment = {"LD_PRELOAD": str(library), "WALL_AHEAD": str(ahead)}
    agent = agent_factory(
        etcd.client_url, 7164, ttl=2, num_pservers=None, prefix=prefix, environment=environment, arguments=["-v"]
    )
    eventually(lambda: "Waiting for /ps_desired" in agent.stderr, 15.0, "an agent that waits")
    set_ahead(-3600)
    etcdctl("put", f"{prefix}/ps_desired", "1")
    registered = agent.wait_event("registered", 2.0)
    for seconds in (3600, -3600, 3600):
        set_ahead(seconds)
        never(lambda: len(agent.events) > 1, 1.2, "news of a slot that is held all the time")
    assert agent.terminate() == 0
    released = agent.wait_event("released")
    assert released["epoch"] == registered["epoch"]
    assert 7200 < released["time"] - registered["time"] < 7300, "the process did see the jumps"
    assert released["monotonic"] - registered["monotonic"] < 60


@pytest.mark.fault("A18")
def test_a_suspended_machine_has_lost_its_slot_when_it_wakes(etcd: SharedEtcd, prefix: str) -> None:
    """CLOCK_MONOTONIC stood still, CLOCK_BOOTTIME passed the deadline; the thread that looks first sees the loss."""
    clock = FakeClock(running=True)
    with Observed(etcd.client_url, ttl=4, prefix=prefix, clock=clock) as observed:
        observed.register()
        session = observed.client.session
        epoch, lost = session.epoch, session.lost
        assert epoch is not None
        clock.suspend(2.0)
        assert session.index == 0, "not yet: T has not passed by either clock"
        clock.suspend(2.1)
        assert session.index is None, "from the first look on"
        assert session.epoch != epoch
        assert lost.is_set()
        with pytest.raises(LeaseLost):
            observed.client.guarded_put("/x", b"1")
        eventually(lambda: session.index == 0, 5.0, "the slot claimed again")
        assert session.epoch is not None
        assert session.epoch > epoch
        assert len(observed.named("lost")) == 1


@pytest.mark.fault("A18")
def test_a_suspension_is_noticed_without_anybody_looking(etcd: SharedEtcd, prefix: str) -> None:
    clock = FakeClock(running=True)
    with Observed(etcd.client_url, ttl=6, prefix=prefix, clock=clock) as observed:
        observed.register()
        woken = time.monotonic()
        clock.suspend(7.0)
        eventually(lambda: observed.named("lost"), 3.0, "the lost hook")
        assert observed.times("lost")[0] - woken < 1.5
        eventually(lambda: len(observed.named("registered")) == 2, 5.0, "the slot claimed again")


@pytest.mark.fault("A18")
@pytest.mark.report("M14")
def test_the_servers_no_wins_over_a_local_timer_that_stands_still(
    etcd: SharedEtcd, etcdctl: Callable[..., str], prefix: str, caplog: pytest.LogCaptureFixture, etcd_proxy: EtcdProxy
) -> None:
    """A keepalive on a revoked lease is answered without the field TTL, which means 0: lost, whatever the timer says.

    No slot is held here, so nothing but the keepalive can notice.
    """
    caplog.set_level(logging.INFO)
    clock = FakeClock(running=True)
    with Observed(etcd_proxy.endpoint, ttl=3, prefix=prefix, clock=clock, reclaim="never") as observed:
        observed.client.open(timeout=5)
        session = observed.client.session
        lease, deadline = session.lease_id, session.deadline
        assert lease is not None
        assert deadline is not None
        etcdctl("lease", "revoke", f"{lease:x}")
        eventually(lambda: observed.named("lost"), 2.5, "the loss")
        assert clock.monotonic() < deadline, "before the local deadline"
        assert session.state is SessionState.LOST
        assert "no longer knows the lease" in str(session.loss)
        with pytest.raises(LeaseLost):
            observed.client.put_key("/x", b"1", with_lease=True)
    answers = [message.data for call in etcd_proxy.calls("LeaseKeepAlive") for message in call.answers]
    assert pb.field(answers[-1], 3) is None, "etcd left the field out, as the report says"
    assert [record for record in caplog.records if record.exc_info] == [], "no exception in the thread"


# --- a lagging follower, and a lease that is really gone (M09) ---


@pytest.mark.report("M09")
def test_a_put_through_a_lagging_follower_right_after_the_grant_is_done_inside_its_deadline(
    cluster3: EtcdCluster, prefix: str, tcp_proxy_factory: Callable[[str], TcpProxy]
) -> None:
    leader, follower = cluster3.members[cluster3.leader()], cluster3.members[cluster3.followers()[0]]
    follower.pause()
    proxy = tcp_proxy_factory(leader.client_url)
    with EtcdClient(proxy.endpoint, prefix=prefix, ttl=5, dial_timeout=3) as client:
        client.open(timeout=5)
        proxy.retarget(follower.client_url)
        proxy.drop_connections()
        time.sleep(0.3)  # the lag of the report
        follower.resume()
        client.put_key("/x", b"1", timeout=3, with_lease=True)
        assert client.get_key("/x", timeout=3) == b"1"
        assert client.session.state is SessionState.CONNECTED


@pytest.mark.report("M09")
def test_a_put_under_a_lease_that_is_really_gone_is_lease_lost_without_retry(
    etcd_proxy: EtcdProxy, etcdctl: Callable[..., str], prefix: str
) -> None:
    with EtcdClient(etcd_proxy.endpoint, prefix=prefix, ttl=60, reclaim="never") as client:
        client.open(timeout=5)
        etcdctl("lease", "revoke", f"{client.session.lease_id:x}")
        started = time.monotonic()
        with pytest.raises(LeaseLost, match="requested lease not found"):
            client.put_key("/x", b"1", timeout=5, with_lease=True)
        assert time.monotonic() - started < 1
        assert etcd_proxy.count("Put") == 1
        assert client.session.state is SessionState.LOST
