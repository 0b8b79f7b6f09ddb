"""Runs ``edl-agent`` as a process, as its users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.bench.agent_process import ROOT


@dataclass(frozen=True)
class Outcome:
    """Exit status and output. A traceback fails the test at once: the command never shows one by itself."""

    status: int
    raw: bytes
    stderr: str

    @property
    def stdout(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings of the command, and with ``more``."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("EDL_") and k != "NO_COLOR"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**own, "PYTHONPATH": path, **(more or {})}


def edl_agent(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout: float = 30.0,
    traceback: bool = False,
) -> Outcome:
    """Run the command to its end. ``env`` is added to the environment."""
    done = subprocess.run(
        [sys.executable, "-m", "edl_agent", *arguments],
        input=stdin,
        capture_output=True,
        timeout=timeout,
        env=environment(env),
        check=False,
    )
    outcome = Outcome(done.returncode, done.stdout, done.stderr.decode())
    assert traceback or "Traceback" not in outcome.stderr, outcome.stderr
    return outcome
