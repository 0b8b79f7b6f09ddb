"""Pservers, tasks, reports and drain through the socket; the state files; health."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import grpc
import pytest

from edl_agent import EtcdClient, Report
from edl_agent.drain_request import DrainRequest
from edl_agent.sidecar import wire
from edl_agent.sidecar.drain_call import drain_through
from tests.bench.waiting import eventually
from tests.conftest import SharedEtcd
from tests.sidecar.conftest import LocalSidecar
from tests.sidecar.sidecar_process import ROOT, Caller, Program, SidecarProcess, refused, wait_for

Read = Callable[[str], str]


# --- pservers ---


def test_the_view_of_the_pservers(program: Program, onlooker: Caller, etcd: SharedEtcd, prefix: str) -> None:
    late = refused(lambda: onlooker.GetPservers(wait_complete=True, timeout=0.5))
    assert late.code == "DEADLINE_EXCEEDED"
    watch, whole = onlooker.WatchPservers(), onlooker.WatchPservers(only_complete=True)
    assert not next(watch).pservers.complete
    session = program.register()
    view = wait_for(whole, lambda answer: True).pservers
    assert view.complete
    assert [(one.index, one.address, one.epoch) for one in view.pservers] == [(0, "127.0.0.1:7164", session.epoch)]
    assert wait_for(watch, lambda answer: answer.pservers.complete).pservers.desired == 1
    etcd.etcdctl("put", prefix + "/ps_desired", "2")
    assert wait_for(watch, lambda answer: answer.pservers.desired == 2).pservers.complete is False
    now = onlooker.GetPservers(max_age=0.5).pservers
    assert now.age <= 0.5
    assert len(now.pservers) == 1
    program.detach()
    assert wait_for(watch, lambda answer: not answer.pservers.pservers)


# --- tasks ---


def test_tasks_from_the_first_to_the_last(program: Program, onlooker: Caller) -> None:
    assert refused(lambda: program.own("TakeTask")).reason == "NOT_REGISTERED"
    program.own("Register", role="ROLE_TRAINER")
    program.own("SetDataset", specs=['"a"', '{"file": 2}', "3"], passes=1, max_failures=0)
    assert refused(lambda: program.own("SetDataset", specs=["not json"])).code == "INVALID_ARGUMENT"
    assert refused(lambda: program.own("SetDataset")).code == "INVALID_ARGUMENT"
    seen = []
    first = program.own("TakeTask").task
    assert program.own("TakeTask").task.id == first.id, "a lost answer is repeated"
    program.own("RenewTask", task_id=first.id)
    program.own("FinishTask", task_id=first.id)
    program.own("FinishTask", task_id=first.id)
    seen.append(json.loads(first.spec))
    assert refused(lambda: program.own("FinishTask", task_id="other")).reason == "TASK_LOST"
    second = program.own("TakeTask").task
    program.own("GiveBackTask", task_id=second.id)
    again = program.own("TakeTask").task
    seen.append(json.loads(again.spec))
    program.own("FailTask", task_id=again.id, reason="bad data")
    progress = onlooker.GetProgress()
    assert (progress.current.finished, progress.current.set_aside, progress.current.tasks) == (1, 1, 3)
    last = program.own("TakeTask").task
    seen.append(json.loads(last.spec))
    program.own("FinishTask", task_id=last.id)
    over = program.own("TakeTask")
    assert not over.HasField("task")
    assert over.passes_finished == 1
    assert sorted(map(str, seen)) == sorted(map(str, ["a", {"file": 2}, 3]))
    assert program.own("ShouldSaveModel").save is True
    assert program.own("ShouldSaveModel").save is False
    assert onlooker.GetProgress().history[0].finished == 2


def test_a_program_that_dies_gives_its_task_to_the_next(programs: Callable[[], Program]) -> None:
    first = programs()
    first.own("Register", role="ROLE_TRAINER")
    first.own("SetDataset", tasks=1)
    task = first.own("TakeTask").task
    first.detach()
    second = programs()
    second.own("Register", role="ROLE_TRAINER")
    taken = second.own("TakeTask").task
    assert (taken.index, taken.spec) == (task.index, "null")
    assert taken.id != task.id
    assert refused(lambda: second.own("FinishTask", task_id=task.id)).reason == "TASK_LOST"


def test_workers_wait_for_each_other_and_a_cancelled_wait_takes_nothing(program: Program) -> None:
    program.own("Register", role="ROLE_TRAINER")
    program.own("SetDataset", tasks=1)
    task = program.own("TakeTask", worker="a").task
    waits = refused(lambda: program.own("TakeTask", worker="b", timeout=1.2))
    assert waits.code == "DEADLINE_EXCEEDED"
    threading.Timer(0.5, lambda: program.own("GiveBackTask", worker="a", task_id=task.id)).start()
    assert program.own("TakeTask", worker="b").task.index == task.index
    for number in range(14):
        refused(lambda number=number: program.own("TakeTask", worker=f"w{number}", timeout=0.1))  # type: ignore[misc]
    assert refused(lambda: program.own("TakeTask", worker="one too many")).reason == "TOO_MANY_CALLS"


# --- report and drain ---


def test_reports_reach_etcd_and_carry_the_drain_state(program: Program, key_of: Read, sidecar: LocalSidecar) -> None:
    session = program.register()
    program.own("Report", step=5, samples=500, busy=0.5, queue=3)

    def report() -> Report:
        found = Report.decode(key_of("/edl/agents/pod-0").encode())
        assert found is not None
        return found

    program.own("Report", step=6)
    assert program.StartDrain(reason="preStop", seconds=30).drain.state == 2
    eventually(lambda: report().drain == "requested", 5.0, "the request in the report")
    found = report()
    assert (found.role, found.slot, found.epoch, found.step) == ("pserver", 0, session.epoch, 6)
    assert program.own("AcknowledgeDrain").asked
    eventually(lambda: report().drain == "acked", 5.0, "the answer in the report")
    assert sidecar.file("session.json")["drain"] == "acked"


def test_a_drain_of_the_controller_is_told(program: Program, etcd: SharedEtcd, prefix: str) -> None:
    program.register()
    assert program.own("AcknowledgeDrain").asked is False
    watch = program.WatchDrain()
    first = next(watch)
    assert (first.drain.state, first.attached) == (1, True)
    request = DrainRequest(decision="d1", deadline=time.time() + 60, reason="scale down")
    etcd.etcdctl("put", prefix + "/edl/drain/pod-0", request.encode().decode())
    asked = wait_for(watch, lambda one: one.drain.state == 2).drain
    assert (asked.decision, asked.reason) == ("d1", "scale down")
    assert 50 < asked.seconds_left <= 60
    etcd.etcdctl("del", prefix + "/edl/drain/pod-0")
    assert wait_for(watch, lambda one: one.drain.state == 1)


def test_edl_agent_drain_waits_until_the_program_has_gone(
    sidecar_process: SidecarProcess, program: Program, key_of: Read
) -> None:
    program.register()
    watch = program.WatchDrain()
    next(watch)
    environment = {name: value for name, value in os.environ.items() if name != "EDL_CONTROL"}
    environment |= {"EDL_SOCKET": str(sidecar_process.path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "edl_agent", "drain", "--reason", "preStop hook", "--timeout", "20"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as hook:
        asked = wait_for(watch, lambda one: one.drain.state == 2).drain
        assert asked.reason == "preStop hook"
        assert hook.poll() is None
        program.own("AcknowledgeDrain")
        program.own("Shutdown")
        assert hook.wait(10) == 0
    assert key_of("/ps/0") == ""


def test_a_drain_that_nobody_answers_is_given_up(sidecar: LocalSidecar, program: Program) -> None:
    assert drain_through(str(sidecar.path), reason="x", seconds=0.5, timeout=1.0) is False
    program.detach()
    assert drain_through(str(sidecar.path), reason="x", seconds=0.5, timeout=5.0) is True


# --- files ---


def test_state_files_follow_the_session(
    sidecar: LocalSidecar, program: Program, onlooker: Caller, etcd: SharedEtcd
) -> None:
    assert sidecar.file("session.json")["state"] == "new"
    session = program.register()
    eventually(lambda: sidecar.file("session.json")["index"] == 0, 5.0, "the slot in session.json")
    found = sidecar.file("session.json")
    assert found["epoch"] == session.epoch
    assert (found["role"], found["address"], found["lease"]) == ("pserver", "127.0.0.1:7164", session.lease)
    assert found["attached"] is True
    assert abs(found["time"] - time.time()) < 10
    assert found["deadline_monotonic"] > time.monotonic()
    moved = found["deadline_monotonic"]
    eventually(lambda: sidecar.file("session.json")["deadline_monotonic"] > moved, 5.0, "the deadline to move")
    eventually(lambda: sidecar.file("pservers.json")["complete"], 5.0, "the pservers in pservers.json")
    whole = sidecar.file("pservers.json")
    assert whole["pservers"] == [{"index": 0, "address": "127.0.0.1:7164", "epoch": session.epoch}]
    assert whole["desired"] == 1
    etcd.etcdctl("lease", "revoke", session.lease)
    eventually(lambda: sidecar.file("session.json")["epoch"] not in (None, session.epoch), 5.0, "the next epoch")
    program.detach()
    eventually(lambda: sidecar.file("session.json")["attached"] is False, 5.0, "the end of the program")
    assert sidecar.file("session.json")["index"] is None


def test_a_reader_never_sees_half_a_file(sidecar: LocalSidecar, program: Program) -> None:
    program.register()
    stop = threading.Event()
    bad: list[str] = []
    inodes = set()

    def read() -> None:
        while not stop.is_set():
            for name in ("session.json", "pservers.json"):
                with open(sidecar.folder / name) as file:
                    text = file.read()
                    inodes.add(os.fstat(file.fileno()).st_ino)
                if not text.endswith("}\n"):
                    bad.append(text)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        program.StartDrain(reason=str(number), seconds=100)
        sidecar.running._news.tell()
    stop.set()
    reader.join()
    assert bad == []
    assert len(inodes) > 2


def test_files_are_fresh_while_nothing_happens(sidecar: LocalSidecar) -> None:
    before = sidecar.file("session.json")["time"]
    eventually(lambda: sidecar.file("session.json")["time"] > before, 8.0, "a new time")


# --- health ---


@pytest.mark.security(28)
def test_health(local_sidecar: Callable[..., LocalSidecar]) -> None:
    sidecar = local_sidecar()
    with Caller(sidecar.target) as caller:
        for service in ("", wire.AGENT, wire.HEALTH):
            assert caller.call("grpc.health.v1.Health/Check", service=service).status == 1
        unknown = refused(lambda: caller.call("grpc.health.v1.Health/Check", service="x"))
        assert (unknown.code, unknown.reason) == ("NOT_FOUND", "UNKNOWN_SERVICE")
        assert next(caller.call("grpc.health.v1.Health/Watch", service="x")).status == 3
        watch = caller.call("grpc.health.v1.Health/Watch", service=wire.AGENT)
        assert next(watch).status == 1
        closing = threading.Thread(target=sidecar.running.close)
        closing.start()
        assert next(watch).status == 2
        closing.join()
        with pytest.raises(grpc.RpcError):
            caller.call("grpc.health.v1.Health/Check")


def test_a_sidecar_of_a_client_that_is_shut_down_ends_cleanly(sidecar: LocalSidecar, program: Program) -> None:
    program.register()
    sidecar.running.close()
    sidecar.running.close()
    assert isinstance(sidecar.running._client, EtcdClient)
    assert refused(lambda: program.GetSession()).code == "UNAVAILABLE"
