"""Kubernetes as a cluster: the port over an API server. The only room that imports the official client."""

from edl_controller.cluster.kube.cluster import KubeCluster
from edl_controller.cluster.kube.credentials import CredentialSource, from_environment, in_cluster, kubeconfig

__all__ = ["CredentialSource", "KubeCluster", "from_environment", "in_cluster", "kubeconfig"]
