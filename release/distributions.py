"""Wheel and sdist: from the commit and not from the checkout, the same bytes whoever builds them, no file too many."""

from __future__ import annotations

import os
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from release.commands import ReleaseError, run


@dataclass(frozen=True)
class Distributions:
    """The two files of one build."""

    wheel: Path
    sdist: Path


def clone_commit(root: Path, target: Path) -> Path:
    """Have the commit that is checked out in ``root`` alone in ``target``; returns ``target``.

    Raises:
        ReleaseError: ``root`` is no checkout, or git is missing.
    """
    run("git clone", ["git", "clone", "--quiet", "--no-hardlinks", "--no-checkout", str(root), str(target)], cwd=root)
    commit = run("git rev-parse", ["git", "rev-parse", "HEAD"], cwd=root).strip()
    run("git checkout", ["git", "checkout", "--quiet", "--detach", commit], cwd=target, umask=0o022)
    return target


def commit_time(clone: Path) -> int:
    """Return the commit's time, in Unix seconds: the time of all that is built of it."""
    return int(run("git log", ["git", "log", "-1", "--format=%ct"], cwd=clone))


def build(source: Path, output: Path, epoch: int, *, umask: int = 0o022, time_zone: str = "UTC") -> Distributions:
    """Build both from the tree ``source`` into ``output``.

    Raises:
        ReleaseError: the build failed.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "TZ": time_zone}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(output)]
    run("hatchling", command, cwd=source, environment=environment, umask=umask)
    (wheel,), (sdist,) = output.glob("*.whl"), output.glob("*.tar.gz")
    return Distributions(wheel, sdist)


def build_reproducibly(clone: Path, output: Path, scratch: Path) -> Distributions:
    """Build from the clone, and again from the sdist as somebody else would; the bytes must be equal.

    Raises:
        ReleaseError: they differ; the message names the files in which they do.
    """
    epoch = commit_time(clone)
    first = build(clone, output, epoch)
    unpacked = scratch / "unpacked"
    with tarfile.open(first.sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    # Other rights, another time zone, another folder, and files as old as the sdist says.
    second = build(source, scratch / "again", epoch, umask=0o077, time_zone="Asia/Kathmandu")
    for one, other in ((first.wheel, second.wheel), (first.sdist, second.sdist)):
        if one.read_bytes() != other.read_bytes():
            raise ReleaseError(f"{one.name} built again from the sdist differs: {', '.join(differences(one, other))}")
    return first


def differences(one: Path, other: Path) -> list[str]:
    """Name the members in which two archives differ; one word where only their headers do."""
    mine, theirs = members(one), members(other)
    found = [name for name in sorted(mine.keys() | theirs.keys()) if mine.get(name) != theirs.get(name)]
    return found or ["times, rights or order"]


def members(archive: Path) -> dict[str, bytes]:
    """Return the files of a wheel or an sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        files = {member.name: sdist.extractfile(member) for member in sdist if member.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


def check_contents(wheel: Path, version: str, listed: str) -> int:
    """Compare a wheel's files with the list of those that are shipped; returns their count.

    Raises:
        ReleaseError: a file is missing or not in the list.
    """
    names = {name.replace(f"edl-{version}", "edl-VERSION") for name in members(wheel)}
    wanted = set(listed.split())
    if names != wanted:
        wrong = [f"not in the list: {name}" for name in sorted(names - wanted)]
        wrong += [f"not in the wheel: {name}" for name in sorted(wanted - names)]
        hint = "python -m tests.packaging.test_wheel writes tests/packaging/wheel_contents.txt anew"
        raise ReleaseError("\n".join([f"{wheel.name} does not hold what it should ({hint}):", *wrong]))
    return len(names)
