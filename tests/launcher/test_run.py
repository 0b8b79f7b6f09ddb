"""``edl-agent run`` from start to end: environment, exit codes, restarts, signals, drains."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edl_agent import EtcdClient
from edl_agent.launcher.before_start import BeforeStart, num_trainers
from edl_agent.launcher.inbox import Inbox
from edl_agent.launcher.options import Options
from edl_agent.launcher.policy import Rules
from edl_agent.membership import Members, Pserver
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd
from tests.launcher.conftest import Launch
from tests.launcher.launcher_process import Lines, alive, program

Stored = Callable[[str], dict[str, Any] | None]


def test_pserver_and_trainer_find_each_other(launch: Launch, etcd: SharedEtcd, prefix: str, tmp_path: Path) -> None:
    ps, tr = Lines(tmp_path / "ps"), Lines(tmp_path / "tr")
    trainer = launch("trainer", program(tr.path, "polite"), name="tr", options=["--tf-config", "--socket", "/s"])
    never(lambda: bool(tr.all()), 1.0)  # there is no pserver yet
    pserver = launch("pserver", program(ps.path, "polite"), name="ps", port=7164, num_pservers=1)
    slot = json.loads(etcd.etcdctl("get", f"{prefix}/ps/0", "-w", "json"))["kvs"] if ps.wait("start") else []
    found = ps.wait("start")["env"]
    assert found["EDL_ROLE"], found["EDL_INDEX"] == ("pserver", "0")
    assert found["EDL_EPOCH"] == str(slot[0]["mod_revision"])
    assert found["EDL_NAME"] == "ps"
    assert found["EDL_ETCD_ENDPOINTS"] == etcd.client_url
    assert found["EDL_PREFIX"] == prefix
    assert (found["POD_IP"], found["PADDLE_PORT"]) == ("127.0.0.1", "7164")
    found = tr.wait("start")["env"]
    assert (found["EDL_ROLE"], found["EDL_INDEX"], found["PADDLE_TRAINER_ID"]) == ("trainer", "0", "0")
    assert (found["EDL_PSERVERS"], found["EDL_NUM_PSERVERS"]) == ("127.0.0.1:7164", "1")
    assert found["PADDLE_PSERVERS_IP_PORT_LIST"] == "127.0.0.1:7164"
    assert found["EDL_SOCKET"] == "/s"
    assert json.loads(found["TF_CONFIG"])["cluster"]["ps"] == ["127.0.0.1:7164"]
    assert trainer.terminate()[0] == 143
    assert pserver.terminate()[0] == 0


def test_each_start_of_a_trainer_counts_those_that_hold_a_slot(launch: Launch, tmp_path: Path) -> None:
    launch("pserver", program(tmp_path / "ps"), name="ps", port=7164, num_pservers=1)
    for index in range(2):
        tr = Lines(tmp_path / f"tr{index}")
        launch("trainer", program(tr.path), name=f"tr{index}", options=["--live-trainers"])
        found = tr.wait("start")["env"]
        assert {found["TRAINERS"], found["PADDLE_TRAINERS_NUM"]} == {str(index + 1)}


@pytest.mark.parametrize(
    ("live", "flag", "held", "given", "told"),
    [
        (False, None, 5, "2", None),
        (False, 3, 5, "2", 3),
        (True, None, 5, "2", 5),
        (True, None, 0, "2", 2),  # etcd could not be read
        (True, 4, 3, "2", 4),
        (True, None, 0, "many", None),
    ],
)
def test_how_many_trainers_a_command_is_told_of(
    live: bool, flag: int | None, held: int, given: str, told: int | None
) -> None:
    rules = Rules(role="trainer")
    assert num_trainers(Options(["x"], rules, "n", num_trainers=flag, live_trainers=live), held, given) == told


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("exit 0", 0, "done"),
        ("exit 1", 1, "general error (exit code 1)"),
        ("exit 42", 42, "exit code 42"),
        ("kill -FPE $$", 136, "floating point exception (exit code 136)"),
        ("kill -SEGV $$", 139, "segmentation fault (exit code 139)"),
        ("kill -ABRT $$", 134, "abort (exit code 134)"),
    ],
)
def test_exit_codes_and_the_termination_log(
    launch: Launch, stored: Stored, script: str, code: int, reason: str
) -> None:
    launcher = launch("pserver", ["sh", "-c", script], port=7164, num_pservers=1, ttl=60.0)
    assert launcher.wait() == code
    assert launcher.reason.startswith(reason)
    assert stored("/ps/0") is None  # at once, not after the TTL


def test_a_command_that_is_not_there(launch: Launch) -> None:
    launcher = launch("pserver", ["/no/such/program"], port=7164, num_pservers=1)
    assert launcher.wait() == 127
    assert "No such file" in launcher.reason


@pytest.mark.parametrize("how", ["polite", "rude", "stubborn"])
def test_a_trainer_is_out_in_two_seconds_and_has_work_left(
    launch: Launch, tmp_path: Path, stored: Stored, how: str
) -> None:
    ps, tr = Lines(tmp_path / "ps"), Lines(tmp_path / "tr")
    launch("pserver", program(ps.path), name="ps", port=7164, num_pservers=1)
    trainer = launch("trainer", program(tr.path, how), name="tr")
    pid = tr.wait("start")["pid"]
    status, seconds = trainer.terminate()
    print(f"SIGTERM to exit ({how}): {seconds:.2f} s")
    assert status == 143
    assert seconds < 2.0
    assert not alive(pid)
    assert tr.all("signal")[0]["number"] == signal.SIGTERM
    assert stored("/trainer/0") is None
    assert trainer.reason == "ended by SIGTERM (exit code 143): SIGTERM"


def test_a_trainer_is_out_in_two_seconds_while_etcd_is_away(launch: Launch, tmp_path: Path, proxy: TcpProxy) -> None:
    ps, tr = Lines(tmp_path / "ps"), Lines(tmp_path / "tr")
    launch("pserver", program(ps.path), name="ps", port=7164, num_pservers=1)
    trainer = launch("trainer", program(tr.path, "stubborn"), name="tr", endpoints=proxy.endpoint, ttl=10.0)
    tr.wait("start")
    proxy.black_hole()
    status, seconds = trainer.terminate()
    assert status == 143
    assert seconds < 2.5


def test_interrupt_is_forwarded_and_named(launch: Launch, tmp_path: Path) -> None:
    ps, tr = Lines(tmp_path / "ps"), Lines(tmp_path / "tr")
    launch("pserver", program(ps.path), name="ps", port=7164, num_pservers=1)
    trainer = launch("trainer", program(tr.path), name="tr")
    tr.wait("start")
    assert trainer.terminate(signal.SIGINT)[0] == 130
    assert tr.all("signal")[0]["number"] == signal.SIGINT


def test_other_signals_are_passed_on(launch: Launch, tmp_path: Path) -> None:
    out = Lines(tmp_path / "ps")
    launcher = launch("pserver", program(out.path), port=7164, num_pservers=1)
    out.wait("start")
    for nth, number in enumerate((signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP), 1):
        launcher.send(number)
        assert out.wait("signal", nth)["number"] == number
    assert launcher.process.poll() is None


def test_a_pserver_writes_its_checkpoint_before_it_is_stopped_and_frees_the_slot_at_once(
    launch: Launch, tmp_path: Path, etcd: SharedEtcd, prefix: str, stored: Stored
) -> None:
    out = Lines(tmp_path / "ps")
    saved = tmp_path / "saved"
    hook = tmp_path / "hook.py"
    hook.write_text(
        "import json, os, sys, time\n"
        "time.sleep(0.3)\n"
        "found = {'epoch': os.environ['EDL_EPOCH'], 'at': time.monotonic(), 'words': sys.argv[1:]}\n"
        f"json.dump(found, open({str(saved)!r}, 'w'))\n"
    )
    launcher = launch(
        "pserver",
        program(out.path, "polite"),
        port=7164,
        num_pservers=1,
        ttl=60.0,
        options=["--checkpoint-hook", f"{sys.executable} {hook} 'a b' $HOME;"],
    )
    epoch = out.wait("start")["env"]["EDL_EPOCH"]
    status, seconds = launcher.terminate()
    assert status == 0
    found = json.loads(saved.read_text())
    assert found["epoch"] == epoch
    assert found["words"] == ["a b", "$HOME;"]
    assert found["at"] < out.all("signal")[0]["at"]
    assert stored("/ps/0") is None
    assert seconds < 5.0


def test_a_hook_that_hangs_does_not_hold_up_the_drain(launch: Launch, tmp_path: Path) -> None:
    out = Lines(tmp_path / "ps")
    options = ["--checkpoint-hook", "sleep 100", "--drain-seconds", "1.5", "--stop-grace", "0.5"]
    launcher = launch("pserver", program(out.path, "stubborn"), port=7164, num_pservers=1, options=options)
    out.wait("start")
    status, seconds = launcher.terminate()
    assert status == 137
    assert 1.4 < seconds < 4.0
    assert out.all("signal")[0]["number"] == signal.SIGTERM


def test_restarts_have_higher_epochs_and_an_end(launch: Launch, tmp_path: Path, stored: Stored) -> None:
    out = Lines(tmp_path / "ps")
    options = ["--restart", "on-failure", "--max-restarts", "3", "--backoff", "0.1"]
    launcher = launch("pserver", program(out.path, "exit", "9"), port=7164, num_pservers=1, options=options)
    assert launcher.wait() == 9
    assert "given up after 3 restarts" in launcher.reason
    epochs = [int(one["env"]["EDL_EPOCH"]) for one in out.all("start")]
    assert len(epochs) == 4
    assert epochs == sorted(set(epochs))
    assert {one["env"]["EDL_INDEX"] for one in out.all("start")} == {"0"}


def test_a_deleted_slot_stops_the_command_and_it_is_started_again(
    launch: Launch, tmp_path: Path, etcd: SharedEtcd, prefix: str
) -> None:
    out = Lines(tmp_path / "ps")
    launch("pserver", program(out.path, "stubborn", "beat"), port=7164, num_pservers=1)
    first = out.wait("start")
    begin = time.monotonic()
    etcd.etcdctl("del", f"{prefix}/ps/0")
    eventually(lambda: not alive(first["pid"]), 5.0, "the command's end")
    assert time.monotonic() - begin < 1.5
    second = out.wait("start", 2)
    assert int(second["env"]["EDL_EPOCH"]) > int(first["env"]["EDL_EPOCH"])
    assert out.all("signal") == []  # no grace


def test_on_loss_exit(launch: Launch, tmp_path: Path, etcd: SharedEtcd, prefix: str) -> None:
    out = Lines(tmp_path / "ps")
    launcher = launch("pserver", program(out.path), port=7164, num_pservers=1, options=["--on-loss", "exit"])
    out.wait("start")
    etcd.etcdctl("del", f"{prefix}/ps/0")
    assert launcher.wait() == 4
    assert "slot was lost" in launcher.reason


def test_a_newer_process_with_the_address_ends_the_older(launch: Launch, tmp_path: Path) -> None:
    old, new = Lines(tmp_path / "old"), Lines(tmp_path / "new")
    first = launch("pserver", program(old.path, "beat"), port=7164, num_pservers=1, name="old")
    old.wait("start")
    launch("pserver", program(new.path), port=7164, num_pservers=1, name="new")
    assert first.wait() == 4
    assert "newer process" in first.reason
    assert new.wait("start")


@pytest.mark.parametrize("what", ["restart", "signal", "ignore"])
def test_new_pserver(launch: Launch, tmp_path: Path, what: str) -> None:
    ps, tr = Lines(tmp_path / "ps"), Lines(tmp_path / "tr")
    options = ["--on-pserver-change", what, "--change-signal", "USR2"]
    trainer = launch("trainer", program(tr.path), name="tr", options=options)
    pserver = launch("pserver", program(ps.path), name="ps", port=7164, num_pservers=1)
    first = tr.wait("start")
    ps.wait("start")
    pserver.terminate()
    if what == "restart":
        eventually(lambda: not alive(first["pid"]), 3.0, "the trainer's end")  # as soon as the pserver is gone
    launch("pserver", program(ps.path), name="ps-2", port=7165, num_pservers=1)
    if what == "restart":
        second = tr.wait("start", 2)
        assert second["env"]["EDL_PSERVERS"] == "127.0.0.1:7165"
        assert int(second["env"]["EDL_EPOCH"]) > int(first["env"]["EDL_EPOCH"])
        return
    if what == "signal":
        assert tr.wait("signal")["number"] == signal.SIGUSR2
        listed = json.loads(Path(first["env"]["EDL_PSERVERS_FILE"]).read_text())
        assert [one["address"] for one in listed["pservers"]] == ["127.0.0.1:7165"]
    else:
        ps.wait("start", 2)
        never(lambda: bool(tr.all("signal")), 1.0)
    assert alive(first["pid"])
    assert trainer.process.poll() is None


def test_trainer_zero_first(launch: Launch, tmp_path: Path, stored: Stored) -> None:
    ps, zero, one = Lines(tmp_path / "ps"), Lines(tmp_path / "zero"), Lines(tmp_path / "one")
    ready = tmp_path / "ready"
    ready.touch()  # of an earlier run: it does not count
    pserver = launch("pserver", program(ps.path), name="ps", port=7164, num_pservers=1)
    first = launch(
        "trainer", program(zero.path), name="zero", options=["--trainer-zero-first", "--ready-file", str(ready)]
    )
    zero.wait("start")
    ps.wait("start")
    launch("trainer", program(one.path), name="one", options=["--trainer-zero-first"])
    eventually(lambda: stored("/trainer/1") is not None, 10.0, "the second trainer's index")
    never(lambda: bool(one.all()), 1.0)
    ready.touch()
    assert one.wait("start")["env"]["EDL_INDEX"] == "1"
    # A new pserver is empty: again trainer 0 comes first.
    pserver.terminate()
    launch("pserver", program(ps.path), name="ps-2", port=7164, num_pservers=1)
    zero.wait("start", 2)
    never(lambda: len(one.all("start")) > 1, 1.0)
    ready.touch()
    one.wait("start", 2)
    assert first.process.poll() is None


def drain_request(etcd: SharedEtcd, prefix: str, name: str, seconds: float) -> None:
    value = {"v": 1, "decision": "d1", "deadline": time.time() + seconds, "reason": "room for others"}
    etcd.etcdctl("put", f"{prefix}/edl/drain/{name}", json.dumps(value))


def test_a_requested_drain_is_acknowledged_and_the_trainer_stays_until_removed(
    launch: Launch, tmp_path: Path, etcd: SharedEtcd, prefix: str, stored: Stored
) -> None:
    ps, tr = Lines(tmp_path / "ps"), Lines(tmp_path / "tr")
    launch("pserver", program(ps.path), name="ps", port=7164, num_pservers=1)
    trainer = launch("trainer", program(tr.path, "polite"), name="tr")
    pid = tr.wait("start")["pid"]
    assert trainer.ask("ready", "--control", str(trainer.control)).returncode == 0
    drain_request(etcd, prefix, "tr", 30.0)
    eventually(lambda: not alive(pid), 5.0, "the command's end")

    def state() -> Any:
        report = stored("/edl/agents/tr")
        return report and json.loads(report["value"])["drain"]

    eventually(lambda: state() == "acked", 5.0, "the answer")
    found = trainer.ask("ready", "--control", str(trainer.control))
    assert (found.returncode, "room for others" in found.stdout) == (1, True)
    assert trainer.ask("alive", "--control", str(trainer.control)).returncode == 0
    assert trainer.process.poll() is None
    # Withdrawn: it goes on.
    etcd.etcdctl("del", f"{prefix}/edl/drain/tr")
    tr.wait("start", 2)
    eventually(lambda: state() == "none", 5.0, "the report")
    drain_request(etcd, prefix, "tr", 30.0)
    eventually(lambda: state() == "acked", 5.0, "the answer")
    status, seconds = trainer.terminate()
    assert status == 143
    assert seconds < 2.0


def test_a_requested_drain_ends_at_its_deadline(launch: Launch, tmp_path: Path, etcd: SharedEtcd, prefix: str) -> None:
    ps, tr = Lines(tmp_path / "ps"), Lines(tmp_path / "tr")
    pserver = launch("pserver", program(ps.path, "polite"), name="ps", port=7164, num_pservers=1)
    trainer = launch("trainer", program(tr.path), name="tr")
    tr.wait("start")
    drain_request(etcd, prefix, "tr", 2.0)
    assert trainer.wait(6.0) == 143
    drain_request(etcd, prefix, "ps", 10.0)
    assert pserver.wait(6.0) == 0


def test_pre_stop(launch: Launch, tmp_path: Path, stored: Stored) -> None:
    out = Lines(tmp_path / "ps")
    launcher = launch("pserver", program(out.path, "polite"), port=7164, num_pservers=1, ttl=60.0)
    out.wait("start")
    assert launcher.ask("drain").returncode == 0  # found without being named: it is the only one in EDL_RUN_DIR
    assert launcher.wait() == 0
    assert stored("/ps/0") is None
    gone = launcher.ask("drain")
    assert (gone.returncode, "no launcher" in gone.stderr) == (3, True)


def test_nothing_to_start_within_the_timeout(launch: Launch) -> None:
    launcher = launch("trainer", ["true"], options=["--timeout", "1"])
    assert launcher.wait() == 3
    assert "waiting for the pservers to be complete" in launcher.reason


def test_stopped_while_waiting(launch: Launch) -> None:
    launcher = launch("trainer", ["true"])
    eventually(lambda: "Waiting for the pservers" in launcher.log, 10.0, "its start")
    status, seconds = launcher.terminate()
    assert status == 143
    assert seconds < 2.0


def test_no_process_and_no_file_is_left(launch: Launch, tmp_path: Path) -> None:
    out = Lines(tmp_path / "ps")
    launcher = launch("pserver", program(out.path, "polite"), port=7164, num_pservers=1)
    pid = out.wait("start")["pid"]
    guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    launcher.terminate()
    assert not alive(pid)
    assert not alive(guard)
    assert list((tmp_path / "run").iterdir()) == []
    assert os.stat(tmp_path / "run").st_mode & 0o777 == 0o700


def test_a_list_of_pservers_without_ones_own_slot_is_older_than_the_claim(etcd: SharedEtcd, prefix: str) -> None:
    """The watch may lag behind the claim: the list is complete then, with the one whose place was taken in it."""
    with EtcdClient(etcd.client_url, num_pservers=2, prefix=prefix, host="127.0.0.1", ttl=60.0) as client:
        client.register(7171)
        slot = client.session.view().slot
        assert slot is not None
        before = BeforeStart(client, Options(["x"], Rules(role="pserver"), "n"), Inbox())
        other = Pserver(1, "127.0.0.1:7172", 1)

        def told(own: Pserver) -> bool:
            before._members = Members((own, other), 2, 99, 0.0, True)
            return before.pservers().complete

        assert not told(Pserver(slot.index, "127.0.0.1:9999", slot.epoch - 1)), "the one before"
        assert not told(Pserver(slot.index, slot.address, slot.epoch - 1)), "before the key was put anew"
        assert told(Pserver(slot.index, slot.address, slot.epoch))
