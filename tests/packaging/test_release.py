"""`make release`: what it refuses, and that a build of the commit is the same whoever makes it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

from release.__main__ import build_images, clear, write_sums
from release.bill_of_materials import named
from release.clean_install import environment_of
from release.commands import ReleaseError, run
from release.distributions import build_reproducibly, check_contents, clone_commit, differences
from release.licences import ALLOWED, allows, as_text, judge
from release.versions import version_faults

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = "# Changelog\n\n## [1.2.0] - {}\n\n## [1.1.0] - 2024-01-02\n"


def _git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, timeout=30)


def test_only_what_is_committed_is_released(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    _git(checkout, "init", "-q")
    (checkout / "file").write_text("committed")
    _git(checkout, "add", "file")
    _git(checkout, "commit", "-q", "-m", "One")
    (checkout / "file").write_text("changed")
    (checkout / "more").write_text("not added")

    clone = clone_commit(checkout, tmp_path / "clone")

    assert {path.name: path.read_text() for path in clone.iterdir() if path.is_file()} == {"file": "committed"}
    with pytest.raises(ReleaseError, match="git clone"):
        clone_commit(tmp_path, tmp_path / "nothing")


def test_a_build_from_the_sdist_is_the_same_to_the_byte(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    clone = clone_commit(ROOT, tmp_path / "clone")
    made = build_reproducibly(clone, tmp_path / "dist", tmp_path)
    version = tomllib.loads((clone / "pyproject.toml").read_text())["project"]["version"]
    listed = "\n".join(name.replace(version, "VERSION", 1) for name in zipfile.ZipFile(made.wheel).namelist())

    assert sorted(path.name for path in (tmp_path / "dist").iterdir()) == sorted([made.wheel.name, made.sdist.name])
    assert check_contents(made.wheel, version, listed) > 100
    with pytest.raises(ReleaseError, match=r"not in the wheel: edl_agent/forgotten\.py"):
        check_contents(made.wheel, version, f"{listed}\nedl_agent/forgotten.py")
    with pytest.raises(ReleaseError, match=r"not in the list: edl_agent/cli/__init__\.py"):
        check_contents(made.wheel, version, listed.replace("edl_agent/cli/__init__.py\n", ""))


def test_a_difference_is_named(tmp_path: Path) -> None:
    for name, text in (("one", "1"), ("other", "2"), ("later", "1")):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as wheel:
            wheel.writestr("same", "same")
            wheel.writestr(zipfile.ZipInfo("file", (2000 if name == "one" else 2001, 1, 1, 0, 0, 0)), text)
    assert differences(tmp_path / "one.whl", tmp_path / "other.whl") == ["file"]
    assert differences(tmp_path / "one.whl", tmp_path / "later.whl") == ["times, rights or order"]


@pytest.mark.parametrize(
    ("said", "date", "tags", "fault"),
    [
        ("edl-agent 1.2.0\n", "unreleased", [], ""),
        ("edl-agent 1.2.0\n", "2025-03-04", ["v1.2.0", "nightly"], ""),
        ("edl-agent 1.1.0\n", "unreleased", [], "edl-agent --version prints 'edl-agent 1.1.0'"),
        ("edl-agent 1.2.0\n", "2025-03-04", ["v1.2.1"], "the tag v1.2.1, not v1.2.0"),
        ("edl-agent 1.2.0\n", "2025-03-04", ["1.2.0"], "the tag 1.2.0, not v1.2.0"),
        ("edl-agent 1.2.0\n", "unreleased", ["v1.2.0"], "1.2.0 is unreleased, no date"),
    ],
)
def test_versions_agree(said: str, date: str, tags: list[str], fault: str) -> None:
    faults = version_faults("1.2.0", {"edl-agent": said}, CHANGELOG.format(date), tags)
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)


def test_the_changelog_begins_with_the_version() -> None:
    assert version_faults("1.3.0", {}, CHANGELOG.format("2025-03-04"), []) == [
        "CHANGELOG.md begins with 1.2.0, not with 1.3.0"
    ]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version_faults(version, {}, (ROOT / "CHANGELOG.md").read_text(), []) == []


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("Apache-2.0 AND GPL-3.0-only", False),
        ("BSD-3-Clause AND (MIT OR GPL-2.0-only)", True),
        ("(BSD-3-Clause AND GPL-2.0-only) OR MIT-0", True),
        ("MIT AND (GPL-2.0-only OR AGPL-3.0-only)", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only WITH GCC-exception-3.1", False),
        ("LGPL-3.0-or-later", False),
        ("Proprietary", False),
        ("MIT OR", True),
        ("(MIT", False),
        ("MIT)", False),
        ("MIT MIT", False),
        ("", False),
    ],
)
def test_licences_that_allow(expression: str, allowed: bool) -> None:
    assert allows(expression) is allowed


def test_a_distribution_says_its_licence_in_three_ways(tmp_path: Path) -> None:
    said = {
        "expression": "License-Expression: MIT OR Apache-2.0\nClassifier: License :: Other/Proprietary License",
        "classified": "Classifier: License :: OSI Approved :: BSD License\nClassifier: License :: OSI Approved",
        "two": "Classifier: License :: OSI Approved :: MIT License\nClassifier: License :: OSI Approved :: GPLv3",
        "field": "License: Apache License, Version 2.0",
        "unknown": "License: UNKNOWN",
        "nothing": "Summary: a program",
    }
    for name, text in said.items():
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1\n{text}\n")

    judged = judge(distributions(path=[str(tmp_path)]))

    assert [(str(one), one.allowed) for one in judged] == [
        ("classified 1: BSD", True),
        ("expression 1: MIT OR Apache-2.0", True),
        ("field 1: Apache-2.0", True),
        ("nothing 1: names no licence", False),
        ("two 1: MIT AND GPLv3", False),
        ("unknown 1: names no licence", False),
    ]
    assert f"\nBSD: {ALLOWED['BSD']}\n" in as_text(judged)


def test_what_is_locked_for_the_wheel_may_be_passed_on() -> None:
    """As far as it is installed for the tests, too: a new version's licence is seen before the release."""
    locked = set(re.findall(r"^([a-z0-9.-]+)==", (ROOT / "requirements/wheel.txt").read_text(), re.M))
    here = [one for one in distributions() if one.metadata["Name"].lower().replace("_", "-") in locked]
    assert len(here) > 10
    assert [str(one) for one in judge(here) if not one.allowed] == []


def test_a_failed_program_is_told_with_its_last_words(tmp_path: Path) -> None:
    script = "print('why'); raise SystemExit(3)"
    with pytest.raises(ReleaseError, match=r"^the try: exit status 3\nwhy$"):
        run("the try", [sys.executable, "-c", script], cwd=tmp_path)
    with pytest.raises(ReleaseError, match=r"^the try: nothing here\nwhy$"):
        run("the try", [sys.executable, "-c", script], cwd=tmp_path, meanings={3: "nothing here"})
    with pytest.raises(ReleaseError, match="No such file"):
        run("the try", [str(tmp_path / "absent")], cwd=tmp_path)
    with pytest.raises(ReleaseError, match="not through within 0 s"):
        run("the try", [sys.executable, "-c", "import signal; signal.pause()"], cwd=tmp_path, timeout=0.3)


def test_the_environment_has_nothing_of_this_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("EDL_PREFIX", "/other")
    found = environment_of(tmp_path)
    assert not {"PYTHONPATH", "EDL_PREFIX"} & found.keys()
    assert found["PATH"].split(os.pathsep)[0] == str(tmp_path / "bin")


def test_the_bill_names_what_it_is_about_and_its_components() -> None:
    part = {"name": "Click", "version": "8.1"}
    bill = {"metadata": {"component": {"name": "edl", "version": "1"}}, "components": [part]}
    assert named(bill) == {"edl 1", "click 8.1"}


def test_images_are_those_that_were_built_and_without_a_builder_it_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build_images(ROOT, tmp_path / "images") == []
    assert re.search(r"no images: .*no builder .*\n.*docker, podman or buildah", capsys.readouterr().out)
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "__init__.py").touch()
    (tmp_path / "docker" / "build_images.py").write_text("print('edl-agent:1  83 MB  /out/edl-agent.tar')")
    assert build_images(tmp_path, tmp_path / "images") == [Path("/out/edl-agent.tar")]
    (tmp_path / "docker" / "build_images.py").write_text("raise SystemExit('broken')")
    with pytest.raises(ReleaseError, match=r"make images: exit status 1\nbroken"):
        build_images(tmp_path, tmp_path / "images")


def test_sums_are_those_of_sha256sum_and_older_files_go(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for path in (tmp_path / "edl-0.0.1.tar.gz", tmp_path / "SHA256SUMS", images / "edl-agent.tar"):
        path.write_text("older")
    clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["images"]
    (tmp_path / "edl-1.tar.gz").write_text("newer")

    write_sums(tmp_path, [tmp_path / "edl-1.tar.gz", images / "edl-agent.tar"])

    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert checked.stdout == "edl-1.tar.gz: OK\nimages/edl-agent.tar: OK\n"
