"""The launcher as the first process of a container (a pid namespace)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.bench.waiting import eventually
from tests.launcher.conftest import Launch
from tests.launcher.launcher_process import Lines, alive, program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace needs root")

WRAPPER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def inner(pid: int) -> int:
    """The launcher's id outside: the child of ``unshare``."""

    def child() -> int | None:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    text = (entry / "stat").read_text()
                except OSError:
                    continue
                if int(text.rpartition(")")[2].split()[1]) == pid:
                    return int(entry.name)
        return None

    return eventually(child, 10.0, "the launcher") or 0


def children(pid: int) -> list[tuple[int, str]]:
    """Its children and their states."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append((int(entry.name), fields[0]))
    return found


@pytest.mark.fault("A49")
def test_signals_and_orphans(launch: Launch, tmp_path: Path) -> None:
    out = Lines(tmp_path / "out")
    launcher = launch("pserver", program(out.path, "polite"), port=7164, num_pservers=1, wrapper=WRAPPER)
    assert out.wait("start")["pid"] > 1
    pid = inner(launcher.process.pid)
    # What a `kubectl exec` leaves behind: it has no parent in the namespace, so it is the first process's.
    ran = os.spawnlp(
        os.P_WAIT, "nsenter", "nsenter", "-t", str(pid), "--pid", "--mount", "--", "sh", "-c",
        "for i in 1 2 3 4 5; do (setsid sleep 0.3 &) ; done",
    )  # fmt: skip
    assert ran == 0
    eventually(lambda: len(children(pid)) >= 6, 5.0, "the orphans to be adopted")
    eventually(lambda: len(children(pid)) == 1, 5.0, "the orphans to be reaped")
    os.kill(pid, signal.SIGUSR1)
    assert out.wait("signal")["number"] == signal.SIGUSR1
    begin = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    assert launcher.wait() == 0
    print(f"as PID 1: SIGTERM to exit {time.monotonic() - begin:.2f} s")
    assert out.all("signal")[1]["number"] == signal.SIGTERM
    assert not alive(pid)


@pytest.mark.fault("A49")
def test_orphans_of_the_command_end_with_it(launch: Launch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["sh", "-c", f"(setsid sh -c 'while :; do date +%N >> {out}; sleep 0.05; done' &); sleep 0.5; exit 3"]
    launcher = launch("pserver", command, port=7164, num_pservers=1, wrapper=WRAPPER)
    assert launcher.wait() == 3
    size = out.stat().st_size
    assert size > 0
    time.sleep(0.5)
    assert out.stat().st_size == size
