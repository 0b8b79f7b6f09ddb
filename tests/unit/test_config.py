"""Settings: defaults, what is refused, and what the environment says."""

from __future__ import annotations

import dataclasses
import logging
import pickle
from typing import Any

import pytest

from edl_agent import ConfigurationError, EtcdClient, TlsFiles
from edl_agent.config import DEFAULT_TTL, from_environment, make_settings
from edl_agent.etcd.identity import Login


def test_construction_neither_dials_nor_starts_anything() -> None:
    import threading

    before = threading.active_count()
    with EtcdClient(["http://192.0.2.1:2379", "http://no.such.name.invalid:2379"], 1) as client:
        assert threading.active_count() == before
        assert client.session.index is None
        assert client.session.lease_id is None


def test_settings_cannot_be_changed_afterwards() -> None:
    settings = make_settings("h:1", None)
    assert settings.ttl == DEFAULT_TTL
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.ttl = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"reclaim": "sometimes"}, "reclaim"),
        ({"reclaim": None}, "reclaim"),
        ({"prefix": "job"}, "prefix"),
        ({"prefix": "/a/../b"}, "prefix"),
        ({"num_pservers": 0}, "num_pservers"),
        ({"num_pservers": 10**9}, "num_pservers"),
        ({"ttl": 0}, "ttl"),
        ({"dial_timeout": -1}, "dial_timeout"),
    ],
)
def test_bad_settings_are_value_errors_with_the_bad_part_in_the_text(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        EtcdClient("h:1", **more)
    assert isinstance(refused.value, ConfigurationError)


def test_a_dial_timeout_beyond_the_lease_time_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    make_settings("h:1", None, ttl=2, dial_timeout=5)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    caplog.clear()
    make_settings("h:1", None, ttl=5, dial_timeout=5)
    assert caplog.records == []


def test_a_slash_at_the_end_of_the_prefix_makes_no_difference() -> None:
    assert make_settings("h:1", None, prefix="/job/").keys == make_settings("h:1", None, prefix="/job").keys


def test_the_environment_gives_keywords_and_empty_ones_count_as_unset() -> None:
    assert from_environment({}) == {}
    assert from_environment({"EDL_TTL": "", "EDL_PREFIX": "", "EDL_ETCD_CA": ""}) == {}
    assert from_environment(
        {
            "EDL_ETCD_ENDPOINTS": "https://a:1",
            "EDL_PREFIX": "/job",
            "EDL_TTL": "7.5",
            "EDL_ETCD_USER": "agent",
            "EDL_ETCD_PASSWORD_FILE": "/secret",
            "EDL_ETCD_CA": "ca.pem",
            "EDL_ETCD_CERT": "cert.pem",
            "EDL_ETCD_KEY": "key.pem",
        }
    ) == {
        "endpoints": "https://a:1",
        "prefix": "/job",
        "ttl": 7.5,
        "user": "agent",
        "password_file": "/secret",
        "tls": TlsFiles("ca.pem", "cert.pem", "key.pem"),
    }
    with pytest.raises(ConfigurationError, match="EDL_TTL"):
        from_environment({"EDL_TTL": "soon"})


def test_the_recipe_without_endpoints_in_the_environment_says_which_variable_is_missing() -> None:
    with pytest.raises(ConfigurationError, match="EDL_ETCD_ENDPOINTS"):
        EtcdClient(num_pservers=2, **from_environment({"EDL_PREFIX": "/job"}))  # type: ignore[arg-type]


@pytest.mark.parametrize("show", [repr, str, "{}".format, lambda value: f"{value} {value!r}"])
@pytest.mark.security(21)
def test_no_way_of_printing_a_login_shows_the_password(show: Any) -> None:
    login = Login("agent", "canary-1234")
    settings = make_settings("https://h:1", None, user="agent", password="canary-1234")
    client = EtcdClient("https://h:1", user="agent", password="canary-1234")
    for thing in (login, settings, client, [login], {"login": login}, (client.session, settings)):
        assert "canary" not in show(thing)
    assert pickle.loads(pickle.dumps(login)) == login  # the value itself is whole
