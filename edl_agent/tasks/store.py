"""The transactions behind the task queue: look, take, record, renew, end a pass. Each can be repeated without harm.

A write whose answer was lost is settled before anything else happens to the chunk: the held key is put anew, comparing
its revision. From then on the lost write can no longer be applied (it compares the old revision), and the same answer
shows whether it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd import kv as parts
from edl_agent.etcd.kv import Kv
from edl_agent.keys import prefix_end
from edl_agent.prefix_watch import read_prefix
from edl_agent.session import Instant
from edl_agent.tasks.board import Board, Pair
from edl_agent.tasks.encoding import (
    Holder,
    TaskKeys,
    decode_holder,
    decode_progress,
    encode_holder,
    encode_progress,
    encode_state,
)
from edl_agent.tasks.rules import Dataset, Progress, opened, pass_ended, summary

Change = Callable[[Progress], Progress]
Applied = Callable[[Progress], bool]


@dataclass(slots=True)
class Hold:
    """A chunk held here.

    Attributes:
        pass_number: of which pass.
        chunk: which.
        dataset: whose.
        progress: as stored.
        held_revision: mod revision of the held key: the fencing number.
        progress_revision: mod revision of the chunk's key.
        lease: under which it is held.
        heard: when the last successful write was sent; nobody counts us as hung before that + the timeout.
        doubt: a write's answer was lost; settle it before anything else.
        gone: no longer held.
    """

    pass_number: int
    chunk: int
    dataset: Dataset
    progress: Progress
    held_revision: int
    progress_revision: int
    lease: int
    heard: Instant
    doubt: bool = False
    gone: bool = False


class _Taking(NamedTuple):
    """What it takes to take a chunk."""

    pass_number: int
    chunk: int
    dataset: Dataset
    progress: Progress
    compares: list[Any]
    success: list[Any]


class TaskStore:
    """One queue's way to etcd. Deadlines are points on the monotonic clock, in seconds.

    Args:
        kv: the store.
        keys: names.
        clock: for deadlines, and times for people.
        name: of the holder, for people.
        queue: random, of the holder.
    """

    def __init__(self, kv: Kv, keys: TaskKeys, clock: Clock, name: str, queue: str) -> None:
        self._kv = kv
        self.keys = keys
        self._clock = clock
        self._name = name
        self._queue = queue

    # --- looking ---

    def look(self, board: Board, deadline: float) -> None:
        """Bring the board up to date: read everything the first time, then what has changed since."""
        while board.revision and board.state is not None:
            try:
                result = self._kv.txn([], self._news(board), [], deadline)
            except errors.UnknownOutcome:  # it only reads
                if self._clock.monotonic() >= deadline:
                    raise
                continue
            self._take_news(board, result.ranges, result.revision)
            break
        if not board.revision or board.state is None:
            pairs, revision = read_prefix(self._kv, self.keys.prefix, self.keys.end, deadline)
            board.loaded(pairs, revision, self._clock.monotonic())

    def _news(self, board: Board) -> list[Any]:
        assert board.state is not None
        held = self.keys.all_held(board.state.current)
        return [
            parts.range_op(self.keys.state),
            parts.range_op(self.keys.prefix, self.keys.end, board.revision + 1),
            parts.range_op(held, prefix_end(held)),
        ]

    def _take_news(self, board: Board, ranges: tuple[Sequence[Pair], ...], revision: int) -> None:
        state, changed, held = ranges
        board.refreshed(state, changed, held, revision, self._clock.monotonic())

    # --- taking ---

    def take(self, board: Board, chunk: int, lease: int, deadline: float) -> Hold | None:
        """Take a chunk that the board shows as free (or as held by somebody who counts as hung).

        Returns:
            The hold. ``None`` where somebody was faster, or where the last task left was set aside by the take; the
            board has the news.

        Raises:
            LeaseLost: the lease is gone; nothing was taken.
        """
        taking = self._taking(board, chunk, lease)
        progress = taking.progress
        sent = self._clock.now()
        while True:
            try:
                result = self._kv.txn(taking.compares, taking.success, self._news(board), deadline)
                break
            except errors.UnknownOutcome:
                # Sent again as it is: the comparisons let at most one of the two through.
                if self._clock.monotonic() >= deadline:
                    raise
        if result.succeeded:
            hold = self._taken(board, taking, result.revision, lease, sent)
            return hold if progress.opened else None
        self._take_news(board, result.ranges, result.revision)
        found = board.held.get(chunk)
        # The first sending may have been applied and the second refused for it.
        if (
            found is not None
            and (found.holder.queue, found.lease) == (self._queue, lease)
            and found.mod_revision == found.progress_revision
            and board.chunk(chunk).progress == progress
        ):
            return self._taken(board, taking, found.mod_revision, lease, sent)
        return None

    def _taking(self, board: Board, chunk: int, lease: int) -> _Taking:
        assert board.state is not None
        assert board.dataset is not None
        number, dataset = board.state.current, board.dataset
        seen, hold = board.chunk(chunk), board.held.get(chunk)
        why: str | None
        if hold is None:
            why = "its holder died"
        elif hold.holder.queue == self._queue:
            why = None  # taken here, but the answer was lost: no task was handed out
        else:
            why = f"its holder {hold.holder.name} was silent for {dataset.timeout:g} s"
        progress = opened(seen.progress, dataset.max_failures, why)
        key, held = self.keys.chunk(number, chunk), self.keys.held(number, chunk)
        compares = [
            parts.modified_at(self.keys.state, board.state_revision),
            parts.absent(held) if hold is None else parts.modified_at(held, hold.mod_revision),
            parts.modified_at(key, seen.mod_revision),  # 0: absent
        ]
        success = [parts.put_op(key, encode_progress(progress))]
        if progress.opened:
            success.append(parts.put_op(held, self._holder(), lease))
        elif hold is not None:
            success.append(parts.delete_op(held))
        return _Taking(number, chunk, dataset, progress, compares, success)

    def _taken(self, board: Board, taking: _Taking, revision: int, lease: int, sent: Instant) -> Hold:
        board.wrote(taking.pass_number, taking.chunk, taking.progress, revision)
        return Hold(taking.pass_number, taking.chunk, taking.dataset, taking.progress, revision, revision, lease, sent)

    # --- a hold ---

    def record_and_take(
        self, hold: Hold, change: Change, applied: Applied, board: Board, chunk: int, deadline: float
    ) -> Hold | None:
        """`record` of a change that completes its chunk, and `take` of another, in one transaction.

        Returns:
            The new hold; ``None`` where only the change was recorded, because somebody was faster with the take.

        Raises:
            TaskLost, UnknownOutcome: as `record`; nothing was taken.
        """
        progress = change(hold.progress)
        taking = self._taking(board, chunk, hold.lease)
        if hold.doubt or progress.opened or not taking.progress.opened:
            self.record(hold, change, applied, deadline)
            return None
        key, held = self._keys_of(hold)
        success = [parts.put_op(key, encode_progress(progress)), parts.delete_op(held), *taking.success]
        sent = self._clock.now()
        hold.doubt = True
        try:
            compares = [*self._guards(hold), *taking.compares]
            result = self._kv.txn(compares, success, [*self._look_at(hold), *self._news(board)], deadline)
        except errors.UnknownOutcome:
            if self._clock.monotonic() >= deadline:
                raise
            # Where both were applied, the next look at the board shows the chunk as held by this very queue.
            board.revision = 0
            self.record(hold, change, applied, deadline)
            return None
        except errors.LeaseLost as error:
            hold.doubt, hold.gone = False, True
            raise errors.TaskLost(f"{_name(hold)}: the lease ended") from error
        except errors.EdlAgentError:
            hold.doubt = False
            raise
        hold.doubt = False
        if result.succeeded:
            hold.progress, hold.progress_revision, hold.gone = progress, result.revision, True
            return self._taken(board, taking, result.revision, hold.lease, sent)
        self._take_news(board, result.ranges[2:], result.revision)
        if not self._examine(hold, result.ranges[:2], applied):
            self.record(hold, change, applied, deadline)
        return None

    def record(self, hold: Hold, change: Change, applied: Applied, deadline: float) -> None:
        """Write what became of the task in hand. A chunk that is closed by it is let go in the same transaction.

        Args:
            hold: is brought up to date.
            change: from the stored progress to the new one.
            applied: whether a stored progress has the change in it.
            deadline: when to give up.

        Raises:
            TaskLost: no longer held; nothing was written, and nothing will be.
            UnknownOutcome: no answer until the deadline; try again, the hold knows that it is in doubt.
        """
        while True:
            if hold.doubt and self._settle(hold, applied, deadline):
                return
            progress = change(hold.progress)
            key, held = self._keys_of(hold)
            success = [parts.put_op(key, encode_progress(progress))]
            if not progress.opened:
                success.append(parts.delete_op(held))
            sent = self._clock.now()
            hold.doubt = True
            try:
                result = self._kv.txn(self._guards(hold), success, self._look_at(hold), deadline)
            except errors.UnknownOutcome:
                if self._clock.monotonic() >= deadline:
                    raise
                continue
            except errors.EdlAgentError:
                hold.doubt = False  # surely not applied
                raise
            hold.doubt = False
            if result.succeeded:
                hold.progress, hold.progress_revision, hold.heard = progress, result.revision, sent
                hold.gone = not progress.opened
                return
            if self._examine(hold, result.ranges, applied):
                return

    def renew(self, hold: Hold, deadline: float) -> None:
        """Say that the holder lives. Also settles a doubt.

        Raises:
            TaskLost: no longer held.
            UnknownOutcome: as `record`.
        """
        self._settle(hold, lambda progress: False, deadline)

    def _settle(self, hold: Hold, applied: Applied, deadline: float) -> bool:
        """Put the held key anew. Returns whether the chunk's progress shows the write in doubt.

        Raises:
            TaskLost: no longer held, and the write was not applied.
            UnknownOutcome: no answer; or no longer held, and what became of the write can no longer be seen.
        """
        while True:
            key, held = self._keys_of(hold)
            sent = self._clock.now()
            was_in_doubt, hold.doubt = hold.doubt, True
            try:
                result = self._kv.txn(
                    self._guards(hold),
                    [parts.put_op(held, self._holder(), hold.lease), parts.range_op(key)],
                    self._look_at(hold),
                    deadline,
                )
            except errors.UnknownOutcome:
                if self._clock.monotonic() >= deadline:
                    raise
                continue
            except errors.LeaseLost as error:
                hold.gone = True
                raise errors.TaskLost(f"{_name(hold)}: the lease ended") from error
            except errors.EdlAgentError:
                hold.doubt = was_in_doubt
                raise
            hold.doubt = False
            if not result.succeeded:
                if self._examine(hold, result.ranges, applied):
                    return True
                continue  # an earlier renewal had been applied after all
            hold.held_revision, hold.heard = result.revision, sent
            return self._adopt(hold, result.ranges[0]) and applied(hold.progress)

    def _examine(self, hold: Hold, ranges: tuple[Sequence[Pair], ...], applied: Applied) -> bool:
        """A guarded write was refused: find out why. Returns whether the write that matters was applied earlier."""
        held, chunk = ranges
        mine = held and held[0].lease == hold.lease and decode_holder(held[0].value).queue == self._queue
        if mine:
            hold.held_revision = held[0].mod_revision
            return self._adopt(hold, chunk) and applied(hold.progress)
        hold.gone = True
        if not chunk:
            raise errors.UnknownOutcome(f"{_name(hold)}: its pass is over, and with it the record of what became of it")
        if applied(decode_progress(chunk[0].value, hold.progress.size)):
            return True
        by = f"now held by {decode_holder(held[0].value).name}" if held else "its lease ended or its time was over"
        raise errors.TaskLost(f"{_name(hold)} is no longer held here: {by}")

    def _adopt(self, hold: Hold, chunk: Sequence[Pair]) -> bool:
        """Take over what a held chunk's key has. Returns whether a write of ours has changed it."""
        if not chunk or chunk[0].mod_revision == hold.progress_revision:
            return False
        hold.progress = decode_progress(chunk[0].value, hold.progress.size)
        hold.progress_revision = chunk[0].mod_revision
        return True

    def _keys_of(self, hold: Hold) -> tuple[bytes, bytes]:
        return self.keys.chunk(hold.pass_number, hold.chunk), self.keys.held(hold.pass_number, hold.chunk)

    def _guards(self, hold: Hold) -> list[Any]:
        """Nobody but the holder writes the chunk, so its own key need not be compared."""
        _, held = self._keys_of(hold)
        return [parts.modified_at(held, hold.held_revision), parts.leased_by(held, hold.lease)]

    def _look_at(self, hold: Hold) -> list[Any]:
        key, held = self._keys_of(hold)
        return [parts.range_op(held), parts.range_op(key)]

    def _holder(self) -> bytes:
        return encode_holder(Holder(self._name, self._queue, self._clock.wall()))

    def note(self, board: Board, hold: Hold) -> None:
        """Let the board know what was written for a hold."""
        board.wrote(hold.pass_number, hold.chunk, hold.progress, hold.progress_revision)

    # --- a pass ---

    def end_pass(self, board: Board, deadline: float) -> None:
        """All chunks are complete: count them, begin the next pass and remove the keys of this one.

        Complete chunks never change, so the view that shows them all complete cannot be wrong, however old it is. The
        state's revision is compared, so one of those who see it wins; the others read what it did.
        """
        assert board.state is not None
        assert board.dataset is not None
        number = board.state.current
        counts = summary(number, board.dataset, {chunk: seen.progress for chunk, seen in board.chunks.items()})
        prefix = self.keys.of_pass(number)
        success = [
            parts.put_op(self.keys.state, encode_state(pass_ended(board.state, counts))),
            parts.delete_op(prefix, prefix_end(prefix)),
        ]
        compares = [parts.modified_at(self.keys.state, board.state_revision)]
        try:
            self._kv.txn(compares, success, [], deadline)
        except errors.UnknownOutcome:
            if self._clock.monotonic() >= deadline:
                raise
        self.look(board, deadline)


def _name(hold: Hold) -> str:
    first = hold.dataset.index(hold.chunk, 0)
    last = first + hold.progress.size - 1
    tasks = f"task {first}" if first == last else f"the chunk of tasks {first} to {last}"
    return f"{tasks} (pass {hold.pass_number})"
