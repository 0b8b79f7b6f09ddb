"""The keepalive thread around the session.

Renews the lease, moves elsewhere on a miss, and lets time pass for the session.

It starts no other work: hooks, claims and watches run elsewhere, so nothing of theirs can hold up a renewal.
"""

import contextlib
import logging
import random
import threading
from collections.abc import Callable

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.lease import Leases
from edl_agent.live_session import Session
from edl_agent.session import SUSPENDED_AFTER, LeaseView, SessionState, answered, lost

_log = logging.getLogger(__name__)

INTERVAL = 1 / 3
"""Share of the TTL between renewals (etcd's own client)."""

ATTEMPT = 1 / 4
"""Share of the TTL that one renewal may take: one interval and two attempts stay below the TTL (1/3 + 2/4 < 1)."""

LATE = 1 / 6
"""Share of the TTL by which the thread may wake late before it is worth a warning."""

_REST = 1.0
"""Longest sleep in seconds: a deadline by CLOCK_BOOTTIME is noticed this soon after a suspended machine goes on."""

_PAUSE = (0.25, 0.5)
"""Seconds between renewals that fail at once (invariant I6: at most 5 calls/s while the store is away)."""

_IDENTITY_CHECK = 10.0
"""Seconds between looks at the TLS files (fault row A22: new connections use them within 60 s)."""


class Keeper:
    """Renews the session's lease until stopped.

    ``on_tick`` is called with the monotonic time at least once a second; it must be quick.

    Attributes:
        ticked: when the thread last looked at what is due, on the clock's ``monotonic``.
    """

    def __init__(
        self, session: Session, leases: Leases, connection: Connection, clock: Clock, on_tick: Callable[[float], None]
    ) -> None:
        self._session = session
        self._leases = leases
        self._connection = connection
        self._clock = clock
        self._on_tick = on_tick
        self._wake = threading.Event()
        self._stopping = False
        self._missed = 0
        self._not_before = 0.0
        self._identity_checked = clock.monotonic()
        self.ticked = clock.monotonic()
        self.thread = threading.Thread(target=self._run, name="edl-keeper", daemon=True)
        session.listen(lambda before, after: self._wake.set() if after.incarnation != before.incarnation else None)

    def stop(self) -> None:
        """Ask the thread to end; it does after the renewal under way."""
        self._stopping = True
        self._wake.set()

    def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._turn()
                except errors.ClientClosed:
                    return
                except BaseException:
                    # Whatever it was (a full file table, no memory, a fault of ours, a SystemExit out of somebody's log
                    # handler): the lease must go on being renewed.
                    with contextlib.suppress(BaseException):
                        _log.exception("The keepalive thread met an unexpected error and goes on")
                    with contextlib.suppress(BaseException):
                        self._wake.wait(_PAUSE[0])
                        self._wake.clear()
        finally:
            # Never "alive" without a thread that renews (fault row A40).
            if not self._stopping:
                self._session.change(lambda view, now: lost(view, errors.LeaseLost("the keepalive thread ended")))

    def _turn(self) -> None:
        delay = self._step()
        planned = self._clock.monotonic() + delay
        woken = self._wake.wait(delay)
        self._wake.clear()
        if not woken:
            self._check_lateness(self._clock.monotonic() - planned)

    def _step(self) -> float:
        """Renew if it is due; returns seconds until something is due again."""
        now = self.ticked = self._clock.monotonic()
        if now - self._identity_checked >= _IDENTITY_CHECK:
            self._identity_checked = now
            self._connection.choice.refresh_identity()
        self._on_tick(now)
        view = self._session.view()
        if not view.alive or view.lease is None:
            self._missed = 0
            return _REST
        lease = view.lease
        due = max(lease.answered.monotonic + lease.ttl * INTERVAL, self._not_before)
        if now >= due:
            self._renew(lease)
            return 0.0
        left = lease.left(self._clock.now())
        edges = [due - now, left, left - lease.ttl * (1 - SUSPENDED_AFTER)]
        return min([_REST, *(edge for edge in edges if edge > 0)])

    def _renew(self, lease: LeaseView) -> None:
        sent = self._clock.now()
        limit = min(lease.ttl * ATTEMPT, lease.left(sent))
        try:
            ttl = self._leases.keep_alive(lease.lease_id, sent.monotonic + limit, limit)
        except errors.ClientClosed:
            raise
        except errors.EdlAgentError as error:
            self._miss(error, sent.monotonic)
            return
        self._not_before = 0.0
        after = self._session.change(lambda view, now: answered(view, lease.lease_id, ttl, sent, now))
        if self._missed and after.state is SessionState.CONNECTED:
            _log.info("Keepalive answered again after %d misses", self._missed)
        self._missed = 0

    def _miss(self, error: errors.EdlAgentError, started: float) -> None:
        self._missed += 1
        # One line per outage, the rest is detail.
        _log.log(logging.WARNING if self._missed == 1 else logging.DEBUG, "Keepalive not answered: %s", error)
        self._session.view()
        self._not_before = started + random.uniform(*_PAUSE)

    def _check_lateness(self, late: float) -> None:
        ttl = self._session.ttl
        if ttl is not None and late > ttl * LATE:
            _log.warning(
                "The keepalive thread woke %.1f s late (lease time %g s): is C code holding the interpreter lock, "
                "or the machine overloaded?",
                late,
                ttl,
            )
