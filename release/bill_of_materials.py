"""The list of all that is installed with the wheel, as CycloneDX JSON, for those who track what they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from release.clean_install import make_environment
from release.commands import ReleaseError, run
from release.licences import installed


def write_bill(environment: Path, project: Path, scratch: Path, output: Path) -> int:
    """Write the bill of a virtual environment; returns the number of components.

    Args:
        environment: what is described.
        project: the folder of pyproject.toml, which the bill is about.
        scratch: where the program that writes it is installed.
        output: the file.

    Raises:
        ReleaseError: it could not be written, or does not name what is installed.
    """
    tool = make_environment(scratch, [project / "requirements" / "release.txt"])
    command = [str(tool / "bin" / "cyclonedx-py"), "environment", "--pyproject", str(project / "pyproject.toml")]
    command += ["--mc-type", "application", "--output-reproducible", "--output-format", "JSON"]
    command += ["--output-file", str(output), str(environment / "bin" / "python")]
    run("cyclonedx-py", command, cwd=scratch)
    bill = json.loads(output.read_text())
    wanted = {f"{one.metadata['Name']} {one.version}".lower() for one in installed(environment)}
    if differing := named(bill) ^ wanted:
        raise ReleaseError(f"{output.name} and what is installed differ in {', '.join(sorted(differing))}")
    return len(bill["components"])


def named(bill: dict[str, Any]) -> set[str]:
    """Return the name and version of what a bill is about, and of all its components, in lower case."""
    about = bill["metadata"]["component"]
    return {f"{one['name']} {one['version']}".lower() for one in (about, *bill["components"])}
