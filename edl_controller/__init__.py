"""The controller of elastic training jobs: one program per cluster that turns jobs into pods and scales them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edl_controller.autoscaler import Autoscaler
    from edl_controller.cluster.port import Cluster, JobPods
    from edl_controller.controller import Controller
    from edl_controller.core.capacity import ClusterResource, Nodes, add_resource_list
    from edl_controller.core.parser import DefaultJobParser, JobParser

_HOMES = {
    "Autoscaler": "autoscaler",
    "Cluster": "cluster.port",
    "ClusterResource": "core.capacity",
    "Controller": "controller",
    "DefaultJobParser": "core.parser",
    "JobParser": "core.parser",
    "JobPods": "cluster.port",
    "Nodes": "core.capacity",
    "add_resource_list": "core.capacity",
}
"""Public names -> their module: loaded when they are used, so that `edl --help` does not wait for all of them."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


__all__ = [
    "Autoscaler",
    "Cluster",
    "ClusterResource",
    "Controller",
    "DefaultJobParser",
    "JobParser",
    "JobPods",
    "Nodes",
    "add_resource_list",
]
