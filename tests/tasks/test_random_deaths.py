"""Trainers that come, work, fail, give back and die at random points: nothing is lost, nothing is held twice."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from edl_agent import EdlAgentError, EtcdClient, TaskLost
from edl_agent.tasks import Finished, Task, TaskQueue
from edl_agent.testing import spawn_bound_to_parent
from tests.conftest import SharedEtcd
from tests.tasks.history import History, Turn
from tests.tasks.trainers import Trainer, Trainers

TRAINERS = 4
_runs = itertools.count(1)


class Mortal(threading.Thread):
    """A trainer that works until all is finished, or until fate has it die, in one of several ways."""

    def __init__(self, room: Trainers, trainer: Trainer, history: History, fate: random.Random, deadly: bool) -> None:
        super().__init__(name=trainer.name, daemon=True)
        self.room, self.trainer, self.history, self.fate = room, trainer, history, fate
        self.deadly = deadly
        self.failures = 0
        self.died = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.died and isinstance(task := self.trainer.queue.get_task(30), Task):
                self._turn(task)
        except BaseException as error:
            self.error = error

    def _turn(self, task: Task) -> None:
        queue = self.trainer.queue
        turn = self.history.begin(self.trainer.name, (task.pass_number, task.index))
        chance = self.fate.random()
        if chance < 0.3:
            time.sleep(self.fate.random() * 0.003)
        if self.deadly and chance < 0.08:
            self._die(turn)
        elif chance < 0.16:
            turn.end, turn.outcome = time.monotonic(), "failed"
            queue.fail(task, "by chance")
            self.failures += 1
        elif chance < 0.2:
            turn.end, turn.outcome = time.monotonic(), "given back"
            queue.give_back(task)
        elif self.deadly and chance < 0.24:
            self._die_while_finishing(task, turn)
        else:
            # From here on it may be recorded, and then nobody gets it again.
            turn.end, turn.outcome = time.monotonic(), "finishing"
            queue.finish(task)
            turn.outcome = "finished"

    def _die(self, turn: Turn) -> None:
        turn.end, turn.outcome = time.monotonic(), "died"
        self.died = True
        self.trainer.queue._closed.set()  # nothing is given back by the dead
        self.room.kill(self.trainer)

    def _die_while_finishing(self, task: Task, turn: Turn) -> None:
        """The lease ends while the finish is on its way: it is recorded or refused, and nobody hears which."""
        killing = threading.Thread(target=self.room.kill, args=(self.trainer,))
        turn.end, turn.outcome = time.monotonic(), "died while finishing"
        killing.start()
        try:
            self.trainer.queue.finish(task)
        except TaskLost:
            turn.outcome = "died"
        except EdlAgentError:
            pass
        killing.join()
        self.died = True
        self.trainer.queue._closed.set()


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 2**32),
    tasks=st.integers(1, 40),
    chunk_size=st.integers(1, 7),
    passes=st.integers(1, 3),
)
def test_random_trainers_dying_at_random_points(
    etcd: SharedEtcd, prefix: str, seed: int, tasks: int, chunk_size: int, passes: int
) -> None:
    fate = random.Random(seed)
    history = History()
    with Trainers(etcd.client_url, f"{prefix}/{next(_runs)}") as room:
        room.add("first").queue.set_dataset(tasks, passes=passes, chunk_size=chunk_size, max_failures=10_000)
        mortals: list[Mortal] = []
        deadline = time.monotonic() + 60

        def start(deadly: bool) -> None:
            name = f"mortal-{len(mortals)}"
            mortal = Mortal(room, room.add(name), history, random.Random(fate.random()), deadly)
            mortals.append(mortal)
            mortal.start()

        for _ in range(TRAINERS):
            start(True)
        working = True
        while working or any(mortal.is_alive() for mortal in mortals):
            assert time.monotonic() < deadline, "not finished in time"
            working = working and room.all[0].queue.progress().current is not None
            if working and sum(mortal.is_alive() for mortal in mortals) < TRAINERS:
                start(deadly=len(mortals) < 20)
            time.sleep(0.005)
        assert not [mortal.error for mortal in mortals if mortal.error is not None]
        history.check(passes, tasks)
        done = room.all[0].queue.progress().history
        assert [(one.pass_number, one.finished, one.set_aside) for one in done] == [
            (number, tasks, 0) for number in range(passes)
        ]
        # Each death counts one failure at most: of those that had a task in hand.
        failures = sum(one.failures for one in done)
        deaths = sum(mortal.died for mortal in mortals)
        told = sum(mortal.failures for mortal in mortals)
        assert told <= failures <= told + deaths, (told, deaths, failures)
        finished_twice = [task for task, times in history.finished.items() if times > 1]
        assert not finished_twice, "a recorded finish was handed out again"


def test_the_check_sees_two_holders() -> None:
    history = History()
    first, second = history.begin("a", (0, 1)), history.begin("b", (0, 1))
    second.end = time.monotonic()
    second.outcome = "finished"
    first.end = time.monotonic()
    assert history.overlaps() == [(first, second)]
    with pytest.raises(AssertionError):
        history.check(1, 2)


# --- real processes and SIGKILL ---


def test_processes_killed_at_random(etcd: SharedEtcd, prefix: str, tmp_path: Path) -> None:
    tasks, passes, chunk_size = 60, 2, 4
    fate = random.Random(7)
    processes: list[subprocess.Popen[Any]] = []
    killed: dict[str, float] = {}

    def start() -> None:
        name = f"p{len(processes)}"
        log = tmp_path / f"{name}.jsonl"
        arguments = [sys.executable, "-m", "tests.tasks.test_random_deaths", etcd.client_url, prefix, name, str(log)]
        processes.append(spawn_bound_to_parent(arguments, cwd=Path(__file__).parents[2], env=dict(os.environ)))

    with EtcdClient(etcd.client_url, prefix=prefix) as client, TaskQueue(client, "test") as queue:
        queue.set_dataset(tasks, passes=passes, chunk_size=chunk_size, max_failures=10_000)
        try:
            for _ in range(3):
                start()
            deadline = time.monotonic() + 60
            next_kill = time.monotonic() + 1.5
            while queue.progress().current is not None:
                assert time.monotonic() < deadline, queue.progress()
                if time.monotonic() > next_kill and len(killed) < 4:
                    next_kill = time.monotonic() + 0.5 + fate.random() * 0.5
                    living = [number for number, process in enumerate(processes) if process.poll() is None]
                    working = [number for number in living if _has_a_task(tmp_path / f"p{number}.jsonl")]
                    victim = fate.choice(working or living)
                    processes[victim].send_signal(signal.SIGSTOP)
                    # Two die wherever they are; the others with a task in hand, or nothing would be proved.
                    if len(killed) >= 2 and not _has_a_task(tmp_path / f"p{victim}.jsonl"):
                        processes[victim].send_signal(signal.SIGCONT)
                        next_kill = time.monotonic() + 0.01
                        continue
                    processes[victim].send_signal(signal.SIGKILL)
                    processes[victim].wait(10)
                    killed[f"p{victim}"] = time.monotonic()
                    start()
                time.sleep(0.02)
            for number, process in enumerate(processes):
                if f"p{number}" not in killed:
                    assert process.wait(20) == 0
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait(10)
        done = queue.progress().history
    assert len(killed) == 4
    history = History()
    for path in tmp_path.glob("*.jsonl"):
        open_turn: Turn | None = None
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["event"] == "got":
                open_turn = Turn(path.stem, (record["pass"], record["index"]), record["time"])
                history.turns.append(open_turn)
            elif open_turn is not None:
                if record["event"] == "finishing":
                    open_turn.end = record["time"]  # from here on it may be recorded
                open_turn.outcome = record["event"]
        if open_turn is not None and open_turn.outcome in ("in hand", "finishing"):
            assert path.stem in killed
            open_turn.outcome = "died while finishing" if open_turn.outcome == "finishing" else "died"
            open_turn.end = min(open_turn.end, killed[path.stem])
    history.check(passes, tasks)
    assert [(one.finished, one.set_aside) for one in done] == [(tasks, 0)] * passes
    died = Counter(turn.outcome for turn in history.turns)["died"]
    assert sum(one.failures for one in done) <= len(killed)
    assert died >= 1, "no process was killed with a task in hand: the test proves nothing"


def _has_a_task(log: Path) -> bool:
    lines = log.read_text().splitlines() if log.exists() else []
    return bool(lines) and '"got"' in lines[-1]


def _process(endpoint: str, prefix: str, name: str, log: str) -> None:
    """The program of the processes above; ``time.monotonic()`` is the same clock for all processes of a machine."""
    with open(log, "a", buffering=1) as out, EtcdClient(endpoint, prefix=prefix, ttl=2) as client:

        def note(event: str, task: Task) -> None:
            record = {"event": event, "pass": task.pass_number, "index": task.index, "time": time.monotonic()}
            out.write(json.dumps(record) + "\n")

        client.open(timeout=10)
        with TaskQueue(client, name) as queue:
            while not isinstance(task := queue.get_task(30), Finished):
                note("got", task)
                time.sleep(0.04)
                note("finishing", task)
                queue.finish(task)
                note("finished", task)


if __name__ == "__main__":
    _process(*sys.argv[1:])
