"""The trainers' end of the wire: connections to all pservers, made anew when any of them is another than before."""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from edl_agent import ClientClosed, EdlAgentError, Membership, Pserver

from .network import Parameters, shard_of
from .wire import EPOCH, INDEX, REFUSED, Refused, decode, encode

_TIMEOUT = 5.0
_PAUSE = 0.1
"""Seconds before pservers that failed are tried again."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Link:
    """The connection to one pserver in one epoch."""

    def __init__(self, pserver: Pserver) -> None:
        host, _, port = pserver.address.rpartition(":")
        self.http = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT)
        self._headers = {INDEX: str(pserver.index), EPOCH: str(pserver.epoch)}

    def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Raises Refused; ValueError where the pserver says that the call makes no sense; OSError, HTTPException."""
        self.http.request(method, path, body, self._headers)
        answer = self.http.getresponse()
        content = answer.read()
        if answer.status == REFUSED:
            raise Refused(content.decode(errors="replace"))
        if answer.status != 200:
            raise ValueError(f"{method} {path}: {answer.status} {content[:200].decode(errors='replace')}")
        return content


class Links:
    """Connections to all pservers. ``when_new`` is called with them when any is another than before."""

    def __init__(self, membership: Membership, when_new: Callable[[Links], None] | None = None) -> None:
        self._membership = membership
        self._when_new = when_new
        self._links: dict[Pserver, Link] = {}
        self._closed = threading.Event()

    def attempt(self, work: Callable[[], _T]) -> _T:
        """What ``work`` returns; again from its beginning where a pserver went away meanwhile.

        So gradients may reach a pserver twice: asynchronous training does not mind. Raises ClientClosed at the end.
        """
        while True:
            try:
                self._follow(self._membership.wait_complete().pservers)
                return work()
            except ClientClosed:
                raise
            except (OSError, http.client.HTTPException, Refused, EdlAgentError) as error:
                _log.info("Trying again: %s", str(error) or type(error).__name__)
                self._drop()
                if self._closed.wait(_PAUSE):
                    raise ClientClosed("the connections were closed") from error

    def pull(self) -> Parameters:
        """The present parameters of all shards. Inside of `attempt`."""
        parameters: Parameters = {}
        for link in self._links.values():
            parameters |= decode(link.call("GET", "/parameters"))
        return parameters

    def push(self, gradients: Parameters) -> None:
        """Each shard its gradients. Inside of `attempt`."""
        for pserver in self._links:
            self.send(pserver.index, "/gradients", gradients)

    def send(self, index: int, path: str, parameters: Parameters) -> None:
        """To one shard what belongs to it."""
        part = {name: value for name, value in parameters.items() if shard_of(name, len(self._links)) == index}
        link = next(link for pserver, link in self._links.items() if pserver.index == index)
        link.call("POST", path, encode(part))

    def close(self) -> None:
        """End calls under way. From any thread."""
        self._closed.set()
        for link in list(self._links.values()):
            if (sock := link.http.sock) is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _follow(self, pservers: tuple[Pserver, ...]) -> None:
        if tuple(self._links) != pservers:
            self._drop()
            self._links = {pserver: Link(pserver) for pserver in pservers}
            if self._when_new is not None:
                self._when_new(self)

    def _drop(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            link.http.close()
