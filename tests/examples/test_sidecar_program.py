"""examples/sidecar: programs that know the sidecar's protocol only, beside `edl-agent sidecar` and as a job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edl_agent.testing import spawn_bound_to_parent
from examples.digits.scene import Process
from tests.bench.agent_process import ROOT
from tests.bench.waiting import eventually
from tests.cli.command import environment
from tests.conftest import SharedEtcd
from tests.edl_cli.command import Machine
from tests.edl_cli.conftest import own_machine
from tests.examples.digits_processes import seconds_to_end
from tests.sidecar.conftest import folder, key_of
from tests.sidecar.sidecar_process import SidecarProcess

__all__ = ["folder", "key_of", "own_machine"]

TASKS = 40
HOLDS = r"pserver ([01]) epoch (\d+) at 127\.0\.0\.1:\d+"


class Pods:
    """A program and its sidecar each."""

    def __init__(self, url: str, folder: Path, prefix: str, stack: ExitStack) -> None:
        self._url, self._folder, self._prefix, self._stack = url, folder, prefix, stack
        self.sidecars: dict[str, SidecarProcess] = {}

    def start(self, name: str, *arguments: str) -> Process:
        """The program first: it waits for its sidecar."""
        sidecar = SidecarProcess(self._url, self._folder.with_name(name), self._prefix, name=name, num_pservers=2)
        program = Process(
            name,
            spawn_bound_to_parent(
                [sys.executable, "-m", "examples.sidecar.program", *arguments, "--socket", str(sidecar.path)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**environment(), "PYTHONUNBUFFERED": "1"},
            ),
        )
        self._stack.callback(program.kill)
        self.sidecars[name] = self._stack.enter_context(sidecar)
        return program


@pytest.fixture
def pods(etcd: SharedEtcd, folder: Path, prefix: str) -> Iterator[Pods]:
    with ExitStack() as stack:
        yield Pods(etcd.client_url, folder, prefix, stack)


def _said(program: Process, pattern: str) -> Any:
    return eventually(lambda: program.said(pattern), 30.0, lambda: f"{pattern!r} in {program.lines}")


def test_all_tasks_are_added_up_and_a_drained_pserver_leaves_at_once(pods: Pods, key_of: Callable[[str], str]) -> None:
    pservers = [pods.start(f"pserver-{number}", "pserver", "--port", "0") for number in "ab"]
    for pserver in pservers:
        _said(pserver, HOLDS)
    trainer = pods.start("trainer-a", "trainer", "--tasks", str(TASKS))

    assert trainer.wait(30.0) == 0, trainer.lines
    assert trainer.said(f"all {TASKS} tasks are finished, {TASKS} of them here")
    assert key_of("/ps/0")
    assert key_of("/ps/1")
    for pserver in pservers:
        assert seconds_to_end(pserver) < 15.0
    assert (key_of("/ps/0"), key_of("/ps/1")) == ("", "")
    totals = [int(_said(pserver, r"left with a total of (\d+)")[1]) for pserver in pservers]
    assert sum(totals) == sum(range(TASKS))
    assert all(totals)


def test_a_killed_pserver_is_replaced_under_a_new_epoch_and_the_trainer_finds_the_new_one(pods: Pods) -> None:
    first, other = (pods.start(f"pserver-{number}", "pserver", "--port", "0") for number in "ab")
    _said(other, HOLDS)
    before = _said(first, HOLDS)
    first.kill()
    second = pods.start("pserver-c", "pserver", "--port", "0")
    again = _said(second, HOLDS)
    assert again[1] == before[1]
    assert int(again[2]) > int(before[2])
    trainer = pods.start("trainer-a", "trainer", "--tasks", str(TASKS))
    assert trainer.wait(30.0) == 0, trainer.lines


def test_a_trainer_ends_with_its_sidecar_and_says_that_work_is_left(pods: Pods, key_of: Callable[[str], str]) -> None:
    trainer = pods.start("trainer-a", "trainer")
    eventually(lambda: key_of("/trainer/0"), 30.0, "a registered trainer")
    pods.sidecars["trainer-a"].kill()
    assert trainer.wait(30.0) == 3, trainer.lines
    assert trainer.said("asked to go after 0 tasks")


@pytest.mark.skipif(os.geteuid() != 0, reason="/run/edl of each pod is mounted: that needs root")
@pytest.mark.timeout(180)
def test_the_sample_runs_on_a_cluster_of_this_machine(own_machine: Machine) -> None:
    sample = str(ROOT / "deploy/samples/sidecar.yaml")

    done = own_machine.edl(
        "local", "run", sample, "--plain", "--keep", "--node", "n=8,8Gi", "--timeout", "120", timeout=150.0
    )

    assert "sidecar: succeeded after" in done.stdout, done
    said = [path.read_text() for path in own_machine.root.glob("nodes/*/logs/*-trainer-*/*/*.log")]
    assert any(re.search("all 200 tasks are finished", text) for text in said), said


def test_the_program_is_short_and_stands_on_the_protocol_alone() -> None:
    text = (ROOT / "examples/sidecar/program.py").read_text()
    assert len(text.splitlines()) < 150
    assert re.findall(r"^(?:from|import) (edl_\w+[\w.]*)", text, re.M) == ["edl_agent.sidecar"]
