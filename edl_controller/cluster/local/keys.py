"""PURE: where the local cluster keeps its objects in etcd: ``<prefix>/<plural>/<namespace or ->/<name>``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edl_agent.keys import prefix_end
from edl_controller.api.kinds import Kind

DEFAULT_PREFIX = "/edl/cluster"


@dataclass(frozen=True)
class ObjectKeys:
    """Keys below one prefix. Names are RFC 1123 (`edl_controller.core.semantics.storage`), so none contains a slash."""

    prefix: str = DEFAULT_PREFIX

    def of(self, kind: Kind[Any], namespace: str, name: str) -> bytes:
        """Return the key of one object."""
        return f"{self.prefix}/{kind.plural}/{namespace if kind.namespaced else '-'}/{name}".encode()

    def range(self, kind: Kind[Any], namespace: str) -> tuple[bytes, bytes]:
        """Return start and exclusive end of the objects of a kind, of one namespace or (``""``) of all."""
        start = f"{self.prefix}/{kind.plural}/"
        if namespace and kind.namespaced:
            start += f"{namespace}/"
        return start.encode(), prefix_end(start.encode())

    @property
    def everything(self) -> tuple[bytes, bytes]:
        """Start and exclusive end of all objects."""
        start = f"{self.prefix}/".encode()
        return start, prefix_end(start)
