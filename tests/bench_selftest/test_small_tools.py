"""Certificates, clocks, waiting, agent processes, network namespaces, the fault list."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bench.agent_process import AgentProcess
from tests.bench.certificates import CertificateFolder, KeyPair
from tests.bench.clocks import FakeClock
from tests.bench.etcd_cluster import EtcdCluster, TlsSettings
from tests.bench.network_namespaces import NetworkLab
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never, resource_counts
from tests.fault_list import fault_list, read_rows


def test_certificates_are_good_and_bad_as_named(etcd_factory: Callable[..., EtcdCluster], tmp_path: Path) -> None:
    folder = CertificateFolder(tmp_path)
    files = KeyPair(tmp_path / "live.pem", tmp_path / "live-key.pem")
    folder.rotate(files, folder.server)
    member = etcd_factory(tls=TlsSettings(folder, files)).members[0]

    def handshake() -> str:
        context = ssl.create_default_context(cafile=str(folder.ca))
        host, port = member.endpoint.split(":")
        try:
            with (
                socket.create_connection((host, int(port)), 5) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as wrapped,
            ):
                return wrapped.version() or ""
        except ssl.SSLCertVerificationError as error:
            return error.verify_message

    assert handshake() in ("TLSv1.2", "TLSv1.3")
    for bad, message in (
        (folder.expired, "certificate has expired"),
        (folder.wrong_name, "Hostname mismatch"),
        (folder.unknown_ca, "unable to get local issuer certificate"),
    ):
        folder.rotate(files, bad)  # etcd reads its files for each handshake
        assert message in handshake()
    folder.rotate(files)
    assert handshake() in ("TLSv1.2", "TLSv1.3")
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.glob("*-key.pem")} == {"0o600"}


def test_fake_clock() -> None:
    clock = FakeClock()
    start, wall = clock.now(), clock.wall()
    assert abs(start.monotonic - time.monotonic()) < 5
    clock.advance(2)
    clock.suspend(3)
    clock.jump_wall(-3600)
    assert clock.monotonic() - start.monotonic == pytest.approx(2)
    assert clock.boottime() - start.boottime == pytest.approx(5)
    assert clock.wall() - wall == pytest.approx(5 - 3600)
    running = FakeClock(running=True)
    running.advance(100)
    first = running.monotonic()
    eventually(lambda: running.monotonic() > first, 1)
    assert first - time.monotonic() == pytest.approx(100, abs=1)


def test_eventually_says_what_it_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"the moon; last value 0"):
        eventually(lambda: 0, 0.05, "the moon")
    with pytest.raises(AssertionError, match="must not happen: rain"):
        never(lambda: 1, 0.05, "rain")


def test_resource_counts_see_a_leak() -> None:
    before = resource_counts()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="counted")
    with socket.socket():
        thread.start()
        after = resource_counts()
    end.set()
    thread.join()
    assert (after.threads, after.fds) == (before.threads + 1, before.fds + 1)
    assert "counted" in after.python_threads
    assert after.rss > 1_000_000


PROGRAM = """
import json, signal, sys, time
print(json.dumps({"event": "registered", "index": 0}), flush=True)
print("noise", flush=True)
print("words", file=sys.stderr, flush=True)
def end(*_):
    print(json.dumps({"event": "released", "index": 0}), flush=True)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, end)
while True:
    time.sleep(0.05)
    print(json.dumps({"event": "tick"}), flush=True)
"""


@pytest.fixture
def stand_in() -> Iterator[AgentProcess]:
    """The wrapper around a stand-in program: the wrapper is tested here, not the agent."""
    agent = AgentProcess(["http://127.0.0.1:1"], 7164, num_pservers=2, ttl=5, prefix="/p")
    agent.argv = [sys.executable, "-c", PROGRAM]
    with agent:
        yield agent


def test_agent_process_command_line() -> None:
    agent = AgentProcess(["http://a:1", "http://b:1"], 7164, num_pservers=None, ttl=2.5, prefix="/p", wrapper=["env"])
    assert agent.argv[:2] == ["env", sys.executable]
    text = "-m edl_agent register --endpoints http://a:1,http://b:1 --port 7164 --ttl 2.5"
    text += " --host 127.0.0.1 --prefix /p -o json"
    assert " ".join(agent.argv[2:]) == text


def test_agent_process_events_and_signals(stand_in: AgentProcess) -> None:
    event = stand_in.wait_event("registered")
    assert stand_in.index == 0
    assert abs(event["seen"] - time.monotonic()) < 5
    stand_in.wait_event("tick", nth=2, after=event)
    stand_in.sigstop()
    time.sleep(0.2)
    ticks = len(stand_in.named("tick"))
    never(lambda: len(stand_in.named("tick")) > ticks, 0.3, "a stopped process speaks")
    stand_in.sigcont()
    stand_in.wait_event("tick", nth=ticks + 1)
    assert stand_in.terminate() == 0
    assert stand_in.last is not None
    assert stand_in.last["event"] == "released"
    assert stand_in.index is None
    assert stand_in.noise == ["noise\n"]
    assert stand_in.stderr == "words\n"
    start = time.monotonic()
    with pytest.raises(AssertionError, match=r"no 'lost'.*ended with 0"):
        stand_in.wait_event("lost", 10)
    assert time.monotonic() - start < 2


def test_agent_process_kill(stand_in: AgentProcess) -> None:
    stand_in.wait_event("registered")
    stand_in.sigstop()
    stand_in.kill()
    assert stand_in.returncode == -signal.SIGKILL


def test_network_namespaces_drop_packets() -> None:
    if (reason := NetworkLab.unavailable()) is not None:
        pytest.skip(f"no network namespaces: {reason}")
    listener = socket.create_server(("127.0.0.1", 0))
    program = (
        "import socket, sys\n"
        "s = socket.socket(); s.settimeout(1.0)\n"
        "try:\n    s.connect((sys.argv[1], int(sys.argv[2]))); print('connected')\n"
        "except TimeoutError: print('silence')\n"
        "except OSError as error: print(error.strerror)\n"
    )

    with (
        listener,
        NetworkLab(2) as lab,
        TcpProxy(f"127.0.0.1:{listener.getsockname()[1]}", host=lab.host_address) as proxy,
    ):
        first, second = lab.namespaces

        def attempt(namespace: object) -> str:
            assert namespace in (first, second)
            wrapper = first.wrapper if namespace is first else second.wrapper
            command = [*wrapper, sys.executable, "-c", program, *proxy.address.split(":")]
            return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()

        assert attempt(first) == attempt(second) == "connected"
        first.cut()
        assert (attempt(first), attempt(second)) == ("silence", "connected")
        first.restore()
        assert eventually(lambda: attempt(first) == "connected", 5)
        first.reject()
        assert attempt(first) in ("No route to host", "Network is unreachable")
        first.restore()
        first.limit(256)
        assert attempt(first) == "connected"


def write_list(folder: Path) -> list[str]:
    (folder / "faults.toml").write_text(
        '[A1]\ntitle = "one"\n[A2]\ntitle = "two"\nreason = "told elsewhere"\n'
        '[M1]\ntitle = "three"\n[I1]\ntitle = "long"\n'
    )
    (folder / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.fault('A1'))])\ndef test_a(x): pass\n"
        "@pytest.mark.soak\n@pytest.mark.fault('I1')\ndef test_b(): pass\n"
    )
    return ["--list", str(folder / "faults.toml"), str(folder)]


def run_list(arguments: list[str]) -> int:
    # In a process of its own, as it is used: pytest inside pytest would share its plugins' state.

    return subprocess.run([sys.executable, "-m", "tests.fault_list", *arguments], check=False, timeout=60).returncode


def test_fault_list_finds_what_is_missing_and_unknown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = write_list(tmp_path)
    assert run_list(["-o", "json", *arguments]) == 1
    answer = json.loads(capfd.readouterr().out)
    assert answer["missing"] == ["M1"]
    assert answer["unknown"] == {}
    assert [bool(row["tests"]) for row in answer["rows"]] == [True, False, False, False]
    assert answer["rows"][3]["soak_tests"]
    test_file = tmp_path / "test_some.py"
    whole = test_file.read_text() + "@pytest.mark.report('M1')\ndef test_c(): pass\n"
    test_file.write_text(whole)
    assert run_list(arguments) == 0
    assert "4 rows: 3 with tests, 1 with a reason, 0 missing" in capfd.readouterr().out
    test_file.write_text(whole + "@pytest.mark.fault('A99')\ndef test_d(): pass\n")
    assert run_list(arguments) == 1
    assert "UNKNOWN ROW A99" in capfd.readouterr().out
    test_file.write_text("raise RuntimeError('broken file')\n")
    assert run_list(arguments) == 2
    assert "broken file" in capfd.readouterr().err


def test_the_project_list_is_well_formed(tmp_path: Path) -> None:
    rows = read_rows()
    assert {"A1", "A47", "A49", "A50", "M01", "M32", "I1", "I6"} <= rows.keys()
    assert fault_list(rows, []).missing
    (tmp_path / "bad.toml").write_text('[A1]\ntitle = "x"\nreason = ""\n')
    with pytest.raises(ValueError, match="A1"):
        read_rows(tmp_path / "bad.toml")
