"""Which virtual nodes a machine is divided into: ``NAME=CPU,MEMORY[,PODS]``."""

from __future__ import annotations

import os
from dataclasses import dataclass

from edl_controller import errors
from edl_controller.api import quantity
from edl_controller.api.pods import Quantities
from edl_controller.core.semantics.storage import NAME

PODS = 110
"""Pods of one node: Kubernetes' own default (``maxPods`` of the kubelet)."""


_LEAST = ("1m", "1Mi", "1")
"""CPU, memory and pods: with less nothing can ever run there, and a unit was probably forgotten."""


@dataclass(frozen=True)
class NodeSize:
    """A virtual node, and what it claims to have."""

    name: str
    capacity: Quantities


def read(texts: tuple[str, ...]) -> tuple[NodeSize, ...]:
    """Return the nodes that the user asks for; with none: one with what this machine has.

    Raises:
        ConfigurationError: names the bad part.
        InvalidQuantity: an amount that is none.
    """
    nodes = tuple(_one(text) for text in texts) or (this_machine(),)
    names = [node.name for node in nodes]
    if len(set(names)) != len(names):
        raise errors.ConfigurationError(f"two nodes have one name: {', '.join(sorted(names))}")
    return nodes


def _one(text: str) -> NodeSize:
    name, _, amounts = text.partition("=")
    parts = amounts.split(",")
    if not NAME.fullmatch(name) or len(parts) not in (2, 3) or not all(parts):
        raise errors.ConfigurationError(f"{text!r} is no node: write NAME=CPU,MEMORY, such as node-0=8,16Gi")
    for part, least, what in zip(parts, _LEAST, ("CPU", "memory", "pods"), strict=False):
        if quantity.resource(part) < quantity.parse(least):
            raise errors.ConfigurationError(f"{text!r}: {what}: {part} is too little for a node: at least {least}")
    pods = parts[2] if len(parts) == 3 else str(PODS)
    return NodeSize(name, {"cpu": parts[0], "memory": parts[1], "pods": pods})


def this_machine() -> NodeSize:
    """Return the one node that is this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    return NodeSize("this-machine", {"cpu": str(cores), "memory": str(memory), "pods": str(PODS)})
