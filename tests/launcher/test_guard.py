"""The command's parent: it kills at the deadline, whoever is stopped or dead. Real processes, no etcd."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edl_agent.clock import SystemClock
from edl_agent.launcher.policy import Ended
from edl_agent.launcher.process import NEVER, Command, Started
from edl_agent.session import Instant
from tests.bench.waiting import eventually, never
from tests.launcher.launcher_process import ROOT, Lines, alive, program

Make = Callable[..., tuple[Command, "queue.SimpleQueue[Started | Ended]"]]


@pytest.fixture
def guarded() -> Iterator[Make]:
    """``guarded(argv, seconds=None)``: a command, killed after the test, and its news."""
    made: list[Command] = []

    def make(argv: list[str], seconds: float | None = None) -> tuple[Command, queue.SimpleQueue[Started | Ended]]:
        news: queue.SimpleQueue[Started | Ended] = queue.SimpleQueue()
        deadline = NEVER if seconds is None else in_seconds(seconds)
        command = Command(argv, os.environ, deadline, lambda command, one: news.put(one))
        made.append(command)
        return command, news

    yield make
    for command in made:
        with contextlib.suppress(ProcessLookupError):
            command.guard.send_signal(signal.SIGCONT)
        command.kill("the test ends")
        command.guard.wait(10.0)


def in_seconds(seconds: float) -> Instant:
    now = SystemClock().now()
    return Instant(now.monotonic + seconds, now.boottime + seconds)


def end_of(news: queue.SimpleQueue[Started | Ended], timeout: float = 10.0) -> Ended:
    while True:
        one = news.get(timeout=timeout)
        if isinstance(one, Ended):
            return one


@pytest.mark.parametrize(
    ("argv", "ended"),
    [
        (["true"], Ended(0)),
        (["sh", "-c", "exit 3"], Ended(3)),
        (["sh", "-c", "kill -FPE $$"], Ended(136)),
        (["sh", "-c", "kill -SEGV $$"], Ended(139)),
        (["sh", "-c", "kill -ABRT $$"], Ended(134)),
        (["/no/such/program"], Ended(127, "the command cannot be started: No such file or directory")),
        (["/etc/passwd"], Ended(126, "the command cannot be started: Permission denied")),
    ],
)
def test_how_it_ended(guarded: Make, argv: list[str], ended: Ended) -> None:
    _, news = guarded(argv)
    assert end_of(news) == ended


def test_shell_characters_stay_data(guarded: Make, tmp_path: Path) -> None:
    words = ["a b", "$(touch x)", "; rm -rf .", "`id`", "*", "", "--", "é\n", '"', "&& false"]
    out = tmp_path / "out"
    script = "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))"
    _, news = guarded([sys.executable, "-c", script, str(out), *words])
    assert end_of(news) == Ended(0)
    assert out.read_text() == repr(words)


def test_the_command_leads_a_process_group_of_its_own_with_default_signals(guarded: Make, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _, news = guarded(["sh", "-c", f"cat /proc/self/stat /proc/self/status > {out}; exit 0"])
    assert isinstance(first := news.get(timeout=10.0), Started)
    assert end_of(news) == Ended(0)
    text = out.read_text()
    assert int(text.split()[4]) == first.pid
    ignored = int(text.partition("SigIgn:")[2].split()[0], 16)
    # 32 and 33 belong to the C library, which lets nobody set them; below make they are found ignored.
    assert ignored & ~(1 << 31 | 1 << 32) == 0
    assert "SigBlk:\t0000000000000000" in text


def test_killed_at_the_deadline_and_not_before(guarded: Make) -> None:
    begin = time.monotonic()
    _, news = guarded(["sleep", "100"], seconds=0.6)
    ended = end_of(news)
    assert 0.6 <= time.monotonic() - begin < 1.5
    assert ended == Ended(137, "the slot's deadline passed", fenced=True)


def test_a_deadline_by_the_clock_that_goes_on_while_suspended_counts_too(guarded: Make) -> None:
    command, news = guarded(["sleep", "100"])
    now = SystemClock().now()
    command.extend(Instant(now.monotonic + 1000, now.boottime + 0.3))
    assert end_of(news).fenced


def test_a_later_deadline_is_heard_of(guarded: Make) -> None:
    command, news = guarded(["sleep", "100"], seconds=0.7)
    for _ in range(6):
        time.sleep(0.25)
        command.extend(in_seconds(0.7))
    assert news.get(timeout=1.0) == Started(command.pid or 0)
    assert news.empty()
    assert end_of(news).fenced


def test_after_a_kill_no_deadline_brings_it_back(guarded: Make) -> None:
    command, news = guarded(["sleep", "100"], seconds=5.0)
    command.kill("the slot was lost")
    command.extend(in_seconds(100.0))
    assert end_of(news) == Ended(137, "the slot was lost", fenced=True)


def test_a_deadline_that_has_passed_starts_nothing(guarded: Make, tmp_path: Path) -> None:
    _, news = guarded(["touch", str(tmp_path / "made")], seconds=-0.1)
    assert end_of(news).fenced
    assert not (tmp_path / "made").exists()


def family(tmp_path: Path) -> tuple[list[str], Path]:
    """A command with a child, a child in a session of its own, and a daemon (an orphan); their pids go to a file."""
    pids = tmp_path / "pids"
    script = (
        "import os, subprocess, sys, time\n"
        "sleep = ['sleep', '100']\n"
        "daemon = subprocess.run(['sh', '-c', 'setsid sleep 100 >/dev/null 2>&1 & echo $!'], stdout=subprocess.PIPE)\n"
        "found = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid,\n"
        "         int(daemon.stdout), os.getpid()]\n"
        "open(sys.argv[1] + '.new', 'w').write(' '.join(map(str, found)))\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "if sys.argv[2:] != ['leave']: time.sleep(100)\n"
    )
    return [sys.executable, "-c", script, str(pids)], pids


def read_pids(path: Path) -> list[int]:
    eventually(path.exists, 10.0, "the pids")
    return [int(one) for one in path.read_text().split()]


def test_children_and_grandchildren_and_daemons_are_killed_too(guarded: Make, tmp_path: Path) -> None:
    argv, path = family(tmp_path)
    command, news = guarded(argv)
    pids = read_pids(path)
    assert all(alive(pid) for pid in pids)
    command.kill("lost")
    assert end_of(news).fenced
    assert [pid for pid in pids if alive(pid)] == []


def test_what_the_command_leaves_behind_is_killed(guarded: Make, tmp_path: Path) -> None:
    argv, path = family(tmp_path)
    _, news = guarded([*argv, "leave"])
    pids = read_pids(path)
    assert end_of(news) == Ended(0)
    assert [pid for pid in pids if alive(pid)] == []


def test_a_stopped_and_a_stubborn_command_are_killed(guarded: Make, tmp_path: Path) -> None:
    out = Lines(tmp_path / "out")
    _, news = guarded(program(out.path, "stubborn"), seconds=2.0)
    os.kill(out.wait("start")["pid"], signal.SIGSTOP)
    begin = time.monotonic()
    assert end_of(news).fenced
    assert time.monotonic() - begin < 3.0


def test_signals_reach_the_group(guarded: Make, tmp_path: Path) -> None:
    out = Lines(tmp_path / "out")
    command, news = guarded(program(out.path))
    out.wait("start")
    command.signal(signal.SIGUSR1)
    assert out.wait("signal")["number"] == signal.SIGUSR1
    command.signal(signal.SIGTERM)
    assert end_of(news) == Ended(7)


def test_signals_to_the_guard_itself_do_not_end_it(guarded: Make, tmp_path: Path) -> None:
    out = Lines(tmp_path / "out")
    command, _ = guarded(program(out.path))
    out.wait("start")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        command.guard.send_signal(number)
    never(lambda: command.guard.poll() is not None or bool(out.all("signal")), 0.3)


def test_when_the_guard_is_killed_the_command_dies_with_it(guarded: Make, tmp_path: Path) -> None:
    argv, path = family(tmp_path)
    command, news = guarded(argv)
    pids = read_pids(path)
    command.guard.kill()
    assert end_of(news) == Ended(137, "the guard was killed")
    # The child in the command's group; what left the group is an orphan of the launcher's then.
    eventually(lambda: not alive(pids[3]) and not alive(pids[0]), 5.0, "the group's end")
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_guard_that_was_paused_while_the_slot_was_renewed_goes_on(guarded: Make) -> None:
    command, news = guarded(["sleep", "100"], seconds=1.0)
    assert isinstance(news.get(timeout=10.0), Started)
    command.guard.send_signal(signal.SIGSTOP)
    for _ in range(4):
        time.sleep(0.4)
        command.extend(in_seconds(1.5))
    command.guard.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    assert news.empty()


def test_when_the_launcher_dies_the_command_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        "import os, sys, time\n"
        "from edl_agent.launcher.process import NEVER, Command\n"
        "command = Command(['sleep', '100'], os.environ, NEVER, lambda command, news: None)\n"
        "while command.pid is None: time.sleep(0.01)\n"
        "open(sys.argv[1] + '.new', 'w').write(f'{command.pid} {command.guard.pid}')\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "time.sleep(100)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", script, str(pids)], env=environment) as launcher:
        found = read_pids(pids)
        launcher.kill()
    eventually(lambda: not any(alive(pid) for pid in found), 5.0, "the end of guard and command")
