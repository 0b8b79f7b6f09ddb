"""Each image as a restricted pod: a numeric user, a read-only root, no rights, no shell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.containers.pods import Pods, restricted

VERSION = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]["version"]

Image = Callable[[str], str]


def ended(pods: Pods, name: str) -> tuple[int, str]:
    """The exit status and the log of a pod's only container."""
    pod = pods.wait_ended(name)
    return pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], pods.log(name)


@pytest.mark.parametrize("program", ["edl-agent", "edl-controller"])
def test_program_says_its_version(pods: Pods, image: Image, program: str) -> None:
    pods.create("version", pods.spec(restricted("program", image(program), args=["--version"])))

    status, log = ended(pods, "version")

    assert status == 0, log
    assert VERSION in log


LOOK = """
import os, pathlib
def writable(path):
    try:
        pathlib.Path(path, "written").write_text("")
    except OSError as error:
        return error.strerror
    return "written"
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print("found", {"uid": os.getuid(), "gid": os.getgid(), "capabilities": int(status["CapEff"], 16),
    "seccomp": int(status["Seccomp"]), "no_new_privileges": int(status["NoNewPrivs"]),
    "root": writable("/"), "program": writable("/opt/edl")})
"""


@pytest.mark.parametrize("name", ["edl-agent", "edl-controller", "edl-digits"])
def test_what_runs_may_nothing(pods: Pods, image: Image, name: str) -> None:
    container = restricted("look", image(name), command=["python", "-c", LOOK])
    pods.create("look", pods.spec(container))

    status, log = ended(pods, "look")

    assert status == 0, log
    for said in ("'uid': 65532", "'gid': 65532", "'capabilities': 0", "'seccomp': 2", "'no_new_privileges': 1"):
        assert said in log
    assert "'root': 'Read-only file system'" in log
    assert "'program': 'Read-only file system'" in log


def test_a_launcher_without_a_folder_for_its_socket_names_the_way_out(pods: Pods, image: Image) -> None:
    arguments = ["run", "--endpoints", "http://127.0.0.1:1", "--role", "trainer", "--", "python", "-V"]
    pods.create("launcher", pods.spec(restricted("launcher", image("edl-agent"), args=arguments)))

    status, log = ended(pods, "launcher")

    assert status == 2, log
    assert "EDL_RUN_DIR" in log
    assert "unexpected" not in log


def test_images_are_as_small_as_the_page_says(archives: list[Path]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "install.md").read_text()
    said = {name: int(size) for name, size in re.findall(r"^\| `(edl-\w+)` \| (\d+) MB", page, re.MULTILINE)}

    assert {path.stem: pytest.approx(path.stat().st_size / 1e6, rel=0.05) for path in archives} == said
