"""kubectl of the version of the tests' control plane, as users run it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.kube.controlplane.build import find_kubectl


class Kubectl:
    """Runs kubectl with one kubeconfig, in one folder."""

    def __init__(self, program: Path, kubeconfig: Path, folder: Path) -> None:
        """``folder``: where relative paths of its arguments begin."""
        self.program, self.kubeconfig, self.folder = program, kubeconfig, folder

    def __call__(self, *args: str, stdin: str = "", check: bool = True, timeout: float = 60.0) -> str:
        """Run it and return its stdout. Raises AssertionError with its stderr where it fails and ``check`` is set."""
        done = subprocess.run(
            [str(self.program), *args],
            cwd=self.folder,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(args)}: {done.returncode}\n{done.stderr}"
        return done.stdout if check else done.stdout + done.stderr

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the process: nothing of the user's own configuration; the program is first on PATH."""
        path = f"{self.program.parent}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.kubeconfig.parent)}

    def documents(self, *args: str) -> list[dict[str, Any]]:
        """Run it and return the YAML documents that it prints."""
        return [one for one in yaml.safe_load_all(self(*args)) if one]


def kubectl_missing() -> str | None:
    """Return why there is none, or ``None``."""
    return None if find_kubectl() else "no kubectl of the control plane's version: make kube-control-plane (needs Go)"
