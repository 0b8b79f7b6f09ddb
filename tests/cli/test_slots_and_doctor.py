"""``edl-agent slots`` and ``edl-agent doctor`` against real etcd servers, healthy and not."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.bench.agent_process import AgentProcess
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.waiting import eventually
from tests.cli.command import Outcome, edl_agent, environment
from tests.conftest import SharedEtcd

Agents = Callable[..., AgentProcess]


@pytest.fixture
def here(etcd: SharedEtcd, prefix: str) -> dict[str, str]:
    return {"EDL_ETCD_ENDPOINTS": etcd.client_url, "EDL_PREFIX": prefix}


def found(report: Outcome, check: str, status: str) -> list[dict[str, Any]]:
    return [one for one in report.json["checks"] if (one["check"], one["status"]) == (check, status)]


def test_slots(etcd: SharedEtcd, prefix: str, here: dict[str, str], agent_factory: Agents) -> None:
    empty = edl_agent("slots", "-o", "json", env=here)
    assert (empty.status, empty.json) == (0, {"desired": None, "slots": [], "free": []})
    event = agent_factory(etcd.client_url, 7164, prefix=prefix, num_pservers=3, ttl=20).wait_event("registered")
    etcd.etcdctl("put", f"{prefix}/ps/2", "10.0.0.9:1\x1b[2J")
    shown = edl_agent("slots", "-o", "json", env=here)
    assert shown.status == 0
    assert shown.json["desired"] == 3
    assert shown.json["free"] == [1]
    held, stuck = shown.json["slots"]
    left = held.pop("seconds_left")
    assert 5 <= left <= 20
    assert held == {
        "index": 0,
        "address": "127.0.0.1:7164",
        "epoch": event["epoch"],
        "lease": event["lease"],
        "stuck": False,
    }
    assert (stuck["index"], stuck["lease"], stuck["seconds_left"], stuck["stuck"]) == (2, None, None, True)
    text = edl_agent("slots", env=here).stdout
    assert "desired: 3" in text
    assert event["lease"] in text
    assert "edl-agent delete /ps/2" in text
    assert "\x1b" not in text  # neither colours nor what somebody put into etcd
    etcd.etcdctl("put", f"{prefix}/ps_desired", "three")
    broken = edl_agent("slots", env=here)
    assert broken.status == 1
    assert "three" in broken.stdout


def test_doctor_finds_nothing_wrong(etcd: SharedEtcd, prefix: str, here: dict[str, str], agent_factory: Agents) -> None:
    agent_factory(etcd.client_url, 7164, prefix=prefix, num_pservers=2, ttl=20).wait_event("registered")
    leases, keys = etcd.etcdctl("lease", "list"), etcd.etcdctl("get", prefix, "--prefix")
    report = edl_agent("doctor", "-o", "json", env=here)
    assert report.status == 0, report.stdout
    assert report.json["healthy"] is True
    (member,) = report.json["members"]
    assert member["leader"] == member["member_id"]
    assert member["version"].startswith("3.")
    for check in ("endpoint", "cluster", "auth", "desired", "slots", "rights", "lease", "alarms"):
        assert found(report, check, "ok"), check
    assert "1 held, 1 free (1)" in found(report, "slots", "ok")[0]["text"]
    # "found N leases", then their ids; those of others may end meanwhile.
    assert set(etcd.etcdctl("lease", "list").split()[3:]) <= set(leases.split()[3:])
    assert etcd.etcdctl("get", prefix, "--prefix") == keys
    text = edl_agent("doctor", env=here)
    assert text.status == 0
    assert text.stdout.splitlines()[-1] == "healthy"


def test_doctor_names_what_is_wrong_with_the_job(
    etcd: SharedEtcd, prefix: str, here: dict[str, str], agent_factory: Agents
) -> None:
    absent = edl_agent("doctor", "-o", "json", env=here)
    assert absent.status == 0
    assert found(absent, "desired", "warning")
    etcd.etcdctl("put", f"{prefix}/ps_desired", "1")
    etcd.etcdctl("put", f"{prefix}/ps/0", "10.0.0.9:1")
    etcd.etcdctl("put", f"{prefix}/ps/5", "10.0.0.9:1")
    report = edl_agent("doctor", "-o", "json", "--ttl", "0.5", env=here)
    assert report.status == 1
    assert report.json["healthy"] is False
    problems = found(report, "slots", "problem")
    assert any("slot 0" in one["text"] and "edl-agent delete /ps/0" in one["next"] for one in problems)
    assert any("on 2 slots" in one["text"] for one in problems)
    assert "0 free" in found(report, "slots", "note")[0]["text"]
    assert found(report, "lease", "warning")  # etcd grants more than half a second
    etcd.etcdctl("put", f"{prefix}/ps_desired", "0")
    assert found(edl_agent("doctor", "-o", "json", env=here), "desired", "problem")
    assert all(one["next"] for one in report.json["checks"] if one["status"] in ("warning", "problem"))


def test_doctor_and_members(etcd_factory: Callable[..., EtcdCluster]) -> None:
    cluster = etcd_factory(3)
    where = ["--endpoints", cluster.endpoint_string, "-o", "json", "--timeout", "2"]
    whole = edl_agent("doctor", *where)
    assert whole.status == 0, whole.stdout
    assert len(whole.json["members"]) == 3
    assert len({member["leader"] for member in whole.json["members"]}) == 1
    first, second = (cluster.members[index] for index in cluster.followers())
    first.kill()
    hurt = edl_agent("doctor", *where)
    assert hurt.status == 1
    (problem,) = [one for one in hurt.json["checks"] if one["status"] == "problem"]
    assert "not reached" in problem["text"]
    assert found(hurt, "lease", "ok")
    second.kill()
    (alone,) = [member for member in cluster.members if member.running]
    eventually(lambda: int(alone.status().get("leader", 0)) == 0, 15.0, "the last member to see that it is alone")
    last = edl_agent("doctor", *where, "--timeout", "0.5")
    assert last.status == 1
    assert any("knows no leader" in one["text"] for one in found(last, "endpoint", "problem"))
    assert found(last, "lease", "problem")


def test_doctor_sees_a_full_store(etcd_factory: Callable[..., EtcdCluster]) -> None:
    cluster = etcd_factory(quota=4 * 2**20)
    cluster.fill_quota()
    report = edl_agent("doctor", "-o", "json", "--endpoints", cluster.endpoint_string)
    assert report.status == 1
    assert found(report, "alarms", "problem")
    assert found(report, "rights", "problem")
    refused = edl_agent("put", "/k", "v", "--endpoints", cluster.endpoint_string)
    assert refused.status == 5
    assert "compact" in refused.stderr


def test_doctor_and_compaction(etcd_factory: Callable[..., EtcdCluster]) -> None:
    cluster = etcd_factory()
    where = ["--endpoints", cluster.endpoint_string, "-o", "json"]
    (note,) = found(edl_agent("doctor", *where), "compaction", "note")
    assert "--auto-compaction-retention" in note["next"]
    for value in "abc":
        cluster.etcdctl("put", "/k", value)
    cluster.etcdctl("compact", "3")
    assert found(edl_agent("doctor", *where), "compaction", "ok")


def test_doctor_of_two_clusters(etcd: SharedEtcd, etcd_factory: Callable[..., EtcdCluster]) -> None:
    other = etcd_factory()
    report = edl_agent("doctor", "-o", "json", "--endpoints", f"{etcd.client_url},{other.endpoint_string}")
    assert report.status == 1
    assert "different clusters" in found(report, "cluster", "problem")[0]["text"]


def test_doctor_without_etcd() -> None:
    report = edl_agent("doctor", "-o", "json", "--endpoints", "http://127.0.0.1:1", "--timeout", "0.5")
    assert report.status == 1
    assert found(report, "endpoint", "problem")[0]["next"]
    assert report.json["members"] == []


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_only_on_a_terminal_that_wants_them(more: dict[str, str], coloured: bool) -> None:
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "edl_agent", "doctor", "--endpoints", "http://127.0.0.1:1", "--timeout", "0.3"],
        env=environment({"TERM": "xterm", **more}),
        stdin=subprocess.DEVNULL,
        stdout=end,
        stderr=subprocess.DEVNULL,
    )
    os.close(end)
    shown = b""
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:  # how Linux says that nobody holds the other end any more
        pass
    os.close(terminal)
    assert process.wait(20) == 1
    assert b"problem" in shown
    assert (b"\x1b[" in shown) is coloured
