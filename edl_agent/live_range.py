"""A range of keys kept up to date in memory, with its age: a read, then a watch from there, then reads when in doubt.

A watch can fall silent without an error (a member that answers pings and delivers nothing, a proxy that lost the
stream), so silence is never taken for "nothing changed": after `fresh_every` seconds without news the range is read
again, and a read that differs from what the watch told replaces the watch.
"""

import logging
import queue
import random
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from edl_agent import errors
from edl_agent.etcd.watch import WatchStream
from edl_agent.prefix_watch import read_prefix
from edl_agent.watch_cursor import EventType, Known, Step, WatchEvent

if TYPE_CHECKING:
    from edl_agent.client import EtcdClient

_log = logging.getLogger(__name__)

FRESH_EVERY = 10.0
"""Seconds of silence after which a range is read again: a thousand watchers then make 100 small reads a second."""

_RETRY = 1.0
"""Seconds between reads that fail while etcd is away."""

_LONGEST_BACKOFF = 30.0
"""Seconds between attempts that fail for a lasting reason, such as a missing permission."""


class LiveRange:
    """Keys of [start, end), kept up to date by a thread until `close`.

    Args:
        client: whose connection.
        start: full key.
        end: exclusive; empty = the one key ``start``.
        what: for thread names and logs.
        on_change: called on the range's own thread after the first read and after each change, with `lock` held, so
            that what is computed from the pairs, their revision and their age are seen together; must not block.
        fresh_every: seconds of silence after which the range is read again.
    """

    def __init__(
        self,
        client: "EtcdClient",
        start: bytes,
        end: bytes,
        what: str,
        on_change: Callable[[], None],
        fresh_every: float = FRESH_EVERY,
    ) -> None:
        if not fresh_every > 0:
            raise errors.ConfigurationError(f"fresh_every must be above 0 s, not {fresh_every!r}")
        self._connection = client._connection
        self._kv = client._kv
        self._clock = client._clock
        self._start, self._end, self._what = start, end, what
        self._on_change = on_change
        self._fresh_every = fresh_every
        self.read_timeout = min(self._connection.dial_timeout, fresh_every)
        self.lock = threading.RLock()
        self._condition = threading.Condition(self.lock)
        self._closed = threading.Event()
        self._pairs: Mapping[bytes, Known] = MappingProxyType({})
        self._revision = 0
        self._read_revision = 0
        self._proved = float("-inf")
        self._tried = float("-inf")
        self._inbox: queue.SimpleQueue[Step | Exception | None] = queue.SimpleQueue()
        self._stream: WatchStream | None = None
        self._trouble: errors.EdlAgentError | None = None
        self._thread = threading.Thread(target=self._run, name=f"edl-{what}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    # --- from other threads ---

    @property
    def pairs(self) -> Mapping[bytes, Known]:
        """Full key -> value, mod revision, lease; never changed in place."""
        return self._pairs

    @property
    def revision(self) -> int:
        """Revision of the last read or event; 0 before the first read."""
        return self._revision

    @property
    def age(self) -> float:
        """Seconds since an event or a read last proved that the pairs are what etcd holds; infinite before a read."""
        return max(0.0, self._clock.monotonic() - self._proved)

    @property
    def trouble(self) -> errors.EdlAgentError | None:
        """Why the last read failed; ``None`` when it did not."""
        return self._trouble

    def ask_fresh(self, seconds: float) -> bool:
        """Have the range read again now. Returns whether a read that began after this call came back in time."""
        asked = self._clock.monotonic()
        with self._condition:
            self._inbox.put(None)
            self._condition.wait_for(lambda: self._proved >= asked or self._closed.is_set(), seconds)
        return self._proved >= asked

    def wait(self, done: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until ``done()``, looked at after each read, event and `close`. Returns whether it became true."""
        with self._condition:
            return self._condition.wait_for(lambda: self._closed.is_set() or done(), seconds) and done()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """End the thread. Idempotent; waits a little for it."""
        self._closed.set()
        with self._condition:
            stream, inbox = self._stream, self._inbox
            self._condition.notify_all()
        inbox.put(None)
        if stream is not None:
            stream.cancel()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    # --- the thread ---

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            begun = self._clock.monotonic()
            try:
                self._read()
                self._follow()
            except errors.ClientClosed:
                break
            except (errors.Unavailable, errors.DeadlineExceeded) as error:
                self._failed(error)
                self._closed.wait(_RETRY * random.uniform(0.25, 1.0))
            except errors.EdlAgentError as error:
                self._failed(error)
                # A watch that is refused at once, time and again, while reads are answered is a lasting failure, too.
                failures = failures + 1 if self._clock.monotonic() - begun < _LONGEST_BACKOFF else 1
                self._closed.wait(min(_LONGEST_BACKOFF, 0.25 * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))
            except Exception as error:
                # Supervision: a fault of ours must not leave an old view that nobody renews.
                _log.exception("The watch on %s met an unexpected error and goes on", self._what)
                self._failed(errors.ProtocolError(f"unexpected: {error!r}"))
                self._closed.wait(_RETRY)

    def _failed(self, error: errors.EdlAgentError) -> None:
        # One line per outage, the rest is detail.
        _log.log(logging.DEBUG if self._trouble else logging.WARNING, "Cannot read %s: %s", self._what, error)
        with self._condition:
            self._trouble = error

    def _follow(self) -> None:
        """Take what the watch tells, until it must be replaced."""
        stream = WatchStream(self._connection, [(self._start, self._end)], self._read_revision + 1, self._clock)
        inbox: queue.SimpleQueue[Step | Exception | None] = queue.SimpleQueue()
        with self._condition:
            self._stream, self._inbox = stream, inbox
        threading.Thread(target=pump, args=(stream, inbox), name=f"edl-{self._what}-watch", daemon=True).start()
        created = False
        try:
            while not self._closed.is_set():
                now = self._clock.monotonic()
                due = max(self._proved + self._fresh_every, self._tried + _RETRY)
                try:
                    item = inbox.get(timeout=max(0.0, due - now))
                except queue.Empty:
                    item = None
                match item:
                    case errors.WatchCompacted():
                        _log.info("The watch on %s reads afresh: %s", self._what, item)
                        return
                    case Exception():
                        raise item
                    case Step(events=events) if events:
                        self._apply(events)
                    case Step() if not created:
                        created = True  # the read just before says all
                    case _:
                        # Silence, somebody's wish, a progress notice, or a watch that was opened again after a break
                        # and has yet to catch up: only a read tells.
                        if not self._closed.is_set() and self._reread():
                            return
        finally:
            stream.cancel()

    def _reread(self) -> bool:
        """Read again; returns whether the watch had kept something back."""
        before = self._pairs
        self._tried = self._clock.monotonic()
        try:
            self._read()
        except (errors.Unavailable, errors.DeadlineExceeded) as error:
            self._failed(error)
            return False
        return self._pairs != before

    def _read(self) -> None:
        sent = self._clock.monotonic()
        deadline = sent + self.read_timeout
        if self._end:
            found, revision = read_prefix(self._kv, self._start, self._end, deadline)
        else:
            one, revision = self._kv.range(self._start, b"", deadline)
            found = list(one)
        pairs = {pair.key: Known(pair.value, pair.mod_revision, pair.lease) for pair in found}
        with self._condition:
            changed = pairs != self._pairs or self._read_revision == 0
            if changed:
                self._pairs = MappingProxyType(pairs)
            self._revision = self._read_revision = revision
            self._proved = sent
            was, self._trouble = self._trouble, None
            if changed:
                self._on_change()
            self._condition.notify_all()
        if was is not None:
            _log.info("Reading %s again", self._what)

    def _apply(self, events: tuple[WatchEvent, ...]) -> None:
        fresh = [event for event in events if event.mod_revision > self._read_revision]
        with self._condition:
            if fresh:
                pairs = dict(self._pairs)
                for event in fresh:
                    if event.type is EventType.DELETE:
                        pairs.pop(event.key, None)
                    else:
                        pairs[event.key] = Known(event.value, event.mod_revision, event.lease)
                self._pairs = MappingProxyType(pairs)
                self._revision = fresh[-1].mod_revision
            self._proved = self._clock.monotonic()
            if fresh:
                self._on_change()
            self._condition.notify_all()


def pump(stream: WatchStream, inbox: "queue.SimpleQueue[Step | Exception | None]") -> None:
    """Carry the watch's answers over, so that whoever takes them can also wait for silence."""
    try:
        for step in stream.steps():
            inbox.put(step)
    except Exception as error:
        inbox.put(error)
