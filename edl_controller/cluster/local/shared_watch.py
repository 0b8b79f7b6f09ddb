"""`SharedWatch`: all watches of one cluster over one stream of etcd.

A stream costs four threads and ten wake-ups a second, and each program has a dozen watches. So one stream carries
everything below the prefix of the cluster, and each watch gets what is in its range. The newest events are remembered:
a watch that begins at a list made a moment ago finds what happened since.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd.watch import WatchStream
from edl_agent.watch_cursor import Step, WatchEvent
from edl_controller.cluster.port import Stop

REMEMBERED = 500
"""Events that a watch may begin before."""

SIGN_OF_LIFE = 10.0
"""Seconds without a word after which the stream is opened anew, and a watch is told how far it has come."""

STOP_SEEN = 0.2
"""Seconds within which a watch sees that it is to stop."""


class Happening:
    """One event, and what it means once somebody has decoded it: the watches share both."""

    __slots__ = ("event", "meaning")

    def __init__(self, event: WatchEvent) -> None:
        self.event = event
        self.meaning: Any = None


class Subscription:
    """What one watch gets.

    Attributes:
        inbox: happenings; revisions, up to which all has been told; an error; None, the end.
    """

    def __init__(self, owner: SharedWatch, key: bytes, end: bytes, revision: int, stop: Stop, now: float) -> None:
        self.inbox: queue.SimpleQueue[Happening | int | BaseException | None] = queue.SimpleQueue()
        self.stop, self.told_at = stop, now
        self._owner, self._key, self._end, self._revision = owner, key, end, revision

    def offer(self, happenings: Iterable[Happening], now: float) -> None:
        """Take what is of this range and not older than wanted."""
        for one in happenings:
            if self._key <= one.event.key < self._end and one.event.mod_revision >= self._revision:
                self.inbox.put(one)
                self.told_at = now

    def reach(self, revision: int, now: float) -> None:
        """Take note that nothing up to a revision is missing."""
        self.inbox.put(max(revision, self._revision - 1))
        self.told_at = now

    def leave(self) -> None:
        """Get nothing any more. Idempotent."""
        self._owner.leave(self)


class SharedWatch:
    """One stream, from the first `join` until the last subscription has left or the stream has failed for good.

    Args:
        open_stream: opens a stream at a revision.
        newest: asks etcd for its present revision.
        revision: the first one wanted.
        clock: for the signs of life.
    """

    def __init__(
        self, open_stream: Callable[[int], WatchStream], newest: Callable[[], int], revision: int, clock: Clock
    ) -> None:
        self._open_stream, self._newest, self._clock = open_stream, newest, clock
        self._lock = threading.Lock()
        self._members: dict[Subscription, None] = {}
        self._memory: deque[Happening] = deque()
        self._oldest = self._next = revision
        self._assumed = revision - 1
        self._over = threading.Event()
        self._heard_at = self._opened_at = clock.monotonic()
        self._stream = open_stream(revision)
        self._begun = False

    @property
    def is_over(self) -> bool:
        """Whether nobody can join any more."""
        return self._over.is_set()

    def join(self, key: bytes, end: bytes, revision: int, stop: Stop) -> Subscription | None:
        """Begin a watch; None where it is over, or does not remember what happened since ``revision``."""
        with self._lock:
            if self.is_over or revision < self._oldest:
                return None
            now = self._clock.monotonic()
            member = Subscription(self, key, end, revision, stop, now)
            member.offer(self._memory, now)
            self._members[member] = None
            self._assumed = max(self._assumed, revision - 1)
            if not self._begun:
                self._begun = True
                for work in (self._receive, self._attend):
                    threading.Thread(target=work, name=f"edl-watch-{work.__name__.strip('_')}", daemon=True).start()
            return member

    def leave(self, member: Subscription) -> None:
        """End a watch; the last one ends the stream."""
        with self._lock:
            self._members.pop(member, None)
            if self._members or self.is_over:
                return
            self._over.set()
        self._stream.cancel()

    # --- the two threads ---

    def _receive(self) -> None:
        try:
            while not self.is_over:
                for step in self._stream.steps():
                    self._take(step)
                with self._lock:  # it was silent, or everybody has left
                    if not self.is_over:
                        self._stream = self._open_stream(self._next)
                        self._opened_at = self._clock.monotonic()
        except Exception as error:
            with self._lock:
                self._over.set()
                for member in self._members:
                    member.inbox.put(error)

    def _take(self, step: Step) -> None:
        if not step.events and not step.cursor.pending:
            self._look_back()
        happenings = [Happening(event) for event in step.events]
        with self._lock:
            now = self._heard_at = self._clock.monotonic()
            self._next = step.cursor.next_revision
            for member in self._members:
                member.offer(happenings, now)
            self._memory += happenings
            while len(self._memory) > REMEMBERED:
                self._oldest = self._memory.popleft().event.mod_revision + 1

    def _look_back(self) -> None:
        """The stream was opened anew: an etcd that is older than what the watches have seen has lost its data.

        The stream itself knows only of the revisions that it has carried.
        """
        try:
            newest = self._newest()
        except errors.EdlAgentError:
            return
        if newest < self._assumed:
            raise errors.WatchCompacted(f"etcd is at revision {newest}, older than what was seen ({self._assumed})")

    def _attend(self) -> None:
        while not self._over.wait(STOP_SEEN):
            now = self._clock.monotonic()
            with self._lock:
                for member in self._members:
                    if member.stop.is_set():
                        member.inbox.put(None)
                    elif now - member.told_at >= SIGN_OF_LIFE and self._heard_at > member.told_at:
                        member.reach(self._next - 1, now)
                silent, stream = now - max(self._heard_at, self._opened_at) >= SIGN_OF_LIFE, self._stream
            if silent:
                stream.cancel()
