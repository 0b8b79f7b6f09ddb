"""``edl-agent register`` as a process: events, signals, losses, exit statuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.bench.agent_process import AgentProcess
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually
from tests.cli.command import edl_agent, environment
from tests.conftest import SharedEtcd

Agents = Callable[..., AgentProcess]
FIELDS = {"event", "index", "epoch", "lease", "address", "time", "monotonic", "seen"}


def stored(etcd: SharedEtcd, prefix: str, index: int = 0) -> str:
    return etcd.etcdctl("get", f"{prefix}/ps/{index}", "--print-value-only").strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_holds_until_a_signal(etcd: SharedEtcd, prefix: str, agent_factory: Agents, number: signal.Signals) -> None:
    agent = agent_factory(etcd.client_url, 7164, prefix=prefix, ttl=30)
    event = agent.wait_event("registered")
    assert set(event) == FIELDS
    assert (event["index"], event["address"]) == (0, "127.0.0.1:7164")
    assert event["lease"] == f"{int(event['lease'], 16):x}"
    assert event["lease"] in etcd.etcdctl("lease", "list")
    assert event["time"] == pytest.approx(time.time(), abs=5)
    assert event["monotonic"] == pytest.approx(time.monotonic(), abs=5)
    assert stored(etcd, prefix) == "127.0.0.1:7164"
    agent.send_signal(number)
    assert agent.wait() == 0
    assert stored(etcd, prefix) == ""
    released = agent.wait_event("released")
    assert set(released) == FIELDS
    for name in ("index", "epoch", "lease", "address"):
        assert released[name] == event[name]
    assert [one["event"] for one in agent.events] == ["registered", "released"]
    assert agent.noise == []
    assert "Traceback" not in agent.stderr


def test_text_is_for_people(etcd: SharedEtcd, prefix: str) -> None:
    arguments = ["--port", "7164", "--host", "127.0.0.1", "--num-pservers", "1", "--ttl", "5", "--prefix", prefix]
    with subprocess.Popen(
        [sys.executable, "-m", "edl_agent", "register", "--endpoints", etcd.client_url, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        rest, errors = process.communicate(timeout=20)
    assert "registered: pserver 0 at 127.0.0.1:7164 (epoch" in line
    assert "released: pserver 0" in rest
    assert (process.returncode, errors) == (0, "")


def test_a_signal_while_it_waits(etcd: SharedEtcd, prefix: str, agent_factory: Agents) -> None:
    agent_factory(etcd.client_url, 7164, prefix=prefix, ttl=30).wait_event("registered")
    second = agent_factory(etcd.client_url, 7165, prefix=prefix, ttl=30)
    eventually(lambda: "Waiting for a free slot" in second.stderr, 15.0, "the line on waiting")
    assert second.terminate() == 0
    assert [one["event"] for one in second.events] == ["released"]
    assert second.events[0]["index"] is None


def test_a_signal_while_etcd_is_away(agent_factory: Agents) -> None:
    agent = agent_factory("http://127.0.0.1:1", 7164)
    eventually(lambda: "Waiting for etcd" in agent.stderr, 15.0, "the line on waiting")
    begin = time.monotonic()
    assert agent.terminate() == 0
    assert time.monotonic() - begin < 4.0  # nothing is held, so nothing is worth the whole dial timeout of 5 s


def test_timeout_and_no_wait(etcd: SharedEtcd, prefix: str, agent_factory: Agents) -> None:
    here = ["--endpoints", etcd.client_url, "--prefix", prefix, "--host", "127.0.0.1"]
    unset = edl_agent("register", "--port", "7165", *here, "--timeout", "0.5")
    assert unset.status == 3
    assert "--num-pservers" in unset.stderr
    agent_factory(etcd.client_url, 7164, prefix=prefix).wait_event("registered")
    full = edl_agent("register", "--port", "7165", *here, "--timeout", "0.5")
    assert full.status == 3
    assert "edl-agent slots" in full.stderr
    assert edl_agent("register", "--port", "7165", *here, "--no-wait").status == 1
    etcd.etcdctl("put", f"{prefix}/ps_desired", "many")
    refused = edl_agent("register", "--port", "7165", *here)
    assert refused.status == 5
    assert "edl-agent put /ps_desired" in refused.stderr


def test_an_outage_and_a_loss_are_told_in_order(
    etcd: SharedEtcd, prefix: str, etcd_proxy: EtcdProxy, agent_factory: Agents
) -> None:
    agent = agent_factory(etcd_proxy.endpoint, 7164, prefix=prefix, ttl=5)
    first = agent.wait_event("registered")
    outage = etcd_proxy.fail("LeaseKeepAlive", times=None)
    suspended = agent.wait_event("suspended")
    outage.remove()
    connected = agent.wait_event("connected")
    for event in (suspended, connected):
        assert (event["index"], event["epoch"], event["lease"]) == (0, first["epoch"], first["lease"])
    etcd.etcdctl("lease", "revoke", first["lease"])
    lost = agent.wait_event("lost")
    assert set(lost) == {*FIELDS, "reason"}
    assert (lost["index"], lost["epoch"], lost["lease"]) == (0, first["epoch"], first["lease"])
    again = agent.wait_event("registered", nth=2)
    assert again["epoch"] > first["epoch"]
    assert again["lease"] != first["lease"]
    assert agent.terminate() == 0
    assert [one["event"] for one in agent.events] == [
        *("registered", "suspended", "connected", "lost", "registered", "released")
    ]
    assert [one["monotonic"] for one in agent.events] == sorted(one["monotonic"] for one in agent.events)


def test_reclaim_never_ends_with_4(etcd: SharedEtcd, prefix: str, agent_factory: Agents) -> None:
    agent = agent_factory(etcd.client_url, 7164, prefix=prefix, arguments=["--reclaim", "never"])
    agent.wait_event("registered")
    etcd.etcdctl("del", f"{prefix}/ps/0")
    assert agent.wait() == 4
    assert [one["event"] for one in agent.events] == ["registered", "lost"]
    assert "deleted" in agent.events[-1]["reason"]
    assert "Error: " in agent.stderr


def test_a_takeover_ends_with_4(etcd: SharedEtcd, prefix: str, agent_factory: Agents) -> None:
    older = agent_factory(etcd.client_url, 7164, prefix=prefix)
    first = older.wait_event("registered")
    newer = agent_factory(etcd.client_url, 7164, prefix=prefix)
    assert newer.wait_event("registered")["epoch"] > first["epoch"]
    assert older.wait() == 4
    assert [one["event"] for one in older.events] == ["registered", "lost"]
    assert "newer process" in older.events[-1]["reason"]
    assert "--host or --port" in older.stderr
    assert newer.running


def test_a_twin_that_came_during_an_outage_ends_it_with_4(
    etcd: SharedEtcd, prefix: str, proxy: TcpProxy, agent_factory: Agents
) -> None:
    older = agent_factory(proxy.endpoint, 7164, prefix=prefix, ttl=2)
    older.wait_event("registered")
    proxy.refuse()
    older.wait_event("lost")
    newer = agent_factory(etcd.client_url, 7164, prefix=prefix, ttl=2)
    newer.wait_event("registered")
    proxy.pass_all()
    assert older.wait() == 4
    assert [one["event"] for one in older.events][-1] == "lost"
    assert newer.running


def test_a_reader_that_went_away_releases_the_slot(etcd: SharedEtcd, prefix: str) -> None:
    arguments = ["--port", "7164", "--num-pservers", "1", "--ttl", "60", "--prefix", prefix, "-o", "json"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "edl_agent", "register", "--endpoints", etcd.client_url, *arguments],
            env=environment(),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    finally:
        os.close(writer)
    assert done.returncode == 7
    assert "the slot was released" in done.stderr
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert stored(etcd, prefix) == ""


def register_into(etcd: SharedEtcd, prefix: str, target: str) -> subprocess.CompletedProcess[str]:
    """Run it with what a shell makes of ``target``, a redirection of stdout."""
    command = [sys.executable, "-m", "edl_agent", "register", "--endpoints", etcd.client_url, "--port", "7164"]
    more = ["--num-pservers", "1", "--ttl", "60", "--prefix", prefix]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {target}', "sh", *command, *more],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("target", [">&-", ">/dev/full"])
def test_a_stdout_that_cannot_be_written_is_refused_before_anything_is_claimed(
    etcd: SharedEtcd, prefix: str, target: str
) -> None:
    done = register_into(etcd, prefix, target)
    assert done.returncode == 7
    assert done.stderr.startswith("Error: stdout cannot be written: ")
    assert "Traceback" not in done.stderr
    assert etcd.etcdctl("get", "--prefix", prefix) == ""


def test_a_reader_that_goes_away_later_releases_the_slot_and_is_told(etcd: SharedEtcd, prefix: str) -> None:
    arguments = ["--port", "7164", "--num-pservers", "1", "--ttl", "60", "--prefix", prefix]
    with subprocess.Popen(
        [sys.executable, "-m", "edl_agent", "register", "--endpoints", etcd.client_url, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "registered" in process.stdout.readline()
        assert stored(etcd, prefix) != ""
        process.stdout.close()
        told = process.stderr.read()
        assert process.wait(20) == 7
    assert "nobody reads stdout any more" in told
    assert "the slot was released" in told
    assert "Traceback" not in told
    assert stored(etcd, prefix) == ""
