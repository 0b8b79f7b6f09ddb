"""The lock files: a hash for everything, no index host, and in step with pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def pins(name: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for project, version in PIN.findall((ROOT / "requirements" / name).read_text()):
        found.setdefault(project.lower().replace("_", "-"), set()).add(version)
    return found


def group(name: str) -> list[Requirement]:
    found = []
    for entry in PYPROJECT["dependency-groups"][name]:
        found += group(entry["include-group"]) if isinstance(entry, dict) else [Requirement(entry)]
    return found


def test_the_lock_files_are_there() -> None:
    assert [lock.name for lock in LOCKS] == [
        "agent.txt", "controller.txt", "dev.txt", "examples.txt", "fuzz.txt", "interop.txt", "lock.txt", "oldest.txt",
        "paddle.txt", "pip.txt", "release.txt", "wheel.txt",
    ]  # fmt: skip


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_names_no_host_no_path_and_no_index(lock: Path) -> None:
    for number, line in enumerate(lock.read_text().splitlines(), 1):
        assert not re.search(r"https?:|--(extra-)?index-url|--find-links|--trusted-host|(^|[\s(=])/\w|@ ", line), number


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_pin_has_a_hash(lock: Path) -> None:
    blocks = re.split(r"^(?=[A-Za-z0-9])", lock.read_text(), flags=re.MULTILINE)[1:]
    assert blocks
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block or "==" not in block] == []


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("dev.txt", [Requirement(text) for text in PYPROJECT["project"]["dependencies"]] + group("dev")),
        ("interop.txt", group("interop")),
        ("oldest.txt", [Requirement(text) for text in PYPROJECT["project"]["dependencies"]] + group("test")),
    ],
)
def test_lock_answers_pyproject(lock: str, wanted: list[Requirement]) -> None:
    locked = pins(lock)
    for requirement in wanted:
        versions = locked.get(requirement.name.lower(), set())
        assert versions, f"{requirement} is not locked: run `make lock`"
        assert all(requirement.specifier.contains(version) for version in versions), f"{requirement}: run `make lock`"


def test_oldest_lock_has_the_lower_bound_of_each_dependency() -> None:
    locked = pins("oldest.txt")
    for text in PYPROJECT["project"]["dependencies"]:
        requirement = Requirement(text)
        [lowest] = [part.version for part in requirement.specifier if part.operator == ">="]
        [version] = locked[requirement.name]
        assert version.split(".")[: lowest.count(".") + 1] == lowest.split("."), f"{text}: run `make lock`"
