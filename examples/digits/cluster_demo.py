"""`make demo`: the digits as a TrainingJob on a cluster of this machine, from submission to success.

A real etcd, the real controller, pods as processes. The trainers grow from one to what the declared capacity holds; a
service asks for room in the middle and gets it; a pserver is killed; the job succeeds. It ends with an error unless all
of this was seen, and the network learnt to read.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edl_agent import EtcdClient
from edl_agent.errors import EdlAgentError
from edl_agent.tasks import TaskQueue
from edl_controller import errors
from edl_controller.api import submission
from edl_controller.api.meta import LabelSelector, ObjectMeta, is_true
from edl_controller.api.pods import Container, Pod, PodSpec, PodTemplateSpec, ResourceRequirements
from edl_controller.api.workloads import ReplicaSet, ReplicaSetSpec
from edl_controller.cli.agents import meeting_point
from edl_controller.cli.live_table import Overview, Screen, make_screen
from edl_controller.cli.local_run import follow, leaving_in_order, log_into
from edl_controller.cli.logs import find_logs
from edl_controller.machine import node_sizes
from edl_controller.machine.local_state import LocalState
from edl_controller.machine.node.images import ImageMapping, Images
from edl_controller.machine.one_machine import OneMachine

from . import chart
from .trainer import TASK

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("job.yaml")

NODES = ("node-0=4,8Gi", "node-1=4,8Gi")
"""More than a laptop may have: the programs mostly wait, so that there is something to see."""

GOOD = 0.93
ROOM_WITHIN = 10.0
"""Seconds from the wish of the service to its last pod being ready."""

STAYS = 8.0
"""Seconds that the service stays."""

CALM = 4.0
"""Seconds between two things that happen, so that each shows in the picture."""

LONGEST = 150.0

_RATE_OVER = 2.0
"""Seconds over which images per second are counted."""


class Failed(Exception):
    """Something that the demo promises did not happen."""


def service() -> ReplicaSet:
    """Two pods that want a core each: something more urgent than training."""
    labels = {"app": "service"}
    container = Container(
        name="service",
        image="edl-digits",
        command=("sleep", "infinity"),
        resources=ResourceRequirements(requests={"cpu": "1500m", "memory": "64Mi"}),
    )
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels=labels), spec=PodSpec(containers=(container,), termination_grace_period_seconds=1)
    )
    return ReplicaSet(
        metadata=ObjectMeta(name="service", namespace="default"),
        spec=ReplicaSetSpec(replicas=2, selector=LabelSelector(match_labels=labels), template=template),
    )


class Story:
    """What is done to the job while it runs, one step after the other, and what was seen."""

    def __init__(self, machine: OneMachine, screen: Screen, logs: Path) -> None:
        self._machine, self._screen, self._logs = machine, screen, logs
        self.looks: list[Overview] = []
        self.images = ImagesSeen()
        self.marks: list[tuple[float, str]] = []
        self.figures: list[tuple[str, str]] = []
        self.over = False
        self._steps = self._tell()
        self._done = next(self._steps)

    def look(self, overview: Overview) -> None:
        """Take one look at the cluster; go on to the next step when the present one is done."""
        self.looks.append(overview)
        self.images.look(overview)
        if not self.over and self._done(overview):
            following = next(self._steps, None)
            self.over = following is None
            self._done = following or self._done

    def _tell(self) -> Iterator[Callable[[Overview], bool]]:
        full: list[int] = []

        def stands_still(overview: Overview) -> bool:
            full.append(trainers(overview))
            return full[-1] > 1 and len(full) > 6 and len(set(full[-6:])) == 1

        yield stands_still
        most = full[-1]
        self._say("", f"{most} trainers: there is no room for more")
        self.figures.append(("trainers", f"1 -> {most}, as many as there is room for"))
        self._machine.cluster.create_replica_set(service())
        began = self._now()
        self._say("service wants 3 cores", "a service asks for two pods of 1.5 cores")
        yield lambda overview: sum(is_ready(pod) for pod in overview.pods if is_service(pod)) == 2
        took = self._now() - began
        less = trainers(self.looks[-1])
        self._say("service runs", f"the service runs after {took:.1f} s; {less} trainers are left")
        self.figures.append(("the service asked for room -> it runs", f"{took:.1f} s, {most} -> {less} trainers"))
        demand(took <= ROOM_WITHIN, f"the service got its room after {took:.1f} s")
        leaves = self._now() + STAYS
        yield lambda overview: overview.seconds >= leaves
        self._machine.cluster.delete_replica_set("default", "service")
        self._say("service gone", "the service is gone")
        began = self._now()
        yield lambda overview: trainers(overview) >= most
        self.figures.append(("the service went -> its room is used again", f"{self._now() - began:.1f} s"))
        following = self._now() + CALM
        yield lambda overview: overview.seconds >= following
        victim = next(pod for pod in self.looks[-1].pods if "-pserver-" in pod.metadata.name)
        kill(victim)
        began = self._now()
        self._say("SIGKILL pserver", f"SIGKILL to the program of {victim.metadata.name}")
        yield lambda _: restored(self._logs, victim) is not None
        took, found = self._now() - began, restored(self._logs, victim)
        self._say("restored", f"{victim.metadata.name} serves again after {took:.1f} s: {found}")
        self.figures.append(("pserver killed -> it serves again", f"{took:.1f} s: {found}"))

    def _now(self) -> float:
        return self.looks[-1].seconds

    def _say(self, mark: str, text: str) -> None:
        self.marks.append((self._now(), mark))
        self._screen.say(text)


class ImagesSeen:
    """Counts the images of finished tasks, by the records in the job's own etcd."""

    def __init__(self) -> None:
        self._client: EtcdClient | None = None
        self.counts: list[tuple[float, int]] = [(0.0, 0)]

    def look(self, overview: Overview) -> None:
        """Take one look, while there is a job that runs and an etcd."""
        job = next((one for one in overview.jobs if not one.status.completion_time), None)
        meeting = meeting_point(job, overview.pods, "") if job else None
        if meeting is None:
            return
        if self._client is None:
            self._client = EtcdClient(",".join(meeting.endpoints), prefix=meeting.prefix)
        try:
            progress = TaskQueue(self._client, "demo").progress()
        except EdlAgentError:
            return
        passes = [*progress.history, *([progress.current] if progress.current else [])]
        self.counts.append((overview.seconds, sum(one.finished for one in passes) * TASK))

    def rates(self) -> list[tuple[float, float]]:
        """Images per second at each look, over the last `_RATE_OVER` seconds."""
        found = []
        for seconds, images in self.counts:
            then, before = next(one for one in self.counts if one[0] >= seconds - _RATE_OVER)
            found.append((seconds, (images - before) / (seconds - then) if seconds > then else 0.0))
        return found

    def close(self) -> None:
        if self._client is not None:
            self._client.shutdown()


def demand(holds: object, what: str) -> None:
    if not holds:
        raise Failed(what)


def trainers(overview: Overview) -> int:
    return sum(is_ready(pod) for pod in overview.pods if "-trainer-" in pod.metadata.name)


def is_service(pod: Pod) -> bool:
    return pod.metadata.labels.get("app") == "service"


def is_ready(pod: Pod) -> bool:
    return is_true(pod.status.conditions, "Ready") and pod.metadata.deletion_timestamp is None


def restored(logs: Path, pod: Pod) -> str | None:
    """What the pserver said when it began again; None: not yet."""
    for file in find_logs(logs, pod.metadata.namespace):
        if file.pod == pod.metadata.name and file.restart:
            said = re.search(r"pserver \d+ epoch \d+: restored step \d+", file.path.read_text())
            if said:
                return said[0]
    return None


def kill(pod: Pod) -> None:
    """SIGKILL to the pod's program, as if it had crashed."""
    for folder in Path("/proc").iterdir():
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if f"POD_NAME={pod.metadata.name}".encode() in environment and b"examples.digits.pserver" in command:
            os.kill(int(folder.name), signal.SIGKILL)
            return
    raise Failed(f"the program of {pod.metadata.name} was not found")


def accuracy(logs: Path) -> float:
    """Share of the held-out images recognised after the last pass, as the trainers have written it."""
    found: list[tuple[float, float]] = []
    for path in logs.glob("*/logs/*-trainer-*/*/*.log"):
        for said in re.finditer(r"a pass is over: loss [\d.]+, ([\d.]+) %", path.read_text()):
            found.append((path.stat().st_mtime, float(said[1]) / 100))
    demand(found, "no trainer said how good the network is")
    return max(found)[1]


def picture(
    looks: list[Overview], rates: list[tuple[float, float]], marks: list[tuple[float, str]], good: float
) -> str:
    counts = [(one.seconds, float(trainers(one))) for one in looks]
    loads = [(one.seconds, 100 * one.load[0] / max(one.load[1], 1)) for one in looks]
    panels = [
        chart.Panel("trainers", "#1565c0", counts, [0, 2, 4, 6, 8], steps=True),
        chart.Panel("% of the cluster asked for", "#00695c", loads, [0, 50, 100], steps=True),
        chart.Panel("images / s", "#6a1b9a", rates, [0, *chart.half_and_whole(max(value for _, value in rates))]),
    ]
    about = f"{good:.1%} of the held-out images recognised at the end"
    title = "A TrainingJob on idle capacity: it grows, gives room to a service, survives a pserver"
    return chart.draw(title, about, panels, marks, looks[0].seconds, looks[-1].seconds)


def run(folder: Path, options: argparse.Namespace) -> None:
    began = time.monotonic()
    job = submission.read(JOB.read_text())[0]
    state = LocalState(folder)
    images = Images({"*": ImageMapping(virtualenv=sys.prefix, working_dir=str(ROOT))})
    state.make()
    machine = OneMachine(state, node_sizes.read(NODES), images=images, durable=False)
    with log_into(state.log), leaving_in_order(), machine:
        screen = make_screen(options.plain)
        story = Story(machine, screen, state.nodes)
        try:
            machine.cluster.create(job)
            last = follow(machine, screen, [job], timeout=LONGEST, at_each_look=story.look)
        finally:
            screen.close()
            story.images.close()
    ended = last.jobs[0]
    demand(ended.status.phase == "succeeded", f"the job {ended.status.phase}: {ended.status.reason}")
    demand(story.over, "the job ended before the story")
    good = accuracy(state.nodes)
    demand(good >= GOOD, f"only {good:.1%} of the held-out images were recognised")
    if options.svg:
        options.svg.write_text(picture(story.looks, story.images.rates(), story.marks, good), encoding="utf-8")
    print()
    for what, value in (
        *story.figures,
        ("held-out digits recognised", f"{good:.1%}"),
        ("decisions", f"{len(ended.status.scale_records.scale_records)} changes of size, each with its reason"),
        ("the whole demo", f"{time.monotonic() - began:.0f} s"),
    ):
        print(f"{what:<44} {value}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, metavar="PATH", help="draw what happened")
    parser.add_argument("--plain", action="store_true", help="plain lines also on a terminal")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="digits-", ignore_cleanup_errors=True) as folder:
            run(Path(folder), options)
    except (Failed, errors.EdlControllerError) as error:
        print(f"demo: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
