"""The informer: a cache of one kind that follows the cluster, and handlers that hear of every difference.

Reflectors (one thread for each watched namespace) keep the cache; one thread calls the handlers, one after the other,
in the order of the differences. A handler puts a key into a work queue and returns; one that raises is logged and
hinders neither the others nor what follows.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from edl_controller.api.kinds import ApiObject, Kind
from edl_controller.cluster.port import ObjectReader, Stop
from edl_controller.errors import EdlControllerError
from edl_controller.runtime.cache import Cache, IndexFunction
from edl_controller.runtime.reflector import Delta, Reflector

T = TypeVar("T", bound=ApiObject)

log = logging.getLogger(__name__)


class InformerDied(EdlControllerError):
    """A thread of an informer has ended by itself: a fault of this program; its cache would grow old unseen."""


class Informer(Generic[T]):
    """Follows one kind of object.

    Args:
        reader: the cluster.
        kind: of the objects.
        namespaces: to watch; none: all.
        indexes: of the cache, by name (`edl_controller.runtime.cache`).
        resync: seconds between whole lists after which every object is handed to the handlers; 0: none.
        clock: monotonic seconds.
        chance: a number from 0 to 1.
    """

    def __init__(
        self,
        reader: ObjectReader,
        kind: Kind[T],
        *,
        namespaces: Sequence[str] = (),
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        resync: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.kind = kind
        self.cache: Cache[T] = Cache(indexes)
        self._deltas: queue.SimpleQueue[Delta[T] | threading.Event | None] = queue.SimpleQueue()
        self._handlers: list[Callable[[Delta[T]], None]] = []
        self._delivered = threading.Event()
        self._reflectors = [
            Reflector(
                reader,
                kind,
                self.cache,
                self._deltas.put,
                namespace=namespace,
                resync=resync,
                clock=clock,
                chance=chance,
            )
            for namespace in (sorted(set(namespaces)) or [""])
        ]

    @property
    def reflectors(self) -> Sequence[Reflector[T]]:
        """What keeps the cache: one for each watched namespace."""
        return self._reflectors

    def add_handler(self, handler: Callable[[Delta[T]], None]) -> None:
        """Have ``handler`` called with every difference; before `run`. It must not block."""
        self._handlers.append(handler)

    @property
    def has_synced(self) -> bool:
        """Whether the cache has been filled once and the handlers have heard of all of it."""
        return self._delivered.is_set()

    def filled(self, namespace: str) -> bool:
        """Tell whether the objects of a namespace are in the cache."""
        return any(one.synced.is_set() for one in self._reflectors if one.namespace in ("", namespace))

    def wait_synced(self, timeout: float | None = None) -> bool:
        """Wait for `has_synced`, at most ``timeout`` seconds; tell whether it is so."""
        return self._delivered.wait(timeout)

    def silence(self) -> float:
        """Return for how many seconds the cluster has said nothing in the quietest namespace; infinite: never yet."""
        return max(reflector.silence() for reflector in self._reflectors)

    def run(self, stop: Stop) -> None:
        """Follow the cluster until ``stop`` is set.

        Raises:
            InformerDied: a thread has ended by itself.
        """
        name = f"edl-informer-{self.kind.plural}"
        threads = [
            threading.Thread(target=self._follow, args=(reflector, stop), name=name, daemon=True)
            for reflector in self._reflectors
        ]
        waiter = threading.Thread(target=self._announce, args=(stop,), name=f"{name}-sync", daemon=True)
        for thread in (*threads, waiter):
            thread.start()
        ended = 0
        while ended < len(threads):
            delta = self._deltas.get()
            if delta is None:
                if not stop.is_set():
                    raise InformerDied(f"what follows {self.kind.plural} has ended by itself")
                ended += 1
            elif isinstance(delta, threading.Event):
                delta.set()
            else:
                self._deliver(delta)
        for thread in (*threads, waiter):
            thread.join()

    def _follow(self, reflector: Reflector[T], stop: Stop) -> None:
        try:
            reflector.run(stop)
        finally:
            self._deltas.put(None)

    def _announce(self, stop: Stop) -> None:
        """Put a mark behind the first lists."""
        for reflector in self._reflectors:
            while not reflector.synced.wait(0.2):
                if stop.is_set():
                    return
        self._deltas.put(self._delivered)

    def _deliver(self, delta: Delta[T]) -> None:
        for handler in self._handlers:
            try:
                handler(delta)
            except Exception:
                log.exception(
                    "Handler failed for %s %s/%s",
                    self.kind.name,
                    delta.obj.metadata.namespace,
                    delta.obj.metadata.name,
                )
