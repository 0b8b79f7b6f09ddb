"""PURE: leader election by a Lease: what one of several replicas knows, and what it does next.

The rules are client-go's (``tools/leaderelection``), with its figures, and stricter in what one's own time decides:

- **Times are one's own.** A lease counts from the moment at which *this* replica first saw its record unchanged. The
  times in the record are for people: the clocks of two machines may differ by any amount.
- **The leader's own deadline.** It leads for ``renew_deadline`` seconds from the *sending* of the last write that is
  known to have succeeded, never longer, whatever happened since; others wait for ``lease`` seconds, which is more.
- **Losing is final.** Who has lost does not compete again under the same `View`: its program ends.
- A record whose holder is ``""`` was released and is free at once; so is a lease that is not there at the first look.
  Where one vanishes later (somebody deleted it), its holder creates it anew; others wait for as long as if it had just
  been renewed. (Who deletes it twice within that time, or before a new replica has seen it, asks for two leaders.)
- Every write carries the version of the record it is based on, so of two replicas one gets it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from edl_controller.api import timestamps
from edl_controller.api.leases import Lease, LeaseSpec
from edl_controller.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class ElectionSettings:
    """Times of an election, in seconds; the same for all replicas.

    Raises:
        ConfigurationError: they cannot work together.
    """

    lease: float = 15.0
    """Without a change of the record for so long, others take over."""
    renew_deadline: float = 10.0
    """Without a renewal for so long, the leader leads no more."""
    retry: float = 2.0
    """Between two tries to renew or to take over, at least."""
    jitter: float = 1.2
    """Between two tries lie at most ``retry`` x ``jitter``: replicas must not keep step."""

    def __post_init__(self) -> None:
        for name in ("lease", "renew_deadline", "retry", "jitter"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise ConfigurationError(f"leader election: {name} must be a positive number, not {value!r}")
        if self.jitter < 1:
            raise ConfigurationError(f"leader election: jitter must be at least 1, not {self.jitter:g}")
        if self.lease <= self.renew_deadline:
            raise ConfigurationError(
                f"leader election: the lease ({self.lease:g} s) must be longer than the renew deadline "
                f"({self.renew_deadline:g} s), or a second one leads before the first has stopped"
            )
        if self.renew_deadline <= self.retry * self.jitter:
            raise ConfigurationError(
                f"leader election: the renew deadline ({self.renew_deadline:g} s) must be longer than retry x jitter "
                f"({self.retry:g} s x {self.jitter:g}), or the leader cannot renew in time"
            )

    @property
    def attempt(self) -> float:
        """Seconds that one request may take: one interval and two requests that hang stay below the deadline."""
        return min(self.renew_deadline / 4, (self.renew_deadline - self.retry * self.jitter) / 2)

    def pause(self, chance: float) -> float:
        """Return the seconds to the next try; ``chance`` is from 0 to 1."""
        return self.retry * (1.0 + (self.jitter - 1.0) * chance)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen of the lease."""

    lease: Lease | None
    """As it was seen last; None: there was none."""
    since: float
    """When the record was first seen like this, by one's own clock, after the answer had come."""
    holds: float
    """Seconds from ``since`` for which a holder other than oneself may believe to lead."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What one replica knows of the election. It changes only by the functions below; times are of one own clock."""

    identity: str
    """One's own: of this process alone, never used again."""
    seen: Seen | None = None
    fresh: bool = False
    """Nothing is known to have happened since it was seen; a failed write, or one without an answer, ends that."""
    renewed: float | None = None
    """When the write was sent that made one the leader or kept one so; None: one does not lead."""
    next_try: float = -math.inf
    """Nothing is asked before, but for a lease that becomes free."""
    lost: str = ""
    """Why one leads no more; for good."""


@dataclass(frozen=True)
class Look:
    """Read the lease."""


@dataclass(frozen=True)
class Acquire:
    """Create the lease, or write oneself into the one that was seen."""


@dataclass(frozen=True)
class Renew:
    """Write that one is still there."""


@dataclass(frozen=True)
class Wait:
    """Do nothing until then."""

    until: float


@dataclass(frozen=True)
class StepDown:
    """Lead no more."""

    why: str


Decision = Look | Acquire | Renew | Wait | StepDown


def deadline(view: View, settings: ElectionSettings) -> float:
    """Return the moment from which one leads no more unless a renewal succeeds; in the past for who does not lead."""
    return -math.inf if view.renewed is None or view.lost else view.renewed + settings.renew_deadline


def leads(view: View, settings: ElectionSettings, now: float) -> bool:
    """Tell whether one leads at this moment."""
    return now < deadline(view, settings)


def decide(view: View, settings: ElectionSettings, now: float) -> Decision:
    """Return what to do at this moment."""
    if view.lost:
        return StepDown(view.lost)
    if view.renewed is not None:
        return _decide_as_leader(view, settings, now)
    if view.fresh and view.seen is not None:
        free = view.seen.since + view.seen.holds
        if now >= free:
            return Acquire()
        return Wait(min(free, view.next_try)) if now < view.next_try else Look()
    return Wait(view.next_try) if now < view.next_try else Look()


def _decide_as_leader(view: View, settings: ElectionSettings, now: float) -> Decision:
    end = deadline(view, settings)
    if now >= end:
        return StepDown(f"the lease could not be renewed within {settings.renew_deadline:g} s")
    lease = view.seen.lease if view.seen is not None else None
    if view.fresh and lease is not None and lease.spec.holder_identity != view.identity:
        return StepDown(f"the lease is held by {lease.spec.holder_identity!r}")
    if now < view.next_try:
        return Wait(min(view.next_try, end))
    if not view.fresh:
        return Look()
    return Renew() if lease is not None else Acquire()


def looked(view: View, settings: ElectionSettings, lease: Lease | None, now: float, pause: float) -> View:
    """Return the view after the lease was read.

    Args:
        view: before.
        settings: give the length of a lease that states none.
        lease: what was read; None: there is none.
        now: after the answer had come.
        pause: seconds to the next look (`ElectionSettings.pause`). Who leads renews at once.
    """
    next_try = view.next_try if view.renewed is not None else now + pause
    return replace(view, seen=_seen(view, settings, lease, now), fresh=True, next_try=next_try)


def _seen(view: View, settings: ElectionSettings, lease: Lease | None, now: float) -> Seen:
    before = view.seen
    if before is not None and _same(before.lease, lease):
        return replace(before, lease=lease)  # the version may be another: somebody wrote a label
    length = float(math.ceil(settings.lease))
    if lease is None:
        # It vanished: somebody may have held it after the last look, and may create it anew.
        return Seen(lease=None, since=now, holds=0.0 if before is None else max(before.holds, length))
    spec = lease.spec
    if spec.holder_identity in ("", view.identity):
        return Seen(lease=lease, since=now, holds=0.0)
    return Seen(lease=lease, since=now, holds=float(spec.lease_duration_seconds or length))


def _same(one: Lease | None, other: Lease | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.metadata.uid == other.metadata.uid and one.spec == other.spec


def wrote(view: View, settings: ElectionSettings, lease: Lease, sent: float, now: float, pause: float) -> View:
    """Return the view after one's own write succeeded. An answer after the deadline makes nobody the leader.

    Args:
        view: before.
        settings: give the deadline.
        lease: as the server has it now.
        sent: before the request was sent: from here on one leads.
        now: after the answer had come.
        pause: seconds to the next try.
    """
    if view.renewed is not None and now >= deadline(view, settings):
        return view  # it has been lost meanwhile
    if now >= sent + settings.renew_deadline:
        return failed(view, now, pause)
    seen = Seen(lease=lease, since=now, holds=0.0)
    return replace(view, seen=seen, fresh=True, renewed=sent, next_try=sent + pause)


def failed(view: View, now: float, pause: float) -> View:
    """Return the view after a request was refused or had no answer; a write may have been done or may still be."""
    return replace(view, fresh=False, next_try=now + pause)


def stepped_down(view: View, why: str) -> View:
    """Return the view of one that leads no more; the first reason stays."""
    return view if view.lost else replace(view, lost=why)


def acquired_spec(view: View, settings: ElectionSettings, wall: float) -> LeaseSpec:
    """Return the record to write in order to lead. ``wall``: Unix seconds, for people."""
    before = view.seen.lease.spec if view.seen is not None and view.seen.lease is not None else None
    mine = before is not None and before.holder_identity == view.identity
    return LeaseSpec(
        holder_identity=view.identity,
        lease_duration_seconds=math.ceil(settings.lease),
        acquire_time=before.acquire_time if before is not None and mine else timestamps.render_micro(wall),
        renew_time=_another_time(before, wall),
        lease_transitions=0 if before is None else before.lease_transitions + (not mine),
    )


def released_spec(before: LeaseSpec, wall: float) -> LeaseSpec:
    """Return the record that lets the others lead at once."""
    time = _another_time(before, wall)
    return LeaseSpec(
        lease_duration_seconds=1, acquire_time=time, renew_time=time, lease_transitions=before.lease_transitions
    )


def _another_time(before: LeaseSpec | None, wall: float) -> str:
    """Return the time as text; another than before even where the clock stands: others look for a change."""
    text = timestamps.render_micro(wall)
    return text if before is None or text != before.renew_time else timestamps.render_micro(wall + 1e-5)


def patch_of(spec: LeaseSpec) -> dict[str, Any]:
    """Return the merge patch that writes the whole record; what is empty, too."""
    return {
        "spec": {
            "holderIdentity": spec.holder_identity,
            "leaseDurationSeconds": spec.lease_duration_seconds,
            "acquireTime": spec.acquire_time,
            "renewTime": spec.renew_time,
            "leaseTransitions": spec.lease_transitions,
        }
    }
