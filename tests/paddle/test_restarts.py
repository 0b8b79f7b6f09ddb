"""Programs that die below their launchers, which stay: the same names, places and addresses, but new incarnations."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from examples.paddle.scene import HERE, Job, Member

pytestmark = [pytest.mark.paddle, pytest.mark.timeout(420)]

AGAIN = ("--restart", "on-failure", "--backoff", "0.2")


def two_and_two(job: Job) -> tuple[list[Member], list[Member]]:
    """Trainer 0 first in both lists."""
    pservers = [job.pserver(f"pserver-{number}", *AGAIN) for number in (1, 2)]
    trainers = [job.trainer(f"trainer-{number}", *AGAIN) for number in (1, 2)]
    job.at_work(trainers, 0.0)
    trainers.sort(key=lambda one: int(one.all("start")[0].facts["index"]))
    # So much has been learnt that half an empty network shows.
    job.until(lambda: (saved := job.checkpoint()) and saved.facts["loss"] < 1.5, "a loss of less than 1.5 saved")
    return pservers, trainers


def test_a_pserver_that_comes_back_empty_at_once_is_filled_before_anybody_trains(job: Job) -> None:
    pservers, trainers = two_and_two(job)
    saved = job.checkpoint()
    assert saved is not None
    killed = time.monotonic()
    os.kill(pservers[0].pid, signal.SIGKILL)

    # Same address, so that a trainer that were not stopped would go on with the empty one.
    job.at_work(trainers, killed)
    serves = pservers[0].all("begin", killed)[0].time
    newest = max((one for one in [saved, *trainers[0].all("saved")] if one.time < serves), key=lambda one: one.time)
    for trainer in trainers:
        begins = trainer.all("begin", killed)
        assert begins, f"{trainer.name} was not started anew"
        late = [one for one in trainer.all("step", serves) if one.pid not in {begin.pid for begin in begins}]
        assert not late, f"{trainer.name} went on with the empty pserver"
        start = trainer.all("start", killed)[-1]
        assert start.facts["loss"] < newest.facts["loss"] * 1.1 + 0.03
    # It may be newer than the last one that was told: the teller was stopped.
    restored = trainers[0].all("start", killed)[0].facts["restored"]
    assert int(restored.removeprefix("step-")) >= newest.facts["step"]


def test_trainer_0_that_comes_back_does_not_take_away_what_the_others_have_learnt(job: Job) -> None:
    _, (zero, other) = two_and_two(job)
    job.saved_checkpoint(time.monotonic())
    killed = time.monotonic()
    os.kill(zero.pid, signal.SIGKILL)
    job.at_work([zero], killed)
    back = time.monotonic()
    job.at_work([zero, other], back)

    start = zero.all("start", killed)[0]
    assert start.facts["restored"] is not None
    assert {one.pid for one in other.all("step", killed)} == {other.all("begin")[-1].pid}
    assert len(other.all("begin", killed)) == 0, "nobody else has to stop for it"
    losses = [one.facts["loss"] for one in other.all("step", killed)]
    before = [one.facts["loss"] for one in other.all("step") if one.time < killed][-20:]
    assert max(losses) < 1.5 * max(before) + 0.3, "the parameters were reset"


def test_the_programs_know_nothing_of_edl(paddle_python: Path, tmp_path: Path) -> None:
    for name in ("pserver.py", "trainer.py", "network.py", "checkpoints.py"):
        source = (HERE / name).read_text()
        assert "import edl" not in source
        assert "from edl" not in source
        assert "EDL_" not in source
    found = subprocess.run([paddle_python, "-c", "import edl_agent"], cwd=tmp_path, capture_output=True, check=False)
    assert b"No module named 'edl_agent'" in found.stderr
