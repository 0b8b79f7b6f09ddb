"""The demo of `make demo-slots` does what it shows, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.agent_process import ROOT
from tests.bench.waiting import eventually
from tests.cli.command import environment


def _processes_with(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:  # ended meanwhile
                continue
    return found


def test_demo(tmp_path: Path) -> None:
    mark = f"DEMO_TEST={os.getpid()}-{time.monotonic_ns()}"
    picture = tmp_path / "demo.svg"
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "pservers_demo.py"), "--svg", str(picture)],
        env=environment({mark.partition("=")[0]: mark.partition("=")[2]}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    seconds = time.monotonic() - begin
    assert (done.returncode, done.stderr) == (0, "")
    assert seconds < 20
    for line in ("pserver-e waits for a free slot", "SIGKILL to", "SIGTERM to", "released", "pserver-f holds slot"):
        assert line in done.stdout
    measured = {
        line.partition("  ")[0]: float(line.split(" s  ")[0].split()[-1])
        for line in done.stdout.splitlines()
        if " -> " in line
    }
    assert list(measured) == [
        "SIGKILL -> slot free",
        "SIGKILL -> slot taken again",
        "SIGTERM -> slot free",
        "SIGTERM -> slot taken again",
    ]
    assert 1.5 < measured["SIGKILL -> slot taken again"] < 6
    assert measured["SIGTERM -> slot taken again"] < 1
    svg = picture.read_text()
    assert svg.startswith("<svg")
    assert "@font-face" not in svg
    eventually(lambda: not _processes_with(mark), 5.0, "end of all processes of the demo")


def test_demo_fails_where_its_etcd_does_not_start(tmp_path: Path) -> None:
    broken = tmp_path / "etcd"
    broken.write_text("#!/bin/sh\ncase $1 in --version) echo 'etcd Version: 3.5.1';; *) exit 1;; esac\n")
    broken.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "pservers_demo.py")],
        env=environment({"EDL_ETCD_BIN": str(broken)}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "demo: failed" in done.stderr
    assert "Traceback" not in done.stderr
