"""The shell around `session`: one place that holds the view, applies changes under a lock, and tells those who wait."""

import logging
import os
import threading
from collections.abc import Callable

from edl_agent.clock import Clock
from edl_agent.errors import LeaseLost
from edl_agent.hooks import HookRunner
from edl_agent.session import Instant, SessionState, SessionView, Slot, passed

_log = logging.getLogger(__name__)

_NAP = 0.5
"""Longest wait in seconds without a look: a signal that comes just before the main thread blocks wakes nobody."""

Change = Callable[[SessionView, Instant], SessionView]


class Session:
    """The session of a client, as its program sees it.

    Every attribute is judged by the clocks at the moment it is read.

    So even where no thread of the client gets to run (a paused process, a held interpreter lock), an index whose
    deadline has passed reads as ``None``.
    """

    def __init__(self, clock: Clock, hooks: HookRunner) -> None:
        self._clock = clock
        self._hooks = hooks
        self._pid = os.getpid()
        self._condition = threading.Condition(threading.RLock())
        self._view = SessionView()
        self._lost = threading.Event()
        self._listeners: list[Callable[[SessionView, SessionView], None]] = []

    # --- for programs ---

    @property
    def state(self) -> SessionState:
        """See `SessionState`."""
        return self.view().state

    @property
    def slot(self) -> Slot | None:
        """Index, epoch, address and lease in one look; ``None`` whenever no slot is known to be held."""
        return self.view().slot

    @property
    def index(self) -> int | None:
        """The held index; ``None`` whenever it is not known to be held."""
        slot = self.view().slot
        return slot.index if slot is not None else None

    @property
    def epoch(self) -> int | None:
        """The fencing number of the held slot (mod revision of its key), or ``None``."""
        slot = self.view().slot
        return slot.epoch if slot is not None else None

    @property
    def address(self) -> str | None:
        """``ip:port`` as registered, or ``None`` while no slot is held."""
        slot = self.view().slot
        return slot.address if slot is not None else None

    @property
    def lease_id(self) -> int | None:
        """The current lease, or ``None``."""
        lease = self.view().lease
        return lease.lease_id if lease is not None else None

    @property
    def ttl(self) -> float | None:
        """The granted lease time in seconds, or ``None``."""
        lease = self.view().lease
        return lease.ttl if lease is not None else None

    @property
    def deadline(self) -> float | None:
        """When the lease may end, on ``time.monotonic()``; ``None`` without a lease.

        Each answered keepalive moves it.
        """
        lease = self.view().lease
        return lease.deadline if lease is not None else None

    @property
    def loss(self) -> LeaseLost | None:
        """Why the slot or lease was lost last; ``None`` while it is held."""
        return self.view().loss

    @property
    def lost(self) -> threading.Event:
        """An event that is set when the *present* incarnation ends.

        Take it after registering: it is never cleared; a new claim has a new one.
        """
        return self._lost  # no lock: a forked child may never get it

    def __repr__(self) -> str:
        view = self.view()
        slot = f" index={view.slot.index} epoch={view.slot.epoch}" if view.slot else ""
        return f"<Session {view.state.value}{slot}>"

    # --- for the client's own parts ---

    def view(self) -> SessionView:
        """The view at this moment."""
        view = self._view
        now = self._clock.now()
        if view.alive and passed(view, now) is not view:
            if os.getpid() != self._pid:
                # A forked child judges for itself: the lock may be held for ever by a thread that it does not have.
                return passed(view, now)
            return self.change(passed)
        return view

    def change(self, change: Change) -> SessionView:
        """Apply one of the functions of `session`; tell listeners and hooks what became of it.

        Errors of ``change`` pass through.
        """
        with self._condition:
            before = self._view
            after = change(before, self._clock.now())
            if after is before:
                return after
            self._view = after
            self._tell(before, after)
            self._condition.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener(before, after)
        return after

    def listen(self, listener: Callable[[SessionView, SessionView], None]) -> None:
        """Call ``listener(before, after)`` at each change, on the thread that made it; it must not block."""
        with self._condition:
            self._listeners.append(listener)

    def wait(self, done: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until ``done()``, looked at after each change and each `nudge`.

        Returns whether it became true in time.
        """
        end = None if seconds is None else self._clock.monotonic() + seconds
        with self._condition:
            while not done():
                left = _NAP if end is None else min(_NAP, end - self._clock.monotonic())
                if left <= 0:
                    return False
                self._condition.wait(left)
            return True

    def nudge(self) -> None:
        """Let those who wait look again."""
        with self._condition:
            self._condition.notify_all()

    def _tell(self, before: SessionView, after: SessionView) -> None:
        if after.slot is not None and before.slot is not None and after.slot.lease_id == before.slot.lease_id:
            if after.slot != before.slot:
                _log.info("The key of slot %d was put anew, epoch %d", after.slot.index, after.slot.epoch)
        elif after.slot is not None:
            if self._lost.is_set():
                self._lost = threading.Event()
            _log.info(
                "Registered as %s %d (address %s, epoch %d)",
                after.slot.role,
                after.slot.index,
                after.slot.address,
                after.slot.epoch,
            )
            self._hooks.fire("registered", after.slot)
        elif after.incarnation != before.incarnation and self._lost.is_set():
            self._lost = threading.Event()
        if before.alive and not after.alive:
            self._lost.set()
        if after.state is SessionState.LOST and before.alive:
            slot = before.slot
            held = f"{slot.role} {slot.index} (epoch {slot.epoch})" if slot else "lease without a slot"
            _log.warning("Lost %s: %s", held, after.loss)
            self._hooks.fire("lost", after.loss, before.slot)
        elif after.state is SessionState.SUSPENDED:
            self._hooks.fire("suspended")
        elif before.state is SessionState.SUSPENDED and after.state is SessionState.CONNECTED:
            self._hooks.fire("connected")
