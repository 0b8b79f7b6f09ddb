"""Who gets in: a private folder and socket, the peer's uid as the kernel tells it, TCP on request and with TLS."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from edl_agent import ConfigurationError
from edl_agent.sidecar.front import PREFACE
from edl_agent.sidecar.listening import TcpListener, UnixListener, is_loopback
from edl_agent.sidecar.server import TcpTls
from tests.bench.certificates import CertificateFolder
from tests.conftest import SharedEtcd
from tests.sidecar.conftest import LocalSidecar
from tests.sidecar.sidecar_process import Caller, Program, SidecarProcess, refused

Start = Callable[..., LocalSidecar]

KNOCK = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[3]))
door = socket.socket(socket.AF_UNIX)
door.settimeout(5)
try:
    door.connect(sys.argv[1])
    door.sendall(bytes.fromhex(sys.argv[2]))
    answer = door.recv(9)
except OSError as error:
    answer = type(error).__name__.encode()
print(answer[3:4].hex() if len(answer) == 9 else answer.decode() or "closed")
"""
"""As another user: says HTTP/2's preface and an empty SETTINGS frame; prints the type of the frame that it is answered
with (``04``: SETTINGS), ``closed``, or the error."""


def knock(path: Path, uid: int) -> str:
    hello = (PREFACE + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])).hex()
    # The program itself becomes the other user: with the user= of subprocess this process, in which gRPC runs, would be
    # forked in place of vforked, and gRPC's threads of the child may crash before its exec.
    command = ["/usr/bin/env", "python3", "-I", "-S", "-c", KNOCK, str(path), hello, str(uid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, cwd="/")
    return done.stdout.strip()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user here")


@pytest.mark.security(25)
def test_only_the_owner_can_reach_it(sidecar: LocalSidecar) -> None:
    assert mode(sidecar.folder) == 0o700
    assert mode(sidecar.path) == 0o600
    assert stat.S_ISSOCK(sidecar.path.stat().st_mode)
    assert mode(sidecar.folder / ".inner") == 0o700
    assert mode(sidecar.folder / "session.json") == mode(sidecar.folder / "pservers.json") == 0o600


@pytest.mark.security(8)
@pytest.mark.security(25)
def test_no_port_is_opened_by_default(sidecar_process: SidecarProcess) -> None:
    inodes = set()
    for name in os.listdir(f"/proc/{sidecar_process.process.pid}/fd"):
        with_target = os.readlink(f"/proc/{sidecar_process.process.pid}/fd/{name}")
        if with_target.startswith("socket:["):
            inodes.add(with_target[8:-1])
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            listens = fields[3] == "0A"
            assert not (listens and fields[9] in inodes), line


@needs_root
@pytest.mark.security(25)
def test_another_user_is_kept_out_by_the_folder(sidecar: LocalSidecar) -> None:
    sidecar.folder.parent.chmod(0o755)
    assert knock(sidecar.path, os.geteuid()) == "04"
    assert knock(sidecar.path, 12345) == "PermissionError"


@needs_root
@pytest.mark.security(30)
def test_the_kernel_names_the_peer_and_only_the_named_ones_come_in(local_sidecar: Start, folder: Path) -> None:
    folder.parent.chmod(0o755)
    sidecar = local_sidecar(peer_uids=(12345,))
    assert mode(sidecar.folder) == 0o711
    assert knock(sidecar.path, 12345) == "04"
    assert knock(sidecar.path, os.geteuid()) == "04"
    # The file would let it in: not a byte is answered.
    assert knock(sidecar.path, 12346) in ("closed", "ConnectionResetError", "BrokenPipeError")
    assert mode(sidecar.folder / ".inner") == 0o700
    assert mode(sidecar.folder / "session.json") == 0o644


@pytest.mark.fault("A48")
@pytest.mark.security(26)
def test_a_stale_socket_is_replaced(etcd: SharedEtcd, folder: Path, prefix: str) -> None:
    with SidecarProcess(etcd.client_url, folder, prefix) as first:
        first.kill()
        assert first.path.exists()
        assert (folder / ".inner").exists()
    with SidecarProcess(etcd.client_url, folder, prefix) as second, Program(second.target) as program:
        assert program.register().index == 0
        found = [name for name in os.listdir(folder) if not name.endswith(".new")]  # one may be about to be renamed
        assert sorted(found) == [".inner", "agent.sock", "pservers.json", "session.json"]


@pytest.mark.fault("A48")
@pytest.mark.security(26)
def test_a_second_sidecar_leaves_the_first_alone(sidecar: LocalSidecar, etcd: SharedEtcd, prefix: str) -> None:
    with SidecarProcess(etcd.client_url, sidecar.folder, prefix) as second:
        assert second.wait() == 2
        assert "another sidecar uses" in second.stderr
    with Program(sidecar.target) as program:
        assert program.register().index == 0


@pytest.mark.fault("A48")
@pytest.mark.security(26)
def test_somebody_elses_listening_socket_stays(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(tmp_path / "agent.sock"))
        theirs.listen()
        with pytest.raises(ConfigurationError, match="somebody listens"):
            UnixListener(str(tmp_path / "agent.sock"))
        with socket.socket(socket.AF_UNIX) as still:
            still.connect(str(tmp_path / "agent.sock"))


@pytest.mark.security(26)
def test_symlinks_and_files_are_not_touched(tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    treasure.chmod(0o644)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "link.sock").symlink_to(treasure)
    (folder / "dangling.sock").symlink_to(tmp_path / "nowhere")
    (folder / "file.sock").write_text("a file")
    for name in ("link.sock", "dangling.sock", "file.sock"):
        with pytest.raises(ConfigurationError, match="no socket"):
            UnixListener(str(folder / name))
    assert treasure.read_text() == "gold"
    assert mode(treasure) == 0o644
    assert not (tmp_path / "nowhere").exists()
    assert (folder / "link.sock").is_symlink()
    (tmp_path / "elsewhere").symlink_to(folder)
    with pytest.raises(ConfigurationError, match="folder"):
        UnixListener(str(tmp_path / "elsewhere" / "agent.sock"))


@pytest.mark.security(26)
def test_state_files_do_not_follow_symlinks(tmp_path: Path, local_sidecar: Start, folder: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    folder.mkdir()
    for name in ("session.json", ".session.json.new"):
        (folder / name).symlink_to(treasure)
    sidecar = local_sidecar()
    assert sidecar.file("session.json")["v"] == 1
    assert treasure.read_text() == "gold"
    assert not (folder / "session.json").is_symlink()


@pytest.mark.security(26)
def test_the_folder_must_be_ones_own_and_is_tightened(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir(mode=0o755)
    UnixListener(str(loose / "agent.sock")).close()
    assert mode(loose) == 0o700
    assert os.listdir(loose) == []
    common = tmp_path / "common"
    common.mkdir()
    common.chmod(0o1777)
    with pytest.raises(ConfigurationError, match="everybody"):
        UnixListener(str(common / "agent.sock"))
    with pytest.raises(ConfigurationError, match="folder"):
        UnixListener(str(tmp_path / "no" / "such" / "agent.sock"))
    if os.geteuid() == 0:
        foreign = tmp_path / "foreign"
        foreign.mkdir()
        os.chown(foreign, 12345, 12345)
        with pytest.raises(ConfigurationError, match="belongs to uid 12345"):
            UnixListener(str(foreign / "agent.sock"))


def test_a_long_path_is_no_problem_for_the_server(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    listener = UnixListener(str(folder / "agent.sock"))
    assert (folder / "agent.sock").exists()
    listener.close()
    assert not (folder / "agent.sock").exists()


def test_a_closing_listener_leaves_its_successors_socket(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"
    listener = UnixListener(str(path))
    path.unlink()
    path.write_text("somebody else's")
    listener.close()
    assert path.read_text() == "somebody else's"


@pytest.mark.fault("A48")
def test_a_port_that_is_taken_is_an_error_and_is_not_shared() -> None:
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        port = theirs.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"{port}: somebody listens there already"):
            TcpListener("127.0.0.1", port)


@pytest.mark.fault("A48")
def test_the_command_says_that_the_port_is_taken(etcd: SharedEtcd, folder: Path, prefix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        port = theirs.getsockname()[1]
        with SidecarProcess(etcd.client_url, folder, prefix, "--listen", f"127.0.0.1:{port}") as sidecar:
            assert sidecar.wait() == 2
            assert "somebody listens there already" in sidecar.stderr
    assert not (folder / "agent.sock").exists()


@pytest.mark.security(25)
def test_tcp_on_the_loopback_when_asked(local_sidecar: Start) -> None:
    sidecar = local_sidecar(tcp=("127.0.0.1", 0))
    with Program(f"127.0.0.1:{sidecar.running.port}") as program:
        assert program.register().index == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "edl.example"])
@pytest.mark.security(25)
def test_beyond_the_loopback_only_with_tls(local_sidecar: Start, host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigurationError, match="loopback"):
        local_sidecar(tcp=(host, 0))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.security(25)
def test_with_tls_a_program_must_show_its_certificate(local_sidecar: Start, certificates: CertificateFolder) -> None:
    server, client = certificates.server, certificates.client
    tls = TcpTls(str(server.cert), str(server.key), str(certificates.ca))
    sidecar = local_sidecar(tcp=("0.0.0.0", 0), tls=tls)
    target = f"127.0.0.1:{sidecar.running.port}"
    ca = Path(certificates.ca).read_bytes()
    shown = grpc.ssl_channel_credentials(ca, Path(client.key).read_bytes(), Path(client.cert).read_bytes())
    with Program(target, credentials=shown) as program:
        assert program.register().index == 0
        for credentials in (grpc.ssl_channel_credentials(ca), None):
            with Caller(target, credentials=credentials) as stranger, pytest.raises(grpc.RpcError) as error:
                stranger.call("GetSession", timeout=3.0)
            assert error.value.code().name in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def test_the_flags_are_checked(etcd: SharedEtcd, folder: Path, prefix: str) -> None:
    for arguments, expected in (
        (("--listen", "0.0.0.0:0"), "loopback"),
        (("--listen", "127.0.0.1"), "HOST:PORT"),
        (("--tls-cert", "x"), "go together"),
    ):
        with SidecarProcess(etcd.client_url, folder, prefix, *arguments) as sidecar:
            assert sidecar.wait() == 2
            assert expected in sidecar.stderr


@pytest.mark.security(28)
def test_reflection_and_channelz_are_off(onlooker: Caller, sidecar: LocalSidecar) -> None:
    for method in (
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.channelz.v1.Channelz/GetServers",
    ):
        call: Any = onlooker.channel.unary_unary(method)
        assert refused(lambda call=call: call(b"", timeout=5)).code == "UNIMPLEMENTED"  # type: ignore[misc]
