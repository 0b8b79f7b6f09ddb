"""PURE: what an administrator decides about all TrainingJobs: the limits and permissions of `validation`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The rules beyond the resource itself. The defaults give no job access to its host."""

    default_image: str = "paddlepaddle/paddlecloud-job"
    """Of a job that names none: the original's. Empty: each job must name one."""
    image_prefixes: tuple[str, ...] = ()
    """Only images below one of these (``registry.example.com/team``) are accepted; empty: all."""
    max_instances: int = 10_000
    """Largest number of trainers or pservers of a job; the agent's own cap on ``/ps_desired``."""
    external_etcd: bool = False
    """The controller has an etcd for the jobs; without one, jobs bring their own in the master pod."""
    allow_host_network: bool = False
    """Whether ``host_network`` may be true."""
    host_paths: tuple[str, ...] = ()
    """Folders of the node that volumes may show, with all below them."""
    allow_privileged: bool = False
    """Whether security contexts may go beyond the *baseline* of the Pod Security Standards."""
    service_accounts: tuple[str, ...] = ("default",)
    """Accounts of the namespace that pods may run under."""
    kubernetes_prefixes: tuple[str, ...] = ("app.kubernetes.io", "cluster-autoscaler.kubernetes.io", "kueue.x-k8s.io")
    """Prefixes below Kubernetes' own domains that users may put labels and annotations under."""
