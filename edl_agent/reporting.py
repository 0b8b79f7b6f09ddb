"""Tells the controller how this process gets on: a small key under the lease, written seldom, at once if it matters."""

import logging
import os
import random
import threading
from typing import TYPE_CHECKING

from edl_agent import errors
from edl_agent.address import check_name, default_name
from edl_agent.closing import Closing
from edl_agent.leased_key import LeasedKey
from edl_agent.report import RateMeter, Report
from edl_agent.session import SessionState, SessionView

if TYPE_CHECKING:
    from edl_agent.client import EtcdClient

_log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between writes: a thousand agents then make at most 200 writes a second."""

_WRITE_TIMEOUT = 2.0
_RETRY = 1.0
"""Seconds before a write that failed is tried again."""

_LONGEST_BACKOFF = 30.0
"""Seconds between attempts that keep failing."""

_MOVED = 1.0
"""Seconds: two ages that point to moments further apart than this are of different checkpoints."""


class Reporter(Closing):
    """Reports about this process below ``/edl/agents/<name>``, until closed.

    Never raises into the training loop, never waits for etcd in it: `update` only notes numbers. A thread writes them
    at most each ``interval``, not at all while nothing changes, at once when the slot, its epoch or the drain state
    change, and again under the new lease after a registration anew. Thread-safe; a context manager; closed by
    ``client.shutdown()``, whose revoked lease takes the key away.

    Args:
        client: with a session (`EtcdClient.register` or `EtcdClient.open`); reports begin when there is one.
        role: ``pserver`` or ``trainer``.
        name: default ``POD_NAME``, else hostname-pid.
        interval: seconds between writes.

    Raises:
        ConfigurationError: bad name or interval.
    """

    def __init__(self, client: "EtcdClient", *, role: str, name: str | None = None, interval: float = INTERVAL) -> None:
        client._check_usable()
        self._client = client
        self._clock = client._clock
        self.name = check_report_name(name)
        if not interval > 0:
            raise errors.ConfigurationError(f"interval must be above 0 s, not {interval!r}")
        self._interval = interval
        self._role = role
        self._pod_uid = os.environ.get("POD_UID", "")
        self._key = LeasedKey(client, client._keys.full(f"/edl/agents/{self.name}"))
        self._condition = threading.Condition()
        self._meter = RateMeter()
        self._step = self._samples = 0
        self._busy: float | None = None
        self._queue: int | None = None
        self._checkpoint_at: float | None = None
        self._stored: Report | None = None
        self._stored_lease: int | None = None
        self._stored_checkpoint_at: float | None = None
        self._not_before = float("-inf")
        self._failures = 0
        self._hurry = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="edl-reporter", daemon=True)
        client._drain_listeners.append(self._wake)
        client.session.listen(self._session_changed)
        client.on_close(self.close)
        self._thread.start()

    def update(
        self,
        *,
        step: int | None = None,
        samples: int | None = None,
        busy: float | None = None,
        queue: int | None = None,
        checkpoint_age: float | None = None,
    ) -> None:
        """Note the present numbers; what is left out stays as it was. About two microseconds.

        Args:
            step: training steps so far.
            samples: samples so far, a running total: the rate is computed from it.
            busy: share of the time spent on work, 0..1.
            queue: requests or batches that wait.
            checkpoint_age: seconds since the last checkpoint, now; it ages by itself until the next call.
        """
        now = self._clock.monotonic()
        try:
            with self._condition:
                if step is not None:
                    self._step = int(step)
                if samples is not None:
                    self._samples = int(samples)
                    self._meter.add(now, self._samples)
                if busy is not None:
                    self._busy = float(busy)
                if queue is not None:
                    self._queue = int(queue)
                if checkpoint_age is not None:
                    self._checkpoint_at = now - float(checkpoint_age)
        except (TypeError, ValueError, OverflowError) as error:
            # A loss that became NaN must not end the training by way of its report.
            _log.debug("A number of the report was passed over: %s", error)

    def report(self) -> Report:
        """What would be written now."""
        view = self._client.session.view()
        now = self._clock.monotonic()
        with self._condition:
            return Report(
                name=self.name,
                role=self._role,
                pod_uid=self._pod_uid,
                slot=view.slot.index if view.slot else None,
                epoch=view.slot.epoch if view.slot else None,
                address=view.slot.address if view.slot else "",
                step=self._step,
                samples=self._samples,
                rate=float(f"{self._meter.rate(now):.3g}"),
                busy=self._busy,
                queue=self._queue,
                checkpoint_age=None if self._checkpoint_at is None else now - self._checkpoint_at,
                drain=self._client._drain_state,
                time=self._clock.wall(),
            )

    def flush(self, timeout: float) -> bool:
        """Write now what is not written yet, and wait for it.

        Args:
            timeout: seconds.

        Returns:
            Whether etcd holds the present numbers.
        """
        end = self._clock.monotonic() + timeout
        with self._condition:
            self._hurry = True
            self._condition.notify_all()
            while not self._closed and not self._is_stored():
                left = end - self._clock.monotonic()
                if left <= 0:
                    return False
                self._condition.wait(left)
            return self._is_stored()

    def close(self) -> None:
        """End the thread. The last report stays in etcd as long as the lease. Idempotent."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        # A write under way needs no waiting for: when it is late its lease is gone.
        if self._thread is not threading.current_thread():
            self._thread.join(0.2)

    # --- the thread ---

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _session_changed(self, before: SessionView, after: SessionView) -> None:
        def news(view: SessionView) -> object:
            return view.state, view.slot, view.lease.lease_id if view.lease else None

        if news(before) != news(after):
            self._wake()

    def _run(self) -> None:
        while True:
            with self._condition:
                due = self._due()
                while not self._closed and due > 0:
                    self._condition.wait(due if due != float("inf") else None)
                    due = self._due()
                if self._closed:
                    return
            try:
                self._write_if_new()
            except errors.ClientClosed:
                return
            except errors.LeaseLost as error:
                _log.debug("The report waits for the next lease: %s", error)
            except Exception as error:
                self._failed(error)

    def _due(self) -> float:
        """Seconds until there may be something to write; infinite while there is no session to write under."""
        view = self._client.session.view()
        if view.state is not SessionState.CONNECTED or view.lease is None:
            return float("inf")
        now = self._clock.monotonic()
        if self._failures:
            return self._not_before - now
        stored = self._stored
        at_once = (
            self._hurry
            or stored is None
            or self._stored_lease != view.lease.lease_id
            or (stored.slot, stored.epoch) != ((view.slot.index, view.slot.epoch) if view.slot else (None, None))
            or stored.drain != self._client._drain_state
        )
        return 0.0 if at_once else self._not_before - now

    def _write_if_new(self) -> None:
        with self._condition:
            self._hurry = False
            report, checkpoint_at = self.report(), self._checkpoint_at
            new = not self._holds(report)
        started = self._clock.monotonic()
        if new:
            lease = self._key.put(report.encode(), _WRITE_TIMEOUT)
            if self._failures:
                _log.info("Reports are written again")
        with self._condition:
            if new:
                self._stored, self._stored_lease, self._stored_checkpoint_at = report, lease, checkpoint_at
            self._failures = 0
            self._not_before = started + self._interval
            self._condition.notify_all()

    def _failed(self, error: Exception) -> None:
        # One line per outage, the rest is detail.
        _log.log(logging.DEBUG if self._failures else logging.WARNING, "The report was not written: %s", error)
        if not isinstance(error, errors.EdlAgentError):
            _log.debug("", exc_info=error)
        with self._condition:
            self._failures += 1
            pause = min(_LONGEST_BACKOFF, _RETRY * 2 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1.0)
            self._not_before = self._clock.monotonic() + pause

    def _is_stored(self) -> bool:
        return self._holds(self.report())

    def _holds(self, report: Report) -> bool:
        """Whether etcd has this already, but for the passing of time."""
        if self._stored is None or self._stored_lease != self._client.session.lease_id:
            return False
        before, now = self._stored_checkpoint_at, self._checkpoint_at
        if (before is None) != (now is None) or (before is not None and now is not None and abs(before - now) > _MOVED):
            return False
        return report.same_news(self._stored)


def check_report_name(name: str | None) -> str:
    """The name under which a process reports and is asked to drain: as given, else ``POD_NAME``, else hostname-pid.

    Raises:
        ConfigurationError: not 1 to 253 printable ASCII characters without blanks and slashes.
    """
    checked = check_name(name or default_name(os.environ))
    if "/" in checked:
        raise errors.ConfigurationError(f"the name {checked!r} must not hold a slash: it is one part of a key")
    return checked
