"""Never two programs for one slot: the launcher is paused, cut off or killed while another takes the slot."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually
from tests.conftest import SharedEtcd
from tests.launcher.conftest import Launch
from tests.launcher.launcher_process import LauncherProcess, Lines, alive, program

TTL = 2.0


def pause(launcher: LauncherProcess, proxy: TcpProxy) -> None:
    launcher.send(signal.SIGSTOP)


def cut_off(launcher: LauncherProcess, proxy: TcpProxy) -> None:
    proxy.black_hole()


def kill(launcher: LauncherProcess, proxy: TcpProxy) -> None:
    launcher.process.kill()


@pytest.mark.parametrize("harm", [pause, cut_off, kill])
@pytest.mark.parametrize("role", ["pserver", "trainer"])
def test_the_command_is_dead_before_another_is_started(
    launch: Launch,
    tmp_path: Path,
    proxy: TcpProxy,
    harm: Callable[[LauncherProcess, TcpProxy], None],
    role: str,
) -> None:
    first, second, ps = Lines(tmp_path / "first"), Lines(tmp_path / "second"), Lines(tmp_path / "ps")
    options: dict[str, object] = {"ttl": TTL}
    if role == "pserver":
        options |= {"num_pservers": 1}
    else:
        launch("pserver", program(ps.path), name="ps", port=7000, num_pservers=1)
    stopped = launch(
        role, program(first.path, "stubborn", "beat"), name="first", port=7164, endpoints=proxy.endpoint, **options
    )
    one = first.wait("start")
    first.wait("beat")
    if role == "pserver":
        launch(role, program(second.path), name="second", port=7165, **options)
    harm(stopped, proxy)
    begin = time.monotonic()
    if role == "trainer":  # the lowest free index is the stopped one's, as soon as its lease has ended
        eventually(lambda: not alive(one["pid"]), TTL + 1.0, "the first command's end")
        time.sleep(TTL)
        launch(role, program(second.path), name="second", port=7165, **options)
    two = second.wait("start", timeout=20.0)
    assert not alive(one["pid"])
    last = first.all("beat")[-1]["at"]
    assert last < two["at"]
    assert two["env"]["EDL_INDEX"] == one["env"]["EDL_INDEX"] == "0"
    assert int(two["env"]["EDL_EPOCH"]) > int(one["env"]["EDL_EPOCH"])
    spans = f"{last - begin:.2f} s, next start {two['at'] - begin:.2f} s"
    print(f"{role}, {harm.__name__} (TTL {TTL:g} s): last sign {spans} after it")
    if harm is pause:
        stopped.send(signal.SIGCONT)
        if role == "trainer":  # it gets another index, and a higher epoch
            again = first.wait("start", 2, timeout=20.0)
            assert again["env"]["EDL_INDEX"] == "1"
            assert int(again["env"]["EDL_EPOCH"]) > int(one["env"]["EDL_EPOCH"])
        else:
            time.sleep(1.0)
            assert len(first.all("start")) == 1


def test_a_short_outage_is_not_noticed(launch: Launch, tmp_path: Path, proxy: TcpProxy) -> None:
    out = Lines(tmp_path / "out")
    launch("pserver", program(out.path), port=7164, num_pservers=1, endpoints=proxy.endpoint, ttl=6.0)
    pid = out.wait("start")["pid"]
    proxy.refuse()
    proxy.drop_connections()
    time.sleep(2.5)
    proxy.pass_all()
    time.sleep(5.0)
    assert alive(pid)
    assert len(out.all("start")) == 1


def test_after_an_outage_the_command_is_started_anew(launch: Launch, tmp_path: Path, proxy: TcpProxy) -> None:
    out = Lines(tmp_path / "out")
    launch("pserver", program(out.path, "stubborn"), port=7164, num_pservers=1, endpoints=proxy.endpoint, ttl=TTL)
    one = out.wait("start")
    proxy.black_hole()
    begin = time.monotonic()
    eventually(lambda: not alive(one["pid"]), TTL + 1.0, "the end of the command")
    assert time.monotonic() - begin <= TTL + 0.3
    proxy.pass_all()
    two = out.wait("start", 2, timeout=20.0)
    assert int(two["env"]["EDL_EPOCH"]) > int(one["env"]["EDL_EPOCH"])


def test_a_foreign_key_in_the_slot_ends_the_command(
    launch: Launch, tmp_path: Path, etcd: SharedEtcd, prefix: str
) -> None:
    out = Lines(tmp_path / "out")
    launch("pserver", program(out.path, "stubborn"), port=7164, num_pservers=1)
    pid = out.wait("start")["pid"]
    etcd.etcdctl("put", f"{prefix}/ps/0", "10.9.9.9:1")
    eventually(lambda: not alive(pid), 3.0, "the command's end")
