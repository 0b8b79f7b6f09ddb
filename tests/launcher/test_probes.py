"""Probes: ready means serving, alive means progress; over the socket, over HTTP, by the command."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from edl_agent.errors import ConfigurationError, Unavailable
from edl_agent.launcher.asking import ask, find, listens, make_private, socket_path
from edl_agent.launcher.control import Control
from edl_agent.launcher.progress import Progress
from tests.bench.waiting import eventually
from tests.launcher.conftest import Launch
from tests.launcher.launcher_process import Lines, program


def get(port: int, target: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_life_of_a_program_by_its_probes(launch: Launch, tmp_path: Path) -> None:
    out, progress, ready = Lines(tmp_path / "out"), tmp_path / "progress", tmp_path / "ready"
    options = ["--probe-port", "0", "--progress-file", str(progress), "--progress-timeout", "1.5"]
    options += ["--ready-file", str(ready)]
    launcher = launch("pserver", program(out.path, "stubborn"), port=7164, options=options)
    eventually(lambda: "Probes:" in launcher.log, 15.0, "the port")
    [port] = map(int, re.findall(r"Probes: http://127.0.0.1:(\d+)/", launcher.log))
    # Nobody has set /ps_desired: it waits. A restart would not help, so it is alive.
    eventually(lambda: get(port, "/ready") == (503, "waiting for a pserver slot\n"), 5.0, "the reason")
    assert get(port, "/alive")[0] == 200
    launcher.ask(
        "put",
        "--endpoints",
        launcher.argv[launcher.argv.index("--endpoints") + 1],
        "--prefix",
        launcher.argv[launcher.argv.index("--prefix") + 1],
        "/ps_desired",
        "1",
    )
    out.wait("start")
    assert get(port, "/ready")[0] == 503
    ready.touch()
    assert get(port, "/ready") == (200, "ok\n")
    # It is stuck until it writes.
    eventually(lambda: get(port, "/alive")[0] == 503, 5.0, "being stuck")
    assert "has not changed" in get(port, "/alive")[1]
    progress.write_text('{"step": 3, "samples": 90}')
    eventually(lambda: get(port, "/alive")[0] == 200, 5.0, "progress")
    # Only the socket takes a drain.
    assert get(port, "/drain", "POST")[0] == 404
    assert get(port, "/state")[0] == 404
    assert get(port, "/ready")[0] == 200
    status, text = ask(str(launcher.control), "GET", "/state", 5.0)
    assert status == 200
    assert '"command": "running"' in text
    assert launcher.ask("ready").returncode == 0
    launcher.send(signal.SIGTERM)
    eventually(lambda: "draining" in get(port, "/ready")[1], 5.0, "not ready while draining")


def test_no_launcher(launch: Launch, tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        find(None, {"EDL_RUN_DIR": str(tmp_path)})
    assert find(None, {"EDL_CONTROL": "/x.sock"}) == "/x.sock"


class Quiet:
    """Who is asked."""

    def __init__(self) -> None:
        self.drains: list[tuple[str, float | None]] = []

    def not_ready(self) -> str:
        return ""

    def not_alive(self) -> str:
        return "stuck"

    def state(self) -> dict[str, object]:
        return {}

    def drain(self, why: str, seconds: float | None) -> None:
        self.drains.append((why, seconds))


def test_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "run" / "one.sock"
    asked = Quiet()
    first = Control(asked, path=str(path), required=True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert ask(str(path), "GET", "/ready", 5.0) == (200, "ok")
    assert ask(str(path), "GET", "/alive", 5.0) == (503, "stuck")
    assert ask(str(path), "POST", "/drain?why=a%20b&seconds=3", 5.0)[0] == 202
    assert ask(str(path), "POST", "/drain?seconds=-1", 5.0)[0] == 400
    assert ask(str(path), "GET", "/etc/passwd", 5.0)[0] == 404
    assert asked.drains == [("a b", 3.0)]
    # Another launcher does not push this one aside.
    with pytest.raises(ConfigurationError, match="another launcher"):
        Control(asked, path=str(path), required=True)
    # Several: one has to be chosen.
    second = Control(asked, path=str(tmp_path / "run" / "two.sock"), required=True)
    with pytest.raises(ConfigurationError, match="choose one"):
        find(None, {"EDL_RUN_DIR": str(path.parent)})
    second.close()
    assert find(None, {"EDL_RUN_DIR": str(path.parent)}) == str(path)
    first.close()
    # A stale one, of a process that was killed, is replaced.
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    assert not listens(path)
    third = Control(asked, path=str(path), required=True)
    assert listens(path)
    third.close()
    assert not path.exists()


def test_idle_and_garbage_connections_do_not_hold_up_the_probes(tmp_path: Path) -> None:
    control = Control(Quiet(), port=0)
    assert control.port is not None
    idle = [socket.create_connection(("127.0.0.1", control.port)) for _ in range(40)]
    idle[0].sendall(b"\x00\xff" * 1000 + b"\r\n\r\n")
    try:
        # The idle ones are closed after a few seconds.
        eventually(lambda: _answers(control.port), 10.0, "an answer")
    finally:
        for one in idle:
            one.close()
        control.close()


def _answers(port: int | None) -> bool:
    try:
        return get(port or 0, "/ready")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_a_folder_of_somebody_elses_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigurationError):
        make_private(folder)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigurationError):
        make_private(tmp_path / "link")


def test_a_port_that_is_taken() -> None:
    first = Control(Quiet(), port=0)
    with pytest.raises(ConfigurationError, match="probe port"):
        Control(Quiet(), port=first.port)
    first.close()


def test_long_names_get_short_sockets() -> None:
    path = socket_path("x" * 253, {"EDL_RUN_DIR": "/run/edl"})
    assert len(str(path)) < 100
    assert path != socket_path("x" * 252, {"EDL_RUN_DIR": "/run/edl"})


def test_without_any_folder_to_write_to_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a read-only root and no /tmp: see also tests/containers."""

    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    with pytest.raises(ConfigurationError, match="EDL_RUN_DIR"):
        socket_path("ps", {})
    with pytest.raises(ConfigurationError, match="EDL_RUN_DIR"):
        find(None, {})
    assert socket_path("ps", {"EDL_RUN_DIR": "/run/edl/agent"}) == Path("/run/edl/agent/ps.sock")


def test_progress(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    progress = Progress(str(path), 10.0)
    progress.look(1.0, None)
    assert progress.stuck(5.0, None) == ""
    assert progress.stuck(5.0, 0.0) == ""
    assert "10 s" not in progress.stuck(9.0, 0.0)
    assert progress.stuck(11.0, 0.0)
    path.write_text("not json")
    progress.look(12.0, None)
    assert progress.stuck(21.0, 0.0) == ""
    progress.look(21.0, None)
    assert progress.stuck(23.0, 0.0)
    time.sleep(0.02)
    path.touch()
    progress.look(24.0, None)
    assert progress.stuck(33.0, 0.0) == ""
    assert progress.stuck(99.0, 95.0) == ""  # started anew
    assert Progress("", 1.0).stuck(100.0, 0.0) == ""
