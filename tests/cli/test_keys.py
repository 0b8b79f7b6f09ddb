"""``edl-agent get``, ``put`` and ``delete`` against a real etcd."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.certificates import CertificateFolder
from tests.bench.etcd_cluster import EtcdCluster, TlsSettings
from tests.bench.etcd_proxy import EtcdProxy
from tests.cli.command import edl_agent, environment
from tests.conftest import SharedEtcd


@pytest.fixture
def here(etcd: SharedEtcd, prefix: str) -> dict[str, str]:
    return {"EDL_ETCD_ENDPOINTS": etcd.client_url, "EDL_PREFIX": prefix}


def test_put_get_delete(here: dict[str, str], etcd: SharedEtcd, prefix: str) -> None:
    assert edl_agent("get", "/k", env=here).status == 1
    written = edl_agent("put", "/k", "a value", env=here)
    assert (written.status, written.stdout) == (0, "OK\n")
    assert etcd.etcdctl("get", f"{prefix}/k", "--print-value-only") == "a value\n"
    read = edl_agent("get", "/k", env=here)
    assert (read.status, read.stdout, read.stderr) == (0, "a value\n", "")
    assert edl_agent("delete", "/k", env=here).status == 0
    gone = edl_agent("delete", "/k", env=here)
    assert (gone.status, gone.stdout) == (1, "")
    assert "/k: absent" in gone.stderr
    absent = edl_agent("get", "/k", env=here)
    assert (absent.status, absent.stdout) == (1, "")
    assert "/k: absent" in absent.stderr


def test_json(here: dict[str, str]) -> None:
    absent = edl_agent("get", "/k", "-o", "json", env=here)
    assert (absent.status, absent.json) == (1, {"key": "/k", "value": None})
    assert edl_agent("put", "/k", "ü", "-o", "json", env=here).json == {"key": "/k", "written": True}
    assert edl_agent("get", "/k", "-o", "json", env=here).json == {"key": "/k", "value": "ü", "encoding": "utf-8"}
    raw = b"\xff\x00\n"
    assert edl_agent("put", "/k", "-", env=here, stdin=raw).status == 0
    found = edl_agent("get", "/k", "-o", "json", env=here).json
    assert found == {"key": "/k", "value": base64.b64encode(raw).decode(), "encoding": "base64"}
    assert edl_agent("get", "/k", "-n", env=here).raw == raw
    assert edl_agent("delete", "/k", "-o", "json", env=here).json == {"key": "/k", "deleted": True}
    assert edl_agent("delete", "/k", "-o", "json", env=here).json == {"key": "/k", "deleted": False}


def test_flags_win_over_the_environment(etcd: SharedEtcd, prefix: str) -> None:
    elsewhere = {"EDL_ETCD_ENDPOINTS": "http://127.0.0.1:1", "EDL_PREFIX": "/elsewhere"}
    assert edl_agent("put", "/k", "v", "--endpoints", etcd.client_url, "--prefix", prefix, env=elsewhere).status == 0
    assert etcd.etcdctl("get", f"{prefix}/k", "--print-value-only") == "v\n"


def test_keys_are_bytes_whatever_the_locale_knows(here: dict[str, str], etcd: SharedEtcd, prefix: str) -> None:
    ascii_only = {**here, "LC_ALL": "C", "PYTHONUTF8": "0"}
    assert edl_agent("put", "/schlüssel", "größe", env=ascii_only).status == 0
    assert etcd.etcdctl("get", f"{prefix}/schlüssel", "--print-value-only") == "größe\n"
    assert edl_agent("get", "/schlüssel", env=ascii_only).stdout == "größe\n"
    assert edl_agent("get", "/schlüssel", "-o", "json", env=ascii_only).json["key"] == "/schlüssel"
    assert edl_agent("delete", "/schlüssel", env=ascii_only).status == 0
    assert edl_agent("delete", "/schlüssel", env=ascii_only).status == 1


def test_a_value_that_begins_with_a_dash(here: dict[str, str]) -> None:
    assert edl_agent("put", "--", "/k", "-5", env=here).status == 0
    assert edl_agent("get", "/k", env=here).stdout == "-5\n"


def test_a_reader_that_went_away_is_no_error(here: dict[str, str]) -> None:
    assert edl_agent("put", "/k", "-", env=here, stdin=b"x" * 1_000_000).status == 0
    with subprocess.Popen(
        [sys.executable, "-m", "edl_agent", "get", "/k"],
        env=environment(here),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 0


def test_what_etcd_refuses_is_5(here: dict[str, str]) -> None:
    outcome = edl_agent("put", "/k", "-", env=here, stdin=b"x" * 2_000_000)
    assert outcome.status == 5
    assert "1.5 MiB" in outcome.stderr


def test_a_lost_answer_is_6(etcd_proxy: EtcdProxy, here: dict[str, str]) -> None:
    etcd_proxy.lose_answer("Put")
    outcome = edl_agent("put", "/k", "v", "--endpoints", etcd_proxy.endpoint, env=here)
    assert outcome.status == 6
    assert "may have been applied" in outcome.stderr
    assert edl_agent("get", "/k", env=here).stdout == "v\n"


def test_a_silent_etcd_is_3_at_the_timeout(etcd_proxy: EtcdProxy, here: dict[str, str]) -> None:
    etcd_proxy.ignore("Range")
    outcome = edl_agent("get", "/k", "--endpoints", etcd_proxy.endpoint, "--timeout", "0.5", env=here)
    assert outcome.status == 3


def test_login(etcd_factory: Callable[..., EtcdCluster], tmp_path: Path) -> None:
    cluster = etcd_factory()
    cluster.enable_auth("agent", "agent-secret", prefix="/mine")
    secret = tmp_path / "password"
    secret.write_text("agent-secret\n")
    mine = {"EDL_ETCD_ENDPOINTS": cluster.endpoint_string, "EDL_PREFIX": "/mine"}
    login = ["--user", "agent", "--password-file", str(secret), "--unsafe-plaintext-password"]

    def run(*arguments: str) -> str:
        outcome = edl_agent(*arguments, env=mine)
        assert "agent-secret" not in outcome.stdout + outcome.stderr
        return f"{outcome.status} {outcome.stdout}{outcome.stderr}"

    assert run("put", "/k", "v", *login, "-vv").startswith("0 OK")
    assert run("get", "/k", *login).startswith("0 v")
    without = run("get", "/k")
    assert without.startswith("5")
    assert "--user" in without
    assert run("get", "/k", *login, "--prefix", "/other").startswith("5")
    healthy = run("doctor", *login)
    assert healthy.startswith("0"), healthy
    assert "user 'agent' is accepted" in healthy
    assert run("doctor").startswith("1")
    elsewhere = run("doctor", *login, "--prefix", "/other")
    assert elsewhere.startswith("1")
    assert "permission denied" in elsewhere
    secret.write_text("wrong-secret")
    refused = run("get", "/k", *login)
    assert refused.startswith("5")
    assert "--password-file" in refused
    assert "wrong-secret" not in refused
    secret.unlink()
    missing = run("get", "/k", *login)
    assert missing.startswith("5")
    assert "check --password-file" in missing
    assert "--cert" not in missing


def test_tls(etcd_factory: Callable[..., EtcdCluster], certificates: CertificateFolder) -> None:
    cluster = etcd_factory(tls=TlsSettings(certificates, client_auth=True))
    client = certificates.client
    tls = {
        "EDL_ETCD_ENDPOINTS": cluster.endpoint_string,
        "EDL_ETCD_CA": str(certificates.ca),
        "EDL_ETCD_CERT": str(client.cert),
        "EDL_ETCD_KEY": str(client.key),
    }
    assert edl_agent("put", "/k", "v", env=tls).status == 0
    assert edl_agent("get", "/k", env=tls).stdout == "v\n"
    report = edl_agent("doctor", "-o", "json", env=tls)
    assert report.status == 0, report.stdout
    told = [check["text"] for check in report.json["checks"] if check["check"] == "tls"]
    assert [text for text in told if text.startswith("CA file")]
    assert [text for text in told if text.startswith("client certificate")]
    assert [text for text in told if text.startswith("server certificate") and "days" in text]
    stranger = edl_agent("get", "/k", "--ca", str(certificates.other_ca), "--timeout", "3", env=tls)
    assert stranger.status == 5
    assert "--ca" in stranger.stderr
    missing = edl_agent("get", "/k", "--ca", "/does/not/exist", env=tls)
    assert missing.status == 5
    assert "/does/not/exist" in missing.stderr
    expired = certificates.expired
    old = edl_agent("doctor", "--cert", str(expired.cert), "--key", str(expired.key), "--timeout", "2", env=tls)
    assert old.status == 1
    assert "expired on" in old.stdout
