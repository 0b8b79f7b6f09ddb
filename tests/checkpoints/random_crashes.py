"""Shards that save at random and are killed at random, in one folder: ``python -m tests.checkpoints.random_crashes``.

Arguments: folder, seed, rounds. Each save is a forked process (no threads here, no etcd), which kills itself after a
random step of the work. After each one it is checked that whatever was there before can still be restored, by a fresh
store. Prints a line of counts at the end.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

from edl_agent.checkpoints import Checkpoint, CheckpointStore, Policy
from tests.checkpoints.saver import STEPS, KilledAt

SHARDS = 3


def content(index: int, step: int) -> bytes:
    return f"shard {index} at {step} ".encode() * 200


def save_in_child(folder: Path, index: int, step: int, deadly: str) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            store = KilledAt(None, folder, index, shards=SHARDS, keep=1)
            store.deadly = deadly
            store.save(step, lambda file: file.write(content(index, step)))
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return status


def restored(folder: Path, index: int, policy: Policy) -> Checkpoint | None:
    store = CheckpointStore(None, folder, index, shards=SHARDS)
    found = store.restore(policy)
    assert store.skipped == (), store.skipped
    if found is not None:
        with found.open() as file:
            assert file.read() == content(index, found.step)
    return found


def main(path: str, seed: str, rounds: str) -> None:
    folder, chance = Path(path), random.Random(seed)
    newest = dict.fromkeys(range(SHARDS), 0)
    newest_set = killed = 0
    for _ in range(int(rounds)):
        # Mostly the one that is behind, so that sets become whole.
        index = min(newest, key=lambda shard: newest[shard]) if chance.random() < 0.5 else chance.randrange(SHARDS)
        step = newest[index] + 1
        deadly = chance.choice(STEPS) if chance.random() < 0.6 else ""
        status = save_in_child(folder, index, step, deadly)
        killed += status != 0
        for shard in range(SHARDS):
            found = restored(folder, shard, "newest")
            now = found.step if found is not None else 0
            if shard != index:
                assert now == newest[shard], (shard, now, newest)
            else:
                allowed = {step} if status == 0 else {newest[shard], step}
                assert now in allowed, (now, allowed, deadly)
                newest[shard] = now
        members = [restored(folder, shard, "complete_set") for shard in range(SHARDS)]
        steps = {found.step if found is not None else 0 for found in members}
        assert len(steps) == 1, steps
        assert min(steps) >= newest_set, (steps, newest_set)
        newest_set = min(steps)
    kept = len([name for name in os.listdir(folder) if name.endswith(".json")])
    assert kept <= 2 * SHARDS * 2, kept
    print(f"killed {killed}, newest {sorted(newest.values())}, set {newest_set}, kept {kept}")


if __name__ == "__main__":
    main(*sys.argv[1:])
