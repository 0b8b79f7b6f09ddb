"""get, describe and logs on a cluster that is up, with real pods."""

from __future__ import annotations

import itertools
import re
import signal
import time

import pytest

from tests.bench.waiting import eventually
from tests.edl_cli.command import LAUNCHER, Machine, job


@pytest.fixture(scope="module")
def looked_at(machine: Machine) -> Machine:
    """The cluster with a job that runs (two pservers with slots, a trainer that counts) and two that have ended."""
    counting = "import time\nfor i in range(2000): print('step', i, flush=True); time.sleep(0.2)"
    machine.submit(
        job("runs", pservers=2, agent=LAUNCHER, trainer=["python", "-c", counting]),
        job("done", trainer=["printf", "one\\ntwo\\nthree without an end"]),
        job("broken", trainer=["python", "-c", "print('no luck'); raise SystemExit(3)"], backoffLimit=0),
    )
    machine.until_phase("runs", "running")
    machine.until_phase("done", "succeeded")
    machine.until_phase("broken", "failed")
    return machine


def test_a_table_has_one_line_for_each_job(looked_at: Machine) -> None:
    lines = looked_at.edl("get", "tj", "broken", "done", "runs").stdout.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "TRAINERS", "PSERVERS", "AGE"]
    assert [line.split()[:4] for line in lines[1:]] == [
        ["broken", "failed", "0/0", "0/0"],
        ["done", "succeeded", "0/0", "0/0"],
        ["runs", "running", "1/1", "2/2"],
    ]


def test_wide_adds_columns_and_all_namespaces_a_column_before(looked_at: Machine) -> None:
    wide = looked_at.edl("get", "-o", "wide").stdout.splitlines()
    assert wide[0].split()[4:] == ["AGE", "BOUNDS", "SAMPLES/S", "REASON"]
    assert any(re.match(r"runs .* 1\.\.1", line) for line in wide)
    spread = looked_at.edl("get", "tj", "-A").stdout.splitlines()
    assert spread[0].split()[:2] == ["NAMESPACE", "NAME"]
    assert any(line.split()[:2] == ["default", "runs"] for line in spread)


def test_forms_for_programs(looked_at: Machine) -> None:
    one = looked_at.edl("get", "tj", "runs", "-o", "json").json
    assert (one["kind"], one["metadata"]["name"], one["status"]["phase"]) == ("TrainingJob", "runs", "running")
    several = looked_at.edl("get", "tj", "runs", "done", "-o", "json").json
    assert (several["kind"], len(several["items"])) == ("List", 2)
    assert looked_at.edl("get", "tj/runs", "-o", "name").stdout == "trainingjob/runs\n"
    text = looked_at.edl("get", "tj", "runs", "-o", "yaml").stdout
    assert looked_at.edl("submit", "-", stdin=text).stdout == "trainingjob/runs unchanged\n"


@pytest.mark.parametrize("kind", ["po", "jobs", "rs", "no", "events"])
def test_other_kinds_have_their_tables(looked_at: Machine, kind: str) -> None:
    title, *lines = looked_at.edl("get", kind).stdout.splitlines()
    assert "AGE" in title
    assert lines


def test_what_is_not_there_is_told_beside_what_is(looked_at: Machine) -> None:
    done = looked_at.edl("get", "tj", "nobody", "runs", status=1)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["NAME", "runs"]
    assert "no trainingjob 'nobody' in namespace 'default'" in done.stderr
    empty = looked_at.edl("get", "tj", "-n", "elsewhere")
    assert (empty.stdout, empty.stderr) == ("", "no trainingjobs found in namespace elsewhere\n")
    assert looked_at.edl("get", "tj", "-n", "elsewhere", "-o", "json").json["items"] == []


def test_a_selector_chooses(looked_at: Machine) -> None:
    names = looked_at.edl("get", "pods", "-l", "paddlepaddle.org/role=pserver,paddle-job-pserver=runs", "-o", "name")
    assert len(names.stdout.splitlines()) == 2
    assert all(line.startswith("pod/runs-pserver-") for line in names.stdout.splitlines())


def test_a_watch_has_its_titles_once_and_a_line_for_each_change(looked_at: Machine) -> None:
    watch = looked_at.start("get", "tj", "-w")
    assert watch.stdout is not None
    assert watch.stdout.readline().split()[0] == "NAME"
    looked_at.submit(job("watched", trainer=["true"]))
    lines = [watch.stdout.readline()]
    while "succeeded" not in lines[-1] or not lines[-1].startswith("watched "):
        lines.append(watch.stdout.readline())
    looked_at.edl("delete", "watched")
    while lines[-1].split()[:2] != ["watched", "deleted"]:
        lines.append(watch.stdout.readline())
    watch.send_signal(signal.SIGINT)
    rest, _ = watch.communicate(timeout=10)
    assert watch.returncode == 130
    assert "Traceback" not in rest
    assert not any(line.startswith("NAME") for line in lines)
    shown = [line.split()[:4] for line in lines if line.startswith("watched ")]
    assert all(one != other for one, other in itertools.pairwise(shown)), "a line that says nothing new"


def test_describe_shows_all_about_a_job_that_runs(looked_at: Machine) -> None:
    text = looked_at.edl("describe", "runs").stdout
    sections = re.split(r"\n\n(?=[A-Z][a-z]+\n)", text)
    by_title = {section.partition("\n")[0]: section for section in sections[1:]}
    assert "Phase:      running" in sections[0]
    assert "Pservers:   2 ready of 2" in sections[0]
    assert re.search(r"Running +True +EnoughReady ", by_title["Conditions"])
    assert len(re.findall(r"^runs-(pserver|trainer)-\w+ +1/1 +Running ", by_title["Pods"], re.M)) == 3
    for index in (0, 1):
        held = rf"^pserver +{index} +127\.[\d.]+:\d+ +[1-9]\d* +runs-pserver-\w+$"
        assert re.search(held, by_title["Slots"], re.M), by_title["Slots"]
    assert len(re.findall(r"^runs-pserver-\w+ +pserver +[01] ", by_title["Agents"], re.M)) == 2
    assert re.search(r" Started +Pod/runs-trainer-\w+ +1? *Started container ", by_title["Events"])
    assert re.search(r" TrainingJob/runs +all pservers and enough trainers are ready$", by_title["Events"], re.M)


def test_describe_of_several_and_of_ended_jobs(looked_at: Machine) -> None:
    text = looked_at.edl("describe", "done", "tj/broken").stdout
    assert re.search(r"Name: +done\n.*Name: +broken\n", text, re.S)
    assert "Phase:      failed (BackoffLimitExceeded" in text
    assert "Slots" not in text
    assert "not known" not in text


def test_events_are_in_the_order_of_time(looked_at: Machine) -> None:
    text = looked_at.edl("get", "events", "-o", "json").json
    times = [(one.get("series") or {}).get("lastObservedTime") or one["eventTime"] for one in text["items"]]
    assert times == sorted(times)


def test_logs_of_a_job_that_has_ended(looked_at: Machine) -> None:
    assert re.fullmatch(
        r"\[done-trainer-\w+\] one\n\[done-trainer-\w+\] two\n\[done-trainer-\w+\] three without an end\n",
        looked_at.edl("logs", "done").stdout,
    )
    assert re.fullmatch(r"\S+ three without an end\n", looked_at.edl("logs", "tj/done", "--tail", "1").stdout)
    pod = looked_at.edl("get", "pods", "-l", "paddle-job=broken", "-o", "json").json["items"][0]["metadata"]["name"]
    assert looked_at.edl("logs", pod).stdout == "no luck\n"
    assert re.fullmatch(r"(\[done-trainer-\w+\] .*\n){3}", looked_at.edl("logs", "-f", "done").stdout), "it ends"


def test_logs_of_one_role(looked_at: Machine) -> None:
    text = looked_at.edl("logs", "runs", "--role", "pserver").stdout
    assert text.count("Registered as pserver") == 2
    assert "step" not in text
    assert looked_at.edl("logs", "runs", "--role", "master", status=1).stdout == ""


def test_followed_logs_end_with_the_job(looked_at: Machine) -> None:
    slow = "import time\nfor i in range(6): print('line', i, flush=True); time.sleep(0.3)"
    looked_at.submit(job("spoken", trainer=["python", "-c", slow]))
    eventually(lambda: looked_at.edl("logs", "spoken", status=None).status == 0, 20, "the first words", interval=0.2)
    began = time.monotonic()
    text = looked_at.edl("logs", "-f", "spoken").stdout
    assert [line.split("] ")[1] for line in text.splitlines()] == [f"line {i}" for i in range(6)]
    assert time.monotonic() - began < 15


def test_logs_of_a_long_name(looked_at: Machine) -> None:
    name = "long-" + "x" * 80
    looked_at.submit(job(name, trainer=["echo", "heard"]))
    looked_at.until_phase(name, "succeeded")
    assert re.fullmatch(r"\[\S+\] heard\n", looked_at.edl("logs", name).stdout)


def test_earlier_starts_of_a_container(looked_at: Machine) -> None:
    # An emptyDir outlives the container: the second start finds what the first one left.
    script = "import os, sys\np = os.environ['EDL_VOLUME_MEMORY'] + '/x'\nfirst = not os.path.exists(p)\nopen(p, 'w')\n"
    script += "print('first' if first else 'second', flush=True)\nos.kill(os.getpid(), 9) if first else None\n"
    script += "import time; time.sleep(2000)"
    server = {"min-instance": 1, "command": ["python", "-c", script]}
    volume, mount = {"name": "memory", "emptyDir": {}}, {"name": "memory", "mountPath": "/memory-of-a-test"}
    looked_at.submit(job("again", pserver=server, volumes=[volume], VolumeMounts=[mount]))

    def newest() -> str:
        return looked_at.edl("logs", "again", "--role", "pserver", status=None).stdout

    eventually(lambda: newest().endswith("] second\n"), 30, "the second start", interval=0.3)
    assert "first" not in newest()
    both = looked_at.edl("logs", "again", "--role", "pserver", "--previous").stdout
    assert [line.split("] ")[1] for line in both.splitlines()] == ["first", "second"]
    looked_at.edl("delete", "again")


def test_names_of_jobs_are_completed(looked_at: Machine) -> None:
    words = ["edl", "describe", "r"]
    line = {"_EDL_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": "2"}
    assert looked_at.edl(env=line).stdout == "plain,runs\n"
    words = ["edl", "get", "nodes", "no"]
    line = {"_EDL_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": "3"}
    assert looked_at.edl(env=line).stdout.split() == ["plain,node-0", "plain,node-1"]
