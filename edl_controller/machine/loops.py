"""The loops that make a store of objects a cluster: Jobs, ReplicaSets, scheduler, garbage, nodes.

They drive the pure `edl_controller.core.semantics` over any cluster that implements the port and has nobody else to do
so. What runs the pods is `edl_controller.machine.node`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from edl_controller.api.kinds import PODS
from edl_controller.cluster.port import Cluster, Stop
from edl_controller.machine.loop_events import LoopEvents
from edl_controller.machine.loop_garbage import COLLECTED, OWNERS, GarbageLoop, owner_uids
from edl_controller.machine.loop_jobs import TRACKED, JobLoop, tracked
from edl_controller.machine.loop_nodes import NODE, NodeLoop, node_of
from edl_controller.machine.loop_old_events import OldEventsLoop
from edl_controller.machine.loop_replica_sets import UNMANAGED, ReplicaSetLoop, unmanaged
from edl_controller.machine.loop_scheduler import SchedulerLoop
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.reconciler import Reconciler
from edl_controller.runtime.recorder import Recorder

log = logging.getLogger(__name__)


class Loops:
    """All loops over one set of informers.

    Args:
        cluster: to act on; nobody else may drive it.
        now: Unix seconds.
        resync: seconds between whole lists, which make good what was missed.
        workers: keys that each loop works on at once.
    """

    def __init__(
        self, cluster: Cluster, *, now: Callable[[], float] = time.time, resync: float = 600.0, workers: int = 2
    ) -> None:
        self._informers = Informers(cluster, resync=resync)
        self._informers.of(PODS, **{OWNERS: owner_uids, UNMANAGED: unmanaged, NODE: node_of, TRACKED: tracked})
        for kind in COLLECTED:
            self._informers.of(kind, **{OWNERS: owner_uids})
        self._old_events = OldEventsLoop(cluster, now)
        self._recorder = Recorder(cluster, "edl-loops", now=now)
        events = LoopEvents(self._recorder)
        # Each of them adds its handlers; the scheduler's comes first, for it has others waiting.
        self._reconcilers: tuple[Reconciler[str] | Reconciler[tuple[str, str]] | Reconciler[tuple[str, str, str]], ...]
        self._reconcilers = (
            SchedulerLoop(cluster, self._informers, events, now).reconciler,
            JobLoop(cluster, self._informers, events, now, workers).reconciler,
            ReplicaSetLoop(cluster, self._informers, events, now, workers).reconciler,
            GarbageLoop(cluster, self._informers, workers).reconciler,
            NodeLoop(cluster, self._informers, now).reconciler,
        )

    @property
    def has_synced(self) -> bool:
        """Whether the loops have seen all objects once and are at work."""
        return self._informers.has_synced

    def is_idle(self) -> bool:
        """Tell whether no loop has anything to do now (it may have later: delays, news under way)."""
        return all(not size for one in self._reconcilers for name, size in one.queue.sizes().items() if name in _BUSY)

    def run(self, stop: Stop) -> None:
        """Drive the cluster until ``stop`` is set."""
        beside = [
            threading.Thread(target=run, args=(stop,), name=f"edl-loops-{name}", daemon=True)
            for name, run in (
                ("informers", self._informers.run),
                ("recorder", self._recorder.run),
                ("old-events", self._old_events.run),
            )
        ]
        for thread in beside:
            thread.start()
        working: list[threading.Thread] = []
        if self._informers.wait_synced(stop):
            log.info("The loops of the cluster are at work")
            working = [
                threading.Thread(target=one.run, args=(stop,), name=f"edl-loop-{one.name}", daemon=True)
                for one in self._reconcilers
            ]
        for thread in working:
            thread.start()
        for thread in (*working, *beside):
            thread.join()


_BUSY = ("waiting", "working", "again")
