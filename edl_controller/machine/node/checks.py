"""Asks a container something: a probe's question or a hook's errand, by a command, HTTP or a connection."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

from edl_controller.api.pods import Container, ExecAction, HttpGetAction, LifecycleHandler, Probe, TcpSocketAction


class Answer(NamedTuple):
    """Whether it went well, and what there is to say."""

    good: bool
    text: str = ""


Question = Callable[[], Answer]
"""Asks and waits; to be called on a thread that may wait."""

_LONGEST_BODY = 10 * 1024


def command_of(asked: Probe | LifecycleHandler) -> ExecAction | None:
    """Return the command that is to be run in the container, if it is one."""
    return asked.exec


def question(asked: Probe | LifecycleHandler, container: Container, address: str, timeout: float) -> Question | None:
    """Return how to ask from outside; None where a command is to be run. ``address``: the pod's.

    A gRPC probe only opens a connection to its port.

    Raises:
        ValueError: a named port is none of the container's.
    """
    if asked.http_get:
        action = asked.http_get
        port = port_number(action.port, container)
        return lambda: get(action, action.host or address, port, timeout)
    tcp = asked.tcp_socket
    if isinstance(asked, Probe) and asked.grpc:
        tcp = TcpSocketAction(port=asked.grpc.get("port", 0))
    if tcp:
        number, host = port_number(tcp.port, container), tcp.host or address
        return lambda: connect(host, number, timeout)
    return None


def port_number(port: int | str, container: Container) -> int:
    """Return the number of a port that may be given by name.

    Raises:
        ValueError: no port of the container has this name.
    """
    if isinstance(port, int):
        return port
    if port.isdecimal():
        return int(port)
    for one in container.ports:
        if one.name == port:
            return one.container_port
    raise ValueError(f"container {container.name!r} has no port called {port!r}")


def connect(host: str, port: int, timeout: float) -> Answer:
    """Open a TCP connection and close it."""
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError as error:
        return Answer(False, f"dial tcp {host}:{port}: {error}")
    return Answer(True)


def get(action: HttpGetAction, host: str, port: int, timeout: float) -> Answer:
    """Make a GET request; 200 to 399 is good. Certificates are not checked, as by kubelet."""
    connection: http.client.HTTPConnection
    if action.scheme.upper() == "HTTPS":
        # Kubelet does not check either: the certificate of a pod seldom names its address.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    headers = {"User-Agent": "edl-node-probe", "Accept": "*/*"}
    headers |= {str(one.get("name")): str(one.get("value")) for one in action.http_headers}
    try:
        connection.request("GET", "/" + action.path.lstrip("/"), headers=headers)
        answer = connection.getresponse()
        body = answer.read(_LONGEST_BODY).decode(errors="replace")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(False, f"Get http://{host}:{port}{action.path}: {type(error).__name__}: {error}")
    finally:
        connection.close()
    if 200 <= answer.status < 400:
        return Answer(True)
    return Answer(False, f"HTTP probe failed with statuscode: {answer.status}: {body[:200]}")
