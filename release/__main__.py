"""``python -m release``: build, check, try and list what is released, into dist/.

Everything is made from the commit that is checked out; what is not committed is left out. Downloads: the locked wheels.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from release import licences
from release.bill_of_materials import write_bill
from release.clean_install import make_environment, program_versions, run_demo
from release.commands import ReleaseError, run
from release.distributions import build_reproducibly, check_contents, clone_commit
from release.versions import version_faults

ROOT = Path(__file__).resolve().parent.parent
_BEGAN = time.monotonic()


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{time.monotonic() - _BEGAN:6.1f} s  {text}", flush=True)


def release(output: Path, scratch: Path, *, images: bool, demo: bool) -> None:
    """Make everything.

    Args:
        output: folder of what is released; older files of a release there are removed.
        scratch: an empty folder outside of the checkout.
        images: whether to build them.
        demo: whether to run it.

    Raises:
        ReleaseError: something is wrong with the commit, or could not be had.
    """
    source = clone_commit(ROOT, scratch / "source")
    commit = run("git rev-parse", ["git", "rev-parse", "--short", "HEAD"], cwd=source).strip()
    say(f"commit {commit}")
    if changed := run("git status", ["git", "status", "--porcelain"], cwd=ROOT).splitlines():
        say(f"NOT in the release, since not committed: {len(changed)} files, such as {changed[0][3:]}")
    version = str(tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"])
    clear(output)

    made = build_reproducibly(source, output, scratch)
    say(f"{made.wheel.name} and {made.sdist.name}: the same bytes when built again from the sdist")
    count = check_contents(made.wheel, version, (source / "tests/packaging/wheel_contents.txt").read_text())
    say(f"the wheel holds the {count} files of tests/packaging/wheel_contents.txt")

    clean = make_environment(scratch / "clean", [source / "requirements" / "wheel.txt"], made.wheel)
    tags = run("git tag", ["git", "tag", "--points-at", "HEAD"], cwd=ROOT).split()
    faults = version_faults(version, program_versions(clean), (source / "CHANGELOG.md").read_text(), tags)
    if faults:
        raise ReleaseError("\n".join(["the versions disagree:", *faults]))
    say(f"installed by hashes with all extras; all say {version}{f', tagged {tags}' if tags else ', no tag'}")

    judged = licences.judge(licences.installed(clean))
    if refused := [str(one) for one in judged if not one.allowed]:
        raise ReleaseError("\n".join(["not to be distributed (see release/licences.py):", *refused]))
    listed = output / f"edl-{version}-licences.txt"
    listed.write_text(licences.as_text(judged))
    say(f"{listed.name}: all {len(judged)} distributions may be passed on")
    bill = output / f"edl-{version}.cdx.json"
    say(f"{bill.name}: {write_bill(clean, source, scratch / 'cyclonedx', bill)} components")

    files = [made.wheel, made.sdist, listed, bill]
    if images:
        files += build_images(source, output / "images")
    else:
        say("no images, as asked")
    if demo:
        for line in run_demo(clean, source / "examples", scratch / "outside"):
            say(f"demo: {line}")
    else:
        say("the demo is not run, as asked")
    write_sums(output, files)
    say(f"SHA256SUMS of {len(files)} files in {output}")


def clear(output: Path) -> None:
    """Remove an earlier release's files; images stay, for those who try them."""
    output.mkdir(parents=True, exist_ok=True)
    for path in (*output.glob("edl-*"), output / "SHA256SUMS"):
        path.unlink(missing_ok=True)


def build_images(source: Path, output: Path) -> list[Path]:
    """Build the images, where something here can; returns their archives.

    Raises:
        ReleaseError: the build failed.
    """
    no_builder = "no builder of images here"
    command = [sys.executable, "-m", "docker.build_images", "--output", str(output)]
    try:
        said = run("make images", command, cwd=source, timeout=3600.0, meanings={3: no_builder})
    except ReleaseError as error:
        if no_builder not in str(error).partition("\n")[0]:
            raise
        say(f"no images: {error}")
        return []
    for line in said.splitlines():
        say(line)
    # "TAG  SIZE  ARCHIVE": not the base, which is a part of each, and not what lay there before.
    return [Path(line.rpartition("  ")[2]) for line in said.splitlines()]


def write_sums(folder: Path, files: Sequence[Path]) -> None:
    """Write SHA256SUMS as ``sha256sum --check`` reads it, by names below the folder."""
    lines = []
    for path in files:
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(folder)}\n")
    (folder / "SHA256SUMS").write_text("".join(lines))


def main() -> int:
    """Make the release; the exit status is 1 where the commit cannot be released."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--without-images", action="store_true", help="do not build the images")
    parser.add_argument("--without-demo", action="store_true", help="do not run the demo from the installed wheel")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder (default: dist)")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="edl-release-"))
    try:
        release(options.output.resolve(), scratch, images=not options.without_images, demo=not options.without_demo)
    except ReleaseError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
