"""Secrets that the agent's commands are given, each told to nobody: not where all goes well, not where it fails.

Each command runs as a process with everything logged and tracebacks on; the secrets are words that occur nowhere else.
`tests/etcd/test_authentication.py` does the same for the library, `tests/kube/test_secrets_of_the_controller.py` for
the controller.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from edl_agent.testing import spawn_bound_to_parent
from tests.bench.certificates import CertificateFolder
from tests.bench.etcd_cluster import EtcdCluster, TlsSettings
from tests.conftest import SharedEtcd

pytestmark = pytest.mark.security(21)

GOOD, BAD, IN_URL, VALUE = "canary-good-41c7", "canary-bad-90ab", "canary-url-77de", "canary-value-13f0"
AGENT = Path(sys.executable).parent / "edl-agent"

COMMANDS: dict[str, list[str]] = {
    "register": ["register", "--port", "7164", "--num-pservers", "1"],
    "slots": ["slots"],
    "get": ["get", "/a"],
    "put": ["put", "/a", VALUE],
    "doctor": ["doctor"],
    "run": ["run", "--role", "trainer", "--", "true"],
    "sidecar": ["sidecar", "--socket", "SOCKET"],
}


def run(arguments: Sequence[str], environment: dict[str, str], seconds: float = 4.0, given: str = "") -> str:
    """All that a command says until its end, or until it is told to end; and its command line."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
    process = spawn_bound_to_parent(
        [str(AGENT), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=own | environment | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        try:
            said, _ = process.communicate(given.encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return (said + shown).decode(errors="replace")


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EtcdCluster, CertificateFolder]]:
    """An etcd with users, behind TLS with client certificates."""
    folder = CertificateFolder(tmp_path_factory.mktemp("tls"))
    with EtcdCluster(
        1, tls=TlsSettings(folder, client_auth=True), auth_token=("simple", 300), flags=["--bcrypt-cost=4"]
    ) as cluster:
        cluster.enable_auth("agent", GOOD, prefix="/mine")
        yield cluster, folder


def key_lines(path: Path) -> set[str]:
    """A private key, line by line; a part of it is as bad as the whole."""
    return {line for line in path.read_text().splitlines() if len(line) > 20 and not line.startswith("-")}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_tell_neither_passwords_nor_keys(
    name: str, closed: tuple[EtcdCluster, CertificateFolder], tmp_path: Path
) -> None:
    """With the right password, a wrong one, a key that is none, and a certificate of nobody's."""
    cluster, folder = closed
    (tmp_path / "good").write_text(GOOD)
    (tmp_path / "bad").write_text(f"{BAD}\n")
    (tmp_path / "no.key").write_text(f"-----BEGIN PRIVATE KEY-----\n{BAD}\n-----END PRIVATE KEY-----\n")
    pairs = {
        "right": ("good", folder.client.cert, folder.client.key),
        "wrong": ("bad", folder.client.cert, folder.client.key),
        "no key": ("good", folder.client.cert, tmp_path / "no.key"),
        "of nobody": ("good", folder.unknown_ca.cert, folder.unknown_ca.key),
    }
    arguments = [one.replace("SOCKET", str(tmp_path / "s" / "agent.sock")) for one in COMMANDS[name]]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    secrets = {GOOD, BAD} | key_lines(folder.client.key) | key_lines(folder.unknown_ca.key)
    for title, (password, cert, key) in pairs.items():
        environment = {
            "EDL_ETCD_ENDPOINTS": cluster.endpoint_string,
            "EDL_PREFIX": "/mine",
            "EDL_ETCD_USER": "agent",
            "EDL_ETCD_PASSWORD_FILE": str(tmp_path / password),
            "EDL_ETCD_CA": str(folder.ca),
            "EDL_ETCD_CERT": str(cert),
            "EDL_ETCD_KEY": str(key),
        }
        said = run([*arguments[:split], "-vv", "--debug", *arguments[split:]], environment)
        assert "No such option" not in said, said
        assert said.strip(), title
        told = [secret for secret in secrets if secret in said]
        assert not told, (title, said)


@pytest.mark.parametrize("endpoint", [f"http://agent:{IN_URL}@127.0.0.1:2379", f"https://{IN_URL}@h:1,http://h:2"])
@pytest.mark.parametrize("name", ["slots", "get", "doctor"])
def test_a_password_in_an_endpoint_is_refused_and_not_repeated(name: str, endpoint: str) -> None:
    said = run([*COMMANDS[name], "-vv", "--debug"], {"EDL_ETCD_ENDPOINTS": endpoint})
    assert "endpoint" in said.lower()
    assert IN_URL not in said


@pytest.mark.security(23)
@pytest.mark.parametrize("verbose", [[], ["-v"]])
def test_values_are_not_logged(etcd: SharedEtcd, prefix: str, verbose: list[str]) -> None:
    """Not at the levels warning and info."""
    place = {"EDL_ETCD_ENDPOINTS": etcd.client_url, "EDL_PREFIX": prefix}
    said = run(["put", "/a", "-", *verbose], place, given=VALUE)
    assert VALUE not in said
    assert VALUE in run(["get", "/a", *verbose], place)
