"""A training job of two pservers and one to four trainers, some of which are killed; beside the same job left in peace.

`make demo-agents` runs it, against a real etcd, with real processes and signals. It ends with an error unless all that
it promises was seen: every image of every pass, the killed pserver's index restored from its checkpoint, the killed
trainer's task done by another, and a network as good as the undisturbed one.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from edl_agent import EdlAgentError
from edl_agent.testing import EtcdNotFoundError, EtcdServer, EtcdServerError

from . import chart
from .scene import TTL, Failed, Job, Process
from .screen import make_screen
from .trainer import BATCH, LEFT, TASK

GOOD = 0.93
CLOSE = 0.01
LEAVES_IN = 2.0
"""Seconds from SIGTERM to the end of a trainer."""

STARTS = 10
"""The work is made to last as many times as long as a trainer takes to start: so the story fits in on any machine."""

ON_AVERAGE = 2.7
"""Trainers at work."""


def demand(holds: object, what: str) -> None:
    if not holds:
        raise Failed(what)


def undisturbed(job: Job) -> float:
    """Two pservers, two trainers, nothing happens. Returns the share of the held-out images recognised at the end."""
    for name in ("pserver-1", "pserver-2"):
        job.pserver(name)
    trainers = [job.trainer(name) for name in ("trainer-1", "trainer-2")]
    job.until(lambda: not any(one.running for one in trainers), "the end of the training")
    return ended(job, trainers)


def ended(job: Job, trainers: list[Process]) -> float:
    """The trainers are through: what the records and the pservers say."""
    for trainer in trainers:
        demand(trainer.wait(10.0) == 0, f"{trainer.name} ended with {trainer.popen.returncode}: {trainer.lines[-5:]}")
    job.look()
    progress = job.progress()
    tasks = job.samples // job.passes // TASK
    seen = [(one.finished, one.set_aside) for one in progress.history]
    demand(progress.current is None and seen == [(tasks, 0)] * job.passes, f"{job.name}: not every image seen: {seen}")
    accuracy = job.accuracy().accuracy
    demand(accuracy >= GOOD, f"{job.name}: only {accuracy:.1%} of the held-out images were recognised")
    pservers = [one for one in job.processes.values() if one.running]
    for one in pservers:
        one.popen.terminate()
    for one in pservers:
        demand(one.wait(10.0) == 0, f"{one.name} ended with {one.popen.returncode}: {one.lines[-5:]}")
    return accuracy


class Disturbed:
    """The same job, with people and machines that do not leave it alone."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.killed_step = self.restored_step = 0
        self.back_after = 0.0
        self.left_after: list[float] = []

    def run(self) -> float:
        job = self.job
        for name in ("pserver-1", "pserver-2"):
            job.pserver(name)
        self.join("trainer-1")
        story: list[tuple[float, Callable[[], None]]] = [
            (0.08, lambda: self.join("trainer-2")),
            (0.18, lambda: self.join("trainer-3", "trainer-4")),
            (0.36, lambda: self.kill_trainer("trainer-2")),
            (0.50, self.kill_pserver),
            (0.66, lambda: self.join("trainer-5")),
            (0.80, lambda: self.send_away("trainer-3")),
            (0.88, lambda: self.send_away("trainer-4")),
        ]
        for share, action in story:
            job.until(functools.partial(job.reached, share), f"{share:.0%} of the work")
            action()
        rest = [job.processes["trainer-1"], job.processes["trainer-5"]]
        job.until(lambda: not any(one.running for one in rest), "the end of the training")
        accuracy = ended(job, rest)
        demand(max(look.trainers for look in job.looks) == 4, "there were never four trainers at once")
        failures = sum(one.failures for one in job.progress().history)
        demand(failures >= 1, "the killed trainer's task was not recorded as having come back")
        return accuracy

    def join(self, *names: str) -> None:
        joined = [self.job.trainer(name) for name in names]
        self.job.until(lambda: all(one.said(r"^trainer \d+ works") for one in joined), f"{names} at work")
        self.job.say(f"{' and '.join(names)} joined: {len(self.job.trainers())} at work", "+" + str(len(names)))

    def send_away(self, name: str) -> None:
        trainer = self.job.processes[name]
        demand(not self.job.reached(1.0), f"the work was done before {name} was asked to go: --think must be more")
        began = time.monotonic()
        trainer.popen.terminate()
        demand(trainer.wait(10.0) == LEFT, f"{name} ended with {trainer.popen.returncode}: {trainer.lines[-5:]}")
        took = time.monotonic() - began
        self.left_after.append(took)
        self.job.say(f"SIGTERM to {name}: gone after {took:.2f} s, its task given back", "SIGTERM trainer")
        demand(took < LEAVES_IN, f"{name} took {took:.1f} s to leave")

    def kill_trainer(self, name: str) -> None:
        trainer = self.job.processes[name]
        # Paused first, so that it is known to have a task in hand when it dies.
        end = time.monotonic() + 10.0
        while True:
            trainer.popen.send_signal(signal.SIGSTOP)
            if name in self.job.progress().holders:
                break
            trainer.popen.send_signal(signal.SIGCONT)
            demand(time.monotonic() < end, f"{name} never had a task in hand")
            time.sleep(0.05)
        trainer.kill()
        self.job.say(f"SIGKILL to {name}, with a task in hand", "SIGKILL trainer")

    def kill_pserver(self) -> None:
        job = self.job
        held = r"^pserver 1 epoch (\d+): "
        victim = next(one for one in job.processes.values() if one.running and one.said(held))
        before = victim.said(held)
        victim.kill()
        began = time.monotonic()
        self.killed_step = json.loads(job.client.get_key("/checkpoints/1", 5.0) or b"{}").get("step", 0)
        job.say(f"SIGKILL to {victim.name}, which holds index 1; pserver-3 takes its place", "SIGKILL pserver")
        heir = job.pserver("pserver-3")
        job.until(lambda: heir.said(held), "index 1 is held again", TTL + 20.0)
        self.back_after = time.monotonic() - began
        after, restored = heir.said(held), heir.said(r": restored step (\d+)")
        demand(restored is not None, f"index 1 was not restored: {heir.lines[-5:]}")
        assert before is not None
        assert after is not None
        assert restored is not None
        self.restored_step = int(restored[1])
        demand(0 < self.killed_step <= self.restored_step, f"step {restored[1]} was restored, not {self.killed_step}")
        demand(int(after[1]) > int(before[1]), f"epoch {after[1]} does not follow on epoch {before[1]}")
        job.say(f"pserver-3 holds index 1, restored at step {restored[1]}, epoch {before[1]} -> {after[1]}", "restored")


def run(server: EtcdServer, folder: Path, options: argparse.Namespace) -> None:
    settings = {"passes": options.passes, "seed": options.seed}
    began = time.monotonic()
    screen = make_screen(options.plain)
    try:
        with Job(server, folder, "undisturbed", **settings, think=0.0) as peace:
            screen.follow(peace)
            quiet = undisturbed(peace)
            started = next(look.seconds for look in peace.looks if look.trainers)
        think = options.think or ON_AVERAGE * STARTS * started / (peace.samples / BATCH)
        with Job(server, folder, "disturbed", **settings, think=think) as job:
            screen.follow(job)
            story = Disturbed(job)
            accuracy = story.run()
    finally:
        screen.close()
    demand(abs(accuracy - quiet) <= CLOSE, f"{accuracy:.2%} against {quiet:.2%} undisturbed: more than a point apart")
    if options.svg:
        options.svg.write_text(chart.disturbed(job, quiet, accuracy), encoding="utf-8")
    print()
    for what, value in (
        ("held-out digits recognised, undisturbed", f"{quiet:.1%}"),
        ("held-out digits recognised, disturbed", f"{accuracy:.1%}"),
        ("images seen, by the records", f"{job.samples} in {job.passes} passes: all"),
        ("pserver killed -> its index restored", f"{story.back_after:.1f} s, the lease being {TTL:g} s"),
        ("SIGTERM -> trainer gone", ", ".join(f"{seconds:.2f} s" for seconds in story.left_after)),
        ("the whole demo", f"{time.monotonic() - began:.0f} s"),
    ):
        print(f"{what:<42} {value}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, metavar="PATH", help="draw the disturbed run")
    parser.add_argument("--plain", action="store_true", help="plain lines also on a terminal")
    parser.add_argument("--passes", type=int, default=20, choices=range(8, 21), metavar="8..20")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument(
        "--think", type=float, metavar="SECONDS", help="for each batch, when disturbed; default by the machine"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with EtcdServer(auto_compaction="5m") as server, tempfile.TemporaryDirectory(prefix="digits-") as folder:
            run(server, Path(folder), options)
    except (Failed, EdlAgentError, EtcdNotFoundError, EtcdServerError) as error:
        print(f"demo: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
