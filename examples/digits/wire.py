"""What travels between trainers and pservers, and the pservers' end of it: HTTP calls, each for one index in one epoch.

A pserver answers only for the index and epoch that it holds. So whoever took the place of another (with a higher epoch
and older parameters) is noticed at the next call, and whoever lost its place is heard by nobody.

Parameters travel as one line of JSON (names and shapes) and raw float32 values: nothing in it is ever executed. There
is neither encryption nor authentication: use it where only the job's own processes are in reach.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import numpy as np

from .network import Parameters

INDEX, EPOCH = "Edl-Index", "Edl-Epoch"
REFUSED = 409
LONGEST_BODY = 64 << 20
_LONGEST_LINE = 64 << 10
_IDLE = 60.0
"""Seconds after which a connection without calls is closed."""

_log = logging.getLogger(__name__)


class Refused(Exception):
    """The pserver does not hold this index in this epoch, or has no parameters yet: look again who does."""


class Call(NamedTuple):
    """One request: ``what`` is the method and the path."""

    what: str
    shard: str | None
    epoch: str | None
    body: bytes


def encode(parameters: Parameters) -> bytes:
    """To be sent or stored."""
    names = sorted(parameters)
    line = json.dumps({name: parameters[name].shape for name in names}).encode()
    return b"\n".join((line, b"".join(parameters[name].astype("<f4").tobytes() for name in names)))


def decode(body: bytes) -> Parameters:
    """The opposite of `encode`. Raises ValueError for anything that is not exactly that."""
    line, end, _ = body[:_LONGEST_LINE].partition(b"\n")
    try:
        shapes = json.loads(line) if end else None
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(shapes, dict):
        raise ValueError("no line with names and shapes")
    parameters: Parameters = {}
    at = len(line) + 1
    for name, shape in shapes.items():
        if not isinstance(shape, list) or len(shape) > 4 or not all(type(n) is int and n > 0 for n in shape):
            raise ValueError(f"{shape!r} is no shape")
        count = math.prod(shape)
        if count * 4 > len(body) - at:
            raise ValueError("fewer values than the shapes ask for")
        parameters[name] = np.frombuffer(body, "<f4", count, at).reshape(shape).astype(np.float32)
        at += count * 4
    if at != len(body):
        raise ValueError("more values than the shapes ask for")
    return parameters


class Server(ThreadingHTTPServer):
    """Hands each call to ``answer``, which may raise Refused, or ValueError for what makes no sense."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], answer: Callable[[Call], bytes]) -> None:
        super().__init__(address, _Handler)
        self.answer = answer


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = _IDLE
    # An answer in two packets would wait for the other side's delayed acknowledgement.
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        status, content = 200, b""
        try:
            length = int(self.headers.get("Content-Length", 0))
            if not 0 <= length <= LONGEST_BODY:
                raise ValueError("the body is too long")
            body = self.rfile.read(length)
            what = f"{self.command} {self.path}"
            content = self.server.answer(Call(what, self.headers.get(INDEX), self.headers.get(EPOCH), body))
        except Refused as error:
            status, content = REFUSED, str(error).encode()
        except ValueError as error:
            # What may be left of the body must not be taken for the next call.
            status, content, self.close_connection = 400, str(error).encode(), True
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named as in the base class
        _log.debug(format, *args)
