"""Find, or build from their Go modules, the three programs of a Kubernetes control plane, and kubectl.

Run as ``python -m tests.kube.controlplane.build``: it prints the folders with the programs as the last lines of stdout
and exits 0. It exits 3, with the reason on stderr, where they are not at hand and there is no Go to build them with
(the tests that need them are then skipped, and say so), and 1 when a build fails. The build takes about eight minutes
on two cores and 1.5 GB of disk for Go's own caches, once; a second run finds the programs and builds nothing.

The tests look at the same places through :func:`find_programs` and :func:`find_kubectl`, which never build.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.bench.go_programs import GoPrograms

VERSION = "1.36.3"
"""Version of Kubernetes, as required in the go.mod beside this file."""

NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")

PROGRAMS = GoPrograms(
    name="kubernetes",
    version=VERSION,
    module=Path(__file__).resolve().parent,
    packages={name: f"k8s.io/kubernetes/cmd/{name}" for name in NAMES},
    # Otherwise the API server would call itself v0.0.0-master.
    linker_flags=("-s", "-w", f"-X k8s.io/component-base/version.gitVersion=v{VERSION}"),
)


KUBECTL = GoPrograms(
    name="kubectl",
    version=VERSION,
    module=PROGRAMS.module,
    packages={"kubectl": "k8s.io/kubernetes/cmd/kubectl"},
    linker_flags=PROGRAMS.linker_flags,
)
"""What users type; the tests run the documented commands by it. Two minutes more."""

KUBELET = GoPrograms(
    name="kubelet",
    version=VERSION,
    module=PROGRAMS.module,
    packages={"kubelet": "k8s.io/kubernetes/cmd/kubelet"},
    linker_flags=PROGRAMS.linker_flags,
)
"""For the nodes with real containers (tests/containers): never built by ``make test``. Four minutes, 120 MB."""


def find_kubectl() -> Path | None:
    """Return the kubectl of this version, or ``None``. Never builds: another version's answers may differ."""
    folder = KUBECTL.cached()
    return None if folder is None else folder / "kubectl"


def find_programs() -> Path | None:
    """Return the folder with all three programs, or ``None``. Never builds.

    ``KUBEBUILDER_ASSETS`` comes first, then the folder of the ``kube-apiserver`` on PATH, then the cache folder.
    """
    on_path = shutil.which("kube-apiserver")
    candidates = [os.environ.get("KUBEBUILDER_ASSETS"), on_path and str(Path(on_path).resolve().parent)]
    for folder in (Path(candidate) for candidate in candidates if candidate):
        if PROGRAMS.complete_in(folder):
            return folder
    return PROGRAMS.cached()


def find_kubelet() -> Path | None:
    """Return the kubelet of this version, or ``None``. Never builds."""
    folder = KUBELET.cached()
    return None if folder is None else folder / "kubelet"


if __name__ == "__main__":
    if sys.argv[1:] == ["kubelet"]:
        sys.exit(KUBELET.main())
    sys.exit(PROGRAMS.main(find_programs()) or KUBECTL.main())
