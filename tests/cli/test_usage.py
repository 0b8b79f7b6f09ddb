"""Help, version, wrong usage, completion: what needs no etcd."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from edl_agent.cli import main
from tests.cli.command import edl_agent, environment

COMMANDS = ["register", "get", "put", "delete", "slots", "doctor"]
NOWHERE = ["--endpoints", "http://127.0.0.1:1", "--timeout", "0.5"]


def test_help_names_commands_exit_statuses_environment_and_completion() -> None:
    shown = edl_agent("--help")
    assert shown.status == 0
    for expected in [*COMMANDS, "Exit status", "EDL_ETCD_ENDPOINTS", "NO_COLOR", "_EDL_AGENT_COMPLETE", "--version"]:
        assert expected in shown.stdout
    assert {int(found) for found in re.findall(r"^    (\d+)  ", shown.stdout, re.M)} == {0, 1, 2, 3, 4, 5, 6, 7, 70}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_the_shared_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    for option in [
        *("--endpoints", "--prefix", "--ttl", "--dial-timeout", "--timeout", "--user", "--password-file", "--ca"),
        *("--cert", "--key", "--unsafe-plaintext-password", "--verbose", "--debug", "--output"),
    ]:
        assert option in shown


def test_version() -> None:
    assert edl_agent("--version").stdout == f"edl-agent {version('edl')}\n"


def test_completion_knows_the_commands() -> None:
    script = edl_agent(env={"_EDL_AGENT_COMPLETE": "bash_source"})
    assert "complete" in script.stdout
    answer = edl_agent(env={"_EDL_AGENT_COMPLETE": "bash_complete", "COMP_WORDS": "edl-agent do", "COMP_CWORD": "1"})
    assert "doctor" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["get"], "KEY"),
        (["get", "/k"], "EDL_ETCD_ENDPOINTS"),
        (["nonsense"], "nonsense"),
        (["get", "/k", "--endpoints", "ftp://h:1"], "ftp"),
        (["get", "/k", "--endpoints", "http://h:0"], "'0'"),
        (["get", "/k", *NOWHERE, "--ttl", "0"], "--ttl"),
        (["get", "/k", *NOWHERE, "--timeout", "-1"], "--timeout"),
        (["get", "/k", *NOWHERE, "--prefix", "no-slash"], "no-slash"),
        (["get", "k", *NOWHERE, "--prefix", "/p"], "'/'"),
        (["get", "", *NOWHERE], "empty"),
        (["get", "/k", *NOWHERE, "--user", "u"], "password"),
        (["get", "/k", *NOWHERE, "--user", "u", "--password-file", "/f"], "--unsafe-plaintext-password"),
        (["get", "/k", "--endpoints", "https://h:1", "--cert", "/c"], "key"),
        (["register", "--port", "0", *NOWHERE], "--port"),
        (["register", "--port", "1", "--num-pservers", "0", *NOWHERE], "--num-pservers"),
        (["register", "--port", "1", "--host", "", *NOWHERE], "host"),
        (["register", "--port", "1", "--reclaim", "maybe", *NOWHERE], "--reclaim"),
        (["slots", *NOWHERE, "-o", "xml"], "xml"),
    ],
)
def test_wrong_usage_is_2_and_names_the_bad_part(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDL_ETCD_ENDPOINTS", raising=False)
    assert main(arguments) == 2  # in this process, since each of the many cases ends before anything is started
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert "Traceback" not in shown.err


def test_a_bad_value_in_the_environment_is_named() -> None:
    outcome = edl_agent("get", "/k", *NOWHERE, env={"EDL_TTL": "soon"})
    assert outcome.status == 2
    assert "EDL_TTL" in outcome.stderr
    assert "soon" in outcome.stderr


@pytest.mark.parametrize("arguments", [["get", "/k"], ["put", "/k", "v"], ["slots"], ["register", "--port", "1"]])
def test_etcd_not_reached_is_3_with_what_where_and_next(arguments: list[str]) -> None:
    outcome = edl_agent(*arguments, *NOWHERE)
    assert (outcome.status, outcome.stdout) == (3, "")
    error, where, advice = outcome.stderr.splitlines()[-3:]
    assert error.startswith("Error: ")
    assert "http://127.0.0.1:1" in where
    assert "doctor" in advice


def test_debug_shows_the_traceback() -> None:
    outcome = edl_agent("get", "/k", *NOWHERE, "--debug", traceback=True)
    assert outcome.status == 3
    assert "Traceback" in outcome.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["get", "/k", "--endpoints", "http://somebody:hunter2@127.0.0.1:1"],
        ["get", "/k", *NOWHERE, "--password=hunter2"],
        ["get", "/k", *NOWHERE, "--password", "hunter2"],
        ["put", "/k", "hunter2", *NOWHERE],
        ["put", "/k", "hunter2", *NOWHERE, "-vv"],
    ],
)
@pytest.mark.security(21)
def test_no_secret_is_repeated(arguments: list[str]) -> None:
    outcome = edl_agent(*arguments)
    assert outcome.status in (2, 3)
    assert "hunter2" not in outcome.stdout + outcome.stderr


def test_start_up_imports_only_what_the_command_needs() -> None:
    code = "import sys, edl_agent.cli; print([m for m in sys.modules if m.startswith('edl_agent.cli.')])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "['edl_agent.cli.commands', 'edl_agent.cli.failures']"


@pytest.mark.parametrize(
    ("arguments", "redirection", "stream"),
    [
        *(
            (arguments, f">{to}", "stdout")
            for arguments in (["get", "/k", *NOWHERE], ["--help"])
            for to in ("&-", "/dev/full")
        ),
        (["put", "/k", "v", *NOWHERE], ">&-", "stdout"),
        (["delete", "/k", *NOWHERE], ">&-", "stdout"),
        (["slots", *NOWHERE], ">&-", "stdout"),
        (["doctor", *NOWHERE], ">&-", "stdout"),
        (["--version"], ">&-", "stdout"),
        (["put", "/k", "-", *NOWHERE], "<&-", "stdin"),
    ],
)
def test_a_closed_or_full_stream_is_7_and_named(arguments: list[str], redirection: str, stream: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "edl_agent", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 7
    assert done.stderr.startswith(f"Error: {stream} cannot be ")
    assert "unexpected" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_stderr_changes_no_exit_status() -> None:
    command = [sys.executable, "-m", "edl_agent", "get", "/k", *NOWHERE]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command], env=environment(), capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (3, b"")


@pytest.mark.parametrize("arguments", [["get", "/k"], ["register", "--port", "1"], ["slots"]])
def test_the_advice_names_the_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--endpoints", "ftp://h:1"]) == 2
    assert f"see `edl-agent {arguments[0]} --help`" in capsys.readouterr().err
