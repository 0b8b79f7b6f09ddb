"""Whatever a program gives by mistake is answered by one kind of error that names the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from edl_agent import ConfigurationError, EtcdClient, TlsFiles
from edl_agent.address import check_host, check_name
from edl_agent.config import check_start_revision
from edl_agent.hooks import HookRunner

URL = "https://h:1"
USER: dict[str, Any] = {"user": "agent"}


def client(endpoints: Any = URL, **settings: Any) -> Callable[[], object]:
    return lambda: EtcdClient(endpoints, **settings)


def given(function: Callable[..., object], *arguments: Any, **more: Any) -> Callable[[], object]:
    return lambda: function(*arguments, **more)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (client(None), "endpoints .*None"),
        (client(5), "endpoints .*5"),
        (client([None]), "endpoint .*None"),
        (client(b"http://h:1"), "endpoint"),
        (client(prefix=None), "prefix .*None"),
        (client(prefix=b"/a"), "prefix .*b'/a'"),
        (client(prefix=5), "prefix .*5"),
        (client(host=5), "host .*5"),
        (client(host=""), "host ''"),
        (client(host="0.0.0.0"), "host '0.0.0.0'"),
        (client(tls="x"), "tls .*'x'"),
        (given(TlsFiles, ca=5), "ca .*5"),
        (given(TlsFiles, cert=True, key="k"), "cert .*True"),
        (given(TlsFiles, cert="c", key=b"k"), "key "),
        (given(TlsFiles, server_name=5), "server_name .*5"),
        (client(password=5, **USER), "password .*int"),
        (client(password="\ud800", **USER), "password .*UTF-8"),
        (client(password_file=5, **USER), "password_file .*5"),
        (client(user=5, password="x"), "user .*int"),
        (client(user="\ud800", password="x"), "user .*UTF-8"),
        *((given(check_start_revision, bad), "start_revision") for bad in (2**63, 0, -1, 1.5, "1", math.nan, True)),
        (given(check_host, 5), "host .*5"),
        (given(check_host, b"h"), "host .*b'h'"),
        (given(check_name, 5), "name 5"),
        (given(HookRunner().add, "lost", 5), "lost .*5"),
        (given(HookRunner().add, "lost", None), "lost .*None"),
        (given(lambda: EtcdClient(URL).on_lost(5)), "lost .*5"),  # type: ignore[type-var]
    ],
)
def test_a_wrong_argument_is_named(call: Callable[[], object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        call()


def test_a_password_is_not_told_by_its_refusal() -> None:
    with pytest.raises(ConfigurationError) as refused:
        EtcdClient(URL, user="agent", password="canary\ud800")
    error: BaseException | None = refused.value
    while error is not None:
        assert "canary" not in repr(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("good", [None, 1, 2**63 - 1])
def test_revisions_that_a_watch_may_begin_at(good: int | None) -> None:
    assert check_start_revision(good) == good
