"""What `/healthz` and `/readyz` say: in words, each on a line of its own, for kubelets and for people.

Healthy: every loop has turned lately. A cluster that does not answer is no fault of this process, so the loops go on
turning and it stays healthy (row K43): to be started again would help nobody.
Ready: the caches are filled and followed, so that this replica could do the work at once. Whether it leads does not
matter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from edl_controller.api.kinds import LEASES, TRAINING_JOBS
from edl_controller.controller import Controller
from edl_controller.errors import Forbidden, NotFound
from edl_controller.runtime.http import Reply
from edl_controller.runtime.plain_text import printable
from edl_controller.runtime.reflector import Reflector

STUCK = 180.0
"""Seconds without a turn after which a loop, or a worker on one job, counts as stuck: requests take 30 s at most."""
UNHEARD = 10.0
"""Seconds of trouble after which a cache counts as no longer followed: a watch that is lost is opened anew sooner."""
LONGEST = 500
"""Bytes of a line: errors quote what servers say."""


class Health:
    """Looks at a running controller.

    Args:
        controller: to look at.
        stopping: whether the end has begun.
        elects: whether the election goes on; True without one.
        barred: why this replica could not lead, whoever does; None: it could.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        controller: Controller,
        stopping: threading.Event,
        elects: Callable[[], bool] = lambda: True,
        barred: Callable[[], Exception | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller, self._stopping, self._elects = controller, stopping, elects
        self._barred = barred
        self._clock = clock
        self._lock = threading.Lock()
        self._turns, self._turn_seen = 0, clock()

    def healthz(self) -> Reply:
        """Whether the loops turn."""
        return _reply(self.stuck())

    def readyz(self) -> Reply:
        """Whether this replica could work."""
        return _reply(self.unready())

    def stuck(self) -> list[str]:
        """Return what does not turn any more."""
        now, found = self._clock(), []
        for informer in self._controller.informers.all():
            for reflector in informer.reflectors:
                if now - reflector.turn > STUCK:
                    found.append(f"{_name(informer.kind.plural, reflector)}: no turn for {now - reflector.turn:.0f} s")
        working = self._controller.queue.longest_work()
        if working > STUCK:
            found.append(f"workers: one has been at one job for {working:.0f} s")
        autoscaler = self._controller.autoscaler
        if self._controller.ready:
            with self._lock:
                if autoscaler.turns != self._turns:
                    self._turns, self._turn_seen = autoscaler.turns, now
                if now - self._turn_seen > STUCK:
                    found.append(f"autoscaler: no turn for {now - self._turn_seen:.0f} s")
        if not self._elects():
            found.append("leader election: its thread has ended")
        return found

    def unready(self) -> list[str]:
        """Return what is missing before this replica could work."""
        if self._stopping.is_set():
            return ["it is being stopped"]
        found = []
        for informer in self._controller.informers.all():
            for reflector in informer.reflectors:
                name = _name(informer.kind.plural, reflector)
                trouble, silence = reflector.trouble, reflector.silence()
                refused = isinstance(trouble, (NotFound, Forbidden))
                if trouble is not None and (refused or silence > UNHEARD):
                    found.append(f"{name}: {explain(informer.kind.plural, trouble)}")
                elif not reflector.synced.is_set():
                    found.append(f"{name}: not listed yet")
        if (barred := self._barred()) is not None:
            found.append(f"leader election: {explain(LEASES.plural, barred)}")
        # What is listed may still be on its way to those who listen.
        informers = self._controller.informers.all()
        return found or [f"{one.kind.plural}: not listed yet" for one in informers if not one.has_synced]


def explain(plural: str, trouble: Exception) -> str:
    """Say what is wrong, and what to do about it where that is known."""
    if isinstance(trouble, NotFound) and plural == TRAINING_JOBS.plural:
        return (
            "the resource is not installed: edl-controller crd | kubectl apply --server-side -f - "
            "(it goes on by itself then)"
        )
    if isinstance(trouble, Forbidden):
        return f"no permission (see deploy/ for the rights it needs): {trouble}"
    return f"{type(trouble).__name__}: {trouble}"


def _name(plural: str, reflector: Reflector[Any]) -> str:
    return f"{plural} in {reflector.namespace}" if reflector.namespace else plural


def _reply(faults: list[str]) -> Reply:
    if not faults:
        return Reply(200, b"ok\n")
    return Reply(503, "".join(f"{printable(line, LONGEST)}\n" for line in faults).encode())
