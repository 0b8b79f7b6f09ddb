"""PURE: resource lists and the accounts of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Nodes:
    """What each node has left: node name to amount."""

    nodes_cpu_idle_milli: dict[str, int] = field(default_factory=dict)
    nodes_memory_free_mega: dict[str, int] = field(default_factory=dict)


@dataclass
class ClusterResource:
    """The sums over a cluster."""

    node_count: int = 0
    gpu_request: int = 0
    gpu_limit: int = 0
    gpu_total: int = 0
    cpu_request_milli: int = 0
    cpu_limit_milli: int = 0
    cpu_total_milli: int = 0
    memory_request_mega: int = 0
    memory_limit_mega: int = 0
    memory_total_mega: int = 0
    nodes: Nodes = field(default_factory=Nodes)
