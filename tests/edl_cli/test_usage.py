"""What needs no cluster: help, faults on stderr, exit statuses, streams, completion, validate, example."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.edl_cli.command import PROGRAM, Machine, job


@pytest.fixture
def nowhere(tmp_path: Path) -> Machine:
    """A folder without a cluster."""
    return Machine(tmp_path / "root")


def test_help_names_every_command_and_exit_status(nowhere: Machine) -> None:
    text = nowhere.edl("--help").stdout
    for word in ("submit", "get", "describe", "logs", "scale", "suspend", "resume", "delete", "validate", "local"):
        assert f"\n  {word} " in text
    for status in ("0 ", "1 ", "2 ", "3 ", "5 ", "6 ", "7 ", "70 ", "130 "):
        assert f"\n    {status}" in text


def test_the_plugin_of_kubectl_calls_itself_so(nowhere: Machine) -> None:
    plugin = PROGRAM.with_name("kubectl-edl")
    done = subprocess.run([plugin, "get", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: kubectl edl get ")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("get", "trainigjobs"), 2, "did you mean 'trainingjobs'?"),
        (("get", "xyz"), 2, "Kinds are tj, trainingjobs, pods"),
        (("get", "tj", "-l", "nonsense"), 2, "is no selector"),
        (("get", "tj", "a", "-A"), 2, "do not go together"),
        (("get", "tj"), 3, "`edl local up` starts one"),
        (("describe",), 2, "Missing argument"),
        (("delete",), 2, "name jobs, or give -f FILE or --all"),
        (("scale", "a"), 2, "give --to N, or --min and/or --max"),
        (("scale", "a", "--to", "-1"), 2, "-1 is not in the range"),
        (("submit", "no-such-file.yaml"), 2, "no-such-file.yaml"),
        (("local", "status"), 3, "no cluster is up in"),
        (("local", "up", "--node", "foo"), 2, "write NAME=CPU,MEMORY"),
        (("local", "up", "--node", "a=1,1Gi", "--node", "a=2,1Gi"), 2, "two nodes have one name"),
        (("local", "up", "--node", "a=-1,4Gi"), 2, "it is negative"),
        (("local", "up", "--node", "a=0,4Gi"), 2, "CPU: 0 is too little for a node: at least 1m"),
        (("local", "up", "--node", "a=2,16"), 2, "memory: 16 is too little for a node: at least 1Mi"),
        (("local", "up", "--node", "a=2,4Gi,0"), 2, "pods: 0 is too little for a node: at least 1"),
        (("local", "up", "--node", "a=nan,4Gi"), 2, "'nan' is no amount"),
        (("local", "up", "--root", "/proc/none"), 2, "/proc/none"),
        (("local", "down", "--purge", "--root", ""), 2, "'' is no folder"),
        (("get", "tj", "-n", "../x"), 2, "'../x' is no name of a namespace"),
        (("submit", "-n", "a/b", "-"), 2, "'a/b' is no name of a namespace"),
        (("delete", "--all", "-n", ""), 2, "'' is no name of a namespace"),
        (("delete", "a", "--timeout", "nan"), 2, "'nan' is no number of seconds"),
        (("delete", "a", "--timeout", "-1"), 2, "-1.0 is not in the range"),
        (("submit", "-", "--wait", "--timeout", "inf"), 2, "'inf' is no number of seconds"),
        (("local", "run", "x.yaml", "--timeout", "1e400"), 2, "'1e400' is no number of seconds"),
        (("logs", "nobody"), 1, "no logs of 'nobody'"),
        (("nonsense",), 2, "No such command 'nonsense'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_faults_are_told_on_stderr(nowhere: Machine, arguments: tuple[str, ...], status: int, words: str) -> None:
    done = nowhere.edl(*arguments, status=status)
    assert words in done.stderr
    assert done.stdout == ""


def test_a_stdin_that_is_closed_is_told(nowhere: Machine) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" submit - <&-', PROGRAM],
        env=nowhere.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "Error: - reads stdin, which is closed\n")


def test_a_traceback_is_shown_when_asked_for_wherever_the_word_stands(nowhere: Machine) -> None:
    for arguments in (("--debug", "get", "tj"), ("get", "tj", "--debug")):
        done = nowhere.edl(*arguments, status=3, traceback=True)
        assert "Traceback (most recent call last)" in done.stderr
        assert done.stderr.rstrip().endswith("names another folder")


def test_what_is_printed_as_an_example_is_valid(nowhere: Machine) -> None:
    text = nowhere.edl("example").stdout
    assert nowhere.edl("validate", "-", stdin=text).stdout == "trainingjob/digits is valid\n"
    dry = nowhere.edl("submit", "--dry-run", "-n", "team", "-", stdin=text).stdout
    assert dry == "trainingjob/digits would be submitted to namespace team\n"


def test_every_fault_of_every_document_is_named_at_once(nowhere: Machine) -> None:
    path = nowhere.file(job("one", least=5, most=2), job("Two_"), name="bad.yaml")
    done = nowhere.edl("validate", path, status=2)
    assert "2 faults:" in done.stderr
    assert f"{path}: document 1: spec.trainer.max-instance: " in done.stderr
    assert f"{path}: document 2: metadata.name: " in done.stderr


def test_the_reader_of_stdout_may_go_away(nowhere: Machine) -> None:
    script = 'set -o pipefail; "$0" example | head -1'
    done = subprocess.run(["bash", "-c", script, PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("where", ["/dev/full", "closed"])
def test_a_stdout_that_cannot_be_written_is_a_failure(nowhere: Machine, where: str) -> None:
    script = '"$0" example >&-' if where == "closed" else '"$0" example > /dev/full'
    done = subprocess.run(["bash", "-c", script, PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert done.stderr.startswith("Error: stdout cannot be written")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_had_for_each_shell(nowhere: Machine, shell: str) -> None:
    script = nowhere.edl(env={"_EDL_COMPLETE": f"{shell}_source"}).stdout
    assert f"_EDL_COMPLETE={shell}_complete" in script


def test_kinds_are_completed_and_no_names_without_a_cluster(nowhere: Machine) -> None:
    def complete(*words: str) -> str:
        line = {
            "_EDL_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["edl", *words]),
            "COMP_CWORD": str(len(words)),
        }
        return nowhere.edl(env=line).stdout

    assert complete("get", "p") == "plain,pods\n"
    assert complete("describe", "d").strip() == ""
    assert "plain,suspend\n" in complete("su")


def test_no_colours_where_they_are_not_wanted(nowhere: Machine) -> None:
    done = nowhere.edl("get", "tj", status=3, env={"NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm"})
    assert "\x1b" not in done.stderr
