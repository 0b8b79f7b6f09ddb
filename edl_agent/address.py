"""The address under which a pserver is registered."""

import ipaddress
import os
import re
import socket
from collections.abc import Mapping

from edl_agent.errors import ConfigurationError, Unavailable
from edl_agent.etcd.endpoints import Endpoint

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def check_port(port: object) -> int:
    """A TCP port.

    Raises:
        ConfigurationError: not a number in 1..65535.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise ConfigurationError(f"port must be a number in 1..65535, not {port!r}")
    return port


def check_host(host: object) -> str:
    """An address or name that others can dial.

    Raises:
        ConfigurationError: a wildcard address, or no address and no name.
    """
    if not isinstance(host, str):
        raise ConfigurationError(f"host must be text, not {host!r}")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        if not _NAME.fullmatch(host):
            raise ConfigurationError(f"host {host!r} is neither an IP address nor a name") from None
        return host
    if address.is_unspecified:
        raise ConfigurationError(f"host {host!r} is the wildcard address, which nobody can dial")
    return str(address)


def check_name(name: object) -> str:
    """A trainer's address or name: printable ASCII without blanks and slashes, at most 253 characters (DNS's limit).

    Keys are named by it and end with a slash, so that of two names none begins with the other.

    Raises:
        ConfigurationError: anything else.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[!-.0-~]{1,253}", name):
        raise ConfigurationError(
            f"the name {name!r} is not 1 to 253 printable ASCII characters without blanks and slashes"
        )
    return name


def default_name(environment: Mapping[str, str]) -> str:
    """``POD_NAME``, else hostname-pid: the name under which an agent reports."""
    return environment.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"


def join(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def configured_host(host: str | None, environment: Mapping[str, str]) -> str | None:
    """``host``, else ``POD_IP``, checked; ``None`` where neither is set.

    Raises:
        ConfigurationError: see `check_host`.
    """
    given = host if host is not None else environment.get("POD_IP") or None
    return None if given is None else check_host(given)


def route_source(endpoint: Endpoint) -> str:
    """The source address of the route to etcd.

    Right also with several network cards, where "first non-loopback" is not.

    No packet is sent: connecting a datagram socket only asks the kernel for the route.

    Raises:
        Unavailable: the endpoint's name does not resolve, or there is no route.
    """
    try:
        family, kind, _, _, target = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError as error:
        raise Unavailable(f"no route to {endpoint}: {error}") from error
