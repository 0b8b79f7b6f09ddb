"""The etcd of a master pod, as the parser writes it, started for real on an address of the loopback."""

from __future__ import annotations

import json
import random
import subprocess
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from edl_agent.testing import find_etcd, spawn_bound_to_parent
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.parser import DefaultJobParser
from tests.bench.waiting import eventually
from tests.core.jobs import training_job
from tests.core.test_parser import expanded


def test_the_etcd_of_a_master_starts_serves_its_probes_and_keeps_its_data_over_a_restart(tmp_path: Path) -> None:
    settings = JobSettings(etcd_command=(str(find_etcd().etcd),))
    master = DefaultJobParser(settings).parse_to_master(training_job())
    assert master is not None
    (etcd,) = master.spec.template.spec.containers
    # The ports are fixed, so an address that nobody else has.
    address = ".".join(map(str, (127, *random.sample(range(20, 250), 3))))
    values = {"POD_IP": address, "POD_UID": "master-uid"}
    words = [expanded(word, values).replace("/var/lib/edl-etcd", str(tmp_path)) for word in etcd.command]
    clusters = []
    for _ in range(2):
        with (tmp_path / "log").open("ab") as log:
            process = spawn_bound_to_parent(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            for probe in (etcd.readiness_probe, etcd.liveness_probe):
                assert probe is not None
                assert probe.http_get is not None
                url = f"http://{address}:{probe.http_get.port}{probe.http_get.path}"
                eventually(partial(answers, url), 20.0)
            clusters.append(cluster_id(address))
        finally:
            process.terminate()
            process.wait(10)
    assert clusters[0] == clusters[1]


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(json.load(answer)["health"] == "true")
    except (URLError, OSError):
        return False


def cluster_id(address: str) -> str:
    with urlopen(f"http://{address}:2380/members", timeout=5) as answer:
        return str(answer.headers["X-Etcd-Cluster-Id"])
