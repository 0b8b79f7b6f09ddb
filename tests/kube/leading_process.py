"""A program that writes while it leads: ``python -m tests.kube.leading_process KUBECONFIG NAMESPACE IDENTITY``.

Prints ``leads`` and, at its end, ``lost`` (exit 3). Ten threads write through the fence without a pause, as those of a
controller might.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path

from edl_controller.api.configuration import ConfigMap
from edl_controller.api.kinds import CONFIG_MAPS
from edl_controller.api.meta import ObjectMeta
from edl_controller.cluster.kube import KubeCluster, kubeconfig
from edl_controller.cluster.port import Cluster
from edl_controller.core.election import ElectionSettings
from edl_controller.errors import ClusterError, NotFound, NotLeading
from edl_controller.runtime.fenced_cluster import FencedCluster
from edl_controller.runtime.leader import Leader

SETTINGS = ElectionSettings(lease=4, renew_deadline=3, retry=0.4)
NAME = "edl-controller"
WRITERS = 10


def write_on(cluster: Cluster, namespace: str, number: int, stop: threading.Event) -> None:
    """Count in a ConfigMap; what is refused is tried again and again, at most 50 times a second."""
    name, turn = f"t-{number}", 0
    while not stop.wait(0.02):
        turn += 1
        try:
            cluster.patch(CONFIG_MAPS, namespace, name, {"data": {"turn": str(turn)}})
        except NotFound:
            cluster.create(ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace)))
        except NotLeading:
            pass  # a controller would try again, too
        except ClusterError as error:
            print(error, file=sys.stderr)


def main(config: str, namespace: str, identity: str) -> int:
    """Lead, write, and end when the lead is lost."""
    stop = threading.Event()
    source = kubeconfig(Path(config))
    with KubeCluster(source, answer_within=SETTINGS.attempt) as own, contextlib.ExitStack() as stack:
        leader = Leader(own, namespace, NAME, identity, SETTINGS)
        cluster = stack.enter_context(KubeCluster(source, before_write=leader.check))
        fenced = FencedCluster(cluster, leader.is_leader)
        leader.start()
        leader.wait_until_leading(stop)
        threads = [threading.Thread(target=write_on, args=(fenced, namespace, n, stop)) for n in range(WRITERS)]
        for one in threads:
            one.start()
        print("leads", flush=True)
        leader.lost.wait()
        print("lost", flush=True)
        stop.wait(1.0)  # as long as a careless program might go on
        stop.set()
        for one in threads:
            one.join()
        leader.release()
    return 3


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
