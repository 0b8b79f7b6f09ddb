"""One watch stream on one or more ranges: opened at a revision, resumed after breaks, ended by `cancel`."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd import wire
from edl_agent.etcd.connection import Connection
from edl_agent.watch_cursor import Cursor, EventType, Step, WatchAnswer, WatchEvent, advance, resumed

_log = logging.getLogger(__name__)

_PAUSE = 0.25
"""Seconds between attempts to open a stream again: with the connection's own pauses no hot loop (invariant I6)."""


class WatchStream:
    """Events of some ranges, each in the order of its revisions, across reconnects. All ranges share one gRPC stream.

    Args:
        connection: where.
        ranges: pairs of start and exclusive end; an empty end = the one key.
        revision: the first revision wanted.
        clock: for deadlines.
    """

    def __init__(self, connection: Connection, ranges: list[tuple[bytes, bytes]], revision: int, clock: Clock) -> None:
        self._connection = connection
        self._ranges = ranges
        self._clock = clock
        self._cursors = [Cursor(revision) for _ in ranges]
        self._lock = threading.Lock()
        self._call: Any = None
        self._cancelled = threading.Event()
        self._hang_up: threading.Event | None = None
        self._denied = False

    def steps(self) -> Iterator[Step]:
        """Each answer as a `Step`; ends after `cancel`.

        Raises:
            WatchCompacted: the wanted revision is gone (also when etcd came back with older data): read afresh.
            WatchEnded: the server refuses the watch for good; the text has its reason.
            ClientClosed: the client was shut down.
            EdlAgentError: no authentication or permission.
        """
        while not self._cancelled.is_set():
            try:
                yield from self._one_stream()
            except errors.Unavailable as error:
                _log.debug("Watch interrupted: %s", error)
                self._cancelled.wait(_PAUSE)
            except errors.DeadlineExceeded:
                continue
            finally:
                self._drop()

    def cancel(self) -> None:
        """End the watch, from any thread."""
        self._cancelled.set()
        self._drop()

    def _one_stream(self) -> Iterator[Step]:
        self._cursors = [resumed(cursor) for cursor in self._cursors]
        deadline = self._clock.monotonic() + self._connection.dial_timeout
        hang_up = threading.Event()
        peer, call = self._connection.stream(wire.WATCH_PATH, _requests(self._creations(), hang_up), deadline)
        with self._lock:
            self._call, self._hang_up = call, hang_up
            if self._cancelled.is_set():
                return
        try:
            for data in call:
                yield self._take(data)
        except grpc.RpcError as error:
            if self._cancelled.is_set():
                return
            raise self._connection.stream_failed(peer, error, deadline) from error
        if not self._cancelled.is_set():
            raise errors.Unavailable("the watch stream was closed by the server")

    def _creations(self) -> list[bytes]:
        requests = []
        for number, ((key, end), cursor) in enumerate(zip(self._ranges, self._cursors, strict=True), start=1):
            request = wire.WatchRequest()
            create = request.create_request
            create.key, create.range_end, create.start_revision, create.watch_id = (
                key,
                end,
                cursor.next_revision,
                number,
            )
            create.progress_notify, create.fragment = True, True
            requests.append(request.SerializeToString())
        return requests

    def _take(self, data: bytes) -> Step:
        number, answer = _decode(data)
        if not 1 <= number <= len(self._cursors):  # a refused creation carries no id (-1)
            raise self._ended(answer.cancel_reason or f"answer for the unknown watch {number}")
        cursor = self._cursors[number - 1]
        if answer.created and not answer.canceled and answer.revision + 1 < cursor.next_revision:
            # The store is older than what was seen: a wiped or restored etcd. The wanted revision would come much later
            # or never.
            raise errors.WatchCompacted(
                f"etcd is at revision {answer.revision}, older than the watch ({cursor.next_revision})"
            )
        step = advance(cursor, answer)
        self._cursors[number - 1] = step.cursor
        if step.compacted is not None:
            raise errors.WatchCompacted(f"revision {cursor.next_revision} is compacted (oldest kept: {step.compacted})")
        if step.ended is not None:
            raise self._ended(step.ended)
        self._denied = False
        return step

    def _ended(self, reason: str) -> errors.EdlAgentError:
        if "permission denied" in reason and (self._denied or not self._connection.renew_token()):
            return errors.PermissionDenied(f"the watch was refused: {reason}")
        if "permission denied" in reason:
            # etcd before 3.6 says this of an expired token too: once more with a new one.
            self._denied = True
            return errors.Unavailable(f"the watch was refused, possibly for an old token: {reason}")
        if any(
            text in reason for text in ("leader", "auth token", "auth store", "in header is old", "user name is empty")
        ):
            self._connection.renew_token()
            return errors.Unavailable(f"the watch was ended: {reason}")
        return errors.WatchEnded(f"the watch was ended by the server: {reason}")

    def _drop(self) -> None:
        with self._lock:
            call, self._call = self._call, None
            hang_up, self._hang_up = self._hang_up, None
        if hang_up is not None:
            hang_up.set()
        if call is not None:
            call.cancel()


def _requests(creations: list[bytes], hang_up: threading.Event) -> Iterator[bytes]:
    """The creations; then the stream stays open until it is dropped."""
    yield from creations
    hang_up.wait()


def _decode(data: bytes) -> tuple[int, WatchAnswer]:
    message = wire.WatchResponse.FromString(data)
    events = tuple(
        WatchEvent(
            EventType.DELETE if event.type else EventType.PUT,
            event.kv.key,
            event.kv.value,
            event.kv.mod_revision,
            event.kv.lease,
        )
        for event in message.events
    )
    answer = WatchAnswer(
        message.header.revision,
        events,
        message.created,
        message.canceled,
        message.compact_revision,
        message.cancel_reason,
        message.fragment,
    )
    return message.watch_id, answer
