"""The informers of one program: one for each kind, shared by everybody who reads it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeVar

from edl_controller.api.kinds import ApiObject, Kind
from edl_controller.cluster.port import ObjectReader, Stop
from edl_controller.runtime.cache import IndexFunction
from edl_controller.runtime.informer import Informer, InformerDied

T = TypeVar("T", bound=ApiObject)

ENDS_SEEN = 1.0
"""Seconds within which the end of an informer is noticed."""


class Informers:
    """Informers by kind; all are made before `run`.

    Args:
        reader: the cluster.
        namespaces: to watch for namespaced kinds; none: all.
        resync: seconds between whole lists.
    """

    def __init__(self, reader: ObjectReader, *, namespaces: Sequence[str] = (), resync: float = 600.0) -> None:
        self._reader, self._namespaces, self._resync = reader, tuple(namespaces), resync
        self._by_kind: dict[str, Informer[Any]] = {}

    def of(self, kind: Kind[T], **indexes: IndexFunction[T]) -> Informer[T]:
        """Return the informer of a kind; ``indexes`` only where it is asked for first."""
        if kind.plural not in self._by_kind:
            self._by_kind[kind.plural] = Informer(
                self._reader,
                kind,
                namespaces=self._namespaces if kind.namespaced else (),
                indexes=indexes,
                resync=self._resync,
            )
        return self._by_kind[kind.plural]

    def has(self, kind: Kind[Any]) -> bool:
        """Tell whether there is an informer of this kind."""
        return kind.plural in self._by_kind

    def all(self) -> list[Informer[Any]]:
        """Return all of them."""
        return [*self._by_kind.values()]

    @property
    def has_synced(self) -> bool:
        """Whether all caches have been filled once and all handlers have heard of it."""
        return all(informer.has_synced for informer in self._by_kind.values())

    def wait_synced(self, stop: Stop) -> bool:
        """Wait for `has_synced` or for ``stop``; tell whether all are synced."""
        for informer in self._by_kind.values():
            while not informer.wait_synced(0.1):
                if stop.is_set():
                    return False
        return True

    def run(self, stop: Stop) -> None:
        """Follow the cluster until ``stop`` is set.

        Raises:
            InformerDied: one has ended by itself.
        """
        threads = [
            threading.Thread(target=informer.run, args=(stop,), name=f"edl-informer-{plural}-handlers", daemon=True)
            for plural, informer in self._by_kind.items()
        ]
        for thread in threads:
            thread.start()
        while not stop.wait(ENDS_SEEN) and all(thread.is_alive() for thread in threads):
            pass
        if not stop.is_set():
            left = ", ".join(thread.name for thread in threads if not thread.is_alive())
            raise InformerDied(f"ended by itself: {left}")
        for thread in threads:
            thread.join()
