"""Killed after each step of saving, and started again: the right checkpoint is there each time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edl_agent import EtcdClient
from edl_agent.checkpoints import CheckpointStore
from tests.checkpoints.saver import STEPS, content
from tests.conftest import SharedEtcd

ROOT = Path(__file__).resolve().parents[2]

FOUND_AFTER = {step: 1 if STEPS.index(step) < STEPS.index("manifest renamed") else 2 for step in STEPS}
"""What a restart finds: the old one until the manifest of the new one is in its place."""


def run_until_killed(*arguments: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.checkpoints.saver", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, "saved\n"), ran.stderr


def test_the_list_of_steps_is_whole(tmp_path: Path) -> None:
    class Listing(CheckpointStore):
        def _passed(self, step: str) -> None:
            passed.append(step)

    passed: list[str] = []
    Listing(None, tmp_path, 0, shards=1).save(1, b"x")
    assert passed == [step for step in STEPS if step != "committed"]


@pytest.mark.parametrize("step", [step for step in STEPS if step != "committed"])
def test_killed_without_etcd(tmp_path: Path, step: str) -> None:
    run_until_killed(str(tmp_path), step)
    store = CheckpointStore(None, tmp_path, 0, shards=1, keep=1)
    found = store.restore()
    assert found is not None
    assert found.step == FOUND_AFTER[step]
    assert store.skipped == ()
    with found.open() as file:
        assert file.read() == content(found.step)
    # It goes on from there, and in the end only what is kept, and young leftovers, are in the folder.
    store.save(3, b"state 3")
    now = store.restore()
    assert now is not None
    assert now.step == 3
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".json")]) == 1


@pytest.mark.parametrize(
    "step", ["file written", "file renamed", "manifest written", "manifest verified", "committed", "pruned"]
)
def test_killed_with_etcd(tmp_path: Path, etcd: SharedEtcd, prefix: str, step: str) -> None:
    run_until_killed(str(tmp_path), step, etcd.client_url, prefix)
    with EtcdClient(etcd.client_url, 1, prefix=prefix, ttl=2, host="127.0.0.1") as client:
        client.register(7164, timeout=10)
        raw = client.get_key("/checkpoints/0")
        assert raw is not None
        named = json.loads(raw)["path"]
        # What etcd names is there at every moment: an original pserver can start from it.
        assert Path(named).read_bytes() in (content(1), content(2))
        assert (json.loads(raw)["step"] == 2) == (step in ("committed", "pruned"))
        store = CheckpointStore(client, tmp_path, 0, keep=1)
        found = store.restore()
        assert found is not None
        assert (found.step, found.committed) == (FOUND_AFTER[step], step != "manifest verified")
        assert CheckpointStore(None, tmp_path, 0, shards=1).restore() is not None
        # The next incarnation tidies up at once, since the dead one cannot commit any more.
        made = store.save(3, b"state 3")
        assert sorted(os.listdir(tmp_path)) == [str(made.path.name), f"{made.path.name}.json"] if made.path else False
        assert store.restore() == made


def random_crashes(folder: Path, seed: int, rounds: int) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.checkpoints.random_crashes", folder, str(seed), str(rounds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_in_a_shared_folder(tmp_path: Path, seed: int) -> None:
    counts = re.fullmatch(r"killed (\d+), newest .*, set (\d+), kept \d+\n", random_crashes(tmp_path, seed, 80))
    assert counts is not None
    assert int(counts[1]) > 10
    assert int(counts[2]) > 5


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_killed_at_random_for_long(tmp_path: Path) -> None:
    for seed in range(100, 110):
        print(seed, random_crashes(tmp_path / str(seed), seed, 500))
