"""`edl-controller run` as a process, on a real etcd as the cluster."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edl_controller.api import submission
from edl_controller.api.kinds import LEASES, TRAINING_JOBS
from edl_controller.cluster.local import LocalCluster
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd
from tests.program.conftest import Run

ROOT = Path(__file__).parents[2]
FAST = ("--lease-duration", "6", "--lease-renew-deadline", "4", "--lease-retry", "0.5")


@pytest.fixture
def cluster(etcd: SharedEtcd, prefix: str) -> Iterator[LocalCluster]:
    with LocalCluster(etcd.client_url, prefix=prefix) as made:
        yield made


def _listening(pid: int) -> set[tuple[str, int]]:
    """The addresses on which a process listens."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes |= set(re.findall(r"socket:\[(\d+)\]", str(link.readlink())))
        except FileNotFoundError:
            continue
    found = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and parts[9] in inodes:
                host, _, port = parts[1].partition(":")
                raw = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
                found.add((socket.inet_ntop(family, raw), int(port, 16)))
    return found


def test_it_starts_leads_and_ends_with_the_lease_released_last(run: Run, cluster: LocalCluster) -> None:
    program = run()
    program.wait_ready().wait_leading()
    lease = cluster.get(LEASES, "default", "edl-controller")
    assert lease.spec.holder_identity
    messages = [line["msg"] for line in program.lines]
    order = ["Listening", "The controller starts", "Competing for the lead", "leads by the lease"]
    places = [next(i for i, text in enumerate(messages) if part in text) for part in order]
    assert places == sorted(places), messages
    assert program.terminate() == 0
    tail = [line["msg"] for line in program.lines][-4:]
    assert [bool(re.search(p, t)) for p, t in zip(["signal", "has ended", "released", "ends"], tail, strict=True)] == (
        [True] * 4
    ), tail
    assert cluster.get(LEASES, "default", "edl-controller").spec.holder_identity in ("", None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_is_no_other_end(run: Run, number: signal.Signals) -> None:
    program = run("--no-leader-elect")
    program.wait_ready()
    for _ in range(3):
        program.send(number)
    assert program.wait() == 0


def test_a_signal_before_the_start_is_heard(run: Run) -> None:
    program = run()
    program.wait_logged("^Listening$")
    program.send(signal.SIGTERM)
    assert program.wait() == 0


@pytest.mark.security(8)
def test_it_listens_where_it_was_told_and_nowhere_else(run: Run) -> None:
    program = run("--metrics-bind", "127.0.0.1:0", "--no-leader-elect")
    program.wait_ready()
    ports = {("127.0.0.1", int(url.rpartition(":")[2])) for url in program.urls}
    assert len(ports) == 2
    assert _listening(program.pid) == ports


@pytest.mark.security(8)
def test_metrics_on_an_address_of_their_own_are_there_only(run: Run) -> None:
    program = run("--metrics-bind", "127.0.0.1:0", "--no-leader-elect")
    program.wait_logged("edl-controller .* starts")
    probes, metrics = program.urls
    assert (program.get("/metrics", url=probes).status, program.get("/healthz", url=metrics).status) == (404, 404)
    assert (program.get("/metrics", url=metrics).status, program.get("/healthz", url=probes).status) == (200, 200)


def test_the_metrics_can_be_read_and_name_no_job(run: Run, cluster: LocalCluster) -> None:
    program = run()
    program.wait_ready().wait_leading()
    cluster.create(_job("canary-job"))
    eventually(lambda: program.metric("controller_runtime_reconcile_time_seconds_count"), 30, "a pass")
    page = program.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(page.text)}
    assert "canary-job" not in page.text
    assert {
        "workqueue_depth", "workqueue_adds", "workqueue_queue_duration_seconds", "workqueue_work_duration_seconds",
        "workqueue_retries", "workqueue_longest_running_processor_seconds", "workqueue_unfinished_work_seconds",
        "controller_runtime_reconcile", "controller_runtime_reconcile_errors",
        "controller_runtime_reconcile_time_seconds", "edl_leader", "edl_leader_losses", "edl_build_info",
        "edl_slots_held", "edl_slots_desired", "edl_agent_state_age_seconds", "edl_watch_failures",
    } <= set(families)  # fmt: skip
    assert all(family.documentation for family in families.values())
    documented = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/controller.md").read_text(), re.M))
    shown = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in families.values()
        if not family.name.startswith("process_")
    }
    assert shown == documented, "run `make reference`"
    words = re.findall(
        r"\b((?:edl|workqueue|controller_runtime)_\w*[a-z])\b", (ROOT / "docs/operations.md").read_text()
    )
    assert set(words) - {"edl_agent", "edl_controller", "controller_runtime_reconcile"} <= shown
    assert program.metric("edl_jobs", phase="creating") == 1
    assert program.metric("edl_cache_objects", resource="trainingjobs") == 1
    assert program.terminate() == 0


@pytest.mark.fault("K42")
def test_another_replica_waits_ready_and_leads_soon_after_the_end_of_the_first(run: Run, cluster: LocalCluster) -> None:
    first = run()
    first.wait_ready().wait_leading()
    second = run()
    second.wait_ready()
    second.wait_logged("Competing for the lead")
    assert not second.leads
    assert second.metric("workqueue_depth") == 0
    for number in range(10):
        cluster.create(_job(f"job-{number}"))
    first.send(signal.SIGTERM)
    assert first.wait() == 0
    # The standby looks every 2 to 2.4 s; of a Lease that is not released it would take 15 s.
    ended = first.lines[-1]["seen"]
    led = second.wait_logged("leads by the lease")["seen"]
    assert led - ended < 10.0, "3 s, and room for a machine that is busy"
    phases = eventually(
        lambda: all(one.status.phase for one in cluster.list(TRAINING_JOBS).items) and "all", 40, "jobs are looked at"
    )
    assert phases == "all"
    assert second.terminate() == 0


@pytest.mark.fault("K19")
def test_who_loses_the_lead_ends_with_a_status_of_its_own_and_writes_nothing_more(
    run: Run, cluster: LocalCluster
) -> None:
    program = run(*FAST)
    program.wait_ready().wait_leading()
    program.send(signal.SIGSTOP)
    other = run(*FAST)
    other.wait_ready().wait_leading()
    cluster.create(_job("later"))
    eventually(lambda: cluster.get(TRAINING_JOBS, "default", "later").status.phase, 30, "the other one works")
    before = cluster.list(TRAINING_JOBS).resource_version
    program.send(signal.SIGCONT)
    assert program.wait() == 3
    assert program.logged("leads no more", level="error")
    assert other.running
    assert other.leads
    assert before
    assert not program.logged("^Patched|^Created")


def test_a_cluster_that_is_away_at_the_start_is_waited_for(run: Run, etcd: SharedEtcd) -> None:
    with TcpProxy(etcd.client_url) as proxy:
        proxy.refuse()
        program = run("--no-leader-elect", endpoint=proxy.endpoint)
        eventually(lambda: "trainingjobs: Unavailable" in program.get("/readyz").text, 30, "the reason is said")
        assert program.get("/readyz").status == 503
        never(lambda: program.get("/healthz").status != 200, 2, "it is healthy", interval=0.2)
        proxy.pass_all()
        program.wait_ready()
        assert program.terminate() == 0


def test_the_etcd_of_the_jobs_may_be_away(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    program = run("--no-leader-elect", "--etcd-endpoints", f"http://127.0.0.1:{nobody}")
    program.wait_ready()
    assert program.get("/healthz").status == 200
    assert program.terminate() == 0


@pytest.mark.security(21)
def test_logs_are_json_with_the_time_in_utc_and_no_secret(run: Run, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("canary-5")
    program = run(
        "--log-level", "debug", "--etcd-endpoints", "http://127.0.0.1:9", "--etcd-user", "u",
        "--etcd-password-file", str(secret), "--etcd-unsafe-plaintext-password", "--no-leader-elect",
    )  # fmt: skip
    program.wait_ready()
    pages = "".join(program.get(path).text for path in ("/healthz", "/readyz", "/metrics"))
    assert program.terminate() == 0
    assert not [line for line in program.lines if line["level"] == "raw"], "lines that are no JSON"
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in program.lines)
    assert "canary-5" not in program.output + pages


def test_a_worker_that_dies_ends_the_program_and_gives_the_lead_away(
    run: Run, cluster: LocalCluster, tmp_path: Path
) -> None:
    """A fault that no worker survives comes from a module that Python loads at its start."""
    (tmp_path / "sitecustomize.py").write_text(
        "from edl_controller.controller import Controller\n"
        "def die(self, key): raise SystemExit(5)\n"
        "Controller._reconcile = die\n"
    )
    program = run(environment={"PYTHONPATH": str(tmp_path)})
    program.wait_ready().wait_leading()
    cluster.create(_job("poison"))
    assert program.wait() == 1
    assert program.logged("a worker of trainingjobs has ended by itself", level="critical")
    assert cluster.get(LEASES, "default", "edl-controller").spec.holder_identity in ("", None)


def _job(name: str) -> Any:
    return submission.read(JOB.replace("NAME", name))[0]


JOB = """\
apiVersion: paddlepaddle.org/v1
kind: TrainingJob
metadata: {name: NAME, namespace: default}
spec:
  image: example.com/train:1
  fault_tolerant: true
  trainer:
    entrypoint: "true"
    min-instance: 1
    max-instance: 1
    resources: {requests: {cpu: 10m, memory: 1Mi}, limits: {cpu: 10m, memory: 1Mi}}
  pserver:
    min-instance: 1
    max-instance: 1
    resources: {requests: {cpu: 10m, memory: 1Mi}, limits: {cpu: 10m, memory: 1Mi}}
"""
