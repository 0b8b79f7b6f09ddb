"""The digits' trainer: initialises, trains, leaves in time, and gives its task back."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from edl_agent.drain_request import DrainRequest
from edl_agent.report import Report
from edl_agent.tasks import TaskQueue
from examples.digits import network, wire
from examples.digits.trainer import LEFT
from tests.bench.waiting import eventually
from tests.examples.digits_processes import Digits, digits, seconds_to_end

__all__ = ["digits"]


def test_trains_to_the_end_and_writes_the_model(digits: Digits, tmp_path: Path) -> None:
    for name in ("pserver-a", "pserver-b"):
        digits.pserver(name, shards=2)
    model = tmp_path / "model.bin"
    trainers = [
        digits.trainer(name, "--passes", "3", "--seed", "5", "--model", str(model))
        for name in ("trainer-a", "trainer-b")
    ]
    for trainer in trainers:
        assert trainer.wait(60.0) == 0, trainer.lines
    assert sum(trainer.said("initialises the parameters") is not None for trainer in trainers) == 1
    with TaskQueue(digits.client) as queue:
        assert [(one.finished, one.failures) for one in queue.progress().history] == [(30, 0)] * 3
    parameters = wire.decode(model.read_bytes())
    assert parameters.keys() == network.initial(5).keys()
    assert network.evaluate(parameters, network.load(5)[1])[1] > 0.85


@pytest.mark.parametrize("think", ["0.05", "30"], ids=["busy", "in the middle of a long batch"])
def test_asked_to_go_it_gives_its_task_back(digits: Digits, think: str) -> None:
    digits.pserver()
    trainer = digits.trainer("trainer-a", "--passes", "20", "--think", think)
    digits.said(trainer, "are initialised$")
    with TaskQueue(digits.client) as queue:
        eventually(lambda: queue.progress().holders == ("trainer-a",), 10.0)
        assert seconds_to_end(trainer, status=LEFT) < 2.0
        now = queue.progress()
        assert (now.held, now.current and now.current.failures) == (0, 0)
    assert digits.client.get_prefix("/trainer/") == []


def test_asked_to_go_while_no_pserver_is_there(digits: Digits) -> None:
    trainer = digits.trainer()
    digits.said(trainer, "works$")
    time.sleep(0.3)
    assert seconds_to_end(trainer, status=LEFT) < 2.0


def test_asked_to_go_while_a_pserver_hangs(digits: Digits) -> None:
    pserver = digits.pserver()
    trainer = digits.trainer("trainer-a", "--passes", "20")
    digits.said(trainer, "are initialised$")
    pserver.popen.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    assert seconds_to_end(trainer, status=LEFT) < 2.0


def test_drain_request_in_etcd(digits: Digits) -> None:
    digits.pserver()
    trainer = digits.trainer("trainer-a", "--passes", "20", "--think", "0.05")
    digits.said(trainer, "are initialised$")
    request = DrainRequest(decision="d1", deadline=time.time() + 30, reason="fewer trainers")
    began = time.monotonic()
    digits.client.put_key("/edl/drain/trainer-a", request.encode())
    digits.said(trainer, "the trainer leaves: fewer trainers")
    assert time.monotonic() - began < 2.0
    eventually(lambda: report(digits).drain == "acked", 5.0)
    assert trainer.popen.poll() is None, "it waits for whoever asked"
    # The request is taken back: it works again, and leaves when told by a signal.
    digits.client.delete_key("/edl/drain/trainer-a")
    with TaskQueue(digits.client) as queue:
        eventually(lambda: queue.progress().holders == ("trainer-a",), 10.0)
    assert report(digits).drain == "none"
    assert seconds_to_end(trainer, status=LEFT) < 2.0


def report(digits: Digits) -> Report:
    found = Report.decode(digits.client.get_key("/edl/agents/trainer-a") or b"")
    assert found is not None
    return found
