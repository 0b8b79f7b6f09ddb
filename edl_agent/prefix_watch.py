"""A program's watch on a prefix: a full read, then every change after it, across reconnects and compaction."""

import logging
import threading
from collections.abc import Iterator

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.kv import KeyValue, Kv
from edl_agent.etcd.watch import WatchStream
from edl_agent.keys import KeySchema, prefix_end
from edl_agent.watch_cursor import EventType, Known, WatchEvent, differences

_log = logging.getLogger(__name__)


class PrefixWatch:
    """Iterate over it for `WatchEvent`; it blocks until there is one.

    Made by `EtcdClient.watch_prefix`; also a context manager.

    The watch begins at the revision of the read + 1, so nothing is missed in between. After a compaction it reads
    afresh and delivers the differences (a key that changed several times then gives one event). Iteration ends after
    `cancel` (no error), or raises:

    * `WatchCompacted`: the ``start_revision`` asked for is no longer kept;
    * `RequestRefused`: it is in etcd's future;
    * `WatchEnded`, `PermissionDenied`, `AuthenticationFailed`: the server refuses the watch;
    * `ClientClosed`: the client was shut down.

    Attributes:
        snapshot: what the prefix held at the beginning; empty with a ``start_revision``.
        revision: the revision of the last full read.
    """

    def __init__(
        self,
        connection: Connection,
        kv: Kv,
        keys: KeySchema,
        prefix: bytes,
        start_revision: int | None,
        timeout: float,
        clock: Clock,
    ) -> None:
        self._connection = connection
        self._kv = kv
        self._keys = keys
        self._prefix = prefix
        self._end = prefix_end(prefix)
        self._timeout = timeout
        self._clock = clock
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._stream: WatchStream | None = None
        self._known: dict[bytes, Known] | None = None
        self.snapshot: tuple[KeyValue, ...] = ()
        if start_revision is None:
            pairs, self.revision = self._read()
            self._known = _known(pairs)
            self.snapshot = tuple(pair._replace(key=keys.relative(pair.key)) for pair in pairs)
        else:
            self.revision = start_revision - 1

    def cancel(self) -> None:
        """End the watch, from any thread; whoever iterates gets the end of the iteration."""
        self._cancelled.set()
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.cancel()

    def __enter__(self) -> "PrefixWatch":
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[WatchEvent]:
        while not self._cancelled.is_set():
            stream = WatchStream(
                self._connection,
                [(self._prefix, self._end)],
                self.revision + 1,
                self._clock,
                chosen=self._known is None,
            )
            with self._lock:
                self._stream = stream
            if self._cancelled.is_set():
                return
            try:
                for step in stream.steps():
                    for event in step.events:
                        yield self._delivered(event)
            except errors.WatchCompacted as error:
                if self._known is None:
                    raise
                _log.info("Watch on %r reads afresh: %s", self._keys.relative(self._prefix), error)
                yield from self._catch_up()
            finally:
                stream.cancel()

    def _catch_up(self) -> Iterator[WatchEvent]:
        while True:
            try:
                pairs, self.revision = self._read()
                break
            except (errors.DeadlineExceeded, errors.Unavailable):
                if self._cancelled.is_set():
                    return
        before, self._known = self._known or {}, _known(pairs)
        for event in differences(before, self._known, self.revision):
            yield event._replace(key=self._keys.relative(event.key))

    def _delivered(self, event: WatchEvent) -> WatchEvent:
        if self._known is not None:
            if event.type is EventType.DELETE:
                self._known.pop(event.key, None)
            else:
                self._known[event.key] = Known(event.value, event.mod_revision, event.lease)
        return event._replace(key=self._keys.relative(event.key))

    def _read(self) -> tuple[list[KeyValue], int]:
        return read_prefix(self._kv, self._prefix, self._end, self._clock.monotonic() + self._timeout)


def read_prefix(kv: Kv, prefix: bytes, end: bytes, deadline: float) -> tuple[list[KeyValue], int]:
    """All pairs of a prefix in pages, at one revision; begins again when that revision is compacted in between."""
    while True:
        pairs: list[KeyValue] = []
        revision = 0
        try:
            for page, at in kv.pages(prefix, end, deadline):
                pairs += page
                revision = at
        except errors.WatchCompacted:
            continue
        return pairs, revision


def _known(pairs: list[KeyValue]) -> dict[bytes, Known]:
    return {pair.key: Known(pair.value, pair.mod_revision, pair.lease) for pair in pairs}
