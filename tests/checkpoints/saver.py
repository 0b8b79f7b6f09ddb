"""A pserver that saves a checkpoint and is killed in the middle: ``python -m tests.checkpoints.saver FOLDER STEP``.

It saves step 1, says so, then begins step 2 and kills itself (SIGKILL) when the named step of the work is done. With an
endpoint and a prefix it holds slot 0 and commits in etcd.
"""

from __future__ import annotations

import os
import signal
import sys

from edl_agent import EtcdClient
from edl_agent.checkpoints import CheckpointStore

STEPS = [
    "file opened",
    "file written",
    "file synced",
    "file renamed",
    "file folder synced",
    "file verified",
    "manifest opened",
    "manifest written",
    "manifest synced",
    "manifest renamed",
    "manifest folder synced",
    "manifest verified",
    "committed",
    "pruned",
]


def content(step: int) -> bytes:
    return f"state at {step} ".encode() * 20_000


class KilledAt(CheckpointStore):
    """Dies when a step is done."""

    deadly = ""

    def _passed(self, step: str) -> None:
        if step == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, deadly: str, endpoint: str = "", prefix: str = "") -> None:
    client = EtcdClient(endpoint, 1, prefix=prefix, ttl=2, host="127.0.0.1") if endpoint else None
    if client is not None:
        client.register(7164, timeout=10)
    store = KilledAt(client, folder, 0, shards=1, keep=1)
    store.save(1, content(1))
    print("saved", flush=True)
    store.deadly = deadly
    store.save(2, content(2))
    print("survived", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
