"""The settings of `edl-controller`: one table, four places to give them, one order; and what is said of mistakes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edl_controller.cli.controller_run import settings_options
from edl_controller.core.job_settings import DEFAULT_SETTINGS
from edl_controller.errors import ConfigurationError
from edl_controller.program import connect
from edl_controller.program.read_settings import read
from edl_controller.program.settings import ROWS, ProgramSettings, Row
from tests.bench.controller_process import PROGRAM

EXAMPLES: dict[str, tuple[Any, Any, Any]] = {
    "text": ("one", "two", "three"),
    "whole": (11, 12, 13),
    "number": (2.5, 3.5, 4.5),
    "switch": (True, False, True),
    "list": (("a", "b"), ("c",), ("d", "e")),
}
"""By kind: values that differ, for the flag, the environment and the file."""


def _examples(row: Row) -> tuple[Any, Any, Any]:
    if row.kind == "choice":
        return row.choices[0], row.choices[1], row.choices[0]
    if row.name == "max_load":
        return 0.1, 0.2, 0.3
    if row.name == "stop_within" or row.name == "agents_stale":
        return 11.0, 12.0, 13.0
    return EXAMPLES[row.kind]


def _text(value: Any) -> str:
    return (
        ",".join(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _file(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_flag_wins_over_the_environment_that_over_the_file_that_over_the_default(row: Row, tmp_path: Path) -> None:
    flag, environment, file = _examples(row)
    in_file = list(file) if isinstance(file, tuple) else file
    path = _file(tmp_path, f"{row.key}: {in_file!r}\n" if not isinstance(file, bool) else f"{row.key}: {_text(file)}\n")
    given = {row.name: flag}
    variables = {row.environment: _text(environment)}

    def value(*places: Any) -> tuple[Any, str]:
        found = read(*places)
        return getattr(found.settings, row.name), found.origins[row.name]

    assert value(given, variables, path) == (flag, row.flag)
    assert value({}, variables, path) == (environment, row.environment)
    assert value({}, {}, path) == (file, f"{row.key} in {path}")
    assert value({}, {}) == (row.default, "default")
    assert value({}, {"EDL_CONFIG": str(path)}) == (file, f"{row.key} in {path}"), "the file named by the environment"


def test_every_setting_has_a_reason_a_name_of_its_own_and_a_flag() -> None:
    assert len({row.flag for row in ROWS}) == len(ROWS)
    assert all(row.reason.endswith(".") for row in ROWS)
    assert all(row.least is not None and row.most is not None for row in ROWS if row.kind in ("whole", "number"))
    command = settings_options(lambda: None)
    flags = {option.opts[0] for option in command.__click_params__}  # type: ignore[attr-defined]
    assert flags == {row.flag for row in ROWS} | {"--config", "--debug"}


MISTAKES = [
    ("worker: 3\n", {}, {}, "no setting 'worker'; did you mean workers?"),
    ("max_load: 0.5\n", {}, {}, "no setting 'max_load'; did you mean max-load?"),
    ("zzzz: 1\n", {}, {}, "`edl-controller settings` prints all of them"),
    ("workers: many\n", {}, {}, "must be a whole number, not 'many'"),
    ("workers: 4.5\n", {}, {}, "must be a whole number, not 4.5"),
    ("workers: true\n", {}, {}, "must be a whole number, not True"),
    ("workers: 0\n", {}, {}, "must be from 1 to 256 jobs, not 0"),
    ("kubeconfig: 3\n", {}, {}, "must be text, not 3"),
    ("namespaces: {a: b}\n", {}, {}, "must be a list of texts"),
    ("- workers\n", {}, {}, "must be a map of settings"),
    ("workers: [1\n", {}, {}, "is no YAML, line 2"),
    ("workers: !!python/object/apply:os.system ['touch /tmp/never']\n", {}, {}, "is no YAML"),
    ("", {"max_load": "1.5"}, {}, "--max-load: must be from 0.01 to 1 share, not 1.5"),
    ("", {"max_load": "nan"}, {}, "--max-load: must be from 0.01 to 1 share, not nan"),
    ("", {"cluster": "mesos"}, {}, "--cluster: one of kube, local, not 'mesos'"),
    ("", {}, {"EDL_LEADER_ELECT": "perhaps"}, "EDL_LEADER_ELECT: true or false, not 'perhaps'"),
    ("", {}, {"EDL_CONFIG": "/does/not/exist"}, "/does/not/exist cannot be read: No such file"),
]


@pytest.mark.parametrize(("text", "flags", "environment", "said"), MISTAKES, ids=[row[3][:40] for row in MISTAKES])
def test_a_mistake_is_named_with_its_place(
    text: str, flags: dict[str, Any], environment: dict[str, str], said: str, tmp_path: Path
) -> None:
    path = _file(tmp_path, text) if text else None
    with pytest.raises(ConfigurationError) as error:
        read(flags, environment, path)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"etcd_user": "u", "etcd_endpoints": ("http://e:2379",), "etcd_password_file": "/p"}, "unencrypted"),
        ({"etcd_ca": "/ca"}, "etcd-endpoints is missing"),
        ({"etcd_endpoints": ("https://e:2379",), "etcd_cert": "/c"}, "go together"),
        ({"etcd_endpoints": ("http://e:1", "https://f:1")}, "etcd of the jobs"),
    ],
)
def test_an_identity_that_cannot_be_used_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        connect.etcd_access(ProgramSettings(**given))


def test_times_of_the_election_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be longer than the renew deadline"):
        connect.election_settings(ProgramSettings(lease_duration=5.0))


def test_what_jobs_get_is_what_was_set() -> None:
    jobs = connect.job_settings(
        ProgramSettings(
            etcd_endpoints=("http://inside:2379",),
            job_etcd_endpoints=("http://outside:2379",),
            job_image_prefixes=("registry.example.com/",),
            job_probe_port=0,
        )
    )
    assert jobs.etcd_endpoints == ("http://outside:2379",)
    assert jobs.limits.image_prefixes == ("registry.example.com/",)
    assert jobs.probe_port == 0
    assert connect.job_settings(ProgramSettings()) == DEFAULT_SETTINGS, "the defaults are the library's"


@pytest.mark.parametrize(
    ("settings", "scales"),
    [
        (ProgramSettings(), True),
        (ProgramSettings(namespaces=("a",)), False),
        (ProgramSettings(namespaces=("a",), autoscale=True), True),
        (ProgramSettings(autoscale=False), False),
    ],
)
def test_who_may_not_list_nodes_does_not_scale_unless_told_to(settings: ProgramSettings, scales: bool) -> None:
    assert settings.scales is scales


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), *arguments], capture_output=True, text=True, timeout=60, env={"PATH": "", **environment}
    )


def test_what_is_printed_can_be_given_back_and_says_where_it_came_from(tmp_path: Path) -> None:
    printed = _run("settings", "--namespace", "a", "--namespace", "b,c", "--no-leader-elect", EDL_WORKERS="7")
    assert printed.returncode == 0, printed.stderr
    assert 'namespaces: ["a", "b", "c"]  # --namespace\n' in printed.stdout
    assert "leader-elect: false  # --leader-elect\n" in printed.stdout
    assert "workers: 7  # EDL_WORKERS\n" in printed.stdout
    path = _file(tmp_path, printed.stdout)
    again = _run("run", "--print-settings", "--config", str(path))
    assert re.sub("  #.*", "", again.stdout) == re.sub("  #.*", "", printed.stdout)


@pytest.mark.security(21)
def test_a_password_in_a_url_is_never_shown() -> None:
    printed = _run("settings", "--etcd-endpoints", "https://root:canary-1@e:2379")
    assert "canary-1" not in printed.stdout + printed.stderr
    refused = _run("run", "--cluster", "local", "--etcd-endpoints", "https://root:canary-1@e:2379")
    assert refused.returncode == 2
    assert "canary-1" not in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["run", "--workers", "0"], 2, "Error: --workers: must be from 1 to 256 jobs, not 0"),
        (["run", "--no-such"], 2, "No such option"),
        (["run", "--kubeconfig", "/no/config"], 2, "no way to the API server in /no/config"),
        (["run", "--cluster", "local"], 2, "no cluster is up in"),
        (["run", "--http-bind", "example.com:80"], 2, "IP address or localhost, not 'example.com'"),
        (["run", "--cluster", "local", "--local-endpoints", "ftp://x"], 2, "Error: "),
        (["run", "--namespace", "a/../b"], 2, "namespaces: 'a/../b' cannot be the name of a namespace"),
        (["run", "--namespace", "$(POD_NAMESPACE)"], 2, "cannot be the name of a namespace"),
        (["run", "--lease-name", "A B"], 2, "lease-name: 'A B' cannot be the name of a Lease"),
        (["crd"], 0, ""),
        (["run", "--help"], 0, ""),
    ],
)
def test_exit_statuses(arguments: list[str], status: int, said: str, tmp_path: Path) -> None:
    done = _run(*arguments, EDL_LOCAL_ROOT=str(tmp_path), HOME=str(tmp_path))
    assert (done.returncode, said in done.stderr) == (status, True), done
    assert "Traceback" not in done.stderr


def test_the_manifests_say_nothing_that_the_program_does_not_know() -> None:
    deploy = Path(__file__).parents[2] / "deploy"
    texts = [path.read_text() for path in deploy.rglob("*.yaml") if path.parent != deploy / "etcd"]
    arguments = {
        found for text in texts for found in re.findall(r"^ +(?:- )?.*?(?:- |value: )(--[a-z-]+)\b", text, re.M)
    }
    known = {name for row in ROWS for name in (row.flag, f"--no-{row.flag[2:]}" if row.kind == "switch" else row.flag)}
    assert "--http-bind" in arguments
    assert arguments <= known


@pytest.mark.parametrize("missing", ["prometheus_client", "msgspec", "yaml", "kubernetes", "pythonjsonlogger"])
def test_a_package_of_the_extra_that_is_missing_is_named(missing: str, tmp_path: Path) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no', name={missing!r})\n")
    arguments = ["run", "--log-format", "json", "--kubeconfig", str(_kubeconfig(tmp_path))]
    done = _run(*arguments, PYTHONPATH=str(tmp_path))
    assert (done.returncode, "pip install 'edl[controller]'" in done.stderr) == (2, True), done
    assert _run("--help", PYTHONPATH=str(tmp_path)).returncode == 0


def _kubeconfig(folder: Path) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: u, user: {token: t}}], "
        "contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}"
    )
    return path


def test_the_definition_is_printed_as_it_is_shipped() -> None:
    assert _run("crd").stdout == (Path(connect.__file__).parents[1] / "api" / "crd.yaml").read_text()


@pytest.mark.security(21)
def test_a_bad_kubeconfig_is_named_and_its_content_is_not(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("users: [{name: u, user: {token: canary-2}}]\ncontexts: 3\n")
    done = _run("run", "--kubeconfig", str(path))
    assert done.returncode == 2
    assert f"no way to the API server in {path}" in done.stderr
    assert "canary-2" not in done.stdout + done.stderr
