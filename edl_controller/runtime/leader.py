"""One replica in an election: the thread that looks at the Lease, writes it, and knows when it leads no more.

The rules are in `edl_controller.core.election`; here are the clock, the requests and the thread. Time is
CLOCK_BOOTTIME, which goes on while a machine is suspended. Whoever leads writes through
`edl_controller.runtime.fenced_cluster`, which asks `Leader.is_leader` before each write.

Losing the lead is final: the program ends, and is started again as a follower. On a clean stop the program ends its
work first and calls `Leader.release` last.
"""

from __future__ import annotations

import logging
import math
import random
import socket
import threading
import uuid
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from edl_agent.clock import Clock, SystemClock
from edl_controller.api.kinds import LEASES
from edl_controller.api.leases import Lease, LeaseSpec
from edl_controller.api.meta import ObjectMeta
from edl_controller.cluster.port import Cluster, Stop
from edl_controller.core import election
from edl_controller.core.election import Acquire, ElectionSettings, Look, Renew, StepDown, View, Wait
from edl_controller.errors import ClusterError, Conflict, NotFound, NotLeading, Unavailable
from edl_controller.runtime.call_within import CallsWithin

REST = 0.5
"""Longest sleep in seconds: a deadline is noticed this soon after a suspended machine goes on."""
LOOK = 0.1
"""Seconds between two looks at what a caller waits for."""
RELEASES = 3
"""Tries to release."""
RELEASE_WITHIN = 3.0
"""Seconds that all of them may take; then the lease runs out by itself."""

log = logging.getLogger(__name__)


class LeaderMetrics(Protocol):
    """Is told what is counted."""

    def leading(self, yes: bool) -> None:
        """This replica leads from now on, or no more."""
        ...

    def lost(self) -> None:
        """The lead was lost, against its will."""
        ...


class NoMetrics:
    """Counts nothing."""

    def leading(self, yes: bool) -> None:
        """See `LeaderMetrics.leading`."""

    def lost(self) -> None:
        """See `LeaderMetrics.lost`."""


def own_identity() -> str:
    """Return a name for this process that no other has or will have: ``HOST_UUID``, as client-go's programs do."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class Leader:
    """A replica that wants to lead. Also a context manager: started, and released at the end.

    Args:
        cluster: where the Lease is; not a fenced one. Best with connections of its own and short deadlines, so that
            nothing else can hold up renewals. A request without an answer is left behind after
            `ElectionSettings.attempt`.
        namespace: of the Lease.
        name: of the Lease.
        identity: of this process alone; default `own_identity`.
        settings: the same for all replicas.
        clock: boottime decides; wall is written for people.
        metrics: told of changes.
        on_lost: called once when the lead is lost, in the thread that noticed.
        chance: numbers from 0 to 1.

    Attributes:
        identity: as the record shows it.
        lost: set once the lead was lost; not by `release` or `close`.
        trouble: why the newest request failed; None: it did not, or another replica was faster.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str = "",
        settings: ElectionSettings | None = None,
        clock: Clock | None = None,
        *,
        metrics: LeaderMetrics | None = None,
        on_lost: Callable[[], None] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.identity = identity or own_identity()
        self.lost = threading.Event()
        self.trouble: Exception | None = None
        self._cluster, self._namespace, self._name = cluster, namespace, name
        self._settings, self._clock = settings or ElectionSettings(), clock or SystemClock()
        self._metrics, self._on_lost, self._chance = metrics or NoMetrics(), on_lost, chance
        self._calls = CallsWithin("edl-lease-request")
        self._lock = threading.Lock()
        self._view = View(identity=self.identity)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    # --- for the program ---

    def start(self) -> None:
        """Begin to compete."""
        self._thread = threading.Thread(target=self._run, name="edl-leader", daemon=True)
        self._thread.start()

    def is_leader(self) -> bool:
        """Tell whether this replica leads at this very moment. Costs no request."""
        with self._lock:
            view, now = self._view, self._now()
            if self._ending.is_set():
                return False
            if election.leads(view, self._settings, now):
                return True
        if view.renewed is not None and not view.lost:
            # A thread that wakes up after a pause may be the first that looks.
            self._step_down(f"the lease was not renewed within {self._settings.renew_deadline:g} s")
        return False

    @property
    def competes(self) -> bool:
        """Whether its thread lives: without it this replica neither renews nor takes over."""
        return self._thread is not None and self._thread.is_alive()

    def check(self) -> None:
        """Pass who leads; for what is asked before each write.

        Raises:
            NotLeading: this replica does not lead at this very moment.
        """
        if not self.is_leader():
            raise NotLeading(f"{self.identity} does not lead by the lease {self._namespace}/{self._name}")

    def wait_until_leading(self, stop: Stop) -> bool:
        """Wait until this replica leads; False: ``stop`` was set, or it was lost, released or closed."""
        while not (stop.is_set() or self.lost.is_set() or self._ending.is_set()):
            if self.is_leader():
                return True
            stop.wait(LOOK)
        return False

    def release(self) -> None:
        """Lead no more, and let another replica lead at once. Ends the thread. Idempotent.

        Takes 5 s at most (`RELEASE_WITHIN` and the thread's end), and never raises. Only after everything that writes
        has ended. Where the own deadline has passed nothing is written.
        """
        with self._lock:
            ended_before = self._ending.is_set()
        self.close()
        if ended_before:
            return
        with self._lock:
            view = self._view
        try:
            self._release(view)
        except Exception as error:
            log.warning("The lease %s/%s could not be released: %s", self._namespace, self._name, error)

    def close(self) -> None:
        """Lead no more, and write nothing: others wait until the lease has run out. Ends the thread. Idempotent."""
        with self._lock:
            led = not self._ending.is_set() and self._view.renewed is not None and not self._view.lost
            self._ending.set()
        if led:
            self._metrics.leading(False)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._calls.leave_behind()
            self._thread.join(2.0)

    # --- the thread ---

    def _run(self) -> None:
        while not self._ending.is_set():
            with self._lock:
                view, now = self._view, self._now()
            decision = election.decide(view, self._settings, now)
            try:
                match decision:
                    case StepDown(why):
                        self._step_down(why)
                        return
                    case Wait(until):
                        self._ending.wait(min(until - now, REST))
                    case Look():
                        self._look(view)
                    case Acquire() | Renew():
                        self._write(view)
            except ClusterError as error:
                self._failed(view, decision, error)
            except Exception as error:
                # The thread must outlive whatever a cluster raises: without it nobody would renew.
                log.exception("The election met an error that is none of a cluster")
                self._failed(view, decision, error)

    def _look(self, view: View) -> None:
        lease = self._read(view)
        self.trouble = None
        with self._lock:
            now, pause = self._now(), self._pause()
            self._view = election.looked(self._view, self._settings, lease, now, pause)

    def _read(self, view: View, end: float = math.inf) -> Lease | None:
        try:
            return self._call(view, partial(self._cluster.get, LEASES, self._namespace, self._name), end)
        except NotFound:
            return None

    def _write(self, view: View) -> None:
        spec = election.acquired_spec(view, self._settings, self._clock.wall())
        known = view.seen.lease if view.seen is not None else None
        sent = self._now()
        if known is None:
            meta = ObjectMeta(namespace=self._namespace, name=self._name)
            lease = self._call(view, partial(self._cluster.create, Lease(metadata=meta, spec=spec)))
        else:
            lease = self._call(view, partial(self._patch, known, spec))
        self.trouble = None
        with self._lock:
            now, pause = self._now(), self._pause()
            before = self._view
            self._view = election.wrote(before, self._settings, lease, sent, now, pause)
            first = before.renewed is None and self._view.renewed is not None and not self._ending.is_set()
        if first:
            log.info("%s leads by the lease %s/%s", self.identity, self._namespace, self._name)
            self._metrics.leading(True)

    def _patch(self, known: Lease, spec: LeaseSpec) -> Lease:
        meta = known.metadata
        return self._cluster.patch(
            LEASES,
            self._namespace,
            self._name,
            election.patch_of(spec),
            resource_version=meta.resource_version,
            uid=meta.uid,
        )

    def _call(self, view: View, request: Callable[[], Lease], end: float = math.inf) -> Lease:
        """Ask, for as long as one attempt may take, and not beyond the own deadline."""
        if view.renewed is not None:
            end = min(end, election.deadline(view, self._settings))
        return self._calls.call(request, min(self._settings.attempt, max(0.0, end - self._now())))

    def _failed(self, view: View, decision: election.Decision, error: Exception) -> None:
        expected = isinstance(error, Conflict) and view.renewed is None
        # What goes on for long, such as a missing right, is said once.
        known = self.trouble is not None and str(self.trouble) == str(error)
        level = logging.DEBUG if expected or known else logging.WARNING
        self.trouble = None if expected else error
        log.log(level, "%s of the lease %s/%s: %s", type(decision).__name__, self._namespace, self._name, error)
        with self._lock:
            self._view = election.failed(self._view, self._now(), self._pause())

    def _step_down(self, why: str) -> None:
        with self._lock:
            if self._view.lost or self._ending.is_set():
                return
            self._view = election.stepped_down(self._view, why)
        log.error("%s leads no more: %s", self.identity, why)
        self.lost.set()
        self._metrics.leading(False)
        self._metrics.lost()
        if self._on_lost is not None:
            self._on_lost()

    def _release(self, view: View) -> None:
        end = self._now() + RELEASE_WITHIN
        for _ in range(RELEASES):
            if not election.leads(view, self._settings, self._now()) or self._now() >= end:
                return  # by now the record may be another's
            try:
                if not view.fresh:
                    lease = self._read(view, end)
                    view = election.looked(view, self._settings, lease, self._now(), 0.0)
                lease = view.seen.lease if view.seen is not None else None
                if lease is None or lease.spec.holder_identity != self.identity:
                    return
                spec = election.released_spec(lease.spec, self._clock.wall())
                self._call(view, partial(self._patch, lease, spec), end)
            except (Conflict, NotFound, Unavailable) as error:
                log.warning("The lease %s/%s is not released yet: %s", self._namespace, self._name, error)
                view = election.failed(view, self._now(), 0.0)
            else:
                log.info("%s has released the lease %s/%s", self.identity, self._namespace, self._name)
                return

    def _pause(self) -> float:
        return self._settings.pause(self._chance())

    def _now(self) -> float:
        return self._clock.now().boottime
