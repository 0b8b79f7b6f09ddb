"""``python -m benchmarks --quick``: every benchmark runs and gives JSON; how fast is not judged here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEAST_ROWS = {
    "import": 1,
    "memory": 4,
    "idle": 2,
    "calls": 6,
    "registrations": 7,
    "processes": 1,
    "failover": 3,
    "sidecar": 4,
    "planner": 3,
    "kube": 4,
    "local": 3,
}


def run(*arguments: str) -> tuple[str, str]:
    command = [sys.executable, "-m", "benchmarks", "--quick", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


SLOW = {"failover"}
"""Kills a leader five times, which takes some 15 s: among the long tests."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name in SLOW else []) for name in LEAST_ROWS]
)
def test_gives_json_with_both_raw_numbers(name: str) -> None:
    output, progress = run("--only", name, "-o", "json")
    found: dict[str, Any] = json.loads(output)
    assert found["quick"] is True
    assert {"cpu", "cores", "etcd", "python", "load_before"} <= set(found["machine"])
    rows = found["rows"]
    assert len(rows) >= LEAST_ROWS[name]
    for row in rows:
        assert row["benchmark"] == name
        assert row["what"]
        assert row["ours"] >= 0
        assert row["verdict"] in ("moonshot", "must", "falls short", "stated")
        if row["kind"] == "ratio":
            assert row["compared"] == pytest.approx(row["ours"] / row["baseline"])
    assert f"== {name}" in progress


def test_prints_a_table() -> None:
    output, _ = run("--only", "import")
    head, rule, row = output.splitlines()[:3]
    assert [cell.strip() for cell in head.strip("|").split("|")][:4] == ["what", "unit", "baseline", "ours"]
    assert set(rule) == {"|", "-"}
    assert "import edl_agent" in row
    assert "cores of" in output


def test_knows_every_benchmark_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert all(name in done.stdout for name in LEAST_ROWS)
