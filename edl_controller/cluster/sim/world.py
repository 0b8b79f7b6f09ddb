"""`SimWorld`: a whole virtual cluster: objects, controllers, scheduler and nodes, in virtual time.

Nothing waits and nothing is left to chance: the same seed and the same calls give the same history. One thread moves
the time; others may read, write and watch `SimWorld.cluster` meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edl_controller.api.kinds import PODS, Kind
from edl_controller.api.nodes import Node, Taint
from edl_controller.api.pods import Pod
from edl_controller.cluster.sim.cluster import SimCluster
from edl_controller.cluster.sim.controllers import Controllers
from edl_controller.cluster.sim.nodes import VirtualNodes
from edl_controller.cluster.sim.notes import Notes
from edl_controller.cluster.sim.pod_course import Courses, PodCourse
from edl_controller.cluster.sim.scheduling import Scheduling
from edl_controller.cluster.sim.stamps import Stamps
from edl_controller.cluster.sim.timetable import Timetable, VirtualClock
from edl_controller.core.capacity import Accounts

_USUAL = PodCourse()


class SimWorld:
    """A virtual cluster that lives.

    Args:
        seed: of names and uids.
        courses: how long each pod takes to start and to end; the same for all where it is not given.
        history: how many changes of each kind are kept for watches, at least.
        events: whether the controllers write Events; they are kept for ever.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        courses: Courses = lambda _: _USUAL,
        history: int = 50_000,
        events: bool = False,
    ) -> None:
        self.clock = VirtualClock()
        self.timetable = Timetable(self.clock)
        self.cluster = SimCluster(self.clock, seed=seed, history=history)
        stamps = Stamps(self.clock)
        notes = Notes(self.cluster, wanted=events)
        self._controllers = Controllers(self.cluster, self.timetable, notes)
        self._scheduling = Scheduling(self.cluster, self.timetable, stamps, notes)
        self._nodes = VirtualNodes(self.cluster, self.timetable, stamps, courses)
        self._numbers = itertools.count()
        self.cluster.subscribe(self._see)

    # --- time ---

    def advance(self, seconds: float) -> None:
        """Let virtual time pass."""
        with self.cluster.lock:
            self.timetable.advance(seconds)

    def settle(self) -> None:
        """Let virtual time pass until nothing goes on by itself: no pod to place, start, end or count.

        Waits are not awaited: back-offs, deadlines, pods that run for a while, what was asked for by `after`.
        """
        with self.cluster.lock:
            self.timetable.settle()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something in so many seconds of virtual time."""
        with self.cluster.lock:
            self.timetable.plan(("asked for", next(self._numbers)), seconds, action, soon=False)

    # --- nodes ---

    @property
    def accounts(self) -> Accounts:
        """What is booked on each node, and who waits; for reading."""
        return self._scheduling.accounts

    def add_node(
        self,
        name: str,
        cpu: str = "4",
        memory: str = "8Gi",
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Taint] = (),
        *,
        pods: int = 110,
        extra: Mapping[str, str] | None = None,
    ) -> Node:
        """Add a ready node; ``extra``: more resources, such as ``{"nvidia.com/gpu": "2"}``."""
        with self.cluster.lock:
            resources = {"cpu": cpu, "memory": memory, "pods": str(pods), **(extra or {})}
            return self._nodes.add(name, resources, labels, taints)

    def fail_node(self, name: str) -> None:
        """Let a node fall silent, with all its pods."""
        with self.cluster.lock:
            self._nodes.fail(name)

    def recover_node(self, name: str) -> None:
        """Let a node that fell silent come back."""
        with self.cluster.lock:
            self._nodes.recover(name)

    def remove_node(self, name: str) -> None:
        """Take a node away for ever, with all its pods."""
        with self.cluster.lock:
            self._nodes.remove(name)

    # --- pods ---

    def set_ready(self, pod: Pod, ready: bool) -> None:
        """Let the containers of a running pod pass or fail their readiness probe."""
        with self.cluster.lock:
            self._nodes.set_ready(pod.metadata.uid, ready)

    def finish(self, pod: Pod, exit_code: int) -> None:
        """Let the containers of a running pod end by themselves, for ever."""
        with self.cluster.lock:
            self._nodes.finish(pod.metadata.uid, exit_code)

    def hold_terminating(self) -> None:
        """From now on, pods that are asked to end do not, until ``let_terminate()``."""
        self._nodes.holds = True

    def let_terminate(self, exit_code: int = 143) -> None:
        """End pods that are held, and from now on those that are asked to end, with this exit code."""
        with self.cluster.lock:
            self._nodes.let_terminate(exit_code)

    def _see(self, kind: Kind[Any], before: Any, after: Any) -> None:
        self._scheduling.see(kind, before, after)
        self._controllers.see(kind, before, after)
        if kind is PODS:
            self._nodes.see(before, after)
