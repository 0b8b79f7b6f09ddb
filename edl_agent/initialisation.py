"""Which trainer initialises the parameters, once for the job; again when all pservers lost them.

The original's protocol (``/init_ps/lock/<lease>``, ``/init_ps/done`` = "1"), so that its clients wait for ours and ours
for them, and beside it what the original lacked: a record of the epochs that were initialised (``/edl/init/epochs``),
and what each pserver says of itself (``/edl/init/<i>``). The rules are in `initialisation_rules`.
"""

import contextlib
import logging
import math
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from edl_agent import errors
from edl_agent.etcd import kv as kv_parts
from edl_agent.etcd.watch import WatchStream
from edl_agent.initialisation_rules import (
    InitBoard,
    Initialised,
    Needed,
    NotYet,
    PserverData,
    decode_data,
    decode_epochs,
    encode_data,
    encode_epochs,
    judge,
)
from edl_agent.keys import parse_desired, prefix_end
from edl_agent.live_range import pump
from edl_agent.watch_cursor import Step

if TYPE_CHECKING:
    from edl_agent.client import EtcdClient

_log = logging.getLogger(__name__)

GRACE = 10.0
"""Seconds that a new pserver is given to say whether it holds parameters."""

_LOOK_AGAIN = 5.0
"""Seconds between looks while the watch is silent."""

_PAUSE = 0.25


@dataclass(frozen=True, slots=True)
class Duty:
    """What this trainer is to initialise before it calls `Initialisation.finish`.

    Attributes:
        epochs: index -> epoch of the pservers to initialise; send the epoch along.
        again: whether parameters had been there before and were lost: start from the newest checkpoint if there is one.
    """

    epochs: dict[int, int]
    again: bool


class _Seen(NamedTuple):
    board: InitBoard
    revision: int
    done_revision: int
    locks: tuple[tuple[int, bytes, int], ...]
    """Create revision, full key, lease; the lowest is the holder."""


class _Lock(NamedTuple):
    key: bytes
    lease: int
    revision: int


class Initialisation:
    """Decides between the trainers of a job. Not thread-safe.

    Args:
        client: with a session: the lock is under its lease, so that a dead initialiser's turn passes on.
        partial: also hand out the initialisation of single pservers that lost their parameters while others kept them.
        grace: seconds that a new pserver is given to say whether it holds parameters.

    Example::

        initialisation = Initialisation(client)
        duty = initialisation.begin(timeout=300)
        if duty is not None:
            for index, epoch in duty.epochs.items():
                send_initial_parameters(index, epoch)
            initialisation.finish()
    """

    def __init__(self, client: "EtcdClient", *, partial: bool = False, grace: float = GRACE) -> None:
        client._check_usable()
        self._client = client
        self._clock = client._clock
        self._partial = partial
        self._grace = grace
        keys = client._keys
        self._family = keys.pservers
        self._locks, self._done = keys.full("/init_ps/lock/"), keys.full("/init_ps/done")
        self._data, self._record = keys.full("/edl/init/"), keys.full("/edl/init/epochs")
        self._checkpoints = keys.full("/checkpoints/")
        self._ranges = [
            (self._locks, prefix_end(self._locks)),
            (self._done, b""),
            (self._data, prefix_end(self._data)),
            (self._family.prefix, self._family.board_end),
        ]
        self._first_seen: dict[tuple[int, int], float] = {}
        self._duty: tuple[Duty, _Lock, dict[int, int]] | None = None
        self._queued = False

    # --- trainers ---

    def begin(self, timeout: float | None = None) -> Duty | None:
        """Wait until it is known whether somebody has to initialise the parameters, and who.

        Args:
            timeout: seconds; ``None`` waits for ever.

        Returns:
            The duty, if it is this trainer's: initialise, then call `finish` (or `give_up`). ``None``: the parameters
            are initialised.

        Raises:
            DeadlineExceeded: the timeout passed; the text says what was waited for.
            LeaseLost: there is no session, or it ended meanwhile.
            EdlAgentError: etcd refuses.
        """
        self._client._check_usable()
        end = math.inf if timeout is None else self._clock.monotonic() + timeout
        lease = self._client._live_lease()
        if self._duty is not None and self._duty[1].lease == lease:
            return self._duty[0]
        self._duty = None
        reason = "etcd"
        lock = self._locks + f"{lease:x}".encode()
        try:
            with _News(self._client, self._ranges) as news:
                while True:
                    if self._client._live_lease() != lease:
                        raise errors.LeaseLost("the session ended while waiting for the initialisation")
                    pause = _PAUSE
                    try:
                        seen = self._look(end)
                        outcome = self._advance(seen, lock, lease, end)
                        if not isinstance(outcome, NotYet):
                            return outcome
                        reason, pause = outcome.reason, self._until_next_look(seen)
                        news.follow(seen.revision)
                    except (errors.Unavailable, errors.UnknownOutcome) as error:
                        reason = f"etcd ({error})"
                    except errors.DeadlineExceeded as error:
                        if self._clock.monotonic() < end:
                            reason = f"etcd ({error})"
                    left = end - self._clock.monotonic()
                    if left <= 0:
                        raise errors.DeadlineExceeded(
                            f"not known within {timeout:g} s whether to initialise, waiting for {reason}"
                        )
                    news.wait(min(left, pause))
        except errors.EdlAgentError:
            if not self._queued:
                raise
            self._queued = False
            with contextlib.suppress(errors.EdlAgentError):
                self._client._kv.txn([], [kv_parts.delete_op(lock)], [], self._clock.monotonic() + 1.0)
            raise

    def finish(self, timeout: float = 5.0) -> None:
        """The parameters are initialised: record it, guarded by the lock, and give the lock back.

        Args:
            timeout: seconds.

        Raises:
            LeaseLost: the lock was lost meanwhile; nothing was recorded, somebody else initialises.
            DeadlineExceeded, Unavailable: etcd was not reached; call it again.
            ConfigurationError: there is no duty.
        """
        if self._duty is None:
            raise errors.ConfigurationError("there is nothing to finish: begin() gave no duty")
        duty, lock, kept = self._duty
        record = encode_epochs(kept | duty.epochs)
        end = self._clock.monotonic() + timeout
        while True:
            try:
                recorded = self._put_done(lock, record, end)
                break
            except errors.UnknownOutcome:
                # Safe to repeat: if it was applied, the lock is gone and the record is ours.
                if self._clock.monotonic() >= end:
                    raise
        self._duty = None
        if not recorded:
            raise errors.LeaseLost("the lock of the initialisation was lost; nothing was recorded")
        _log.info("The parameters of %d pservers are initialised", len(duty.epochs))

    def give_up(self, timeout: float = 5.0) -> None:
        """Give the duty back without having done it: the next trainer gets it. Without a duty nothing happens."""
        if self._duty is not None:
            lock, self._duty = self._duty[1], None
            self._client._kv.delete(lock.key, self._clock.monotonic() + timeout)

    # --- pservers ---

    def declare(self, state: PserverData, timeout: float = 5.0) -> None:
        """For a pserver that holds a slot: say whether it holds parameters. Guarded by the slot.

        Call it with ``restoring`` before a checkpoint is read, then with ``ready`` or ``empty``. A pserver that says
        nothing is given `grace` seconds by those who wait, and then taken by its checkpoint in etcd.

        Raises:
            LeaseLost: the slot is not held.
            UnknownOutcome: the answer was lost; call it again.
            EdlAgentError: etcd was not reached, or refuses.
        """
        session = self._client.session
        end = self._clock.monotonic() + timeout
        while True:
            index, epoch = session.index, session.epoch
            if index is None or epoch is None:
                raise session.loss or errors.LeaseLost("no slot is held")
            key = f"/edl/init/{index}"
            left = end - self._clock.monotonic()
            # Compared with what is there, so that an earlier declaration that arrives late changes nothing.
            before = self._client.get_key(key, left)
            value = encode_data(epoch, state)
            if before == value or self._client.compare_and_set(key, value, expected=before, timeout=left):
                return

    # --- inside ---

    def _advance(self, seen: _Seen, lock: bytes, lease: int, end: float) -> Duty | NotYet | None:
        """One step towards the duty or the certainty that there is none."""
        verdict = judge(seen.board, patient=self._is_patient(seen.board), partial=self._partial)
        mine = next((one for one in seen.locks if one[1] == lock), None)
        if isinstance(verdict, NotYet):
            return verdict
        if isinstance(verdict, Initialised) and not verdict.unmarked:
            if mine is not None:
                self._client._kv.delete(lock, self._deadline(end))
            if verdict.without:
                _log.warning("Pservers %s hold no parameters, others do", list(verdict.without))
            return None
        if mine is None:
            return self._queue_up(seen, lock, lease, end)
        if seen.locks[0][1] != lock:
            holder = seen.locks[0][1][len(self._locks) :].decode(errors="replace")
            return NotYet(f"the trainer with lease {holder} to initialise the parameters")
        held = _Lock(lock, lease, mine[0])
        kept = {
            index: epoch
            for index, epoch in seen.board.epochs.items()
            if not isinstance(verdict, Needed) or index not in verdict.indexes
        }
        if isinstance(verdict, Initialised):
            self._put_done(held, encode_epochs(kept), self._deadline(end))
            return NotYet("etcd to confirm the mark")
        if seen.done_revision and len(verdict.indexes) == len(seen.board.epochs):
            # Readers of the mark must not take the new, empty pservers for initialised ones.
            result = self._client._kv.txn(
                [kv_parts.modified_at(lock, mine[0]), kv_parts.leased_by(lock, lease)],
                [kv_parts.delete_op(self._done)],
                [],
                self._deadline(end),
            )
            if not result.succeeded:
                return NotYet("the lock")
        duty = Duty({index: seen.board.epochs[index] for index in verdict.indexes}, verdict.again)
        self._duty = (duty, held, kept)
        _log.info("This trainer initialises the parameters of %d pservers", len(duty.epochs))
        return duty

    def _queue_up(self, seen: _Seen, lock: bytes, lease: int, end: float) -> NotYet:
        # The mark is compared, so that this put cannot take the lock when it arrives after somebody has finished.
        unchanged = kv_parts.modified_at(self._done, seen.done_revision)
        self._queued = True
        try:
            self._client._kv.txn(
                [kv_parts.absent(lock), unchanged], [kv_parts.put_op(lock, b"", lease)], [], self._deadline(end)
            )
        except errors.LeaseLost as error:
            self._client._server_lost(lease, error)
            raise
        return NotYet("the lock")

    def _put_done(self, lock: _Lock, record: bytes, end: float) -> bool:
        result = self._client._kv.txn(
            [kv_parts.modified_at(lock.key, lock.revision), kv_parts.leased_by(lock.key, lock.lease)],
            [
                kv_parts.put_op(self._done, b"1"),
                kv_parts.put_op(self._record, record),
                kv_parts.delete_op(lock.key),
            ],
            [kv_parts.range_op(self._record), kv_parts.range_op(self._done)],
            end,
        )
        if result.succeeded:
            return True
        stored, done = result.ranges
        return bool(done) and bool(stored) and stored[0].value == record

    def _look(self, end: float) -> _Seen:
        reads = [*self._ranges, (self._checkpoints, prefix_end(self._checkpoints))]
        result = self._client._kv.txn(
            [], [kv_parts.range_op(start, stop) for start, stop in reads], [], self._deadline(end)
        )
        locks, done, data, slots, checkpoints = result.ranges
        desired: int | None = None
        epochs: dict[int, int] = {}
        for pair in slots:
            if pair.key == self._family.desired:
                with contextlib.suppress(errors.InvalidDesiredCount):
                    desired = parse_desired(pair.value)
            elif (index := self._family.index(pair.key)) is not None and pair.lease:
                epochs[index] = pair.mod_revision
        recorded: dict[int, int] | None = None
        declared = {}
        for pair in data:
            name = pair.key[len(self._data) :]
            if pair.key == self._record:
                recorded = decode_epochs(pair.value)
            elif name.isdigit() and len(name) < 10 and (said := decode_data(pair.value)) is not None:
                declared[int(name)] = said
        names = (pair.key[len(self._checkpoints) :] for pair in checkpoints)
        board = InitBoard(
            done=bool(done),
            desired=desired,
            epochs=epochs if desired is None else {index: epochs[index] for index in epochs if index < desired},
            recorded=recorded,
            declared=declared,
            checkpoints=frozenset(int(name) for name in names if name.isdigit() and len(name) < 10),
        )
        queue_of_locks = sorted((pair.create_revision, pair.key, pair.lease) for pair in locks)
        return _Seen(board, result.revision, done[0].mod_revision if done else 0, tuple(queue_of_locks))

    def _is_patient(self, board: InitBoard) -> bool:
        """Whether a pserver is so new that its silence says nothing."""
        now = self._clock.monotonic()
        self._first_seen = {one: self._first_seen.get(one, now) for one in board.epochs.items()}
        return any(now - since < self._grace for since in self._first_seen.values())

    def _until_next_look(self, seen: _Seen) -> float:
        now = self._clock.monotonic()
        ages = [self._grace - (now - since) for since in self._first_seen.values()]
        return min([_LOOK_AGAIN, *(age + 0.01 for age in ages if age > 0)])

    def _deadline(self, end: float) -> float:
        return min(end, self._clock.monotonic() + self._client._settings.dial_timeout)


class _News:
    """Wakes `Initialisation.begin` when any of its keys change."""

    def __init__(self, client: "EtcdClient", ranges: list[tuple[bytes, bytes]]) -> None:
        self._client = client
        self._ranges = ranges
        self._inbox: queue.SimpleQueue[Step | Exception | None] = queue.SimpleQueue()
        self._stream: WatchStream | None = None

    def follow(self, revision: int) -> None:
        """Watch from there on, unless a watch runs already."""
        if self._stream is None:
            self._stream = WatchStream(self._client._connection, self._ranges, revision + 1, self._client._clock)
            self._inbox = queue.SimpleQueue()
            threading.Thread(
                target=pump, args=(self._stream, self._inbox), name="edl-initialisation-watch", daemon=True
            ).start()

    def wait(self, seconds: float) -> None:
        """Until something changed, at most ``seconds``."""
        end = self._client._clock.monotonic() + seconds
        while (left := end - self._client._clock.monotonic()) > 0:
            try:
                item = self._inbox.get(timeout=left)
            except queue.Empty:
                return
            if isinstance(item, Exception):
                self._drop()
                return
            if item is not None and item.events:
                return

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    def __enter__(self) -> "_News":
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()
