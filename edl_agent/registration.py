"""The shell around `slots`: a thread that gets a lease, claims a slot, guards it, and begins again after a loss."""

import contextlib
import logging
import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edl_agent import errors
from edl_agent.address import join, route_source
from edl_agent.claiming import Blocked, Claims, Held
from edl_agent.clock import Clock
from edl_agent.config import Settings
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.lease import Leases
from edl_agent.etcd.watch import WatchStream
from edl_agent.hooks import HookRunner
from edl_agent.keys import Role
from edl_agent.live_session import Session
from edl_agent.session import SessionView, Slot, claimed, granted, lost, released, renewed
from edl_agent.slots import Claimant, Holding, SlotKey, judge_desired, judge_slot
from edl_agent.watch_cursor import EventType, WatchEvent

_log = logging.getLogger(__name__)

_LONGEST_BACKOFF = 30.0
"""Seconds between attempts that fail for a lasting reason, such as a wrong password (fault row A21)."""

_FIRST_LINE, _NEXT_LINE = 2.0, 30.0
"""Seconds of waiting before the first log line, and between lines (report M31: one in 30 s at most)."""

_REVOKE_SECONDS = 1.0
"""For a lease that is no longer needed and would expire by itself."""

_FATAL = (
    errors.AuthenticationFailed,
    errors.PermissionDenied,
    errors.NoSpace,
    errors.InvalidDesiredCount,
    errors.RequestRefused,
    errors.SlotsFull,
    errors.ProtocolError,
)
"""What ends a first `register`. After a slot was held once, all of these are tried again with back-off."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What the session is for.

    Attributes:
        role: whose slot to claim; ``None`` = a lease without a slot.
        port: of the pserver.
        host: of the pserver, ``None`` = the source of the route to etcd; of a trainer its whole address or name.
        wait: whether to wait while all slots are held.
    """

    role: Role | None
    port: int = 0
    host: str | None = None
    wait: bool = True


class _Interrupted(Exception):
    """Internal: the goal changed, the client stops, or the lease in work is gone."""


class Registration:
    """Works towards the goal until stopped.

    Attributes:
        error: what ended the goal, if it was ended.
        reached: whether the present goal was reached at least once.
        stopping: whether `stop` was called.
        lease_in_work: the last lease asked for; revoking it settles whatever is under way.
    """

    def __init__(
        self,
        settings: Settings,
        session: Session,
        connection: Connection,
        leases: Leases,
        claims: Mapping[Role, Claims],
        clock: Clock,
        hooks: HookRunner,
    ) -> None:
        self._settings = settings
        self._session = session
        self._connection = connection
        self._leases = leases
        self._claims = claims
        self._clock = clock
        self._hooks = hooks
        self._random = random.Random()
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._goal: Goal | None = None
        self.stopping = False
        self._stream: WatchStream | None = None
        self._waiting, self._waiting_since, self._logged = "", 0.0, -_NEXT_LINE
        self._failure = ""
        self._cluster: int | None = None
        self._own_leases: frozenset[int] = frozenset()
        self._held: Slot | None = None
        self._ever_held = False
        self.reached = False
        self.error: errors.EdlAgentError | None = None
        self.lease_in_work: int | None = None
        self.thread = threading.Thread(target=self._run, name="edl-registration", daemon=True)
        session.listen(self._session_changed)

    # --- from other threads ---

    @property
    def waiting(self) -> str:
        """What is waited for at the moment, and why the last attempt failed; empty when nothing is waited for."""
        failure = self._failure
        return self._waiting + (f" (last attempt: {failure})" if self._waiting and failure else "")

    def pursue(self, goal: Goal | None) -> None:
        """Set the goal; ``None`` gives a pending one up, with its lease."""
        with self._lock:
            self._goal = goal
            self.error = None
            self.reached = False
        self._interrupt()

    def stop(self) -> None:
        """Ask the thread to end."""
        self.stopping = True
        self._interrupt()

    def log_waiting(self, now: float) -> None:
        """Say what is waited for: after 2 s, then at most each 30 s. Called now and then by the keepalive thread."""
        if self._waiting and now - self._waiting_since >= _FIRST_LINE and now - self._logged >= _NEXT_LINE:
            self._logged = now
            trouble = self._connection.choice.trouble
            _log.info("Waiting for %s%s", self.waiting, f" ({trouble})" if trouble else "")

    def _session_changed(self, before: SessionView, after: SessionView) -> None:
        if before.alive and not after.alive:
            self._connection.choice.hold_cluster(False)
            if isinstance(after.loss, errors.SlotTakenOver):
                self._end(after.loss)
            self._interrupt()

    def _interrupt(self) -> None:
        self._work.set()
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.cancel()

    # --- the thread ---

    def _run(self) -> None:
        failures = 0
        while True:
            self._work.clear()
            if self.stopping:  # after the clear, or a stop in between would be slept through
                return
            goal = self._goal
            if goal is None:
                self._wait_for("")
                self._work.wait()
                continue
            try:
                self._incarnation(goal)
            except errors.ClientClosed:
                return
            except _Interrupted:
                failures = 0
            except errors.EdlAgentError as error:
                failures += 1
                self._failed(error, failures)
            except BaseException as error:
                # Supervision: a fault of ours, or a SystemExit out of somebody's log handler, must not leave the slot
                # unclaimed for good.
                with contextlib.suppress(BaseException):
                    _log.exception("Registration met an unexpected error and goes on")
                failures += 1
                self._failed(errors.ProtocolError(f"unexpected: {error!r}"), failures)
            self._settle(goal)

    def _failed(self, error: errors.EdlAgentError, failures: int) -> None:
        if isinstance(error, errors.SlotTakenOver) or (not self._ever_held and isinstance(error, _FATAL)):
            self._end(error)
            return
        self._failure = str(error)
        seconds = min(_LONGEST_BACKOFF, 0.1 * 2 ** min(failures, 10)) * self._random.uniform(0.5, 1.0)
        _log.log(
            logging.WARNING if failures == 1 else logging.DEBUG,
            "Registration failed, next attempt in %.1f s: %s",
            seconds,
            error,
        )
        self._work.wait(seconds)

    def _end(self, error: errors.EdlAgentError) -> None:
        """The goal cannot be reached."""
        with self._lock:
            self.error = error
            self._goal = None
        self._session.nudge()

    def _settle(self, goal: Goal) -> None:
        """An incarnation is over: give its lease back, so that its keys are gone at once and not after the TTL."""
        lease_id = self.lease_in_work
        if lease_id is None or self.stopping:
            return
        view = self._session.view()
        if view.slot is not None:
            self._session.change(lambda view, now: lost(view, errors.LeaseLost("the registration was given up")))
        elif view.alive:
            self._session.change(lambda view, now: released(view))
        if self._settings.reclaim == "never" and self._ever_held:
            with self._lock:
                self._goal = None if self._goal is goal else self._goal
        self.lease_in_work = None
        self._revoke(lease_id)

    def _incarnation(self, goal: Goal) -> None:
        """One lease, from its grant to its end."""
        lease_id = self._grant(goal)
        if goal.role is None:
            self._ever_held = self.reached = True
            self._wait_for("")
            while True:
                self._check(goal, lease_id)
                self._work.wait()
                self._work.clear()
        address = self._address(goal)
        held = self._claim(goal, goal.role, lease_id, address)
        slot = Slot(held.index, held.epoch, address, goal.role, lease_id)
        self._session.change(lambda view, now: claimed(view, lease_id, slot, now))
        self._held, self._ever_held, self.reached = slot, True, True
        self._wait_for("")
        if held.replaced is not None and held.replaced != lease_id:
            self._revoke(held.replaced)
        self._guard(goal, lease_id, slot, held.revision)

    def _grant(self, goal: Goal) -> int:
        self._wait_for("etcd")
        lease_id = self._random.randrange(1, 2**62)
        self.lease_in_work = lease_id
        while True:
            sent = self._clock.now()
            try:
                ttl = self._leases.grant(lease_id, self._settings.ttl, sent.monotonic + self._settings.dial_timeout)
                break
            except errors.DeadlineExceeded:
                if self.stopping or self._goal is not goal:
                    raise _Interrupted from None
        self._failure = ""
        if self._connection.choice.cluster_id != self._cluster:
            # Leases and epochs of another cluster mean nothing in this one.
            self._cluster, self._own_leases, self._held = self._connection.choice.cluster_id, frozenset(), None
        self._own_leases |= {lease_id}
        self._connection.choice.hold_cluster(True)
        self._session.change(lambda view, now: granted(view, lease_id, ttl, sent))
        return lease_id

    def _claim(self, goal: Goal, role: Role, lease_id: int, address: str) -> Held:
        me = Claimant(
            address.encode(),
            self._settings.num_pservers,
            role == "pserver",
            self._own_leases,
            held=self._held is not None,
            preferred=self._held.index if self._held else None,
        )
        while True:
            self._check(goal, lease_id)
            try:
                outcome = self._claims[role].attempt(lease_id, me, [self._random.random() for _ in range(8)])
            except (errors.Unavailable, errors.DeadlineExceeded):
                continue
            if isinstance(outcome, Held):
                return outcome
            if outcome.wait.full and not goal.wait:
                raise errors.SlotsFull(f"no {outcome.wait.reason}")
            self._wait_for(outcome.wait.reason)
            self._await_change(goal, role, lease_id, outcome, me.address)

    def _await_change(self, goal: Goal, role: Role, lease_id: int, blocked: Blocked, address: bytes) -> None:
        """Watch the board from the revision of the look on, until something happens that could open a way."""
        family = self._settings.keys.family(role)

        def opens(event: WatchEvent) -> bool:
            return event.key == family.desired or event.type is EventType.DELETE or event.value == address

        try:
            for events in self._watch([(family.prefix, family.board_end)], blocked.board.revision + 1):
                self._check(goal, lease_id)
                if any(opens(event) for event in events):
                    return
        except errors.WatchCompacted:
            return
        self._check(goal, lease_id)

    def _guard(self, goal: Goal, lease_id: int, slot: Slot, revision: int) -> None:
        """Watch the own key and the count until the slot is lost or given up.

        A watch by all on all slots would be quadratic.
        """
        family = self._settings.keys.family(slot.role)
        mine = Holding(slot.index, slot.address.encode(), slot.epoch, lease_id)
        key = family.key(slot.index)
        ranges = [(key, b"")] if family.desired is None else [(key, b""), (family.desired, b"")]
        pause = 0.1
        compacted = False
        while True:
            try:
                if compacted:
                    revision, compacted = self._look_again(slot.role, mine), False
                for events in self._watch(ranges, revision + 1):
                    for event in events:
                        self._seen(event, mine, key)
                    self._check(goal, lease_id)
                    pause = 0.1
            except errors.WatchCompacted:
                compacted = True
            except errors.ClientClosed:
                raise
            except errors.EdlAgentError as error:
                # The lease is still kept, so the slot is; only news of it may come late.
                _log.warning("Cannot watch slot %d, next attempt in %.1f s: %s", slot.index, pause, error)
                self._work.wait(pause)
                pause = min(_LONGEST_BACKOFF, pause * 2)
            self._check(goal, lease_id)

    def _look_again(self, role: Role, mine: Holding) -> int:
        """What became of the slot and the count while the watch could not tell; returns the revision of the look."""
        board = self._claims[role].look()
        self._slot_seen(next((one for one in board.slots if one.index == mine.index), None), mine)
        if board.desired is not None:
            self._lose(judge_desired(board.desired, mine)[1])
        return board.revision

    def _seen(self, event: WatchEvent, mine: Holding, key: bytes) -> None:
        deleted = event.type is EventType.DELETE
        if event.key == key:
            if event.mod_revision > mine.epoch:
                self._slot_seen(
                    None if deleted else SlotKey(mine.index, event.value, event.mod_revision, event.lease), mine
                )
        elif deleted:
            _log.warning("/ps_desired was deleted; the held slots stay, new ones wait")
        else:
            desired, loss = judge_desired(event.value, mine)
            if desired is None:
                _log.warning(
                    "/ps_desired was set to %r, which is no usable count; the held slots stay", event.value[:40]
                )
            else:
                self._hooks.fire("desired_changed", desired)
            self._lose(loss)

    def _slot_seen(self, present: SlotKey | None, mine: Holding) -> None:
        """The own key, newer than the claim."""
        if present is not None and mine.renewed_by(present):
            epoch = present.mod_revision
            self._session.change(lambda view, now: renewed(view, mine.lease, epoch))
        else:
            self._lose(judge_slot(present, mine))

    def _lose(self, loss: errors.LeaseLost | None) -> None:
        if loss is not None:
            self._session.change(lambda view, now: lost(view, loss))

    def _watch(self, ranges: list[tuple[bytes, bytes]], revision: int) -> Iterator[tuple[WatchEvent, ...]]:
        """The events of some ranges, until `_interrupt`."""
        stream = WatchStream(self._connection, ranges, revision, self._clock)
        with self._lock:
            self._stream = stream
        if self._work.is_set():  # interrupted before the stream could be cancelled; who iterates checks why
            self._work.clear()
            return
        try:
            for step in stream.steps():
                yield step.events
        finally:
            with self._lock:
                self._stream = None
            stream.cancel()

    def _check(self, goal: Goal, lease_id: int) -> None:
        view = self._session.view()
        if (
            self.stopping
            or self._goal is not goal
            or not view.alive
            or view.lease is None
            or view.lease.lease_id != lease_id
        ):
            raise _Interrupted

    def _revoke(self, lease_id: int) -> None:
        try:
            self._leases.revoke(lease_id, self._clock.monotonic() + _REVOKE_SECONDS)
        except errors.EdlAgentError as error:
            _log.debug("Old lease %x not revoked, it expires by itself: %s", lease_id, error)

    def _address(self, goal: Goal) -> str:
        if goal.role == "trainer":
            return goal.host or ""
        return join(
            goal.host or route_source(self._connection.choice.endpoint or self._connection.choice.endpoints[0]),
            goal.port,
        )

    def _wait_for(self, what: str) -> None:
        if what != self._waiting:
            if not self._waiting:
                self._waiting_since = self._clock.monotonic()
            self._waiting = what
