"""What is shipped: exactly the files of a list, with one version, types, the license, and nothing local."""

import importlib.metadata
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("wheel_contents.txt")
SECRETS = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def build(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def names(wheel: Path) -> list[str]:
    return sorted(name.replace(f"edl-{PROJECT['version']}", "edl-VERSION") for name in contents(wheel))


def test_wheel_holds_exactly_the_listed_files(wheel: Path) -> None:
    found, listed = set(names(wheel)), set(LIST.read_text().split())
    hint = "if that is meant: python -m tests.packaging.test_wheel, and look at what it changed in the list"
    assert sorted(found - listed) == [], f"shipped, but not in the list; {hint}"
    assert sorted(listed - found) == [], f"in the list, but not shipped; {hint}"


def test_list_itself_names_only_code_types_descriptors_and_metadata() -> None:
    allowed = re.compile(
        r"(edl_agent|edl_controller)/([a-z0-9_]+/)*([a-z0-9_]+\.(py|binpb)|py\.typed)|edl_controller/api/crd\.yaml|edl-VERSION\.dist-info/.+"
    )
    listed = LIST.read_text().split()
    assert [name for name in listed if not allowed.fullmatch(name)] == []
    assert listed == sorted(listed)
    assert {"edl_agent/py.typed", "edl_controller/py.typed"} <= set(listed)


def test_wheel_holds_no_private_key_and_no_path_of_this_machine(wheel: Path) -> None:
    local = [str(ROOT).encode(), str(Path.home()).encode() + b"/"]
    for name, data in contents(wheel).items():
        assert not SECRETS.search(data), name
        assert not [path for path in local if path in data], name


def test_metadata_says_license_python_types_and_four_dependencies(wheel: Path) -> None:
    files = contents(wheel)
    [metadata_name] = [name for name in files if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(files[metadata_name].decode())
    assert metadata["Name"] == "edl"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(re.split(r"[<>=]", line)[0] for line in required) == ["click", "grpcio", "protobuf", "tenacity"]
    assert set(metadata.get_all("Provides-Extra", [])) == {"controller", "rich", "plot", "examples", "sidecar", "local"}
    [entry_points] = [data for name, data in files.items() if name.endswith("entry_points.txt")]
    assert b"edl-agent = edl_agent.cli:main" in entry_points


def test_version_has_one_source(wheel: Path) -> None:
    version = PROJECT["version"]
    assert wheel.name.split("-")[1] == version
    assert importlib.metadata.version("edl") == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
    shipped = {name: data for name, data in contents(wheel).items() if ".dist-info/" not in name}
    assert [name for name, data in shipped.items() if version.encode() in data] == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        LIST.write_text("\n".join(names(build(Path(scratch)))) + "\n")
