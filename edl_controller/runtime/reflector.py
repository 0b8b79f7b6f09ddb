"""List, then watch, for ever: keeps a cache true to the cluster, and hands on every difference.

- A watch that ends is taken up where it ended. `Gone` means a new list, of which only the differences are handed on;
  what vanished meanwhile too (as a tombstone: the last state that is known).
- Whatever fails is tried again after 0.8 s, doubling to 30 s, with chance; longer where the cluster asks for it. A
  watch that ends at once, again and again, counts as failing. Never a hot loop.
- A watch that has been silent for `SILENCE` is opened anew from where it is: one that hangs is found by it, and that
  the cluster still answers is known (the autoscaler decides nothing without it).
- At every ``resync`` the objects are listed anew even if the watch is fine: an event that was lost for good is put
  right then (report M59), and everything is handed on once more.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from edl_controller.api.kinds import ApiObject, Kind
from edl_controller.cluster.port import ObjectReader, Stop
from edl_controller.errors import Forbidden, Gone, Invalid, NotFound, Unavailable
from edl_controller.runtime.back_off import JitteredBackOff
from edl_controller.runtime.cache import Cache, Key, key_of

T = TypeVar("T", bound=ApiObject)

SHORT_WATCH = 1.0
"""Seconds; a watch that ends sooner and brought nothing counts as a failure."""
SILENCE = 15.0
"""Seconds without a word after which a watch is opened anew."""
CALM = 10.0
"""Seconds; after a watch that lived so long the next failure is a first one again."""
REFUSED_RETRY = 60.0
"""Seconds between two tries of what is refused again and again (row K22)."""
INSTALLED_SEEN = 5.0
"""Seconds within which it is seen that a kind that was not served is (row K23)."""

Origin = Literal["watch", "list", "resync"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delta(Generic[T]):
    """One difference.

    Attributes:
        type: ``added``, ``updated`` or ``deleted``.
        obj: as it is now; of a deleted one the last state that is known.
        old: as it was; None for added ones; of a resync the same as ``obj``.
        origin: ``watch``; ``list``: found by a list, so perhaps old news, and of a deleted one the last state may have
            been missed; ``resync``: nothing happened.
    """

    type: Literal["added", "updated", "deleted"]
    obj: T
    old: T | None = None
    origin: Origin = "watch"


class _Until:
    """Ends when ``stop`` does, at a time, or after a silence; `heard` begins the silence anew."""

    def __init__(self, stop: Stop, deadline: float, silence: float, clock: Callable[[], float]) -> None:
        self._stop, self._deadline, self._silence, self._clock = stop, deadline, silence, clock
        self.heard()

    def heard(self) -> None:
        self._silent_at = self._clock() + self._silence

    def is_set(self) -> bool:
        return self._stop.is_set() or self._clock() >= min(self._deadline, self._silent_at)

    def wait(self, timeout: float | None = None) -> bool:
        left = max(0.0, min(self._deadline, self._silent_at) - self._clock())
        self._stop.wait(left if timeout is None else min(timeout, left))
        return self.is_set()


class Reflector(Generic[T]):
    """Keeps `cache` true to one namespace (``""``: all) of one kind.

    Args:
        reader: the cluster.
        kind: of the objects.
        cache: is written.
        emit: is given every difference, in order, after the cache has it; must return at once.
        namespace: to watch.
        resync: seconds between whole lists; they vary by a tenth. 0: none.
        silence: seconds without a word after which a watch is opened anew.
        clock: monotonic seconds.
        chance: a number from 0 to 1.
    """

    def __init__(
        self,
        reader: ObjectReader,
        kind: Kind[T],
        cache: Cache[T],
        emit: Callable[[Delta[T]], None],
        *,
        namespace: str = "",
        resync: float = 600.0,
        silence: float = SILENCE,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._reader, self._kind, self._cache, self._emit = reader, kind, cache, emit
        self._namespace, self._resync, self._silence = namespace, resync, silence
        self._clock, self._chance = clock, chance
        self._back_off = JitteredBackOff(chance=chance)
        self._version = ""
        self._listed_once = False
        self.synced = threading.Event()
        """Set once the first list is in the cache."""
        self.last_contact: float | None = None
        """When (`clock`) the cluster last answered or sent something; None: never."""
        self.namespace = namespace
        self.trouble: Exception | None = None
        """Why it cannot be followed now; None: nothing is known to be wrong."""
        self.turn = clock()
        """When (`clock`) the loop last did anything: a thread that is stuck or dead falls behind."""
        self.lists = self.watches = self.failures = 0
        """How often a whole list was asked for, a watch opened, and either failed."""
        self._said = ""

    def run(self, stop: Stop) -> None:
        """List and watch until ``stop`` is set."""
        resync = False
        while not stop.is_set():
            self.turn = self._clock()
            try:
                if not self._version:
                    self._list(resync)
                    until = self._next_resync()
                resync = False
                self._watch(_Until(stop, until, self._silence, self._clock))
                if self._clock() >= until:
                    self._version, resync = "", True
            except Gone as error:
                log.debug("Watch of %s has fallen behind, listing anew: %s", self._kind.plural, error)
                first = self._back_off.rested
                delay = self._back_off.failed()
                self._version = ""
                if not first:
                    stop.wait(delay)
            except Exception as error:
                if isinstance(error, (Invalid, NotFound)):
                    self._version = ""  # that version will never do: the same again would be refused for ever
                if isinstance(error, NotFound):
                    self._forget_all()
                self._wait_after(error, stop)

    def silence(self) -> float:
        """Return for how many seconds the cluster has said nothing; infinite: it never has."""
        return float("inf") if self.last_contact is None else self._clock() - self.last_contact

    def _next_resync(self) -> float:
        if not self._resync:
            return float("inf")
        return self._clock() + self._resync * (0.95 + 0.1 * self._chance())

    def _wait_after(self, error: Exception, stop: Stop) -> None:
        delay = self._back_off.failed()
        self.failures += 1
        self.trouble = error
        where = f" in {self._namespace}" if self._namespace else ""
        if isinstance(error, Unavailable):
            delay = max(delay, error.retry_after or 0.0)
            log.warning("Cannot watch %s%s, trying again in %.1f s: %s", self._kind.plural, where, delay, error)
        elif isinstance(error, (Forbidden, NotFound)):
            # Somebody has to do something, and may take long: said once.
            if isinstance(error, NotFound):
                delay = min(delay, INSTALLED_SEEN)
            elif delay >= REFUSED_RETRY / 2:
                delay = REFUSED_RETRY
            if self._said != str(error):
                self._said = str(error)
                log.error("Cannot watch %s%s, going on trying: %s", self._kind.plural, where, error)
        else:
            # Anything else is a fault of this program; it must neither end the thread nor be hidden.
            log.error("Cannot watch %s%s, trying again in %.1f s", self._kind.plural, where, delay, exc_info=error)
        stop.wait(delay)

    def _well(self) -> None:
        """Note that the cluster has answered."""
        self.last_contact = self.turn = self._clock()
        if self.trouble is not None:
            if self._said:
                log.info("%s can be watched again", self._kind.plural)
            self.trouble, self._said = None, ""

    def _forget_all(self) -> None:
        """Empty the cache: the kind is not served (any more), so there are no objects of it (row K23)."""
        for obj in self._cache.all(self._namespace):
            self._cache.remove(obj, obj.metadata.resource_version, self._namespace)
            self._emit(Delta("deleted", obj, obj, "list"))

    def _list(self, resync: bool) -> None:
        self.lists += 1
        listing = self._reader.list(self._kind, self._namespace)
        self._well()
        keys: set[Key] = set()
        for obj in listing.items:
            keys.add(key_of(obj))
            old = self._cache.put(obj, self._namespace)
            self._changed(obj, old, "list", resync)
        for obj in self._cache.missing(keys, listing.resource_version, self._namespace):
            self._cache.remove(obj, listing.resource_version, self._namespace)
            self._emit(Delta("deleted", obj, obj, "list"))
        self._cache.reach(listing.resource_version, self._namespace)
        self._version = listing.resource_version
        if not self._listed_once:
            log.debug("Listed %d %s", len(listing.items), self._kind.plural)
        self._listed_once = True
        self.synced.set()

    def _changed(self, obj: T, old: T | None, origin: Origin, resync: bool = False) -> None:
        if old is None:
            self._emit(Delta("added", obj, None, origin))
        elif old.metadata.uid != obj.metadata.uid:
            # Deleted and made again while nobody looked: two differences, or what belonged to the old one is kept.
            self._emit(Delta("deleted", old, old, "list"))
            self._emit(Delta("added", obj, None, origin))
        elif old.metadata.resource_version != obj.metadata.resource_version:
            self._emit(Delta("updated", obj, old, origin))
        elif resync:
            self._emit(Delta("updated", obj, obj, "resync"))

    def _watch(self, until: _Until) -> None:
        started = self._clock()
        self.watches += 1
        heard = False
        try:
            for change in self._reader.watch(self._kind, self._namespace, self._version, until):
                # A word that is no news does not count, or a watch that ends after it would be opened for ever.
                heard = heard or change.resource_version != self._version
                until.heard()
                self._well()
                self._version = change.resource_version or self._version
                obj = change.obj
                if obj is None or change.type == "BOOKMARK":
                    self._cache.reach(self._version, self._namespace)
                elif change.type == "DELETED":
                    old = self._cache.remove(obj, self._version, self._namespace)
                    if old is not None:
                        self._emit(Delta("deleted", obj, old))
                else:
                    self._changed(obj, self._cache.put(obj, self._namespace), "watch")
        finally:
            if self._clock() - started >= CALM:
                self._back_off.reset()
        if not until.is_set() and self._clock() - started < SHORT_WATCH and not heard:
            raise Unavailable("the watch ended at once")
