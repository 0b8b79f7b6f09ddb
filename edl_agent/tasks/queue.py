"""`TaskQueue`: what a trainer asks for its work. A shell: it waits, chooses by chance, and calls `store`."""

import contextlib
import logging
import os
import random
import secrets
import threading
from collections.abc import Callable, Iterable

from edl_agent import errors
from edl_agent.address import check_name, default_name
from edl_agent.client import EtcdClient
from edl_agent.config import check_timeout
from edl_agent.session import SessionState, SessionView
from edl_agent.tasks.answers import Finished, Progress, Task
from edl_agent.tasks.board import Board
from edl_agent.tasks.board_watch import BoardWatch
from edl_agent.tasks.dataset_store import DatasetStore, cut
from edl_agent.tasks.encoding import TaskKeys
from edl_agent.tasks.model_saver import ModelSaver
from edl_agent.tasks.rules import (
    DEFAULT_MAX_FAILURES,
    DEFAULT_TIMEOUT,
    failed,
    finished,
    given_back,
    summary,
)
from edl_agent.tasks.rules import Progress as ChunkProgress
from edl_agent.tasks.store import Applied, Change, Hold, TaskStore

_log = logging.getLogger(__name__)

_FOREVER = float("inf")

_TRUSTED = 0.25
"""Share of the timeout after which a hold is renewed before another task of its chunk is handed out."""

_PLENTY = 3
"""Free chunks per holder from which on the end of one chunk and the take of the next share a transaction."""

_PAUSE = 0.1
"""Seconds between two rounds while etcd is away."""

_CLOSE_SECONDS = 1.0
"""For giving back at the end; the lease does it otherwise."""


class TaskQueue:
    """Training tasks, shared with all other trainers of the job. Thread-safe; one task in hand at a time.

    A program that wants several tasks at once makes several queues on one client.

    Args:
        client: with a session (`EtcdClient.open`, `register_trainer` or `register`); tasks are held under its lease.
        holder_name: for people; default ``POD_NAME``, else hostname-pid.
        call_timeout: seconds that etcd may take for one step.

    Raises:
        ConfigurationError: a bad name.

    Example::

        with EtcdClient("http://127.0.0.1:2379") as client, TaskQueue(client) as queue:
            client.open()
            queue.set_dataset(10_000, passes=3)
            while isinstance(task := queue.get_task(), Task):
                train(task.index)
                queue.finish(task)
    """

    def __init__(self, client: EtcdClient, holder_name: str | None = None, *, call_timeout: float = 5.0) -> None:
        self._client = client
        self._clock = client._clock
        self._session = client.session
        self._call_timeout = call_timeout
        self._name = check_name(holder_name or default_name(os.environ))
        self._queue = secrets.token_hex(8)
        self._keys = TaskKeys(client._keys)
        self._store = TaskStore(client._kv, self._keys, self._clock, self._name, self._queue)
        self._datasets = DatasetStore(client._kv, self._keys, self._clock, self._store, call_timeout)
        self._saver = ModelSaver(client._kv, client._leases, self._keys, self._clock, self._name, call_timeout)
        self._board = Board(self._keys)
        self._random = random.Random()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._watch = BoardWatch(client._connection, self._keys, self._clock, self._queue)
        # Under the lock:
        self._candidates: list[int] | None = None
        self._hold: Hold | None = None
        self._holds = 0
        self._in_hand = False
        self._avoid: int | None = None
        self._last_finished = (0, 0)
        client.on_close(self.close)
        self._session.listen(self._session_changed)

    # --- the data set ---

    def set_dataset(
        self,
        tasks: int | Iterable[object],
        passes: int = 1,
        *,
        chunk_size: int | None = None,
        max_failures: int = DEFAULT_MAX_FAILURES,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Say what there is to do. Every trainer may do so: the same data set again changes nothing.

        Another one takes the place of the present one between two passes, before the first task of the next one is
        taken, or after the last; it brings its own ``passes``. Pass numbers are counted on.

        Args:
            tasks: how many, or a spec for each: a JSON value such as a path.
            passes: over the whole data set.
            chunk_size: tasks that a trainer takes at a time; default 1 up to 2,000 tasks, else as few as make at
                most 2,000 chunks.
            max_failures: a task that failed more often in one pass is set aside for the rest of the pass.
            timeout: seconds without a finish or renewal after which a living holder loses its chunk.

        Raises:
            DatasetInUse: a pass over another data set is under way.
            ConfigurationError: names the bad part.
            EdlAgentError: etcd is not reached or refuses.
        """
        self._check_usable()
        dataset, pages = cut(tasks, passes, chunk_size, max_failures, timeout)
        self._datasets.put(dataset, pages)

    # --- tasks ---

    def get_task(self, timeout: float | None = None) -> Task | Finished:
        """The next task. Waits while all that is left is held by others, and while no data set is set.

        Within a chunk no request is needed. Outages of etcd are waited for, too.

        Args:
            timeout: seconds to wait; ``None`` waits for ever, 0 takes what is free. etcd's answers may take up to the
                queue's ``call_timeout`` more.

        Returns:
            The task, or `Finished` when all passes are over.

        Raises:
            DeadlineExceeded: nothing could be taken in time.
            LeaseLost: the client has no session: ``client.open()`` comes first; or it lost it and may not claim anew.
            ConfigurationError: a task is in hand: finish it, fail it or give it back first.
            ClientClosed: the queue or its client was closed, also during the wait.
            EdlAgentError: etcd refuses.
        """
        end = _FOREVER if timeout is None else self._clock.monotonic() + timeout
        with self._lock:
            self._check_usable()
            if self._hold is not None and self._in_hand and self._hold.lease == self._session.lease_id:
                raise errors.ConfigurationError("a task is in hand: finish it, fail it or give it back first")
            while True:
                lease = self._live_lease(end)
                try:
                    found = self._next_of_hold(lease) or self._next_of_board(lease, end)
                except (errors.Unavailable, errors.DeadlineExceeded, errors.UnknownOutcome) as error:
                    # Whatever was under way is settled on the next round; an outage is waited for.
                    if self._clock.monotonic() >= end:
                        raise errors.DeadlineExceeded(f"no task within {timeout:g} s: {error}") from error
                    self._closed.wait(0.05)
                except errors.LeaseLost as error:
                    self._client._server_lost(lease, error)
                else:
                    if found is not None:
                        return found

    def finish(self, task: Task, timeout: float | None = None) -> None:
        """The task is done; once this returns, nobody gets it again in this pass. May be called twice.

        Args:
            task: the task in hand.
            timeout: seconds for which an etcd that is away, or does not answer, is tried again; ``None``: the queue's
                ``call_timeout``. Nothing is repeated blindly: each round first settles what became of the one before.

        Raises:
            TaskLost: it is no longer held here (lease lost, or silent for too long): nothing was recorded.
            UnknownOutcome: no answer from etcd in time; call it again, or get the next task, which settles it.
            DeadlineExceeded: nothing was sent; the task is still in hand, call it again.
        """
        position = task._position

        def step(end: float) -> None:
            hold = self._held(task)
            following = self._following() if hold.progress.left == 1 else None
            self._write(
                hold,
                lambda progress: finished(progress, position),
                lambda progress: progress.is_finished(position),
                end,
                following,
            )

        with self._lock:
            if self._last_finished == (task._hold, position):
                return
            self._persist(step, timeout)
            self._last_finished = (task._hold, position)

    def fail(self, task: Task, reason: str = "", timeout: float | None = None) -> None:
        """The task could not be done: it is tried again after the others, or set aside when it failed too often.

        Args:
            task: the task in hand.
            reason: for people; up to 200 characters are kept.
            timeout: seconds, as for `finish`.

        Raises:
            TaskLost, UnknownOutcome, DeadlineExceeded: as `finish`.
        """
        position = task._position
        with self._lock:
            hold = self._held(task)
            before, most = hold.progress.failures, hold.dataset.max_failures

            def change(progress: ChunkProgress) -> ChunkProgress:
                after = failed(progress, position, most, reason)
                # What is left has failed, some of it here: let somebody else try, if there is somebody.
                return given_back(after) if after.tried == after.size else after

            def step(end: float) -> None:
                self._write(self._held(task), change, lambda progress: progress.failures > before, end)

            self._persist(step, timeout)
            if hold.gone:
                self._avoid = hold.chunk
        if position in hold.progress.aside:
            _log.warning("Set task %d of pass %d aside: %s", task.index, task.pass_number, reason or "it failed")

    def renew(self, task: Task, timeout: float | None = None) -> None:
        """Tell the others that this trainer lives; for tasks that take longer than a good part of their timeout.

        Args:
            task: the task in hand.
            timeout: seconds, as for `finish`.

        Raises:
            TaskLost: it is no longer held here: stop working on it.
            UnknownOutcome, DeadlineExceeded: no answer from etcd in time.
        """

        def step(end: float) -> None:
            hold = self._held(task)
            try:
                self._store.renew(hold, end)
            finally:
                self._after_write(hold)

        with self._lock:
            self._persist(step, timeout)

    def give_back(self, task: Task, timeout: float | None = None) -> None:
        """Let go of the task and of the rest of its chunk, for others to take at once. Does not count as a failure.

        Args:
            task: the task in hand.
            timeout: seconds, as for `finish`.

        Raises:
            UnknownOutcome, DeadlineExceeded: no answer from etcd in time.
        """

        def step(end: float) -> None:
            self._write(self._held(task), given_back, lambda progress: not progress.opened, end)

        with self._lock, contextlib.suppress(errors.TaskLost):
            self._persist(step, timeout)

    # --- questions ---

    def progress(self) -> Progress:
        """Counts, read afresh. Needs no session.

        Raises:
            EdlAgentError: etcd is not reached or refuses.
        """
        self._check_usable()
        board = Board(self._keys)
        self._store.look(board, self._deadline())
        state = board.state
        if state is None or board.dataset is None:
            return Progress(None, 0, 0, (), ())
        chunks = {chunk: seen.progress for chunk, seen in board.chunks.items()}
        current = None if state.over else summary(state.current, board.dataset, chunks)
        holders = tuple(sorted(hold.holder.name for hold in board.held.values()))
        return Progress(current, state.end, len(board.held), holders, state.history)

    def should_save_model(self, interval: float | None = None) -> bool:
        """Whether this trainer is to save the model now. Exactly one of those who ask is told so.

        Args:
            interval: ``None``: once for each finished pass (ask at any time, such as before each task and at the end);
                seconds: once in so many seconds, measured by etcd, not by the trainers' clocks.

        Raises:
            UnknownOutcome: no answer from etcd in time; then possibly nobody is told this time.
            EdlAgentError: etcd is not reached or refuses.
        """
        self._check_usable()
        if interval is None:
            return self._saver.per_pass()
        if not interval > 0:
            raise errors.ConfigurationError(f"interval must be a positive number of seconds, not {interval!r}")
        return self._saver.per_interval(interval)

    # --- end ---

    def close(self) -> None:
        """Give back what is in hand and end the queue; who waits gets `ClientClosed`. Idempotent, bounded."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._watch.close()
        self._session.nudge()
        if not self._lock.acquire(timeout=_CLOSE_SECONDS):
            return  # a call is under way; the lease, which ends soon, frees the chunk
        try:
            hold, self._hold = self._hold, None
            if hold is not None and not hold.gone and hold.lease == self._session.lease_id:
                with contextlib.suppress(errors.EdlAgentError):
                    deadline = self._clock.monotonic() + _CLOSE_SECONDS
                    self._store.record(hold, given_back, lambda progress: not progress.opened, deadline)
        finally:
            self._lock.release()

    def __enter__(self) -> "TaskQueue":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TaskQueue {self._name}>"

    # --- inside: taking ---

    def _next_of_hold(self, lease: int) -> Task | None:
        """The next task of the chunk in hand, after making sure that it still is."""
        hold = self._hold
        if hold is None:
            return None
        now = self._clock.now()
        age = max(now.monotonic - hold.heard.monotonic, now.boottime - hold.heard.boottime)
        if hold.lease != lease:
            self._hold = None
            return None
        if hold.doubt or age > hold.dataset.timeout * _TRUSTED:
            try:
                self._store.renew(hold, self._deadline())
            except errors.TaskLost as error:
                _log.info("Lost a chunk between two tasks: %s", error)
            finally:
                self._after_write(hold)
            if self._hold is None:
                return None
        position = hold.progress.due
        if position is None:  # closed by a write that was thought to be lost
            self._hold = None
            return None
        index = hold.dataset.index(hold.chunk, position)
        spec = self._datasets.spec(hold.dataset, index)
        self._in_hand = True
        return Task(hold.pass_number, index, spec, hold.progress.failures_of(position), position, self._holds)

    def _next_of_board(self, lease: int, end: float) -> Finished | None:
        """Take a chunk (``None``: look at the hold), or find out that there is none; waits for a change of that."""
        fresh = False
        board = self._board
        while not self._closed.is_set():
            if not board.revision:
                self._store.look(board, self._deadline())
                self._candidates, fresh = None, True
            chunk = self._choose()
            if chunk is not None:
                self._hold = self._store.take(board, chunk, lease, self._deadline())
                if self._hold is not None:
                    self._holds += 1
                    self._in_hand = False
                    return None
                self._candidates, fresh = None, True
            elif not fresh:
                self._store.look(board, self._deadline())
                self._candidates, fresh = None, True
            elif board.over:
                assert board.state is not None
                return Finished(board.state.end)
            elif board.complete:
                self._store.end_pass(board, self._deadline())
                self._candidates = None
            else:
                self._wait(lease, end)
                self._candidates = None
                if self._session.lease_id != lease:
                    return None
        return None

    def _choose(self) -> int | None:
        """A chunk to try: one that looks free, by chance, so that trainers seldom meet; else one of a hung holder."""
        now = self._clock.monotonic()
        if self._candidates is None:
            free = self._board.free()
            self._random.shuffle(free)
            if self._avoid in free:
                free.remove(self._avoid)
                free.insert(0, self._avoid)
            self._candidates = self._board.overdue(self._queue, now) + free + self._board.own(self._queue)
        while self._candidates:
            chunk = self._candidates.pop()
            if self._board.is_open_to(chunk, self._queue, now):
                return chunk
        return None

    def _wait(self, lease: int, end: float) -> None:
        """Follow what the others do until there may be something to take, a holder counts as hung, or time is up."""
        board = self._board
        now = self._clock.monotonic()
        if now >= end:
            what = "all tasks left are held by others" if board.working else "no data set is set"
            raise errors.DeadlineExceeded(f"no task in time: {what}")
        self._watch.follow(board, min(end, board.next_overdue()), lambda: self._session.lease_id == lease)

    def _live_lease(self, end: float) -> int:
        """The session's lease; waits for it where it was lost and is claimed anew."""
        while True:
            self._check_usable()
            view = self._session.view()
            if view.alive and view.lease is not None:
                return view.lease.lease_id
            if view.state is SessionState.NEW and view.incarnation == 0:
                raise errors.LeaseLost("there is no session: call open(), register_trainer() or register() first")
            error = self._client._registration.error
            if error is None and self._client._settings.reclaim == "never":
                error = view.loss
            if error is not None:
                raise error
            left = None if end == _FOREVER else end - self._clock.monotonic()
            if left is not None and left <= 0:
                raise errors.DeadlineExceeded("no session in time")
            self._session.wait(self._session_matters, left)

    def _session_matters(self) -> bool:
        return (
            self._session.view().alive
            or self._closed.is_set()
            or self._client._closing
            or self._client._registration.error is not None
        )

    # --- inside: recording ---

    def _persist(self, step: Callable[[float], None], timeout: float | None) -> None:
        """Take a step, and while etcd is away or silent once more, until time is up.

        Each step is handed its deadline, at most ``call_timeout`` away. What it leaves in doubt is known to the hold,
        and settled by the next one.
        """
        now = self._clock.monotonic()
        end = now + (self._call_timeout if timeout is None else check_timeout(timeout))
        doubt: errors.UnknownOutcome | None = None
        while True:
            hold = self._hold
            try:
                step(min(end, self._clock.monotonic() + self._call_timeout))
                return
            except (errors.Unavailable, errors.DeadlineExceeded, errors.UnknownOutcome) as error:
                if isinstance(error, errors.UnknownOutcome):
                    doubt = error
                if self._hold is None or self._clock.monotonic() >= end or self._closed.wait(_PAUSE):
                    raise
            except errors.TaskLost as lost:
                # Where etcd was not asked (the lease ended), nobody knows whether the round before was recorded.
                if doubt is not None and hold is not None and not hold.gone:
                    raise doubt from lost
                raise

    def _held(self, task: Task) -> Hold:
        """The hold that the task in hand belongs to.

        Raises:
            TaskLost: it is not, or no longer, in hand.
        """
        self._check_usable()
        hold = self._hold
        if hold is None or task._hold != self._holds or hold.progress.due != task._position:
            raise errors.TaskLost(f"task {task.index} of pass {task.pass_number} is not in hand")
        if hold.lease != self._session.lease_id:
            self._hold = None
            raise errors.TaskLost(f"task {task.index} of pass {task.pass_number}: the session's lease was lost")
        if not self._in_hand and not hold.doubt:
            raise errors.TaskLost(f"task {task.index} of pass {task.pass_number} is not in hand")
        return hold

    def _following(self) -> int | None:
        """A chunk to take in the transaction that completes the present one; only where there is plenty for all.

        So a trainer that goes on to something else keeps nobody waiting by it.
        """
        board = self._board
        if not board.revision or len(self._candidates or ()) <= _PLENTY * (1 + len(board.held)):
            return None
        chunk = self._choose()
        if chunk is None or chunk in board.held:
            return None
        return chunk

    def _write(
        self, hold: Hold, change: Change, applied: Applied, deadline: float, following: int | None = None
    ) -> None:
        """Record the end of the task in hand. It stays in hand where nothing was sent."""
        taken = None
        try:
            if following is None:
                self._store.record(hold, change, applied, deadline)
            else:
                taken = self._store.record_and_take(hold, change, applied, self._board, following, deadline)
        except (errors.TaskLost, errors.UnknownOutcome):
            self._in_hand = False
            raise
        else:
            self._in_hand = False
        finally:
            self._after_write(hold)
        if taken is not None:
            self._hold = taken
            self._holds += 1

    def _after_write(self, hold: Hold) -> None:
        self._store.note(self._board, hold)
        if hold.gone:
            self._hold, self._in_hand = None, False

    # --- inside: small things ---

    def _session_changed(self, before: SessionView, after: SessionView) -> None:
        if before.alive and not after.alive:
            self._watch.wake()

    def _check_usable(self) -> None:
        self._client._check_usable()
        if self._closed.is_set():
            raise errors.ClientClosed("the task queue was closed")

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._call_timeout
