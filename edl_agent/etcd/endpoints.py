"""PURE: endpoint texts to gRPC targets. Every bad form is refused by name, before anything is dialled."""

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple

from edl_agent.errors import ConfigurationError

DEFAULT_PORT = 2379
"""etcd's registered client port."""

_HOST = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?"
)


class Endpoint(NamedTuple):
    """One member's client address. IPv6 hosts are without brackets."""

    host: str
    port: int
    tls: bool

    @property
    def target(self) -> str:
        """For gRPC. Names go through its DNS resolver at connection time, so a name may begin to resolve late."""
        if _is_ip(self.host, 6):
            return f"ipv6:[{self.host}]:{self.port}"
        if _is_ip(self.host, 4):
            return f"ipv4:{self.host}:{self.port}"
        return f"dns:///{self.host}:{self.port}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def parse_endpoints(endpoints: str | Iterable[str], *, tls: bool = False) -> tuple[Endpoint, ...]:
    """Read the ``endpoints`` argument.

    Args:
        endpoints: comma-separated text or a list of ``http://host:port``, ``https://host:port``, ``host:port`` (port
            2379 where a URL has none).
        tls: whether TLS settings are given; a bare ``host:port`` then means https.

    Returns:
        At least one endpoint, in the given order, without repeats.

    Raises:
        ConfigurationError: (a ``ValueError``) nothing given, a bad part (named), or http and https mixed.
    """
    if isinstance(endpoints, str):
        texts = endpoints.split(",")
    else:
        if not isinstance(endpoints, Iterable):
            raise ConfigurationError(f"endpoints must be text or a list of texts, not {endpoints!r}")
        texts = []
        for item in endpoints:
            if not isinstance(item, str):
                raise ConfigurationError(f"an endpoint must be text, not {item!r}")
            texts.extend(item.split(","))
    found = [_parse(text.strip(), tls) for text in texts]
    if not found:
        raise ConfigurationError("no endpoints given: name at least one, for example http://127.0.0.1:2379")
    schemes = {endpoint.tls for endpoint in found}
    if len(schemes) > 1:
        raise ConfigurationError(f"endpoints mix http and https: {', '.join(map(str, found))}")
    if tls and not found[0].tls:
        raise ConfigurationError(f"TLS settings are given but the endpoint {found[0]} says http: write https://")
    return tuple(dict.fromkeys(found))


def _parse(text: str, tls: bool) -> Endpoint:
    if not text:
        raise ConfigurationError("an endpoint is empty (a stray comma, or a host that was never filled in?)")
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = ("https" if tls else "http"), text
    elif scheme.lower() not in ("http", "https"):
        raise ConfigurationError(f"endpoint {text!r} has the scheme {scheme!r}: use http or https")
    if "@" in rest:
        raise ConfigurationError(
            "an endpoint carries user information before '@': give user and password as settings"
        )  # never echoed
    rest = rest.removesuffix("/")
    if any(mark in rest for mark in "/?#"):
        raise ConfigurationError(f"endpoint {text!r} has a path: only host and port are meaningful")
    host, port = _split_port(rest, text, needs_port=not separator)
    if not host:
        raise ConfigurationError(f"endpoint {text!r} has no host")
    if not (_is_ip(host, 4) or _is_ip(host, 6) or _is_name(host)):
        raise ConfigurationError(f"endpoint {text!r} has the bad host {host!r}")
    return Endpoint(host, port, scheme.lower() == "https")


def _split_port(rest: str, text: str, *, needs_port: bool) -> tuple[str, int]:
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or not _is_ip(host, 6):
            raise ConfigurationError(f"endpoint {text!r} has the bad IPv6 host {rest!r}")
        if tail and not tail.startswith(":"):
            raise ConfigurationError(f"endpoint {text!r} has {tail!r} after the host, where a port is expected")
        port_text = tail[1:] if tail else None
    elif rest.count(":") > 1:
        raise ConfigurationError(
            f"endpoint {text!r} has more than one ':': write an IPv6 address in brackets, [::1]:2379"
        )
    else:
        host, colon, port_text = rest.partition(":")
        port_text = port_text if colon else None
    if port_text is None:
        if needs_port and not host:
            raise ConfigurationError(f"endpoint {text!r} has no host")
        return host, DEFAULT_PORT
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or not 1 <= int(port_text) <= 65535:
        raise ConfigurationError(f"endpoint {text!r} has the bad port {port_text!r}: a number in 1..65535")
    return host, int(port_text)


def _is_ip(host: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).version == version
    except ValueError:
        return False


def _is_name(host: str) -> bool:
    # A name whose last label is a number is a mistyped IPv4 address (RFC 3696, section 2).
    return bool(_HOST.fullmatch(host)) and not host.rstrip(".").rpartition(".")[2].isdigit()
