"""The file system of a base image from the Debian packages of this machine's own apt sources; no registry is needed.

Only Python and the libraries that it and the wheels link: no shell, no package manager, no user but numbers.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

LIBRARIES = (
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "zlib1g",
    "libbz2-1.0",
    "liblzma5",
    "libexpat1",
    "libffi8",
    "libssl3",
    "libsqlite3-0",
    "libuuid1",
    "media-types",
    "netbase",
)
UNUSED = ("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo")
"""Parts of Python that no program of the images imports."""


class BaseError(RuntimeError):
    """There is no base here; the message says what to do."""


def make_root(root: Path, python: str = "3.11") -> None:
    """Unpack Python of a minor version (``3.11``) into the folder ``root``, as /usr/bin/python3.

    Raises:
        BaseError: apt is not at hand, or has no such packages; the message holds what it said.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise BaseError("no base can be made: this is not Debian. Name an image with python3 3.11: BASE=...")
    version = f"python{python}"
    packages = [*LIBRARIES, version, f"{version}-minimal", f"lib{version}-minimal", f"lib{version}-stdlib"]
    # Since Debian 12 everything is below /usr; packages may still carry the old paths.
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    with tempfile.TemporaryDirectory() as downloads:
        done = subprocess.run(
            ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *packages],
            cwd=downloads,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise BaseError(f"apt-get download failed; try apt-get update.\n{done.stderr.strip()}")
        for package in sorted(Path(downloads).glob("*.deb")):
            _unpack(package, root)
    _strip(root, version)


def _unpack(package: Path, root: Path) -> None:
    # tar keeps the links of the four folders above; dpkg-deb -x would replace them by folders.
    reader = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE)
    options = ["--extract", "--keep-directory-symlink", "--no-same-owner", "--exclude=./usr/share/doc/*"]
    try:
        subprocess.run(["tar", *options, "--directory", str(root)], stdin=reader.stdout, check=True)
    finally:
        assert reader.stdout is not None
        reader.stdout.close()
        if reader.wait():
            raise BaseError(f"{package.name} could not be unpacked")


def _strip(root: Path, version: str) -> None:
    library = root / "usr" / "lib" / version
    for name in UNUSED:
        shutil.rmtree(library / name, ignore_errors=True)
    for folder in (
        *library.glob("config-*"),
        root / "usr/share",
        root / "usr/sbin",
        root / "var",
        root / "usr/lib/valgrind",
    ):
        if folder.name == "share":
            for inside in (
                "doc",
                "man",
                "lintian",
                "applications",
                "pixmaps",
                "binfmts",
                "bug",
                "doc-base",
                "gcc",
                "gdb",
            ):
                shutil.rmtree(folder / inside, ignore_errors=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    (root / "usr" / "sbin").mkdir(exist_ok=True)
    # compileall's argument must not name the version.
    shutil.rmtree(root / "usr/lib/python3", ignore_errors=True)
    (root / "usr/lib/python3").symlink_to(version)
    for name in ("python", "python3"):
        (root / "usr/bin" / name).unlink(missing_ok=True)
        (root / "usr/bin" / name).symlink_to(version)
    for path, mode in (
        ("tmp", 0o1777),
        ("etc", 0o755),
        ("dev", 0o755),
        ("proc", 0o755),
        ("sys", 0o755),
        ("run", 0o755),
    ):
        (root / path).mkdir(exist_ok=True)
        (root / path).chmod(mode)
    (root / "etc/passwd").write_text("root:x:0:0::/:/none\nedl:x:65532:65532::/:/none\n")
    (root / "etc/group").write_text("root:x:0:\nedl:x:65532:\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")
