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

from tests.bench.kube_control_plane import KubeControlPlane, control_plane_missing
from tests.bench.kube_test_node import KubeTestNodes
from tests.contract.world import World

CLUSTERS = ("sim", "local", "kube")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeControlPlane]:
    """A real control plane, shared by the session's tests."""
    if (reason := control_plane_missing()) is not None:
        pytest.skip(reason)
    with KubeControlPlane(tmp_path_factory.mktemp("kube")) as control_plane:
        yield control_plane


@pytest.fixture(scope="session")
def light_nodes(control_plane: KubeControlPlane) -> Iterator[KubeTestNodes]:
    """What serves the nodes of all tests on the control plane."""
    with KubeTestNodes(control_plane.client) as nodes:
        yield nodes


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
        from tests.contract.kube_world import KubeWorld

        return KubeWorld(request.getfixturevalue("control_plane"), request.getfixturevalue("light_nodes"))
    module = f"tests.contract.{request.param}_world"
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not there: no world is made of the cluster {request.param!r} yet")
    return importlib.import_module(module).open_world(tmp_path)
