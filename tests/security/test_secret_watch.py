"""The watch over secrets in the whole suite (`tests/bench/secret_watch.py`) bites."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.agent_process import ROOT
from tests.bench.secret_watch import PART, SecretWatch

pytestmark = pytest.mark.security(21)

HEAD = """
import logging, subprocess, sys
from edl_agent.errors import Unavailable
from edl_agent.etcd.identity import Login
from edl_controller.errors import Conflict
from tests.bench.secret_watch import WATCH

SECRET = "".join(["a-secret", "-nobody-tells"])

def test_it():
    assert Login("agent", SECRET).password() == SECRET
"""

LEAKS = {
    "a log at DEBUG": 'logging.getLogger("edl_agent.etcd").debug("with %s", SECRET)',
    "a traceback in a log": """
    try:
        raise ValueError(SECRET)
    except ValueError:
        logging.getLogger("edl_controller.x").info("no", exc_info=True)""",
    "a library's log": 'logging.getLogger("urllib3.connectionpool").debug(SECRET)',
    "what is printed": "print(SECRET)",
    "an error that nobody sees": "str(Unavailable(f'no {SECRET}'))",
    "an error of the controller": "Conflict(SECRET)",
    "a command line": "subprocess.run([sys.executable, '-c', '', SECRET], check=True)",
    "what a child prints": "subprocess.run([sys.executable, '-c', 'print(\"a-secret\" + \"-nobody-tells\")'],"
    " check=True, capture_output=True)",
}


def run(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """One test in a run of its own."""
    (folder / "test_one.py").write_text(f"{HEAD}    {line.strip()}\n")
    (folder / "empty.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.bench.secret_watch", "-c", "empty.ini", "-q", "test_one.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=99)


@pytest.mark.parametrize("what", LEAKS)
def test_a_test_that_tells_a_secret_fails(tmp_path: Path, what: str) -> None:
    done = run(tmp_path, LEAKS[what])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 passed, 1 error" in done.stdout, "the test itself passes, its end does not"
    assert "secrets were told" in done.stdout
    assert "a password of etcd, in " in done.stdout
    assert "<SECRET>" in done.stdout


def test_a_test_that_tells_none_passes_and_sees_the_logs_it_would_see(tmp_path: Path) -> None:
    done = run(tmp_path, 'logging.getLogger("edl_agent").debug("nothing"); print("a-secret")')
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_looked_for() -> None:
    watch = SecretWatch()
    watch.keep("short", "a word")
    watch.keep(b"-----BEGIN PRIVATE KEY-----\nMIGH" + b"x" * 60 + b"\nlast=\n-----END PRIVATE KEY-----\n", "a key")
    watch.hear("short", "here")
    assert watch.told() == []
    watch.hear("one\ntwo MIGH" + "x" * PART + " three", "there")
    assert watch.told() == ["a key, in there: two <SECRET>xxxx three"]
    assert watch.told() == []
    watch.hear(b"a-token-of-mine", "there")
    watch.keep("a-token-of-mine", "a token")
    assert watch.told(("here", "a-token-of-mine")) == ["a token, in there: <SECRET>", "a token, in here: <SECRET>"]
