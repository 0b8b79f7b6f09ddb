"""`make demo-agents` does what it promises, says so when it does not, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.bench.agent_process import ROOT
from tests.bench.waiting import eventually
from tests.cli.command import environment
from tests.examples.digits_processes import processes_with


def run(*argv: str, seconds: float = 150.0) -> subprocess.CompletedProcess[str]:
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=ROOT,
        env=environment({"DIGITS_TEST": mark}),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    eventually(lambda: not processes_with(f"DIGITS_TEST={mark}"), 5.0, "end of all processes of the demo")
    return done


@pytest.mark.timeout(180)
def test_demo(tmp_path: Path) -> None:
    picture = tmp_path / "digits.svg"
    done = run("-m", "examples.digits.demo", "--passes", "14", "--svg", str(picture))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    for pattern in (
        r"SIGKILL to trainer-2, with a task in hand",
        r"SIGKILL to pserver-\d, which holds index 1",
        r"pserver-3 holds index 1, restored at step \d+, epoch \d+ -> \d+",
        r"SIGTERM to trainer-3: gone after [01]\.\d\d s, its task given back",
        r"images seen, by the records +16800 in 14 passes: all",
    ):
        assert re.search(pattern, done.stdout), pattern
    accuracies = [float(text) for text in re.findall(r"recognised, \w+ +(\d+\.\d)%", done.stdout)]
    assert len(accuracies) == 2
    assert min(accuracies) >= 93.0
    assert abs(accuracies[0] - accuracies[1]) <= 1.1  # both are rounded
    svg = picture.read_text()
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    for words in ("SIGKILL trainer", "SIGKILL pserver", "restored", "SIGTERM trainer", "images / s", "held-out loss"):
        assert f">{words}<" in svg
    assert not re.search(r"href|url\(|@import|<script", svg)


def test_demo_fails_where_a_promise_is_not_kept() -> None:
    program = "import sys; from examples.digits import demo; demo.GOOD = 1.0; sys.exit(demo.main())"
    done = run("-c", program, "--passes", "8")
    assert done.returncode == 1
    assert "demo: failed: undisturbed: only 9" in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_fails_where_its_programs_do_not_start() -> None:
    program = (
        "import sys; from examples.digits import demo, scene\n"
        "start = scene.Job._start\n"
        "scene.Job._start = lambda self, role, name, arguments: start(self, role, name, ['--no-such-option'])\n"
        "sys.exit(demo.main())"
    )
    done = run("-c", program)
    assert done.returncode == 1
    assert "demo: failed: trainer-1 ended with 2" in done.stderr
