"""`make demo-paddle` keeps its promises: it says so by its exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.paddle, pytest.mark.timeout(420)]


def test_a_pserver_killed_during_a_call_costs_neither_300_seconds_nor_what_was_learnt(paddle_python: Path) -> None:
    demo = subprocess.run(
        [sys.executable, "-m", "examples.paddle.demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout[-3000:] + demo.stderr[-6000:]
    assert "kill -> all trainers at work" in demo.stdout
