"""Events about objects (``events.k8s.io/v1``): one for each kind of happening, repeated as a series, within a budget.

Recording never waits: notes go through a bounded queue to one thread. What repeats within six minutes is one Event
whose series counts. An object has 25 writes at once and one more each five minutes (client-go's spam filter); what is
over it is counted but not written. An Event that the cluster does not take is dropped after `TRIES` (row K37).
Events are for people: nothing may depend on one.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from edl_controller.api import timestamps
from edl_controller.api.events import Event, EventSeries
from edl_controller.api.kinds import EVENTS
from edl_controller.api.meta import ObjectMeta, ObjectReference
from edl_controller.cluster.port import ObjectWriter, Stop
from edl_controller.core.actions import Note
from edl_controller.errors import ClusterError, NotFound, Unavailable
from edl_controller.runtime.back_off import TokenBucket
from edl_controller.runtime.plain_text import printable

NOTE_LIMIT = 1024
"""Bytes of a note."""
BURST, REFILL = 25, 1 / 300
"""Writes that an object has at once, and those it gets back per second."""
SERIES_WITHIN = 360.0
"""Seconds; the same thing again within them belongs to the series."""
TRIES = 3
"""Attempts to write one Event."""
WAITING = 1000
"""Notes that may wait; more are dropped."""
REMEMBERED = 4096
"""Series and budgets that are kept, the ones used last."""

log = logging.getLogger(__name__)

_Series = tuple[str, str, str, str, bool]


@dataclass
class _Written:
    """The Event of a series."""

    namespace: str
    name: str
    count: int
    last: float


class Recorder:
    """Writes Events; thread-safe.

    Args:
        writer: the cluster.
        controller: who reports, such as ``edl.paddlepaddle.org/controller``.
        instance: which one of them.
        now: Unix seconds.
        pause: seconds between two attempts.
    """

    def __init__(
        self,
        writer: ObjectWriter,
        controller: str = "paddlepaddle.org/edl-controller",
        instance: str = "",
        *,
        now: Callable[[], float] = time.time,
        pause: float = 0.5,
    ) -> None:
        self._writer, self._controller, self._now, self._pause = writer, controller, now, pause
        self._instance = instance or f"edl-controller-{secrets.token_hex(4)}"
        self._queue: queue.Queue[tuple[ObjectReference, Note, float, str] | None] = queue.Queue(WAITING)
        self._series: OrderedDict[_Series, _Written] = OrderedDict()
        self._budgets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._ended = threading.Event()
        self.dropped = 0
        """Notes that were not written, for whatever reason."""

    def record(self, regarding: ObjectReference, note: Note, controller: str = "") -> None:
        """Have a note written; returns at once. Dropped where too many wait already.

        ``controller``: who reports it, where one program plays several.
        """
        try:
            self._queue.put_nowait((regarding, note, self._now(), controller))
        except queue.Full:
            self.dropped += 1

    def run(self, stop: Stop) -> None:
        """Write until ``stop`` is set; then write what waits, for a second at most."""
        waker = threading.Thread(target=self._wake_at, args=(stop,), name="edl-recorder-stop", daemon=True)
        waker.start()
        deadline = float("inf")
        while True:
            if stop.is_set():
                deadline = min(deadline, time.monotonic() + 1.0)
            if time.monotonic() > deadline:
                break
            try:
                item = self._queue.get(block=not stop.is_set())
            except queue.Empty:
                break
            if item is not None:
                regarding, note, when, controller = item
                self._write(regarding, note, when, controller or self._controller, stop)
        self.dropped += self._queue.qsize()
        self._ended.set()
        waker.join()

    def _wake_at(self, stop: Stop) -> None:
        while not stop.wait(1.0) and not self._ended.is_set():
            pass
        with contextlib.suppress(queue.Full):  # then it is awake
            self._queue.put_nowait(None)

    def _write(self, regarding: ObjectReference, note: Note, when: float, controller: str, stop: Stop) -> None:
        key = (regarding.uid, note.reason, note.action, note.note, note.warning)
        known = self._series.get(key)
        if known is not None and when - known.last > SERIES_WITHIN:
            known = None
        if known is not None:
            known.count, known.last = known.count + 1, when
            self._series.move_to_end(key)
        if not self._may_write(regarding.uid, when):
            self.dropped += 1
            return
        for attempt in range(TRIES):
            try:
                if known is not None:
                    try:
                        self._write_series(known)
                        return
                    except NotFound:
                        known = None  # it has expired
                event = self._event(regarding, note, when, controller)
                created = self._writer.create(event)
                self._remember(key, _Written(created.metadata.namespace, created.metadata.name, 1, when))
                return
            except Unavailable as error:
                if attempt + 1 == TRIES or stop.wait(error.retry_after or self._pause):
                    log.debug("Event %s of %s was dropped: %s", note.reason, regarding.name, error)
            except ClusterError as error:
                log.debug("Event %s of %s was refused: %s", note.reason, regarding.name, error)
                break
            except Exception:
                log.exception("Event %s of %s could not be written", note.reason, regarding.name)
                break
        self.dropped += 1

    def _may_write(self, uid: str, now: float) -> bool:
        budget = self._budgets.pop(uid, None) or TokenBucket(REFILL, BURST, now)
        self._budgets[uid] = budget
        while len(self._budgets) > REMEMBERED:
            self._budgets.popitem(last=False)
        return budget.take(now)

    def _remember(self, key: _Series, written: _Written) -> None:
        self._series[key] = written
        self._series.move_to_end(key)
        while len(self._series) > REMEMBERED:
            self._series.popitem(last=False)

    def _write_series(self, known: _Written) -> None:
        series = EventSeries(count=known.count, last_observed_time=timestamps.render_micro(known.last))
        self._writer.patch(EVENTS, known.namespace, known.name, {"series": msgspec.to_builtins(series)})

    def _event(self, regarding: ObjectReference, note: Note, when: float, controller: str) -> Event:
        return Event(
            metadata=ObjectMeta(
                name=f"{regarding.name[:230].rstrip('-.')}.{secrets.token_hex(8)}",
                namespace=regarding.namespace or "default",
            ),
            event_time=timestamps.render_micro(when),
            reporting_controller=controller,
            reporting_instance=self._instance,
            action=note.action,
            reason=note.reason,
            regarding=regarding,
            note=printable(note.note, NOTE_LIMIT),
            type="Warning" if note.warning else "Normal",
        )
