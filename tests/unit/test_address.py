"""Under which address a pserver is registered."""

from __future__ import annotations

import socket

import pytest

from edl_agent import ConfigurationError, Unavailable
from edl_agent.address import check_host, configured_host, default_name, join, route_source
from edl_agent.etcd.endpoints import Endpoint


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("fd00::7", "fd00::7"),
        ("[fd00::7]", "fd00::7"),
        ("FD00:0:0::7", "fd00::7"),
        ("ps-0.ps.default.svc", "ps-0.ps.default.svc"),
        ("a", "a"),
    ],
)
def test_hosts_that_others_can_dial(host: str, expected: str) -> None:
    assert check_host(host) == expected


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "[::]", "", " ", "a b", "a:1", "10.0.0.7:80", "http://a", "-a", "a/b", "a\n", "é", "a\0"]
)
@pytest.mark.security(23)
def test_hosts_that_nobody_can_dial_are_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="host"):
        check_host(host)


def test_the_argument_wins_over_the_environment() -> None:
    assert configured_host("10.0.0.1", {"POD_IP": "10.0.0.2"}) == "10.0.0.1"
    assert configured_host(None, {"POD_IP": "10.0.0.2"}) == "10.0.0.2"
    assert configured_host(None, {"POD_IP": ""}) is None
    assert configured_host(None, {}) is None
    with pytest.raises(ConfigurationError):
        configured_host(None, {"POD_IP": "0.0.0.0"})


def test_the_route_to_etcd_decides_where_nothing_is_set() -> None:
    assert route_source(Endpoint("127.0.0.1", 1, False)) == "127.0.0.1"
    with pytest.raises(Unavailable, match=r"no\.such\.name\.invalid"):
        route_source(Endpoint("no.such.name.invalid", 1, False))


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_ipv6_in_brackets() -> None:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 loopback on this machine: {error}")
    assert join(route_source(Endpoint("::1", 1, False)), 7164) == "[::1]:7164"


def test_the_default_name_is_the_pods_or_tells_processes_of_a_host_apart() -> None:
    assert default_name({"POD_NAME": "trainer-3"}) == "trainer-3"
    assert default_name({}).startswith(socket.gethostname())
