"""Agents and their etcd as the controller sees them while it works on a real API server (rows K34, K35, report M54).

Kubernetes and the job's etcd are two sources; the loss of one never stops what the other allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from edl_agent.etcd.identity import TlsFiles
from edl_controller.agent_store import EtcdAccess
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.names import etcd_prefix
from tests.bench.agent_process import AgentProcess
from tests.bench.certificates import CertificateFolder
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.kube_http import Json
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd
from tests.kube.controller_bench import DEADLINE, ControllerBench

LAUNCHER = {"mode": "Launcher"}
OUTSIDE: Json = {"agent": {"mode": "Classic"}, "etcd": {"mode": "External"}}
"""The start scripts of the original with the controller's etcd: trainers report nothing, so scaling goes by pods."""
KNOWN = "AgentStateKnown"


def prefix_of(job: Json) -> str:
    meta = job["metadata"]
    return etcd_prefix(meta["namespace"], meta["name"], meta["uid"])


def agents(bench: ControllerBench) -> Json:
    found: Json = bench.job("tj")["status"].get("agents", {})
    return found


def said(bench: ControllerBench, kind: str) -> str:
    conditions = bench.job("tj")["status"].get("conditions", [])
    return next((str(one.get("message", "")) for one in conditions if one["type"] == kind), "")


def wait_known(bench: ControllerBench, status: str) -> None:
    eventually(lambda: bench.condition("tj", KNOWN)[0] == status, DEADLINE, lambda: str(bench.job("tj")["status"]))


@pytest.mark.fault("K34")
def test_without_the_agents_etcd_the_work_in_kubernetes_goes_on(
    bench: ControllerBench, etcd: SharedEtcd, tcp_proxy_factory: Callable[[str], TcpProxy]
) -> None:
    link = tcp_proxy_factory(etcd.client_url)
    life = bench.start(settings=JobSettings(etcd_endpoints=(link.endpoint,), agents_stale=3.0))
    bench.create("tj", trainers=1, most=1, **OUTSIDE)
    bench.wait_phase("tj", "running")
    wait_known(bench, "True")
    link.black_hole()
    wait_known(bench, "False")
    assert bench.condition("tj", KNOWN) == ("False", "Stale")
    assert re.search(r"last seen 20\d\d-", said(bench, KNOWN)), "it says how old it is"
    # What needs Kubernetes only goes on; what is decided by the agents waits for them.
    bench.create("held", trainers=1, most=3, agent=LAUNCHER)
    bench.wait_phase("held", "running")
    bench.scale("tj", max=3)
    bench.wait_trainers("tj", 3)
    bench.edit("tj", {"pserver": {"resources": {"requests": {"cpu": "20m"}}}})

    def pserver_cpu() -> str:
        containers = bench.replica_set("tj")["spec"]["template"]["spec"]["containers"]
        return str(containers[0]["resources"]["requests"]["cpu"])

    eventually(lambda: pserver_cpu() == "20m", DEADLINE)
    bench.create("new", trainers=1, most=1, **OUTSIDE)
    bench.wait_phase("new", "running")
    assert life.alive
    bench.wait_rest(quiet=2.0)
    assert bench.trainer("held")["spec"]["parallelism"] == 1, "nothing is known of its agents"
    link.pass_all()
    wait_known(bench, "True")
    bench.wait_rest()
    bench.assert_invariants()


@pytest.mark.fault("K35")
def test_slots_and_counts_that_somebody_edited_are_reported_and_mended(
    bench: ControllerBench, etcdctl: Callable[..., str]
) -> None:

    def lease_of(seconds: int) -> str:
        return str(re.findall(r"lease ([0-9a-f]+) granted", etcdctl("lease", "grant", str(seconds)))[0])

    bench.start(autoscale=False)
    job = bench.create("tj", trainers=1, most=1, pservers=2, agent=LAUNCHER)
    bench.wait_phase("tj", "running")
    prefix = prefix_of(job)
    wait_known(bench, "True")
    # Pods without slots.
    eventually(lambda: agents(bench).get("lostPservers") == [0, 1], DEADLINE, lambda: str(bench.job("tj")["status"]))
    # A slot without a pod ends with its lease.
    lease = lease_of(3)
    etcdctl("put", f"{prefix}/ps/1", "10.9.9.9:7164", f"--lease={lease}")
    eventually(lambda: agents(bench).get("lostPservers") == [0], DEADLINE)
    eventually(lambda: agents(bench).get("lostPservers") == [0, 1], DEADLINE, "the ghost is gone")
    # The desired count is set back, where it is there; nothing else is written into the job's etcd.
    etcdctl("put", f"{prefix}/ps_desired", "7")
    eventually(lambda: etcdctl("get", f"{prefix}/ps_desired", "--print-value-only").strip() == "2", DEADLINE)
    etcdctl("del", f"{prefix}/ps_desired")
    never(
        lambda: etcdctl("get", f"{prefix}/ps_desired", "--print-value-only").strip(), 2.0, "it is the agents' to make"
    )
    etcdctl("put", f"{prefix}/ps_desired", "nonsense")
    etcdctl("put", f"{prefix}/ps/0", "no address", f"--lease={lease_of(60)}")
    bench.edit("tj", {"passes": 2})
    eventually(lambda: bench.job("tj")["status"]["observedGeneration"] == 2, DEADLINE, "work goes on")
    bench.wait_rest()
    bench.assert_invariants()


@pytest.mark.report("M54")
def test_a_dead_agent_in_a_pod_that_looks_well_is_a_lost_slot(
    bench: ControllerBench, etcd: SharedEtcd, agent_factory: Callable[..., AgentProcess]
) -> None:
    bench.start(autoscale=False)
    job = bench.create("tj", trainers=1, most=1, agent=LAUNCHER)
    bench.wait_phase("tj", "running")
    ttl = 3.0
    agent = agent_factory(etcd.client_url, 7164, num_pservers=1, ttl=ttl, prefix=prefix_of(job))
    agent.wait_event("registered", 30.0)
    eventually(lambda: agents(bench).get("pservers") == 1, DEADLINE, lambda: str(bench.job("tj")["status"]))
    assert not agents(bench).get("lostPservers")
    agent.kill()
    # 2 x T + 5 s on a machine that has nothing else to do.
    eventually(lambda: agents(bench).get("lostPservers") == [0], 2 * ttl + 5 + DEADLINE, "the slot is lost")
    assert bench.pods("tj", "pserver")[0]["status"]["phase"] == "Running"
    assert bench.job("tj")["status"]["pservers"] == 1, "the pod is as ready as before"
    bench.wait_rest()
    bench.assert_invariants()


def test_a_jobs_own_etcd_with_tls_is_read_with_the_controllers_certificate_or_said_to_be_closed(
    bench: ControllerBench, etcd_factory: Callable[..., EtcdCluster], certificates: CertificateFolder
) -> None:
    own = etcd_factory(1, tls=certificates)
    life = bench.start(autoscale=False, settings=JobSettings(etcd_endpoints=(bench.etcd,), agents_stale=3.0))
    place = {"endpoints": own.endpoints, "tls": {"secretName": "etcd", "clientCertificate": True}}
    bench.create("tj", trainers=1, most=1, agent=LAUNCHER, etcd=place)
    bench.wait_phase("tj", "running")
    wait_known(bench, "False")
    assert "asks for an identity that the controller does not have" in said(bench, KNOWN)
    bench.wait_rest()
    life.stop()
    pair = certificates.client
    access = EtcdAccess(tuple(own.endpoints), tls=TlsFiles(str(certificates.ca), str(pair.cert), str(pair.key)))
    bench.start(autoscale=False, settings=JobSettings(etcd_endpoints=(bench.etcd,)), etcd=access)
    wait_known(bench, "True")
    bench.wait_rest()
    bench.assert_invariants()
