"""The Attach stream is the program's sign of life: its end releases the slot, another one begins a new epoch."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd
from tests.sidecar.conftest import LocalSidecar
from tests.sidecar.sidecar_process import Caller, Program, SidecarProcess, program_process, refused, wait_for

Read = Callable[[str], str]


def test_a_registered_program_holds_the_slot(program: Program, key_of: Read) -> None:
    session = program.register(7164)
    assert (session.index, session.address, session.attached) == (0, "127.0.0.1:7164", True)
    assert session.epoch > 0
    assert session.ttl >= 4
    assert time.monotonic() < session.deadline_monotonic <= time.monotonic() + session.ttl
    assert key_of("/ps/0") == "127.0.0.1:7164"
    again = program.register(7164)
    assert (again.index, again.epoch) == (session.index, session.epoch)
    assert refused(lambda: program.register(7165)).reason == "CONFIGURATION_ERROR"


def test_the_end_of_the_stream_releases_the_slot_at_once_and_a_reconnect_has_a_new_epoch(
    program: Program, programs: Callable[[], Program], key_of: Read, onlooker: Caller
) -> None:
    first = program.register()
    program.detach()
    eventually(lambda: key_of("/ps/0") == "", 2.0, "the slot to be free, long before the lease's end")
    assert not onlooker.GetSession().session.attached
    second = programs().register()
    assert second.index == first.index
    assert second.epoch > first.epoch


def test_a_killed_program_is_noticed_at_once_and_its_successor_fences_it(sidecar: LocalSidecar, key_of: Read) -> None:
    with program_process(sidecar.target) as (process, (index, epoch, attachment)):
        assert key_of(f"/ps/{index}") == "127.0.0.1:7164"
        process.kill()
        eventually(lambda: key_of("/ps/0") == "", 2.0, "the slot of the killed program to be free")
    with Program(sidecar.target) as successor:
        assert successor.register().epoch > int(epoch)
        # Whatever still acts in the name of the dead program is refused.
        late = refused(lambda: successor.call("Put", attachment=attachment, key=b"/x", value=b"old"))
        assert (late.code, late.reason) == ("FAILED_PRECONDITION", "NOT_ATTACHED")


def test_a_hung_program_loses_the_slot(etcd: SharedEtcd, folder: Path, prefix: str, key_of: Read) -> None:
    with (
        SidecarProcess(etcd.client_url, folder, prefix, "--hang-seconds", "3") as sidecar,
        program_process(sidecar.target) as (process, _),
    ):
        never(lambda: key_of("/ps/0") == "", 3.5)  # it answers the pings
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: key_of("/ps/0") == "", 6.0, "the slot of the stopped program to be free")


def test_only_one_program_is_attached(program: Program, onlooker: Caller, key_of: Read) -> None:
    program.register()
    second = refused(lambda: onlooker.Attach())
    assert (second.code, second.reason, second.retryable) == ("ALREADY_EXISTS", "ALREADY_ATTACHED", True)
    assert key_of("/ps/0") == "127.0.0.1:7164"


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("Register", {"role": "ROLE_TRAINER"}),
        ("Put", {"key": b"/x"}),
        ("TakeTask", {}),
        ("FinishTask", {}),
        ("Report", {}),
        ("AcknowledgeDrain", {}),
        ("Shutdown", {"stop_sidecar": True}),
    ],
)
def test_what_changes_something_needs_the_attachment(
    sidecar: LocalSidecar, onlooker: Caller, call: str, fields: dict
) -> None:
    assert refused(lambda: onlooker.call(call, **fields)).reason == "NOT_ATTACHED"
    assert refused(lambda: onlooker.call(call, attachment="f" * 32, **fields)).reason == "NOT_ATTACHED"
    assert onlooker.GetSession().session.attached is False


def test_trainers_and_sessions_without_a_slot(programs: Callable[[], Program], key_of: Read) -> None:
    trainer = programs()
    session = trainer.own("Register", role="ROLE_TRAINER").session
    assert session.index == 0
    assert key_of("/trainer/0") == "pod-0"
    trainer.detach()
    plain = programs()
    session = plain.own("Register", role="ROLE_SESSION_ONLY").session
    assert not session.HasField("index")
    assert session.lease
    assert refused(lambda: programs().own("Register", role=7)).reason == "ALREADY_ATTACHED"
    plain.detach()
    assert refused(lambda: programs().own("Register", role=7)).code == "INVALID_ARGUMENT"


def test_a_cancelled_registration_claims_nothing(etcd: SharedEtcd, folder: Path, prefix: str, key_of: Read) -> None:
    with SidecarProcess(etcd.client_url, folder, prefix, num_pservers=None) as sidecar, Program(sidecar.target) as one:
        waits = refused(lambda: one.own("Register", role="ROLE_PSERVER", port=7164, timeout=0.7))
        assert waits.code == "DEADLINE_EXCEEDED"
        etcd.etcdctl("put", prefix + "/ps_desired", "1")
        never(lambda: key_of("/ps/0") != "", 1.0)
        assert one.register().index == 0


def test_a_full_house_is_refused_where_the_program_does_not_wait(
    etcd: SharedEtcd, folder: Path, prefix: str, program: Program
) -> None:
    program.register(7164)
    with SidecarProcess(etcd.client_url, folder / "b", prefix, name="pod-1") as other, Program(other.target) as second:
        full = refused(lambda: second.register(7165, no_wait=True))
        assert (full.code, full.reason, full.retryable) == ("RESOURCE_EXHAUSTED", "SLOTS_FULL", True)
        waiting = threading.Timer(0.5, program.detach)
        waiting.start()
        assert second.register(7165).index == 0


def test_loss_and_return_are_told(program: Program, etcd: SharedEtcd, prefix: str) -> None:
    first = program.register()
    watch = program.WatchSession()
    assert next(watch).session.epoch == first.epoch
    etcd.etcdctl("lease", "revoke", first.lease)
    lost = wait_for(watch, lambda answer: answer.session.state == 4).session
    assert not lost.HasField("index")
    assert lost.loss
    again = wait_for(watch, lambda answer: answer.session.HasField("index")).session
    assert again.epoch > first.epoch
    eventually(lambda: any(one.epoch == again.epoch for one in program.seen), 2.0, "Attach to tell it, too")


def test_the_deadline_moves_with_each_keepalive(program: Program) -> None:
    first = program.register()
    later = wait_for(program.WatchSession(), lambda one: one.session.deadline_monotonic > first.deadline_monotonic)
    assert later.session.epoch == first.epoch


def test_shutdown_releases_and_may_stop_the_sidecar(
    sidecar_process: SidecarProcess, programs: Callable[[], Program], key_of: Read
) -> None:
    first = programs()
    first.register()
    first.own("Shutdown")
    assert key_of("/ps/0") == ""
    assert refused(lambda: first.own("Put", key=b"/x", value=b"1")).reason == "NOT_ATTACHED"
    second = programs()
    second.register()
    second.own("Shutdown", stop_sidecar=True)
    assert sidecar_process.wait(10) == 0
    assert key_of("/ps/0") == ""


def test_a_signal_with_nobody_attached_ends_it_at_once(sidecar_process: SidecarProcess) -> None:
    began = time.monotonic()
    sidecar_process.terminate()
    assert sidecar_process.wait(5) == 0
    assert time.monotonic() - began < 3
    assert not sidecar_process.path.exists()
    assert sidecar_process.file("session.json")["state"] == "closed"
    assert sorted(os.listdir(sidecar_process.folder)) == ["pservers.json", "session.json"]


def test_a_signal_lets_the_attached_program_go_first(
    sidecar_process: SidecarProcess, program: Program, key_of: Read
) -> None:
    program.register()
    watch = program.WatchDrain()
    assert next(watch).drain.state == 1
    sidecar_process.terminate()
    asked = wait_for(watch, lambda one: one.drain.state == 2).drain
    assert asked.reason == "SIGTERM"
    assert 0 < asked.seconds_left <= 20
    never(lambda: key_of("/ps/0") == "", 1.0)
    program.detach()
    assert sidecar_process.wait(10) == 0
    assert key_of("/ps/0") == ""


def test_a_second_signal_does_not_wait(sidecar_process: SidecarProcess, program: Program, key_of: Read) -> None:
    program.register()
    watch = program.WatchDrain()
    next(watch)
    sidecar_process.terminate()
    wait_for(watch, lambda one: one.drain.state == 2)
    sidecar_process.terminate()
    assert sidecar_process.wait(5) == 0
    assert key_of("/ps/0") == ""


def test_streams_end_with_a_status_when_the_sidecar_is_killed(
    sidecar_process: SidecarProcess, program: Program
) -> None:
    program.register()
    watch = program.WatchPservers()
    next(watch)
    sidecar_process.kill()
    with pytest.raises(grpc.RpcError) as error:
        for _ in watch:
            pass
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
