"""A control plane of these tests' own, to hurt, and a bench on it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.kube_control_plane import KubeControlPlane, control_plane_missing
from tests.conftest import SharedEtcd
from tests.e2e.digits_bench import DigitsBench
from tests.kube.conftest import definition, kube_proxy, namespace

__all__ = ["definition", "kube_proxy", "namespace"]


@pytest.fixture(scope="package")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeControlPlane]:
    """In the place of the session's: here its API server may be killed."""
    if (reason := control_plane_missing()) is not None:
        pytest.skip(reason)
    with KubeControlPlane(tmp_path_factory.mktemp("e2e")) as plane:
        yield plane


@pytest.fixture
def digits(
    control_plane: KubeControlPlane, namespace: str, definition: None, etcd: SharedEtcd, tmp_path: Path
) -> Iterator[DigitsBench]:
    """No node, no controller and no job yet."""
    with DigitsBench(control_plane, namespace, etcd, tmp_path) as bench:
        yield bench
