"""A cluster on one machine: the objects in a real etcd. What drives them is in `edl_controller.machine`."""

from edl_controller.cluster.local.cluster import LocalCluster

__all__ = ["LocalCluster"]
