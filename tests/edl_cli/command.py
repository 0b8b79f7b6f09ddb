"""Runs ``edl`` as its users do, writes small jobs for it, and finds what it left running."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edl_agent.testing import spawn_bound_to_parent
from edl_controller.api.kinds import PODS, TRAINING_JOBS
from edl_controller.api.v1 import TrainingJob
from edl_controller.cluster.local import LocalCluster
from edl_controller.machine.local_state import LocalState
from tests.bench.agent_process import ROOT
from tests.bench.waiting import eventually
from tests.cli.command import Outcome, environment

PROGRAM = Path(sys.executable).with_name("edl")

NODES = ("--node", "node-0=4,8Gi", "--node", "node-1=4,8Gi")

NAP = ("sleep", f"2000.{os.getpid()}")
"""A command that no other test process runs: how its processes are found again."""

LAUNCHER = {"mode": "Launcher", "ttlSeconds": 3}
"""For ``agent`` of a job."""


class Machine:
    """A folder for a cluster of this machine, and the command that works on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = root.parent / f"{root.name}-files"
        self.files.mkdir(exist_ok=True)
        self._cluster: LocalCluster | None = None

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        path = os.pathsep.join([str(PROGRAM.parent), os.environ["PATH"]])
        return environment({"EDL_LOCAL_ROOT": str(self.root), "PATH": path, **(more or {})})

    def edl(
        self,
        *arguments: str,
        status: int | None = 0,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        traceback: bool = False,
    ) -> Outcome:
        """Run the command to its end; it must end with ``status`` (None: any), and show no traceback."""
        done = subprocess.run(
            [PROGRAM, *arguments],
            input=stdin.encode(),
            capture_output=True,
            timeout=timeout,
            env=self.environment(env),
            cwd=self.files,
            check=False,
        )
        outcome = Outcome(done.returncode, done.stdout, done.stderr.decode())
        assert traceback or "Traceback" not in outcome.stderr, outcome.stderr
        assert status in (None, outcome.status), f"{arguments}: {outcome}"
        return outcome

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start the command and let it run; it ends with this process."""
        return spawn_bound_to_parent(
            [str(PROGRAM), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment({"PYTHONUNBUFFERED": "1", **(env or {})}),
            cwd=self.files,
        )

    def file(self, *jobs: dict[str, Any], name: str = "job.yaml") -> str:
        """Write jobs into a file (JSON is YAML, too); returns its path."""
        path = self.files / name
        path.write_text("\n---\n".join(map(json.dumps, jobs)))
        return str(path)

    def submit(self, *jobs: dict[str, Any]) -> None:
        self.edl("submit", self.file(*jobs))

    @property
    def cluster(self) -> LocalCluster:
        """The cluster that is up, for tests that wait: a command for each look would cost more than the look."""
        if self._cluster is None:
            found = LocalState(self.root).serving()
            assert found is not None, "no cluster is up"
            self._cluster = LocalCluster(found.endpoints, prefix=found.prefix)
        return self._cluster

    def close(self) -> None:
        """Forget the cluster: it goes down."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def job(self, name: str) -> TrainingJob:
        return self.cluster.get(TRAINING_JOBS, "default", name)

    def pods_of(self, name: str) -> list[str]:
        """The names of a job's trainers and pservers."""
        names = [pod.metadata.name for pod in self.cluster.list(PODS, "default").items]
        return [one for one in names if one.startswith((f"{name}-trainer-", f"{name}-pserver-"))]

    def until_phase(self, name: str, phase: str, timeout: float = 40.0) -> None:
        """Wait until a job is in this phase."""
        eventually(
            lambda: self.job(name).status.phase == phase,
            timeout,
            lambda: f"{name} is {phase}, not {self.job(name).status}",
            interval=0.1,
        )

    def processes(self) -> list[str]:
        """The command lines of all processes that work in the root: etcd, the server, pods (by their open files)."""
        return processes_of(self.root)


def processes_of(root: Path) -> list[str]:
    """The command lines of all processes that were told of a folder or have a file open in it."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            opened = [str((folder / "fd" / one).readlink()) for one in os.listdir(folder / "fd")]
            if any(f"{root}/" in f"{text}/" for text in (command.replace(" ", "/ "), *opened)):
                found.append(f"{folder.name} {command}")
    return found


def job(
    name: str, *, trainer: Sequence[str] = NAP, pservers: int = 0, least: int = 1, most: int = 1, **spec: Any
) -> dict[str, Any]:
    """A small job whose pods are ready as soon as they run; with `LAUNCHER` they hold real slots (some seconds)."""
    small = {"requests": {"cpu": "200m", "memory": "16Mi"}}
    fields: dict[str, Any] = {
        "image": "any",
        "fault_tolerant": True,
        "agent": {"mode": "Library"},
        "trainer": {"min-instance": least, "max-instance": most, "command": [*trainer], "resources": small},
        "autoscaling": {"enabled": True, "drainSeconds": 1, "scaleUpCooldownSeconds": 1},
    }
    if pservers:
        fields["pserver"] = {"min-instance": pservers, "command": [*NAP], "resources": small}
    return {
        "apiVersion": "paddlepaddle.org/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {**fields, **spec},
    }


__all__ = ["LAUNCHER", "NAP", "NODES", "PROGRAM", "ROOT", "Machine", "job", "processes_of"]
