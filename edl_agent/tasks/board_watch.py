"""Waiting for something to do: a watch that lasts as long as the wait, and an alarm in place of polling."""

import threading
from collections.abc import Callable

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.watch import WatchStream
from edl_agent.tasks.board import Board
from edl_agent.tasks.encoding import TaskKeys
from edl_agent.watch_cursor import EventType


class BoardWatch:
    """Keeps a board up to date while its trainer has nothing else to do.

    Args:
        connection: where.
        keys: names.
        clock: monotonic.
        queue: whose board.
    """

    def __init__(self, connection: Connection, keys: TaskKeys, clock: Clock, queue: str) -> None:
        self._connection = connection
        self._keys = keys
        self._clock = clock
        self._queue = queue
        self._lock = threading.Lock()
        self._closed = False
        self._stream: WatchStream | None = None

    def follow(self, board: Board, until: float, still: Callable[[], bool]) -> None:
        """Return when there may be something to take, at the given monotonic time, or after `wake` or `close`.

        Args:
            board: is kept up to date.
            until: when to return at the latest.
            still: looked at once the watch can be woken: whether to wait at all.

        Raises:
            EdlAgentError: the watch is refused.
        """
        stream = WatchStream(self._connection, [(self._keys.prefix, self._keys.end)], board.revision + 1, self._clock)
        with self._lock:
            if self._closed:
                return
            self._stream = stream
        if not still():
            return
        alarm = None
        if until < float("inf"):
            alarm = threading.Timer(max(0.0, until - self._clock.monotonic()), stream.cancel)
            alarm.name, alarm.daemon = "edl-tasks-alarm", True
            alarm.start()
        try:
            for step in stream.steps():
                for event in step.events:
                    if event.type is EventType.DELETE:
                        board.deleted(event.key, event.mod_revision)
                    else:
                        board.put(event, self._clock.monotonic())
                if self._worth_a_look(board):
                    return
        except errors.WatchCompacted:
            board.revision = 0  # read all of it, but remember since when the holders are silent
        finally:
            with self._lock:
                self._stream = None
            stream.cancel()
            if alarm is not None:
                alarm.cancel()

    def wake(self) -> None:
        """End a wait, from any thread."""
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.cancel()

    def close(self) -> None:
        """End a wait and all later ones."""
        with self._lock:
            self._closed = True
        self.wake()

    def _worth_a_look(self, board: Board) -> bool:
        if not board.revision or board.something_free or board.complete or board.over:
            return True
        return bool(board.overdue(self._queue, self._clock.monotonic()))
