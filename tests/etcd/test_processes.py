"""Agents as processes: stopped, killed, terminated at any moment, alone in a container."""

from __future__ import annotations

import concurrent.futures
import json
import logging
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edl_agent.testing import spawn_bound_to_parent
from tests.bench.agent_process import ROOT, AgentProcess
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd
from tests.etcd.agent_zygote import QuickAgent, Zygote
from tests.etcd.client_room import Room
from tests.etcd.slot_table import SlotTable, StoredSlot

logger = logging.getLogger(__name__)


@pytest.fixture
def table(etcd: SharedEtcd, prefix: str) -> SlotTable:
    return SlotTable(etcd.client_url, prefix)


@pytest.fixture
def room(etcd: SharedEtcd, prefix: str, etcd_proxy: EtcdProxy) -> Iterator[Room]:
    # The proxy is named here so that it outlives the clients: their shutdown needs the way to etcd.
    with Room(etcd.client_url, prefix) as room:
        yield room


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("quick-agents")) as zygote:
        yield zygote


# -- paused --------------------------------------------------------------------------------------------------------


class Commanded:
    """``tests.etcd.commanded_agent``, and its answers."""

    def __init__(self, endpoints: str, prefix: str, port: int, ttl: float) -> None:
        self.process: subprocess.Popen[str] = spawn_bound_to_parent(
            [sys.executable, "-m", "tests.etcd.commanded_agent", endpoints, prefix, str(port), f"{ttl:g}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def answer(self) -> dict[str, Any]:
        """The next line it prints (the test's time limit bounds the wait)."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def tell(self, line: str) -> None:
        """Hand it a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def commanded(etcd_proxy: EtcdProxy, prefix: str) -> Iterator[Callable[..., Commanded]]:
    made: list[Commanded] = []

    def make(port: int, ttl: float) -> Commanded:
        made.append(Commanded(etcd_proxy.endpoint, prefix, port, ttl))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.smoke
@pytest.mark.fault("A15")
@pytest.mark.fault("I1")
def test_paused_longer_than_its_lease(
    room: Room, table: SlotTable, etcd_proxy: EtcdProxy, commanded: Callable[..., Commanded]
) -> None:
    ttl = 2
    table.set_desired(1)
    agent = commanded(7000, ttl)
    first = agent.answer()
    assert first["registered"] == 0
    agent.tell("probe before")
    assert agent.answer()["write"] == "written"
    successor = room.pserver(7001, ttl=ttl).begin()
    eventually(lambda: "free slot" in successor.client.waiting_for, 5, "the second agent waits")

    paused = time.monotonic()
    agent.process.send_signal(signal.SIGSTOP)
    assert successor.join(2 * ttl + 5) == 0
    successor.client.guarded_put("/guarded", b"successor")
    time.sleep(max(0.0, paused + 2 * ttl - time.monotonic()))
    agent.tell("probe late")  # waits in the pipe, and is what the main thread does first
    etcd_proxy.clear()
    woken = time.monotonic()
    agent.process.send_signal(signal.SIGCONT)
    told = agent.answer()
    assert (told["index"], told["epoch"], told["write"]) == (None, None, "LeaseLost"), told
    never(lambda: table.value("/guarded") != "successor", 0.3, "a write of the old holder")
    # The order of calls since SIGCONT: the lease comes first, and the old slot's write never left the process.
    begun = [call for call in etcd_proxy.calls() if call.time > woken]
    assert begun, "it has said nothing to etcd"
    assert begun[0].name in ("LeaseKeepAlive", "LeaseRevoke", "LeaseGrant", "Status"), [c.name for c in begun]
    assert not [m for m in etcd_proxy.requests("Txn") if b"/guarded" in m.data]
    assert table.read()[0].address == successor.address
    # It is alive and well: it waits, and gets the slot when it is free.
    successor.client.shutdown()
    eventually(lambda: table.read()[0].address == "127.0.0.1:7000", 3, "the paused agent claims again")
    agent.tell("probe again")
    eventually(lambda: table.value("/guarded") == "again", 3, "its writes count again")
    assert agent.answer()["epoch"] > first["epoch"]


@pytest.mark.fault("A15")
def test_paused_for_less_than_its_lease(
    table: SlotTable, etcd_proxy: EtcdProxy, commanded: Callable[..., Commanded]
) -> None:
    ttl = 3
    table.set_desired(1)
    agent = commanded(7000, ttl)
    first = agent.answer()
    agent.process.send_signal(signal.SIGSTOP)
    time.sleep(ttl / 2)
    etcd_proxy.clear()
    agent.process.send_signal(signal.SIGCONT)
    eventually(lambda: etcd_proxy.requests("LeaseKeepAlive"), 1, "the lease is renewed at once")
    agent.tell("probe x")
    told = agent.answer()
    assert (told["index"], told["epoch"], told["lost"], told["write"]) == (0, first["epoch"], False, "written")


@pytest.mark.report("M17")
@pytest.mark.parametrize("waits", [1.0, pytest.param(20.0, marks=pytest.mark.soak)])
def test_waiter_paused_until_its_lease_is_gone(
    etcd: SharedEtcd,
    prefix: str,
    room: Room,
    table: SlotTable,
    agent_factory: Callable[..., AgentProcess],
    waits: float,
) -> None:
    table.set_desired(1)
    holder = room.pserver(7001, ttl=10)
    holder.register()
    waiter = agent_factory(etcd.endpoints, 7000, num_pservers=None, ttl=2, prefix=prefix)
    time.sleep(waits / 2)
    waiter.sigstop()
    time.sleep(5)
    waiter.sigcont()
    time.sleep(waits / 2)
    assert waiter.events == []
    freed = time.monotonic()
    holder.client.shutdown()
    event = waiter.wait_event("registered", 3)
    assert event["seen"] - freed < 1
    assert table.read()[0].lease == int(event["lease"], 16)
    assert table.lease_lives(int(event["lease"], 16))


# -- terminated ----------------------------------------------------------------------------------------------------


@pytest.mark.fault("A37")
def test_sigterm_at_fifty_random_points(etcd_factory: Callable[..., EtcdCluster], prefix: str, zygote: Zygote) -> None:
    """From the first moment of the process, over dialling and claiming, into the steady state."""
    cluster = etcd_factory()
    url = cluster.members[0].client_url
    table = SlotTable(url, prefix)
    table.set_desired(40)
    points = random.Random(37)
    started = zygote.start(url, 6999, prefix=prefix, ttl=60)
    eventually(lambda: started.index is not None, 10, "the first agent registers")  # also warms everything up
    started.send_signal(signal.SIGTERM)
    assert started.wait(2) == 0
    ended: list[tuple[float, QuickAgent, float]] = []

    def one(number: int, after: float) -> None:
        agent = zygote.start(url, 7000 + number, prefix=prefix, ttl=60)
        time.sleep(after)
        told = time.monotonic()
        agent.send_signal(signal.SIGTERM)
        status = agent.wait(10)
        # Before Python's handler is there the signal ends the process, which has done nothing yet.
        registered = any(event["event"] == "registered" for event in agent.events)
        assert status == 0 or (status == -signal.SIGTERM and not registered), (after, status, agent.stderr)
        assert agent.stderr == "" or "Traceback" not in agent.stderr, agent.stderr
        if registered:
            assert agent.events[-1]["event"] == "released", agent.events
        ended.append((after, agent, agent.ended_at - told))

    moments = [points.uniform(0, 0.15) for _ in range(40)] + [points.uniform(0.15, 0.6) for _ in range(10)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(one, number, after) for number, after in enumerate(moments)]:
            done.result()
    assert table.read() == {}, "no key is left"
    # A grant that was under way may be late; nothing hangs on it. All others are revoked, with 60 s still to run.
    left = cluster.leases()
    assert len(left) <= 2, left
    slowest = max(seconds for _, _, seconds in ended)
    registered = sum(bool(agent.events) for _, agent, _ in ended)
    logger.info("exit after SIGTERM: slowest %.2f s; %d of 50 were registered", slowest, registered)
    assert slowest < 2
    assert 5 <= registered <= 49, "the points lie on both sides of the claim"


@pytest.mark.fault("A37")
@pytest.mark.parametrize("method", ["LeaseGrant", "Range", "Txn"])
def test_sigterm_while_a_request_of_the_claim_is_under_way(
    etcd_factory: Callable[..., EtcdCluster],
    etcd_proxy_factory: Callable[[str], EtcdProxy],
    prefix: str,
    zygote: Zygote,
    method: str,
) -> None:
    cluster = etcd_factory()
    proxy = etcd_proxy_factory(cluster.members[0].client_url)
    table = SlotTable(cluster.members[0].client_url, prefix)
    table.set_desired(1)
    hold = proxy.hold(method)
    agent = zygote.start(proxy.endpoint, 8000, prefix=prefix, ttl=60)
    hold.wait_held()
    told = time.monotonic()
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(10) == 0
    assert agent.ended_at - told < 2
    assert [event["event"] for event in agent.events if event["event"] == "registered"] == []
    hold.release()  # arrives after the process has gone
    hold.wait_delivered()
    never(table.read, 0.3, "a slot claimed for a process that has ended")


@pytest.mark.fault("A37")
@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("cut", ["refuse", "black_hole"])
def test_sigterm_with_the_store_down(
    etcd: SharedEtcd,
    proxy: TcpProxy,
    prefix: str,
    zygote: Zygote,
    table: SlotTable,
    registered: bool,
    cut: str,
) -> None:
    dial_timeout = 1.0
    table.set_desired(1)
    if not registered:
        getattr(proxy, cut)()
    # A lease that outlasts the test: what is seen is the process, not the end of its lease.
    agent = zygote.start(proxy.endpoint, 8100, f"--dial-timeout={dial_timeout}", prefix=prefix, ttl=30)
    if registered:
        eventually(lambda: agent.index == 0, 10, "registered")
        getattr(proxy, cut)()
    else:
        time.sleep(0.5)
    told = time.monotonic()
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(10) == 0
    assert agent.ended_at - told < dial_timeout + 1
    if registered:
        table.revoke(table.read()[0].lease)  # for the next tests on this server


# -- killed --------------------------------------------------------------------------------------------------------


@pytest.mark.fault("A38")
def test_slots_of_killed_agents_come_free_in_time(
    etcd: SharedEtcd, prefix: str, zygote: Zygote, table: SlotTable, room: Room
) -> None:
    ttl, agents, victims = 2, 16, 12
    table.set_desired(agents)
    running = [zygote.start(etcd.client_url, 8200 + n, prefix=prefix, ttl=ttl) for n in range(agents)]
    eventually(lambda: len(table.read()) == agents, 20, "all registered")
    time.sleep(0.5)
    before = {slot.address: slot for slot in table.read().values()}
    killed: dict[str, float] = {}
    points = random.Random(38)
    for agent in running[:victims]:
        agent.send_signal(signal.SIGKILL)
        assert agent.wait(5) == -signal.SIGKILL
        killed[agent.address] = agent.ended_at
        time.sleep(points.uniform(0, 0.1))
    freed: dict[str, float] = {}

    def watch() -> bool:
        present = {slot.address for slot in table.read().values()}
        for address in killed.keys() - present - freed.keys():
            freed[address] = time.monotonic() - killed[address]
        return len(freed) == victims

    eventually(watch, 2 * ttl + 1 + 2, "the slots of the dead are free", interval=0.01)
    times = sorted(freed.values())
    logger.info("slot free after SIGKILL with T = %d s: %s", ttl, [round(t, 2) for t in times])
    assert statistics.median(times) < ttl + 1.5
    assert times[-1] < 2 * ttl + 3
    # A keepalive was answered at most T/3 before the kill: an earlier end would be a lease that was not kept.
    assert times[0] > ttl - ttl / 3 - 0.3
    survivors = {agent.address for agent in running[victims:]}
    assert {a: s for a, s in before.items() if a in survivors} == {s.address: s for s in table.read().values()}
    assert all(not agent.ended.is_set() for agent in running[victims:])
    assert all([e["event"] for e in agent.events] == ["registered"] for agent in running[victims:])
    for agent in running[victims:]:
        agent.send_signal(signal.SIGTERM)
    assert [agent.wait(5) for agent in running[victims:]] == [0] * (agents - victims)


@pytest.mark.fault("A27")
def test_killed_process_restarts_into_its_own_slot(
    etcd: SharedEtcd, prefix: str, zygote: Zygote, table: SlotTable
) -> None:
    table.set_desired(3)
    agents = [zygote.start(etcd.client_url, 8300 + n, prefix=prefix, ttl=30) for n in range(3)]
    eventually(lambda: len(table.read()) == 3, 10, "all registered")
    for agent in agents:
        old = next(slot for slot in table.read().values() if slot.address == agent.address)
        agent.send_signal(signal.SIGKILL)
        agent.wait(5)
        begun = time.monotonic()
        again = zygote.start(etcd.client_url, int(agent.address.split(":")[1]), prefix=prefix, ttl=30)
        taken = eventually(partial(_newer, table, old), 2, "the slot is put anew")
        assert time.monotonic() - begun <= 1
        assert taken is not None
        assert taken.address == old.address
        assert taken.lease != old.lease
        eventually(partial(_lease_gone, table, old), 1, "the old lease is revoked")
        again.send_signal(signal.SIGTERM)
        assert again.wait(5) == 0


def _newer(table: SlotTable, old: StoredSlot) -> StoredSlot | None:
    present = table.read()[old.index]
    return present if present.epoch > old.epoch else None


def _lease_gone(table: SlotTable, old: StoredSlot) -> bool:
    return not table.lease_lives(old.lease)


# -- PID 1 ---------------------------------------------------------------------------------------------------------


def _no_pid_namespace() -> str | None:
    if os.geteuid() != 0:
        return "a PID namespace needs root here"
    if shutil.which("unshare") is None:
        return "no unshare (util-linux) on this machine"
    tried = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True, timeout=20
    )
    return f"unshare does not work here: {tried.stderr.strip()}" if tried.returncode else None


def _only_child(pid: int) -> int:
    return int(eventually(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().split(), 5)[0])


@pytest.mark.fault("A49")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_agent_as_pid_1(etcd: SharedEtcd, prefix: str, table: SlotTable, number: signal.Signals) -> None:
    if (reason := _no_pid_namespace()) is not None:
        pytest.skip(reason)
    wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with AgentProcess(etcd.endpoints, 7000, num_pservers=1, ttl=30, prefix=prefix, wrapper=wrapper) as agent:
        agent.wait_event("registered")
        inner = _only_child(agent.pid)
        assert Path(f"/proc/{inner}/status").read_text().split("NSpid:")[1].split("\n")[0].split()[-1] == "1"
        told = time.monotonic()
        os.kill(inner, number)
        assert agent.wait(10) == 0
        assert time.monotonic() - told < 2
        assert [event["event"] for event in agent.events] == ["registered", "released"]
        assert table.read() == {}


@pytest.mark.fault("A49")
def test_orphans_do_not_pile_up_under_an_agent_that_is_pid_1(etcd: SharedEtcd, prefix: str) -> None:
    """Whoever looks into the container (``kubectl exec``) leaves orphans to PID 1."""
    if (reason := _no_pid_namespace()) is not None:
        pytest.skip(reason)
    if shutil.which("nsenter") is None:
        pytest.skip("no nsenter (util-linux) on this machine")
    wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with AgentProcess(etcd.endpoints, 7000, num_pservers=1, ttl=30, prefix=prefix, wrapper=wrapper) as agent:
        agent.wait_event("registered")
        inner = _only_child(agent.pid)
        orphan = "import os\nif os.fork() == 0:\n    import time; time.sleep(0.1)"
        for _ in range(3):
            inside = ["nsenter", f"--target={inner}", "--pid", "--mount"]
            subprocess.run([*inside, sys.executable, "-c", orphan], check=True, timeout=20)
        children = Path(f"/proc/{inner}/task/{inner}/children")
        eventually(lambda: children.read_text().split() == [], 3, "the orphans are reaped")
        os.kill(inner, signal.SIGTERM)
        assert agent.wait(10) == 0
