"""Every command and program in README.md, docs/local.md and docs/training-jobs.md does what it says when it is run."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_controller.machine.local_state import LocalState
from edl_controller.machine.node.images import Images
from tests.bench.waiting import eventually
from tests.cli.command import environment
from tests.conftest import SharedEtcd
from tests.edl_cli.command import PROGRAM, ROOT, Machine, job


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """The code of a page: language and text. Those for kubectl are run by tests/deploy."""
    yield from re.findall(r"^```([^\n]*)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)


def commands(page: str) -> list[str]:
    """The command lines of a page, without comments; two on one line are two."""
    lines = [line for language, text in blocks(page) if language in ("", "sh") for line in text.splitlines()]
    words = [part.partition("  #")[0].strip() for line in lines for part in line.split(" ; ")]
    return [word for word in words if word and not word.startswith("#")]


def bash(machine: Machine, line: str, status: int = 0, timeout: float = 90.0) -> str:
    """Run a line as it is written."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=machine.files,
        env=machine.environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == status, (line, done)
    return done.stdout


def test_the_page_about_the_cluster_of_this_machine(own_machine: Machine) -> None:
    told = iter(commands("docs/local.md"))

    def run(expected: str, status: int = 0) -> str:
        line = next(told)
        assert line.startswith(expected), line
        return bash(own_machine, line, status)

    def start(expected: str) -> subprocess.Popen[str]:
        line = next(told)
        assert line.startswith(expected), line
        return own_machine.start(*line.split()[1:])

    run("edl example > job.yaml")
    assert run("edl validate job.yaml") == "trainingjob/digits is valid\n"
    own_machine.file(job("digits", trainer=["echo", "trained"]))  # the example's image is of another machine
    own_machine.root.mkdir()
    assert "digits: succeeded after " in run("edl local run job.yaml")

    own_machine.edl("local", "down", "--purge")
    counting = ["python", "-c", "import time\nwhile True: print('a step', flush=True); time.sleep(0.2)"]
    own_machine.file(job("digits", pservers=1, trainer=counting))
    assert run("edl local up --node ").startswith("up ")
    assert run("edl submit job.yaml") == "trainingjob/digits created\n"
    watch = start("edl get tj -w")
    own_machine.until_phase("digits", "running")
    assert "Phase:      running" in run("edl describe digits")
    follow = start("edl logs digits --role trainer -f")
    assert follow.stdout is not None
    assert follow.stdout.readline().endswith("] a step\n")
    assert run("edl scale digits --max 16") == "trainingjob/digits scaled to 1..16 trainers\n"
    run("edl suspend digits")
    run("edl resume digits")
    assert run("edl delete digits") == "trainingjob/digits deleted\n"
    follow.communicate(timeout=20)
    assert follow.returncode == 0
    own_machine.close()
    assert run("edl local down") == "down\n"
    seen = watch.communicate(timeout=20)[0]
    assert "digits  running" in seen
    assert "Error: the cluster went down" in seen
    assert next(told, None) is None, "a command that no test runs"
    assert not own_machine.processes()


def test_the_images_of_the_page_can_be_read(tmp_path: Path) -> None:
    (text,) = [text for language, text in blocks("docs/local.md") if language == "yaml"]
    path = tmp_path / "images.yaml"
    path.write_text(text)
    Images.read(path)


def test_the_page_about_training_jobs_has_words_of_the_program_only(own_machine: Machine) -> None:
    told = re.findall(r"`(edl [a-z]+)[^`]*`", (ROOT / "docs/training-jobs.md").read_text())
    assert {"edl example", "edl validate", "edl describe", "edl submit"} <= set(told)
    known = own_machine.edl("--help").stdout
    assert all(f"\n  {one.split()[1]} " in known for one in told)


@pytest.fixture
def agent_home(own_machine: Machine, etcd: SharedEtcd, prefix: str) -> dict[str, str]:
    """An environment in which the commands of README.md find their etcd."""
    path = own_machine.environment()["PATH"]
    return environment({"PATH": path, "EDL_ETCD_ENDPOINTS": etcd.client_url, "EDL_PREFIX": prefix})


def test_the_program_of_the_readme(agent_home: dict[str, str], etcd: SharedEtcd) -> None:
    (text,) = [text for language, text in blocks("README.md") if language == "python"]
    text = text.replace("http://127.0.0.1:2379", etcd.client_url)
    done = subprocess.run(
        [sys.executable, "-c", text], env=agent_home, capture_output=True, text=True, timeout=30, check=True
    )
    assert re.fullmatch(r"0 \d+\nb'hello'\n", done.stdout), done


def test_the_commands_of_the_readme(own_machine: Machine, agent_home: dict[str, str]) -> None:
    held: subprocess.Popen[str] | None = None
    own_machine.root.mkdir()
    for line in commands("README.md"):
        match line.split():
            case ["make", *targets]:  # each has a test of its own, or is the suite
                subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, check=True)
            case ["export", setting]:
                assert setting.startswith("EDL_ETCD_ENDPOINTS=")
            case ["edl", "local", "run", path, *more]:
                done = own_machine.edl("local", "run", str(ROOT / path), *more, "--plain", "--timeout", "3", status=3)
                assert "digits: creating" in done.stdout
                own_machine.edl("local", "down", "--purge")
            case ["edl", *_]:
                bash(own_machine, line)
            case ["edl-agent", "register", *arguments]:
                program = str(PROGRAM.with_name("edl-agent"))
                held = subprocess.Popen(
                    [program, "register", *arguments], env=agent_home, stdout=subprocess.PIPE, text=True
                )
                assert held.stdout is not None
                assert held.stdout.readline()
            case ["edl-agent", *arguments]:
                program = str(PROGRAM.with_name("edl-agent"))
                seen = subprocess.run(
                    [program, *arguments], env=agent_home, capture_output=True, timeout=30, check=False
                )
                assert seen.returncode in (0, 1), seen  # doctor finds that the second slot is free
            case _:
                raise AssertionError(f"a command that no test runs: {line}")
    assert held is not None
    held.send_signal(signal.SIGTERM)
    held.communicate(timeout=10)
    assert held.returncode == 0
    eventually(lambda: LocalState(own_machine.root).serving() is None, 5, "the cluster is down")
