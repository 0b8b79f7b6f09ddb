"""kubectl in the root of the project, as in the documented commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kubectl import Kubectl, kubectl_missing
from tests.kube.conftest import definition, kube_proxy
from tests.kube.controlplane.build import find_kubectl

__all__ = ["definition", "kube_proxy"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def offline_kubectl(tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """For what needs no server, such as ``kustomize``."""
    if (reason := kubectl_missing()) is not None:
        pytest.skip(reason)
    program = find_kubectl()
    assert program is not None
    return Kubectl(program, tmp_path_factory.mktemp("kubectl") / "no-config", ROOT)


@pytest.fixture(scope="session")
def kubectl(offline_kubectl: Kubectl, control_plane: KubeControlPlane) -> Kubectl:
    """As the cluster's administrator."""
    return Kubectl(offline_kubectl.program, control_plane.kubeconfig, ROOT)
