"""The cluster away: containers go on, and everything is told when it is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edl_controller.cluster.local.cluster import LocalCluster
from tests.bench.etcd_cluster import EtcdCluster
from tests.node.conftest import Room, of, shell


def test_nothing_is_lost_while_the_cluster_is_away(etcd_factory: Callable[..., EtcdCluster], tmp_path: Path) -> None:
    etcd = etcd_factory()
    flag = tmp_path / "flag"
    with LocalCluster(etcd.endpoint_string) as cluster:
        room = Room(cluster, tmp_path)
        agent = room.start(heartbeat=0.5)
        try:
            room.run("ends", shell(f"while [ ! -e {flag} ]; do sleep 0.02; done; exit 7"))
            room.run("stays", shell("echo once; sleep 1000"))
            room.ready("ends")
            pod = room.ready("stays")
            etcd.members[0].kill()
            flag.touch()
            etcd.members[0].start()
            pod = room.phase("ends", "Failed", 30)
            assert of(pod, "c0").state.terminated.exit_code == 7  # type: ignore[union-attr]
            room.run("new", shell("true"))
            room.phase("new", "Succeeded", 30)
            assert room.log(room.get("stays")) == "once\n"
            assert of(room.get("stays"), "c0").restart_count == 0
        finally:
            agent.stop(grace=0.0)
