"""A run that was killed leaves containers and mounts; the next one removes them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.bench.kubelet_leftovers import BRIDGE, CGROUP, FOLDER, cgroup_roots, remove_cgroup, remove_leftovers
from tests.bench.kubelet_node import nodes_missing


def make_all(run: int) -> tuple[list[Path], Path, Path, subprocess.Popen[bytes]]:
    """What a run has: cgroups, a folder with a mount, the bridge (as in /sys), a process in the cgroups."""
    process = subprocess.Popen(["sleep", "600"])
    cgroups = [root / f"{CGROUP.format(run=run)}1" for root in cgroup_roots() if root.name != "cpuset"]
    for cgroup in cgroups:
        cgroup.mkdir()
        (cgroup / "cgroup.procs").write_text(str(process.pid))
    folder = Path(tempfile.mkdtemp(prefix=FOLDER.format(run=run)))
    (folder / "mounted").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder / "mounted"], check=True)
    bridge = BRIDGE.format(run=run)
    subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=True)
    return cgroups, folder, Path("/sys/class/net", bridge), process


def test_what_a_killed_run_left_is_removed_and_what_runs_is_not() -> None:
    if (reason := nodes_missing()) is not None:
        pytest.skip(reason)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    mine = CGROUP.format(run=os.getpid()) + "99"
    kept = [root / mine for root in cgroup_roots()]
    for cgroup in kept:
        cgroup.mkdir()
    cgroups, folder, bridge, process = make_all(ended.pid)
    try:
        remove_leftovers()

        assert process.wait(10) == -9
        assert not [path for path in (*cgroups, folder, bridge) if path.exists()]
        assert all(cgroup.exists() for cgroup in kept)
    finally:
        process.kill()
        process.wait()
        remove_cgroup(mine)
