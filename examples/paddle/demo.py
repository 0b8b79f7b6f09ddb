"""An asynchronous PaddlePaddle job of two pservers and one to three trainers; a pserver is killed during a call.

`make demo-paddle` runs it, against a real etcd, with real processes and signals. It ends with an error unless all that
it promises was seen: nobody waits for the dead pserver, nobody trains with an empty one, and the loss goes on falling.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path

from edl_agent import EdlAgentError
from edl_agent.testing import EtcdNotFoundError, EtcdServer, EtcdServerError

from .make_environment import NoPaddleError, python_with_paddle
from .scene import TTL, Failed, Job, Member, Said, demand

BACK_WITHIN = 60.0
"""Seconds from the kill until all trainers are at work again. Without the launcher it is 300, or never."""

LEAVES_IN = 2.0
"""Seconds from SIGTERM to the end of a trainer."""

Summary = list[tuple[str, str, str]]


def story(job: Job) -> Summary:
    """All of it. Raises Failed."""
    for name in ("pserver-1", "pserver-2"):
        job.pserver(name)
    first = job.trainer("trainer-1")
    job.say("two pservers and one trainer are started")
    job.at_work([first], 0.0)
    begin = first.all("start")[0]
    job.saved_checkpoint(0.0)
    job.say("two more trainers are started")
    trainers = [first, job.trainer("trainer-2"), job.trainer("trainer-3")]
    job.at_work(trainers, time.monotonic())
    check_start(trainers[1:], begin)
    saved = job.saved_checkpoint(time.monotonic())

    job.say("pserver-2 is stopped, so that every trainer waits in a call to it")
    victim = job.members["pserver-2"]
    job.block(victim)
    saved = job.checkpoint() or saved
    killed = time.monotonic()
    victim.stopped = True
    victim.launcher.kill()
    job.say(f"pserver-2 is killed; pserver-3 is started elsewhere (last checkpoint: step {saved.facts['step']})")
    successor = job.pserver("pserver-3")
    job.at_work(trainers, killed)
    back = time.monotonic()
    told = check_restart(trainers, successor, saved, killed)
    stopped = max(one.logged("The command has ended", killed) or killed for one in trainers)
    restored = first.all("start", killed)[0].time
    demand(back - killed < BACK_WITHIN, f"the trainers were at work again only after {back - killed:.1f} s")

    job.saved_checkpoint(back)
    seconds, code = job.stop(trainers[2])
    job.say(f"trainer-3 is asked to go, and was gone after {seconds:.2f} s")
    demand(seconds < LEAVES_IN, f"trainer-3 took {seconds:.1f} s to go")
    demand(code == 128 + signal.SIGTERM, f"trainer-3 ended with {code}")
    gone = time.monotonic()
    job.at_work(trainers[:2], gone)
    final = job.saved_checkpoint(gone)
    losses = [begin.facts["loss"], saved.facts["loss"], told, final.facts["loss"]]
    course = " -> ".join(f"{one:.3f}" for one in losses)
    demand(losses[3] < losses[1] < losses[0], f"the loss did not go on falling: {course}")
    leave(job)
    return [
        (
            "kill -> all trainers stopped",
            f"{stopped - killed:.1f} s",
            f"a lease of {TTL:g} s has ended",
        ),
        ("kill -> trainer 0 has restored", f"{restored - killed:.1f} s", "a new process, from the last checkpoint"),
        ("kill -> all trainers at work", f"{back - killed:.1f} s", "PaddlePaddle by itself: 300 s or never"),
        ("SIGTERM -> trainer gone", f"{seconds:.2f} s", ""),
        ("held-out loss", course, "begin -> before the kill -> restored -> end"),
        ("held-out images recognised", f"{final.facts['right']:.1%}", ""),
    ]


def check_start(trainers: list[Member], begin: Said) -> None:
    """Late trainers begin with what the first one has learnt."""
    for one in trainers:
        loss = one.all("start")[0].facts["loss"]
        demand(
            loss < begin.facts["loss"] - 0.02, f"{one.name} began with a loss of {loss:.3f}, as if nothing was learnt"
        )


def check_restart(trainers: list[Member], successor: Member, saved: Said, killed: float) -> float:
    """Every trainer was started anew with the successor in its list and with the checkpoint. Returns the first loss."""
    address = f"127.0.0.1:{successor.port}"
    for one in trainers:
        begins = one.all("begin", killed)
        demand(begins, f"{one.name} was not started anew")
        demand(address in begins[-1].facts["pservers"], f"{one.name} was not told of the new pserver")
        anew = {begin.pid for begin in begins}
        old = [step for step in one.all("step", killed) if step.pid not in anew]
        demand(not old, f"{one.name} went on after the kill with its old list: {len(old)} steps")
    starts = [one.all("start", killed)[0] for one in trainers]
    zero = next(one for one in starts if one.facts["index"] == 0)
    demand(zero.facts["restored"] == f"step-{saved.facts['step']}", f"restored was {zero.facts['restored']}")
    for start in starts:
        demand(start.time >= zero.time, f"trainer {start.facts['index']} began before trainer 0 had restored")
        # While a checkpoint is written the others go on, so it is not to the last digit what was measured before it.
        most = saved.facts["loss"] * 1.1 + 0.03
        demand(
            start.facts["loss"] <= most,
            f"trainer {start.facts['index']} began with a loss of {start.facts['loss']:.3f}; the checkpoint had "
            f"{saved.facts['loss']:.3f}: it trains with an empty pserver",
        )
    return float(zero.facts["loss"])


def leave(job: Job) -> None:
    """Stop all, trainers first. Nothing is left."""
    running = [one for one in job.members.values() if one.running]
    for one in sorted(running, key=lambda one: one.role, reverse=True):
        seconds, code = job.stop(one)
        expected = 128 + signal.SIGTERM if one.role == "trainer" else None
        demand(expected is None or code == expected, f"{one.name} ended with {code}")
        demand(seconds < 10.0, f"{one.name} took {seconds:.1f} s to go")
    demand(job.gone(), f"processes were left: {job.left()}")


def main() -> int:
    """Run it. Returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        python = python_with_paddle()
        with (
            tempfile.TemporaryDirectory(prefix="edl-paddle-") as folder,
            EtcdServer() as server,
            Job(server, Path(folder), python) as job,
        ):
            try:
                summary = story(job)
            except Failed:
                print(job.last_words(), file=sys.stderr)
                raise
    except (NoPaddleError, EtcdNotFoundError, EtcdServerError, EdlAgentError, Failed) as error:
        print(f"demo: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print()
    for what, value, meaning in summary:
        print(f"{what:<32} {value:>32}   {meaning}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
