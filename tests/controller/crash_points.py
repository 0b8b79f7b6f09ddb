"""A full life of a TrainingJob in which the controller dies at one write, before or after it, and is started anew.

Whatever the cluster: users act through the port, and what there is after each step of the life is compared with a life
that nobody disturbed (row K17).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import msgspec

from edl_controller.api.kinds import JOBS, PODS, REPLICA_SETS, TRAINING_JOBS, Kind
from edl_controller.cluster.port import Cluster
from edl_controller.errors import NotFound, Unavailable
from tests.bench.waiting import eventually

DEADLINE = 40.0
RESOURCES = {"requests": {"cpu": "10m", "memory": "1Mi"}}
NAME = "tj"

Side = Literal["before", "after"]
SIDES: tuple[Side, Side] = ("before", "after")
State = dict[str, Any]


class Cut:
    """Counts the writes of a controller, Events aside (they come from another thread, and nothing depends on them).

    At the ``number``-th (from 0; None: never) the process is as good as dead: nothing of it gets through any more.
    ``side``: whether that write itself still does, and only its answer is lost.
    """

    def __init__(self, number: int | None = None, side: Side = "before") -> None:
        self._number, self._side = number, side
        self._lock = threading.Lock()
        self.count = 0
        self.dead = threading.Event()

    def passes(self, *, write: bool) -> tuple[bool, bool]:
        """Say of a request that comes whether it gets through, and whether its answer does."""
        with self._lock:
            if self.dead.is_set():
                return False, False
            if write:
                self.count += 1
                if self.count - 1 == self._number:
                    self.dead.set()
                    return self._side == "after", False
            return True, True


class CutCluster:
    """A cluster behind a cut."""

    def __init__(self, cluster: Any, cut: Cut) -> None:
        self._cluster, self._cut = cluster, cut

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._cluster, name)
        if name not in ("create", "patch", "delete"):
            return real

        def write(first: Any, *args: Any, **options: Any) -> Any:
            event = "Event" in (type(first).__name__, getattr(first, "name", ""))
            sent, answered = self._cut.passes(write=not event)
            answer = real(first, *args, **options) if sent else None
            if not answered:
                raise Unavailable("cut")
            return answer

        return write


class World(Protocol):
    """Where a life takes place."""

    namespace: str
    user: Cluster
    """What users see and do; not behind the cut."""

    def finish(self, pod: Any) -> None:
        """Let the process of a pod end well."""
        ...

    def controller(self, cut: Cut) -> AbstractContextManager[object]:
        """A controller at work behind a cut, until it is left."""
        ...


def training_job(namespace: str) -> Any:
    """One that begins with one trainer, its pserver and its own etcd."""
    spec = {
        "image": "example.com/digits:1",
        "fault_tolerant": True,
        "trainer": {"entrypoint": "python t.py", "min-instance": 1, "max-instance": 1, "resources": RESOURCES},
        "pserver": {"entrypoint": "python p.py", "min-instance": 1, "resources": RESOURCES},
        "agent": {"mode": "Classic"},
    }
    return TRAINING_JOBS.from_json({"metadata": {"name": NAME, "namespace": namespace}, "spec": spec})


def live(world: World, cut: Cut, expected: dict[str, State] | None = None) -> dict[str, State]:
    """Live a full life; returns what there was after each step.

    Args:
        world: empty.
        cut: of the first controller; the second one is well.
        expected: what is waited for; None: for what the step is about, and for rest.

    Raises:
        AssertionError: a step did not end as expected.
    """
    states: dict[str, State] = {}
    with _controllers(world, cut):
        for step, (act, done) in STEPS.items():
            act(world)
            if expected is None:
                eventually(lambda done=done: done(state_of(world)), DEADLINE, step)  # type: ignore[misc]
                states[step] = _rested(world)
            else:
                wanted = expected[step]
                eventually(
                    lambda wanted=wanted: state_of(world) == wanted,  # type: ignore[misc]
                    DEADLINE,
                    lambda step=step, wanted=wanted: f"{step}: {_difference(wanted, state_of(world))}",  # type: ignore[misc]
                    interval=0.05,
                )
    return states


@contextlib.contextmanager
def _controllers(world: World, cut: Cut) -> Iterator[None]:
    """One controller after the other: the next one begins when the first is dead."""
    over = threading.Event()
    faults: list[BaseException] = []

    def supervise() -> None:
        try:
            with world.controller(cut):
                while not (over.is_set() or cut.dead.wait(0.02)):
                    pass
            if not over.is_set():
                with world.controller(Cut()):
                    over.wait()
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=supervise, name="edl-test-supervisor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(40)
    assert not thread.is_alive()
    assert not faults, faults


def _rested(world: World) -> State:
    last, same = state_of(world), 0

    def rests() -> bool:
        nonlocal last, same
        now = state_of(world)
        last, same = now, same + 1 if now == last else 0
        return same >= 10

    eventually(rests, DEADLINE, "rest", interval=0.08)
    return last


# --- the steps of a life ---


def _edit(world: World, most: int) -> None:
    patch = {"spec": {"trainer": {"max-instance": most}}}
    world.user.patch(TRAINING_JOBS, world.namespace, NAME, patch)


def _finish(world: World) -> None:
    def all_end() -> bool:
        pods = [pod for pod in world.user.list(PODS, world.namespace).items if "-trainer-" in pod.metadata.name]
        running = [pod for pod in pods if pod.status.phase in ("Pending", "Running")]
        for pod in running:
            with contextlib.suppress(NotFound):
                world.finish(pod)
        return not running

    eventually(all_end, DEADLINE, "the trainers end", interval=0.1)


def _has(phase: str, trainers: int | None = None) -> Callable[[State], bool]:
    def has(state: State) -> bool:
        status = state.get("status", {})
        return status.get("phase") == phase and trainers in (None, status.get("trainers"))

    return has


STEPS: dict[str, tuple[Callable[[World], object], Callable[[State], bool]]] = {
    "created": (lambda world: world.user.create(training_job(world.namespace)), _has("running", 1)),
    "grown": (lambda world: _edit(world, 3), _has("running", 3)),
    "shrunk": (lambda world: _edit(world, 2), _has("running", 2)),
    "succeeded": (_finish, _has("succeeded")),
    "deleted": (lambda world: world.user.delete(TRAINING_JOBS, world.namespace, NAME), lambda state: state == {}),
}


# --- what is compared ---


def state_of(world: World) -> State:
    """What there is, without names and moments that differ from life to life."""
    state: State = {}
    uid = ""
    with contextlib.suppress(NotFound):
        job = world.user.get(TRAINING_JOBS, world.namespace, NAME)
        uid = job.metadata.uid
        status = msgspec.json.decode(msgspec.json.encode(job.status).replace(uid.encode(), b"JOB"))
        # What was heard of agents is of the moment; records are the autoscaler's own memory, lost with it.
        others = ("scale_records", "agents", "conditions", "startTime", "completionTime")
        status = {key: value for key, value in status.items() if key not in others}
        conditions = [(one.type, one.status, one.reason) for one in job.status.conditions]
        conditions = [one for one in conditions if one[0] != "AgentStateKnown"]
        state = {"status": status, "conditions": sorted(conditions), "spec": msgspec.to_builtins(job.spec)}
    kinds: tuple[Kind[Any], ...] = (REPLICA_SETS, JOBS)
    for kind in kinds:
        for one in world.user.list(kind, world.namespace).items:
            text = msgspec.json.encode(one.spec).decode()
            # The API server adds labels and a selector with a Job's own uid.
            text = text.replace(one.metadata.uid, "CHILD").replace(uid or "-", "JOB")
            owners = [(owner.kind, owner.controller) for owner in one.metadata.owner_references]
            state[one.metadata.name] = {"owners": owners, "spec": _without_coordination(msgspec.json.decode(text))}
    pods = [pod for pod in world.user.list(PODS, world.namespace).items if pod.metadata.deletion_timestamp is None]
    for pod in pods:
        key = f"pods of {pod.metadata.name.rpartition('-')[0]}, {pod.status.phase}"
        state[key] = state.get(key, 0) + 1
    return state


def _without_coordination(spec: Any) -> Any:
    """The same without the uid of the master's pod, which is by chance."""
    annotations = spec["template"].get("metadata", {}).get("annotations", {})
    for name in [name for name in annotations if name.endswith("/coordination")]:
        annotations[name] = "*"
    return spec


def _difference(wanted: State, found: State) -> str:
    keys = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
    return "; ".join(f"{key}: {found.get(key)!r}, not {wanted.get(key)!r}" for key in keys)
