"""The names of Services for pods on the tests' nodes, as a cluster's DNS gives them (RFC 1035; A records only).

There is no kube-proxy on those nodes, so the name of a Service leads to the addresses of its endpoints, whether it has
an address of its own or not; ``POD.SERVICE.NAMESPACE.svc`` leads to one of them.
"""

from __future__ import annotations

import socketserver
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.bench.kube_http import Json, KubeHttpClient

DOMAIN = "cluster.local"
_NO_SUCH_NAME, _A = 3, 1
_ANSWER, _AUTHORITATIVE = 0x8000, 0x0400

_SERVICE = "kubernetes.io/service-name"
_FRESH = 0.3
"""Seconds that one look at the cluster is good for."""

Resolve = Callable[[str], list[str] | None]


class ClusterDns:
    """Answers on port 53 of an address from ``start()`` to ``close()``; needs root."""

    def __init__(self, client: KubeHttpClient, address: str) -> None:
        """``client``: of whoever may list EndpointSlices; ``address``: where pods reach it."""
        self._client = client
        self._slices: list[Json] = []
        self._asked = 0.0
        self._lock = threading.Lock()
        self._server = _Server((address, 53), self.addresses)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="cluster-dns", daemon=True)

    def addresses(self, name: str) -> list[str] | None:
        """The IPv4 addresses of a name without its last dot; None: there is no such name."""
        words = name.lower().removesuffix(f".svc.{DOMAIN}").split(".")
        if not name.lower().endswith(f".svc.{DOMAIN}") or len(words) not in (2, 3):
            return None
        *host, service, namespace = words
        slices = [
            one
            for one in self._all_slices()
            if (one["metadata"]["namespace"], one["metadata"].get("labels", {}).get(_SERVICE)) == (namespace, service)
        ]
        found = [
            endpoint["addresses"][0]
            for one in slices
            for endpoint in one.get("endpoints") or ()
            if endpoint["conditions"].get("ready") and (not host or endpoint.get("hostname") == host[0])
        ]
        return found if slices and (found or not host) else None

    def _all_slices(self) -> list[Json]:
        with self._lock:  # members of etcd that look for each other ask some hundred times a second
            if time.monotonic() > self._asked + _FRESH:
                self._slices = self._client.get("/apis/discovery.k8s.io/v1/endpointslices")["items"]
                self._asked = time.monotonic()
            return self._slices

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(socketserver.ThreadingUDPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], resolve: Resolve) -> None:
        self.resolve = resolve
        super().__init__(address, _Handler)


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        query, socket = self.request
        assert isinstance(self.server, _Server)
        if (answer := answered(query, self.server.resolve)) is not None:
            socket.sendto(answer, self.client_address)


def answered(query: bytes, resolve: Resolve) -> bytes | None:
    """The answer to one question; None: it is no question."""
    if len(query) < 17 or struct.unpack(">H", query[4:6])[0] != 1:
        return None
    labels, at = [], 12
    while (length := query[at]) != 0:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
    question, kind = query[12 : at + 5], struct.unpack(">H", query[at + 1 : at + 3])[0]
    found = resolve(".".join(labels))
    records = [] if found is None or kind != _A else found
    flags = _ANSWER | _AUTHORITATIVE | (struct.unpack(">H", query[2:4])[0] & 0x0100) | (_NO_SUCH_NAME * (found is None))
    body = b"".join(
        struct.pack(">HHHIH", 0xC00C, _A, 1, 1, 4) + bytes(map(int, address.split("."))) for address in records
    )
    return query[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0) + question + body
