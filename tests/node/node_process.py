"""A node as a program of its own, to be killed: ``python -m tests.node.node_process ENDPOINT PREFIX NAME ROOT``."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from edl_controller.cluster.local.cluster import LocalCluster
from edl_controller.machine.node.node_agent import NodeAgent


def main(endpoint: str, prefix: str, name: str, root: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    with (
        LocalCluster(endpoint, prefix=prefix) as cluster,
        NodeAgent(cluster, name, {"cpu": "4", "memory": "8Gi", "pods": "110"}, Path(root)),
    ):
        print("up", flush=True)
        stop.wait()
    print("down", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
