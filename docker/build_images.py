"""``make images``: the three images, by docker, podman or buildah, from one wheel and locked wheels with hashes.

Downloads happen here, before the build; the build itself needs no network. Each image is also written as a
docker-archive to dist/images/NAME.tar (for ``ctr images import``, ``docker load`` or ``skopeo copy``).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from docker.debian_base import BaseError, make_root

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "dist" / "images"
BASE = "localhost/edl-base"
IMAGES = {"edl-agent": "agent", "edl-controller": "controller", "edl-digits": "example"}
"""Image -> its Dockerfile."""
LOCKS = {"agent": "agent", "controller": "controller", "example": "examples"}
"""Dockerfile -> its lock file in requirements/."""

PLATFORMS = [f"manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_17", "2014", "_2_5", "1", "_2_26", "_2_24")]


class NoBuilderError(RuntimeError):
    """No program on this machine can build images; the message says which would."""


@dataclass(frozen=True)
class Builder:
    """A command that builds images: ``command`` before the subcommand, ``build_options`` behind ``build``."""

    command: tuple[str, ...]
    build_options: tuple[str, ...] = ()

    def build(self, tag: str, dockerfile: Path, context: Path, arguments: Sequence[str] = ()) -> None:
        """Build the image ``tag``. Raises subprocess.CalledProcessError."""
        options = [option for argument in arguments for option in ("--build-arg", argument)]
        run(
            [
                *self.command,
                "build",
                *self.build_options,
                "-q",
                "-t",
                tag,
                "-f",
                str(dockerfile),
                *options,
                str(context),
            ]
        )

    def save(self, tag: str, archive: Path) -> None:
        """Write the image as a docker-archive. Raises subprocess.CalledProcessError."""
        archive.unlink(missing_ok=True)
        if self.command[0] == "buildah":
            run([*self.command, "push", "-q", tag, f"docker-archive:{archive}:{tag}"])
        else:
            form = ["--format", "docker-archive"] if self.command[0] == "podman" else []
            run([*self.command, "save", *form, "-o", str(archive), tag])


def run(command: Sequence[str], cwd: Path = ROOT) -> None:
    """Run a command to its end. Raises subprocess.CalledProcessError."""
    subprocess.run(command, cwd=cwd, stdout=sys.stderr, check=True)


def find_builder(storage: Path) -> Builder:
    """Return the first builder that works here. ``storage``: where buildah keeps its layers. Raises NoBuilderError."""
    for name in ("docker", "podman"):
        if shutil.which(name):
            probe = subprocess.run([name, "info"], capture_output=True, timeout=60, check=False)
            if probe.returncode == 0:
                return Builder((name,))
    if shutil.which("buildah"):
        # vfs and chroot work in any container and VM, and leave no mount behind.
        places = ("--root", str(storage), "--runroot", str(storage / "run"), "--storage-driver", "vfs")
        return Builder(("buildah", *places), ("--isolation", "chroot", "--layers=false", "--pull-never"))
    raise NoBuilderError("images need docker, podman or buildah (Debian: apt-get install buildah)")


def version() -> str:
    """The project's version, from the only place where it is written."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def revision() -> str:
    """The commit, or ``unknown`` where this is no checkout."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def lay_out(context: Path, python: str) -> None:
    """Fill the build context: the wheel, the locked wheels, a requirements file with hashes for each image."""
    wheels = context / "wheels"
    wheels.mkdir(parents=True)
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)])
    (own,) = wheels.glob("*.whl")
    own_line = f"./wheels/{own.name} --hash=sha256:{hashlib.sha256(own.read_bytes()).hexdigest()}\n"
    for image in IMAGES.values():
        lock = ROOT / "requirements" / f"{LOCKS[image]}.txt"
        download(lock, wheels, python)
        (context / f"{image}.txt").write_text(lock.read_text() + own_line)
    download(ROOT / "requirements" / "pip.txt", wheels, python)
    shutil.copy(ROOT / "docker" / "install.py", context)
    ignored = shutil.ignore_patterns("__pycache__")
    for example in ("digits", "sidecar"):
        shutil.copytree(ROOT / "examples" / example, context / "examples" / example, ignore=ignored)
    # Who builds may have any umask; who runs is somebody else.
    for path in context.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def download(lock: Path, wheels: Path, python: str) -> None:
    """Fetch the wheels of a lock file for the images' Python. Raises subprocess.CalledProcessError."""
    number = python.replace(".", "")
    target = ["--python-version", python, "--implementation", "cp"]
    target += [o for abi in (f"cp{number}", "abi3", "none") for o in ("--abi", abi)]
    target += [option for platform in PLATFORMS for option in ("--platform", platform)]
    options = ["--disable-pip-version-check", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    run([sys.executable, "-m", "pip", "download", *options, *target, "-d", str(wheels), "-r", str(lock)])


def main() -> int:
    """Build all; prints one line for each image: its tag and the size of its archive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="", help="image with python3 (default: one made from Debian packages)")
    parser.add_argument("--python", default="3.11", help="minor version of the base's python3")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the archives")
    options = parser.parse_args()
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    storage = Path(os.environ.get("EDL_CACHE_DIR") or cache / "edl") / "image-storage"
    try:
        builder = find_builder(storage)
    except NoBuilderError as error:
        print(error, file=sys.stderr)
        return 3
    with alone(storage.with_suffix(".lock")):
        return _build(builder, storage, output, options.base, options.python)


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until nobody else builds: the storage and its end are shared."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another make images ...", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(builder: Builder, storage: Path, output: Path, given_base: str, python: str) -> int:
    try:
        if builder.command[0] == "buildah" and given_base:
            builder = Builder(builder.command, tuple(o for o in builder.build_options if o != "--pull-never"))
        with tempfile.TemporaryDirectory(dir=output) as scratch:
            base = given_base or BASE
            if not given_base:
                make_root(Path(scratch) / "base" / "root", python)
                builder.build(base, ROOT / "docker" / "base.Dockerfile", Path(scratch) / "base")
                builder.save(base, output / "edl-base.tar")
            context = Path(scratch) / "context"
            lay_out(context, python)
            made = version()
            for name, dockerfile in IMAGES.items():
                tag = f"localhost/{name}:{made}"
                arguments = [f"BASE={base}", f"VERSION={made}", f"REVISION={revision()}"]
                builder.build(tag, ROOT / "docker" / f"{dockerfile}.Dockerfile", context, arguments)
                archive = output / f"{name}.tar"
                builder.save(tag, archive)
                print(f"{tag}  {archive.stat().st_size / 1e6:.0f} MB  {archive}", flush=True)
    except BaseError as error:
        print(error, file=sys.stderr)
        return 3
    except subprocess.CalledProcessError as error:
        print(f"make images: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(storage, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
