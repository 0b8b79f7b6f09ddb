"""Texts that name etcd members: each form, and each bad form refused by name (M29)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_agent import ConfigurationError, EtcdClient, TlsFiles
from edl_agent.etcd.endpoints import Endpoint, parse_endpoints

GOOD = [
    ("http://10.0.0.5:2379", [("10.0.0.5", 2379, False)]),
    ("https://etcd.svc:2379", [("etcd.svc", 2379, True)]),
    ("10.0.0.5:4001", [("10.0.0.5", 4001, False)]),
    ("etcd", [("etcd", 2379, False)]),
    ("http://etcd", [("etcd", 2379, False)]),
    ("http://etcd/", [("etcd", 2379, False)]),
    ("HTTP://etcd:1", [("etcd", 1, False)]),
    ("http://[::1]:2379", [("::1", 2379, False)]),
    ("[fd00::7]:1", [("fd00::7", 1, False)]),
    ("https://[fe80::1%25eth0]:1", [("fe80::1%25eth0", 1, True)]),
    ("http://a:1,http://b:2, http://c:3", [("a", 1, False), ("b", 2, False), ("c", 3, False)]),
    (["a:1", "b:2", "a:1"], [("a", 1, False), ("b", 2, False)]),
    (
        ("http://etcd-0.etcd.default.svc.cluster.local.:2379",),
        [("etcd-0.etcd.default.svc.cluster.local.", 2379, False)],
    ),
    ("my_etcd-1:65535", [("my_etcd-1", 65_535, False)]),
]


@pytest.mark.parametrize(("endpoints", "expected"), GOOD, ids=str)
def test_good_forms(endpoints: str | list[str], expected: list[tuple[str, int, bool]]) -> None:
    assert parse_endpoints(endpoints) == tuple(Endpoint(*one) for one in expected)


BAD = [
    ("", "empty"), (" ", "empty"), ("a:1,,b:1", "empty"), ("a:1,", "empty"), ([], "no endpoints"), ([""], "empty"),
    (":2379", "no host"), ("http://", "no host"), ("http://:2379", "no host"), ("https:///", "no host"),
    ("a:b:c", "':'"), ("::1:2379", "brackets"), ("http://a:70000", "70000"), ("a:0", "'0'"), ("a:-1", "'-1'"),
    ("a:", "port"), ("a:x", "'x'"), ("a:1.5", "1.5"), ("a:\uff12\uff13", "port"), ("a: 1", "' 1'"),
    ("ftp://a:1", "ftp"), ("unix:///x", "unix"), ("http://a:1/v3", "path"), ("http://a:1?x=1", "path"),
    ("http://a:1#x", "path"), ("http://a b:1", "'a b'"), ("http://300.1.1.1:1", "300.1.1.1"), ("10.0.0:1", "10.0.0"),
    ("http://[::1:2379", "IPv6"), ("http://[::g]:1", "IPv6"), ("http://[::1]x:1", "'x:1'"), ("http://-a:1", "-a"),
    ("http://a..b:1", "a..b"), ("http://" + "a" * 254 + ":1", "bad host"), ("http://a\n:1", "bad host"),
    ("http://a\0:1", "bad host"), ("http://é:1", "é"), ("http://$HOST:2379", "HOST"), ("http://a:1,https://a:2", "mix"),
    ([b"a:1"], "text"), ([5], "text"), (["a:1", None], "text"),
]  # fmt: skip


@pytest.mark.report("M29")
@pytest.mark.parametrize(("endpoints", "words"), BAD, ids=lambda value: repr(value)[:30])
@pytest.mark.security(1)
def test_bad_forms_are_value_errors_at_construction_that_name_the_bad_part(endpoints: Any, words: str) -> None:
    for construct in (parse_endpoints, EtcdClient):
        with pytest.raises(ValueError) as refused:
            construct(endpoints)
        assert isinstance(refused.value, ConfigurationError)
        assert words in str(refused.value)


@pytest.mark.security(1)
def test_with_tls_settings_a_bare_host_means_https_and_http_is_refused() -> None:
    assert parse_endpoints("a:1", tls=True) == (Endpoint("a", 1, True),)
    with pytest.raises(ConfigurationError, match="write https"):
        EtcdClient("http://a:1", tls=TlsFiles(ca="ca.pem"))
    with pytest.raises(ConfigurationError, match="mix"):
        EtcdClient("http://a:1,b:1", tls=TlsFiles(ca="ca.pem"))


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        (Endpoint("10.0.0.5", 1, False), "ipv4:10.0.0.5:1"),
        (Endpoint("::1", 1, False), "ipv6:[::1]:1"),
        (Endpoint("etcd.svc", 1, True), "dns:///etcd.svc:1"),
    ],
)
def test_targets_for_grpc(endpoint: Endpoint, target: str) -> None:
    assert endpoint.target == target
    assert parse_endpoints(str(endpoint)) == (endpoint,)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_and_what_is_read_is_stable(text: str) -> None:
    try:
        found = parse_endpoints(text)
    except ConfigurationError:
        return
    assert found
    for endpoint in found:
        assert 1 <= endpoint.port <= 65_535
        assert not set(endpoint.host) & set(" /@?#\0\n")
    assert parse_endpoints(",".join(map(str, found)), tls=found[0].tls) == found


@given(st.text(max_size=10), st.text(min_size=3, max_size=12))
def test_user_information_is_never_echoed(user: str, password: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_endpoints(f"http://{user.replace(',', '')}:canary-{password.replace(',', '')}@h:1")
    assert "canary" not in str(refused.value)
