"""One suite for every cluster: ``world`` is each cluster in turn, empty at first.

A cluster joins by a module ``tests/contract/NAME_world.py`` with ``open_world(tmp_path) -> World`` (with ``close()``).
The real control plane is the judge of the cases: what fails there is no fact.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.world import World

CLUSTERS = ("sim", "local", "kube")


@pytest.fixture(params=CLUSTERS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A fresh world of each cluster."""
    opened = _open(request, tmp_path)
    try:
        yield opened
    finally:
        opened.close()


def _open(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "kube":
        from edl_controller.cluster.kube import KubeCluster, kubeconfig
        from tests.contract.kube_world import KubeWorld

        control_plane = request.getfixturevalue("control_plane")
        cluster = KubeCluster(kubeconfig(control_plane.kubeconfig))
        request.addfinalizer(cluster.close)
        return KubeWorld(control_plane, request.getfixturevalue("light_nodes"), cluster)
    module = f"tests.contract.{request.param}_world"
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not there: no world is made of the cluster {request.param!r} yet")
    return importlib.import_module(module).open_world(tmp_path)
