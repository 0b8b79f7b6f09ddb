"""The random test of the controller: users and faults drawn from a seed, then all is healed, and everything must come
right; C1, C2, C5 and C6 are judged by the record of every write, whatever happened.

The short run is part of `make test`; ``EDL_SOAK_SEED=7`` for another one. The long one is in `make soak`
(``EDL_SOAK_MINUTES``, default 10).
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from edl_controller.runtime.reflector import Reflector
from tests.bench.kube_http import UnexpectedAnswerError
from tests.bench.kube_proxy import Rule
from tests.bench.waiting import eventually
from tests.kube.controller_bench import ControllerBench, RunningController, show

DEFAULT_SEED = 20171
JOBS = tuple(f"job-{number}" for number in range(4))
KINDS = ("trainingjobs", "replicasets", "jobs", "pods", "nodes")
WRITTEN = ("replicasets", "jobs", "trainingjobs/status", "pods/status", "events")
SILENCE = 1.5
"""Seconds after which a silent watch is found."""
HELD = 3.0
"""Seconds that a fault lasts at most."""


class RandomRun:
    """One run; what is drawn hangs on the seed alone, when it happens on the machine."""

    def __init__(self, bench: ControllerBench, seed: int) -> None:
        self._bench, self._proxy = bench, bench.proxy
        self._chance = random.Random(seed)
        self._rules: list[tuple[float, Rule]] = []
        self._life: RunningController | None = None
        self._limits: dict[str, tuple[int, int]] = {}
        self._finishing: set[str] = set()
        self.done: Counter[str] = Counter()
        self._users: list[Callable[[], object]] = [
            self._create, self._create, self._scale, self._scale, self._scale, self._delete, self._make_anew,
            self._finish, self._kill_pod, self._unready, self._edit_child, self._label,
        ]  # fmt: skip
        self._faults: list[Callable[[], object]] = [
            self._refuse, self._drop, self._expire, self._end, self._stall, self._fail, self._fail, self._busy,
            self._lose, self._lose, self._cut, self._delay, self._hold, self._crash,
        ]  # fmt: skip

    def play(self, seconds: float) -> None:
        """Users and faults for so long, then heal all and wait until it is right; AssertionError where it is not."""
        self._life = self._bench.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            act = self._chance.choice(self._users if self._chance.random() < 0.6 else self._faults)
            try:
                act()
            except UnexpectedAnswerError as error:
                # What it was about is gone or being deleted, or has changed meanwhile.
                assert error.answer.status in (404, 409, 422), error  # noqa: PT017
            self._remove_rules(before=time.monotonic())
            time.sleep(self._chance.uniform(0.02, 0.3))
        self._remove_rules(before=float("inf"))
        assert self._life.alive
        for name in sorted(self._finishing):
            self._bench.finish(name)
        for name in JOBS:
            eventually(lambda name=name: self._right(name), 60, lambda name=name: self._wrong(name))  # type: ignore[misc]
        self._bench.wait_rest(2.0, 60)
        for name in JOBS:
            assert self._right(name), self._wrong(name)
        # Children of jobs that are being deleted are collected, and made again by who does not know it yet.
        children = {f"{name}-{role}" for name in JOBS for role in ("master", "pserver", "trainer")}
        self._bench.assert_invariants(slack=HELD + 2 * SILENCE + 5, again=children)

    # --- what is right in the end ---

    def _right(self, name: str) -> bool:
        bench = self._bench
        if name not in self._limits:
            return not bench.left(name)
        job = bench.job(name)
        status = job.get("status", {})
        if status.get("observedGeneration") != job["metadata"]["generation"]:
            return False
        if name in self._finishing:
            return status.get("phase") == "succeeded" and not bench.pods(name, "pserver")
        most = self._limits[name][1]
        return (
            status.get("phase") == "running"
            and status.get("trainers") == most == bench.trainer(name)["spec"]["parallelism"]
            and status.get("pservers") == 1 == bench.replica_set(name)["spec"]["replicas"]
        )

    def _wrong(self, name: str) -> str:
        bench, wanted = self._bench, self._limits.get(name)
        there = bench.client.call("GET", f"{bench.training_jobs_path}/{name}").body
        plan = self._life and self._life.controller.autoscaler.plan
        writes = [show(call) for call in bench.written() if call.name.startswith(name)][-3:]
        return (
            f"{name}: wanted {wanted}, finishing {name in self._finishing}; is {there.get('metadata', {}).get('uid')} "
            f"{there.get('spec', {}).get('trainer')} {there.get('status')}; {plan}; {writes}; {self.done}"
        )

    # --- users ---

    def _some(self, *, running: bool = False) -> str:
        there = [name for name in JOBS if name in self._limits and not (running and name in self._finishing)]
        if not there:
            self._create()
            there = list(self._limits)
        return self._chance.choice(there)

    def _create(self) -> None:
        free = [name for name in JOBS if name not in self._limits and not self._bench.left(name)]
        if free:
            self._create_as(self._chance.choice(free))

    def _create_as(self, name: str) -> None:
        least = self._chance.randint(1, 2)
        most = self._chance.randint(least, 4)
        self._bench.create(name, trainers=least, most=most, autoscaling={"scaleUpCooldownSeconds": 0})
        self._limits[name] = least, most
        self.done["create"] += 1

    def _scale(self) -> None:
        name = self._some()
        least = self._limits[name][0]
        most = self._chance.randint(least, 5)
        self._bench.scale(name, max=most)
        self._limits[name] = least, most
        self.done["scale"] += 1

    def _delete(self) -> None:
        name = self._some()
        self._bench.delete(name, propagation=self._chance.choice(("Background", "Foreground")))
        del self._limits[name]
        self._finishing.discard(name)
        self.done["delete"] += 1

    def _make_anew(self) -> None:
        name = self._some()
        self._bench.delete(name)
        del self._limits[name]
        self._finishing.discard(name)
        self._create_as(name)
        self.done["make anew"] += 1

    def _finish(self) -> None:
        if len(self._finishing) < 2:
            name = self._some(running=True)
            trainers = [pod for pod in self._bench.pods(name, "trainer") if pod["status"].get("phase") == "Running"]
            if trainers and self._bench.phase(name) == "running":
                self._finishing.add(name)
                for pod in trainers:
                    self._bench.nodes.finish(self._bench.namespace, pod["metadata"]["name"], 0)
                self.done["finish"] += 1

    def _pod(self, *roles: str) -> str:
        pods = self._bench.pods(self._some(), self._chance.choice(roles))
        return str(pods[0]["metadata"]["name"]) if pods else ""

    def _kill_pod(self) -> None:
        # No trainers: after failures the Job controller waits for longer and longer before it makes others.
        if name := self._pod("pserver", "pserver", "master"):
            self._bench.client.delete(f"{self._bench.core}/pods/{name}", {"gracePeriodSeconds": 0})
            self.done["kill a pod"] += 1

    def _unready(self) -> None:
        if name := self._pod("pserver", "trainer"):
            self._bench.nodes.set_ready(self._bench.namespace, name, False)
            time.sleep(self._chance.uniform(0.05, 0.3))
            self._bench.nodes.set_ready(self._bench.namespace, name, True)
            self.done["unready"] += 1

    def _edit_child(self) -> None:
        path = f"{self._bench.sets_path}/{self._some(running=True)}-pserver"
        self._bench.client.patch(path, {"spec": {"replicas": self._chance.randint(0, 2)}})
        self.done["edit a child"] += 1

    def _label(self) -> None:
        labels = {"metadata": {"labels": {"example.com/n": str(self._chance.random())}}}
        self._bench.client.patch(f"{self._bench.training_jobs_path}/{self._some()}", labels)
        self.done["label"] += 1

    # --- faults ---

    def _rule(self, what: str, rule: Rule) -> None:
        self._rules.append((time.monotonic() + self._chance.uniform(0.2, HELD), rule))
        self.done[what] += 1

    def _remove_rules(self, before: float) -> None:
        for until, rule in [*self._rules]:
            if until <= before:
                rule.remove()
                self._rules.remove((until, rule))

    def _kind(self) -> str:
        return self._chance.choice(KINDS)

    def _write(self) -> tuple[str, str]:
        return self._chance.choice(("create", "patch", "*")), self._chance.choice(WRITTEN)

    def _refuse(self) -> None:
        self._rule("refuse", self._proxy.refuse())

    def _drop(self) -> None:
        self._proxy.drop_connections()
        self.done["drop"] += 1

    def _expire(self) -> None:
        self._rule("410", self._proxy.error_event(self._kind(), 410, reason="Expired"))

    def _end(self) -> None:
        self._rule("end a watch", self._proxy.end_watches(self._kind()))

    def _stall(self) -> None:
        self._rule("stall", self._proxy.stall_open(self._kind()))

    def _fail(self) -> None:
        status = self._chance.choice((409, 500, 503, 504))
        after = status >= 500 and self._chance.random() < 0.5
        times = self._chance.randint(1, 3)
        reason = "Conflict" if status == 409 else ""
        verb, resource = self._write()
        self._rule("fail", self._proxy.fail(status, verb, resource, reason=reason, times=times, after_forwarding=after))

    def _busy(self) -> None:
        self._rule("429", self._proxy.fail(429, *self._write(), retry_after=1))

    def _lose(self) -> None:
        self._rule("lose an answer", self._proxy.lose_answer(*self._write()))

    def _cut(self) -> None:
        self._rule("cut an answer", self._proxy.cut_answer("*", self._kind()))

    def _delay(self) -> None:
        self._rule("delay", self._proxy.delay_events(self._kind(), self._chance.uniform(0.2, 2.0)))

    def _hold(self) -> None:
        self._rule("hold", self._proxy.hold(*self._write()))

    def _crash(self) -> None:
        assert self._life is not None
        dead = self._proxy.refuse()
        self._life.stop()
        dead.remove()
        self._remove_rules(before=float("inf"))
        self._life = self._bench.start(silence=30.0)
        self.done["crash"] += 1


def play(bench: ControllerBench, monkeypatch: pytest.MonkeyPatch, seed: int, seconds: float) -> None:
    defaults: dict[str, Any] = Reflector.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "silence", SILENCE)
    run = RandomRun(bench, seed)
    sys.stdout.write(f"EDL_SOAK_SEED={seed}\n")
    run.play(seconds)
    sys.stdout.write(f"{dict(run.done)}\n")
    assert sum(run.done.values()) > seconds, "a run in which nothing happened proves nothing"


@pytest.mark.fault("C1")
@pytest.mark.fault("C2")
@pytest.mark.fault("C5")
@pytest.mark.fault("C6")
def test_invariants_hold_and_jobs_come_right_whatever_happens(
    bench: ControllerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(bench, monkeypatch, int(os.environ.get("EDL_SOAK_SEED", DEFAULT_SEED)), 12.0)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10))
def test_invariants_hold_and_jobs_come_right_whatever_happens_for_long(
    bench: ControllerBench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    minutes = float(os.environ.get("EDL_SOAK_MINUTES", "10"))
    seed = int(os.environ.get("EDL_SOAK_SEED", DEFAULT_SEED))
    play(bench, monkeypatch, seed + number, minutes * 60 / 10)
