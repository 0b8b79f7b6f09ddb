"""PURE: the lease's state machine. Values in, values out; time is an argument.

A `SessionView` is what is known about one client's session at one moment. It changes only by the functions here:

* `granted`: etcd gave a lease;  `answered`: a keepalive was answered;  `passed`: time went by;
* `claimed`: a slot was put under the lease;  `renewed`: put again, with a higher epoch;
* `lost`: it is known to be gone;  `closed`: shut down.

The deadline is *send time of the last answered keepalive + granted TTL*. The server counts from the moment it received
that keepalive, so its end of the lease never comes before ours (etcd's client keeps the same local deadline,
client/v3/lease.go). It is watched on two clocks, since CLOCK_MONOTONIC stands still while a machine is suspended and
the server's clock does not.
"""

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

from edl_agent.errors import LeaseLost
from edl_agent.keys import Role


class Instant(NamedTuple):
    """One moment on the two clocks that decide over a lease, in seconds.

    Attributes:
        monotonic: ``time.monotonic()``; stands still while a machine is suspended.
        boottime: ``CLOCK_BOOTTIME``; goes on while a machine is suspended (Linux; elsewhere equal to ``monotonic``).
    """

    monotonic: float
    boottime: float


SUSPENDED_AFTER = 5 / 6
"""Share of the TTL without an answer after which a session is *suspended*.

A keepalive is due after a third of the TTL, so the last answer may be that old when etcd goes away; an outage of half a
TTL is to pass unnoticed (row A6 of the fault list): 1/3 + 1/2.
"""


class SessionState(enum.Enum):
    """What a program may assume (see docs/agent.md)."""

    NEW = "new"
    """No lease was ever held."""
    CONNECTED = "connected"
    """The last keepalive was answered not long ago."""
    SUSPENDED = "suspended"
    """No answer, but the lease cannot have ended yet: keep serving, start nothing new."""
    LOST = "lost"
    """The lease or slot is gone, or may be: stop serving the index at once."""
    CLOSED = "closed"
    """Shut down by the program."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A held pserver index.

    Attributes:
        index: 0-based.
        epoch: mod revision of the slot key: the fencing number; higher for every incarnation.
        address: ``ip:port`` as put.
        role: whose slots.
        lease_id: the lease that it is held under.
    """

    index: int
    epoch: int
    address: str
    role: Role = "pserver"
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease as seen from here: its id, its granted TTL in seconds.

    And the send time of the last answered keepalive (or grant).
    """

    lease_id: int
    ttl: float
    answered: Instant

    @property
    def deadline(self) -> float:
        """On ``time.monotonic()``; nobody may serve under this lease from then on."""
        return self.answered.monotonic + self.ttl

    def left(self, now: Instant) -> float:
        """Seconds until the deadline by the stricter of the two clocks; negative when past."""
        return self.ttl - max(now.monotonic - self.answered.monotonic, now.boottime - self.answered.boottime)


@dataclass(frozen=True, slots=True)
class SessionView:
    """One moment of a session.

    Attributes:
        state: as last decided; `passed` brings it up to date.
        lease: the current lease, ``None`` where there is none.
        slot: the held slot, ``None`` whenever it is not known to be held.
        incarnation: counts the leases that this client had.
        loss: why the last lease or slot went, ``None`` if none did since it was claimed.
    """

    state: SessionState = SessionState.NEW
    lease: LeaseView | None = None
    slot: Slot | None = None
    incarnation: int = 0
    loss: LeaseLost | None = None

    @property
    def alive(self) -> bool:
        """Whether the lease may be relied on."""
        return self.state in (SessionState.CONNECTED, SessionState.SUSPENDED)


def granted(view: SessionView, lease_id: int, ttl: float, sent: Instant) -> SessionView:
    """A new lease, asked for at ``sent``. A closed session stays closed."""
    if view.state is SessionState.CLOSED:
        return view
    return SessionView(SessionState.CONNECTED, LeaseView(lease_id, ttl, sent), None, view.incarnation + 1, view.loss)


def answered(view: SessionView, lease_id: int, ttl: float, sent: Instant, now: Instant) -> SessionView:
    """The keepalive sent at ``sent`` was answered with ``ttl`` seconds.

    ``ttl <= 0`` means that the server no longer knows the lease.

    Answers for another lease, and answers that come after the loss, change nothing: what is lost stays lost.
    """
    if not view.alive or view.lease is None or view.lease.lease_id != lease_id:
        return view
    if ttl <= 0:
        return lost(view, LeaseLost("etcd no longer knows the lease (expired or revoked)"))
    if sent < view.lease.answered:
        return passed(view, now)
    # The state is judged on what was known before: an answer that arrives after the deadline has passed comes too late.
    if passed(view, now).state is SessionState.LOST:
        return passed(view, now)
    return passed(replace(view, state=SessionState.CONNECTED, lease=LeaseView(lease_id, ttl, sent)), now)


def passed(view: SessionView, now: Instant) -> SessionView:
    """The view at ``now``: connected, suspended or lost by the age of the last answer."""
    if not view.alive or view.lease is None:
        return view
    left = view.lease.left(now)
    if left <= 0:
        return lost(view, LeaseLost(f"no keepalive was answered for the whole lease time of {view.lease.ttl:g} s"))
    suspended = view.lease.ttl - left >= view.lease.ttl * SUSPENDED_AFTER
    state = SessionState.SUSPENDED if suspended else SessionState.CONNECTED
    return view if state is view.state else replace(view, state=state)


def claimed(view: SessionView, lease_id: int, slot: Slot, now: Instant) -> SessionView:
    """A slot was put under ``lease_id``.

    Raises:
        LeaseLost: that lease is no longer the live one, so the index must not be handed out (etcd issue 11456).
    """
    current = passed(view, now)
    if not current.alive or current.lease is None or current.lease.lease_id != lease_id:
        raise LeaseLost("the lease ended while the slot was being claimed")
    return replace(current, slot=slot, loss=None)


def renewed(view: SessionView, lease_id: int, epoch: int) -> SessionView:
    """The slot key was put anew under the same lease, by this very client: the same slot with a higher epoch.

    News of it come from the answer and from the watch, in any order; what is older than known changes nothing.
    """
    slot = view.slot
    if slot is None or slot.lease_id != lease_id or epoch <= slot.epoch:
        return view
    return replace(view, slot=replace(slot, epoch=epoch))


def lost(view: SessionView, loss: LeaseLost) -> SessionView:
    """The lease or slot is gone, for the given reason. Nothing to lose: nothing changes."""
    if not view.alive:
        return view
    return replace(view, state=SessionState.LOST, lease=None, slot=None, loss=loss)


def released(view: SessionView) -> SessionView:
    """The lease was given up on purpose without a slot (a registration that ended in an error).

    As if nothing had been asked for.
    """
    return view if view.state is SessionState.CLOSED else replace(view, state=SessionState.NEW, lease=None, slot=None)


def closed(view: SessionView) -> SessionView:
    """Shut down; final."""
    return replace(view, state=SessionState.CLOSED, lease=None, slot=None)
