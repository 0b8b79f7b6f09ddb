"""Others read and write the same keys as edl_agent: etcd3 0.12, in a virtual environment of its own, and etcdctl."""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_agent import EtcdClient
from tests.conftest import SharedEtcd

ROOT = Path(__file__).resolve().parents[2]
LOCK_FILE = ROOT / "requirements" / "interop.txt"
PEER = Path(__file__).with_name("etcd3_peer.py")
BYTES = bytes(range(256))

Peer = Callable[..., str]


@pytest.fixture(scope="session")
def etcd3_python() -> Path:
    """The python of an environment with etcd3 0.12, made once per lock file in the user's cache folder (20 s)."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    base = Path(os.environ.get("EDL_CACHE_DIR") or f"{caches}/edl")
    key = hashlib.sha256(LOCK_FILE.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = base / f"interop-{key}"
    base.mkdir(parents=True, exist_ok=True)
    with (base / f"interop-{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            python = str(folder / "bin" / "python")
            try:
                for command in (
                    [sys.executable, "-m", "venv", "--clear", str(folder)],
                    # etcd3 0.12 is published as source only, so this one lock file may build.
                    [python, "-m", "pip", "--quiet", "install", "--require-hashes", "-r", str(LOCK_FILE)],
                    [python, "-c", "import etcd3"],
                ):
                    subprocess.run(command, check=True, timeout=300, capture_output=True, text=True)
            except subprocess.CalledProcessError as error:
                if os.environ.get("CI"):
                    raise
                pytest.skip(f"no virtual environment with etcd3 0.12: {error.stderr.strip()[-300:]}")
            (folder / "ready").touch()
    return folder / "bin" / "python"


@pytest.fixture
def etcd3(etcd3_python: Path, etcd: SharedEtcd) -> Peer:
    def call(*arguments: str) -> str:
        command = [str(etcd3_python), str(PEER), etcd.endpoint, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return call


@pytest.fixture
def client(etcd: SharedEtcd, prefix: str) -> EtcdClient:
    return EtcdClient(etcd.client_url, 2, prefix=prefix)


@pytest.mark.timeout(360)  # the first test makes the virtual environment
def test_etcd3_reads_what_edl_wrote(client: EtcdClient, prefix: str, etcd3: Peer) -> None:
    with client:
        client.put_key("/any", BYTES, timeout=10.0)
        assert etcd3("get", f"{prefix}/any") == f"{BYTES.hex()} 0"
        client.put_key("/empty", b"", timeout=10.0)
        assert etcd3("get", f"{prefix}/empty") == "0"  # an empty value, no lease


@pytest.mark.timeout(360)
def test_edl_reads_what_etcd3_wrote(client: EtcdClient, prefix: str, etcd3: Peer) -> None:
    with client:
        assert client.get_key("/any", timeout=10.0) is None
        etcd3("put", f"{prefix}/any", BYTES.hex())
        assert client.get_key("/any", timeout=10.0) == BYTES


@pytest.mark.timeout(360)
def test_etcd3_sees_a_registration_and_its_end(client: EtcdClient, prefix: str, etcd3: Peer) -> None:
    with client:
        assert client.register(7164, host="10.0.0.7", timeout=20.0) == 0
        assert etcd3("get", f"{prefix}/ps_desired") == f"{b'2'.hex()} 0"
        assert etcd3("get", f"{prefix}/ps/0") == f"{b'10.0.0.7:7164'.hex()} {client.session.lease_id}"
        assert etcd3("create", f"{prefix}/ps/0", b"10.0.0.9:7164".hex()) == "False"
    assert etcd3("get", f"{prefix}/ps/0") == "absent"


@pytest.mark.timeout(360)
def test_etcd3_is_told_when_a_slot_is_given_back(
    client: EtcdClient, prefix: str, etcd3_python: Path, etcd: SharedEtcd
) -> None:
    with client:
        client.register(7164, host="10.0.0.7", timeout=20.0)
        command = [str(etcd3_python), str(PEER), etcd.endpoint, "watch", f"{prefix}/ps/0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
            try:
                assert watcher.stdout is not None
                assert watcher.stdout.readline() == "ready\n"
                client.shutdown()
                out, _ = watcher.communicate(timeout=30)
                assert out == "DeleteEvent\n"
            finally:
                watcher.kill()


@pytest.mark.timeout(360)
def test_edl_respects_a_slot_and_a_count_that_etcd3_wrote(client: EtcdClient, prefix: str, etcd3: Peer) -> None:
    etcd3("put", f"{prefix}/ps_desired", b"3".hex())
    etcd3("hold", f"{prefix}/ps/0", b"10.0.0.1:7164".hex(), "60")
    with client:
        assert client.register(7164, host="10.0.0.7", timeout=20.0) == 1
        assert client.get_key("/ps_desired", timeout=10.0) == b"3"
        assert etcd3("get", f"{prefix}/ps/0").split()[0] == b"10.0.0.1:7164".hex()


@pytest.mark.smoke
def test_etcdctl_reads_and_writes_the_same_keys(client: EtcdClient, prefix: str, etcd: SharedEtcd) -> None:
    def etcdctl(*arguments: str) -> str:
        return etcd.etcdctl(*arguments)

    etcdctl("put", f"{prefix}/theirs", "by etcdctl")
    with client:
        assert client.get_key("/theirs", timeout=10.0) == b"by etcdctl"
        assert client.register(7164, host="10.0.0.7", timeout=20.0) == 0
        assert etcdctl("get", f"{prefix}/ps/0", "--print-value-only").strip() == "10.0.0.7:7164"
        etcdctl("put", f"{prefix}/ps_desired", "1")
        assert client.get_key("/ps_desired", timeout=10.0) == b"1"
        assert etcdctl("del", f"{prefix}/theirs").strip() == "1"
        assert client.get_key("/theirs", timeout=10.0) is None
    assert etcdctl("get", f"{prefix}/ps/0").strip() == ""
