"""One watch stream on one or more ranges: opened at a revision, resumed after breaks, ended by `cancel`."""

import logging
import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd import wire
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.peer import Peer
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
        chosen: whether a program chose the revision; else it comes from a read of these ranges.
        previous: whether events carry the value before the change.
    """

    def __init__(
        self,
        connection: Connection,
        ranges: list[tuple[bytes, bytes]],
        revision: int,
        clock: Clock,
        *,
        chosen: bool = False,
        previous: bool = False,
    ) -> None:
        self._connection = connection
        self._ranges = ranges
        self._clock = clock
        self._cursors = [Cursor(revision) for _ in ranges]
        self._lock = threading.Lock()
        self._call: Any = None
        self._cancelled = threading.Event()
        self._requests: queue.SimpleQueue[bytes | None] | None = None
        self._numbers: dict[int, int] = {}
        self._denied = False
        self._unproven = chosen
        self._previous = previous
        self._doubted = False

    def steps(self) -> Iterator[Step]:
        """Each answer as a `Step`; ends after `cancel`.

        Raises:
            WatchCompacted: the wanted revision is gone (also when etcd came back with older data): read afresh.
            RequestRefused: the chosen revision is in etcd's future.
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
        # One creation after the other: the answer tells the watch's id, which etcd's grpc-proxy chooses for itself.
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        creations = iter(self._creations())
        requests.put(next(creations))
        self._numbers = {}
        peer, call = self._connection.stream(wire.WATCH_PATH, iter(requests.get, None), deadline)
        with self._lock:
            self._call, self._requests = call, requests
            if self._cancelled.is_set():
                return
        try:
            for data in call:
                step, created = self._take(peer, data)
                if created and (creation := next(creations, None)) is not None:
                    requests.put(creation)
                yield step
        except grpc.RpcError as error:
            if self._cancelled.is_set():
                return
            raise self._connection.stream_failed(peer, error, deadline) from error
        if not self._cancelled.is_set():
            raise errors.Unavailable("the watch stream was closed by the server")

    def _creations(self) -> list[bytes]:
        requests = []
        for (key, end), cursor in zip(self._ranges, self._cursors, strict=True):
            request = wire.WatchRequest()
            create = request.create_request
            create.key, create.range_end, create.start_revision = key, end, cursor.next_revision
            create.progress_notify, create.fragment, create.prev_kv = True, True, self._previous
            requests.append(request.SerializeToString())
        return requests

    def _take(self, peer: Peer, data: bytes) -> tuple[Step, bool]:
        """What one message means, and whether it is the answer to a creation."""
        watch_id, cluster_id, answer = _decode(data)
        self._connection.choice.check_cluster(peer, cluster_id)
        if answer.created and watch_id >= 0:
            self._numbers[watch_id] = len(self._numbers)
        if watch_id not in self._numbers:  # a refused creation carries no id (-1)
            raise self._ended(answer.cancel_reason or f"answer for the unknown watch {watch_id}")
        number = self._numbers[watch_id]
        cursor = self._cursors[number]
        if answer.created and not answer.canceled and answer.revision + 1 < cursor.next_revision:
            if self._unproven and not self._doubted:
                self._doubted = True
                raise errors.Unavailable("the wanted revision is in the member's future; the member may lag")
            if self._unproven:
                raise errors.RequestRefused(
                    f"revision {cursor.next_revision} is in the future: etcd is at revision {answer.revision} (was it "
                    "wiped or restored since?)"
                )
            # The store is older than what was seen: a wiped or restored etcd. The wanted revision would come much later
            # or never.
            raise errors.WatchCompacted(
                f"etcd is at revision {answer.revision}, older than the watch ({cursor.next_revision})"
            )
        step = advance(cursor, answer)
        self._cursors[number] = step.cursor
        if step.compacted is not None:
            raise errors.WatchCompacted(f"revision {cursor.next_revision} is compacted (oldest kept: {step.compacted})")
        if step.ended is not None:
            raise self._ended(step.ended)
        self._denied = self._unproven = False
        return step, answer.created

    def _ended(self, reason: str) -> errors.EdlAgentError:
        if self._connection.anonymous and ("permission denied" in reason or "user name is empty" in reason):
            # Nobody is granted anything without a name; etcd calls a watch without one not permitted.
            return errors.AuthenticationFailed(
                f"etcd wants user and password, and none are configured (the watch was refused: {reason})"
            )
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
            requests, self._requests = self._requests, None
        if requests is not None:
            requests.put(None)
        if call is not None:
            call.cancel()


def _decode(data: bytes) -> tuple[int, int, WatchAnswer]:
    """Id of the watch, id of the cluster, and the rest."""
    message = wire.WatchResponse.FromString(data)
    events = tuple(
        WatchEvent(
            EventType.DELETE if event.type else EventType.PUT,
            event.kv.key,
            event.kv.value,
            event.kv.mod_revision,
            event.kv.lease,
            event.prev_kv.value,
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
    return message.watch_id, message.header.cluster_id, answer
