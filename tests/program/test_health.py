"""What the pages of health say, of a controller that is well, stuck, kept from its work, or stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from edl_controller.api.kinds import PODS, TRAINING_JOBS
from edl_controller.controller import Controller
from edl_controller.errors import Forbidden, NotFound, Unavailable
from edl_controller.program.health import STUCK, UNHEARD, Health
from tests.bench.waiting import eventually
from tests.runtime.memory_cluster import MemoryCluster


class Running:
    """A controller in a thread, and the health seen some seconds later."""

    def __init__(self) -> None:
        self.controller = Controller(MemoryCluster(), resync=0)
        self.stop, self.later, self.elects = threading.Event(), 0.0, True
        self.health = Health(
            self.controller, self.stop, lambda: self.elects, clock=lambda: time.monotonic() + self.later
        )
        self.thread = threading.Thread(target=self.controller.run, args=(self.stop,), daemon=True)


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    assert made.health.readyz().status == 503
    assert b"trainingjobs: not listed yet\n" in made.health.readyz().body
    made.thread.start()
    eventually(lambda: made.controller.ready and made.controller.informers.has_synced, 30)
    yield made
    made.stop.set()
    made.thread.join(30)


def test_all_is_well(running: Running) -> None:
    assert running.health.healthz() == running.health.readyz()
    assert running.health.readyz().body == b"ok\n"


def test_loops_that_do_not_turn(running: Running) -> None:
    running.later = STUCK + 60.0
    page = running.health.healthz()
    assert page.status == 503
    assert b"trainingjobs: no turn for " in page.body
    assert b"pods: no turn for " in page.body


def test_an_autoscaler_that_hangs(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert running.health.stuck() == []
    autoscaler = running.controller.autoscaler
    held, hangs = threading.Event(), threading.Event()

    def hang() -> bool:
        hangs.set()
        return held.wait(60)

    monkeypatch.setattr(autoscaler, "round", hang)
    autoscaler.wake()
    assert hangs.wait(30)
    running.health.stuck()
    running.later = STUCK + 1.0
    assert any(line.startswith("autoscaler: no turn for ") for line in running.health.stuck())
    held.set()


def test_a_worker_that_does_not_come_back(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.controller.queue, "longest_work", lambda: STUCK + 5)
    assert "workers: one has been at one job for 185 s" in running.health.stuck()


def test_an_election_that_has_ended(running: Running) -> None:
    running.elects = False
    assert running.health.stuck() == ["leader election: its thread has ended"]


@pytest.mark.parametrize(
    ("trouble", "silence", "said"),
    [
        (NotFound("no such resource"), 0.0, "edl-controller crd | kubectl apply --server-side -f -"),
        (Forbidden("may not list"), 0.0, "no permission (see deploy/ for the rights it needs): may not list"),
        (Unavailable("no answer"), 0.0, ""),
        (Unavailable("no answer"), UNHEARD + 1, "Unavailable: no answer"),
        (Unavailable("two\nlines\x1b[31m"), UNHEARD + 1, "Unavailable: two\\nlines"),
    ],
)
def test_what_keeps_it_from_its_work(running: Running, trouble: Exception, silence: float, said: str) -> None:
    reflector = running.controller.informers.of(TRAINING_JOBS).reflectors[0]
    reflector.trouble = trouble
    reflector.last_contact = time.monotonic() - silence
    text = running.health.readyz().body.decode()
    assert said in text
    assert (running.health.readyz().status == 503) is bool(said)
    assert text.count("\n") == 1
    assert "\x1b" not in text
    reflector.trouble = None
    assert running.health.readyz().status == 200
    assert PODS.plural not in text


def test_the_end_is_said(running: Running) -> None:
    running.stop.set()
    assert running.health.readyz().body == b"it is being stopped\n"
