"""What nodes with real containers leave in the kernel: processes, mounts, cgroups, a bridge; named after their run.

Containers outlive the programs that made them, so a run that was killed leaves them; the next one removes them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.waiting import eventually

CGROUP, BRIDGE, FOLDER = "edl-tests-{run}-", "edlt{run}", "edl-nodes-{run}-"
"""Names by the process id of a run (of 8 digits at most, for the bridge); a node's number follows on the first."""


def cgroup_roots() -> list[Path]:
    """Where cgroups are made: one folder for version 2, one for each controller for version 1."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    return [folder for folder in root.iterdir() if folder.is_dir() and not folder.is_symlink()]


def kill_shims(folder: Path) -> None:
    """Kill the shims of every containerd whose socket is in this folder or below."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if f"-address\0{folder}/" in (process / "cmdline").read_text():
                    os.kill(int(process.name), signal.SIGKILL)


def kill_cgroup(name: str) -> None:
    """Kill what runs in a cgroup and those in it."""
    for root in cgroup_roots():
        for folder, _, _ in os.walk(root / name):
            with contextlib.suppress(OSError):  # gone meanwhile
                for process in map(int, Path(folder, "cgroup.procs").read_text().split()):
                    if process:  # 0: of another namespace
                        os.kill(process, signal.SIGKILL)


def unmount_below(folder: Path) -> None:
    """Unmount all that is mounted below this folder, now or once it is no longer used."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((p for p in points if p.startswith(f"{folder}/")), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)


def remove_cgroup(name: str) -> None:
    """Remove a cgroup in which nothing runs, and those in it. Raises AssertionError where that takes over 10 s."""
    tops = [root / name for root in cgroup_roots()]

    def gone() -> bool:
        for top in tops:
            for folder, _, _ in os.walk(top, topdown=False):
                # Busy until the kernel is through with the last process.
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        return not any(top.exists() for top in tops)

    eventually(gone, 10, f"the cgroups {name} are removed")


def remove_leftovers() -> None:
    """Remove what runs left that are no more."""
    folders, cgroups = Path(tempfile.gettempdir()), {path.name for root in cgroup_roots() for path in root.iterdir()}
    for run, folder in _ended(FOLDER, (path.name for path in folders.iterdir())):
        for cgroup in (name for name in cgroups if name.startswith(CGROUP.format(run=run))):
            kill_cgroup(cgroup)
        kill_shims(folders / folder)
        unmount_below(folders / folder)
        shutil.rmtree(folders / folder, ignore_errors=True)
    for _, cgroup in _ended(CGROUP, cgroups):
        kill_cgroup(cgroup)
        remove_cgroup(cgroup)
    for _, bridge in _ended(BRIDGE, (path.name for path in Path("/sys/class/net").iterdir())):
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def _ended(form: str, names: Iterator[str] | set[str]) -> list[tuple[str, str]]:
    """Names of this form whose run is no more, each behind its run."""
    found = [(match[1], name) for name in names if (match := re.match(form.format(run=r"(\d+)"), name))]
    return [(run, name) for run, name in found if not Path("/proc", run).exists()]
