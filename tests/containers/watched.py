"""What happened to some objects, by a watch: every state that there was, and not only those that a poll saw."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from tests.bench.kube_http import Json, KubeHttpClient

_WINDOW = 2
"""Seconds of one watch; its end is when the thread can be told to stop."""


class Watched:
    """The states of the objects of a list, from ``with`` to its end, in their order: ``states``."""

    def __init__(self, client: KubeHttpClient, path: str) -> None:
        """``path``: of the list, without a query."""
        self._client, self._path = client, path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="tests-watched", daemon=True)
        self._version = ""
        self.states: list[Json] = []

    def of(self, name: str) -> list[Json]:
        """The states of one object."""
        return [one for one in self.states if one["metadata"]["name"] == name]

    def _follow(self) -> None:
        while not self._over.is_set():
            for event in self._client.watch(f"{self._path}?resourceVersion={self._version}", seconds=_WINDOW):
                # Anything else would be a gap in the history; what is asserted about the rest would prove nothing.
                assert event["type"] in ("ADDED", "MODIFIED", "DELETED"), event
                self._version = event["object"]["metadata"]["resourceVersion"]
                self.states.append(event["object"])

    def __enter__(self) -> Self:
        found = self._client.get(self._path)
        self._version = found["metadata"]["resourceVersion"]
        self.states = list(found["items"])
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        alive = self._thread.is_alive()
        self._over.set()
        self._thread.join(_WINDOW + 15.0)
        assert alive or kind is not None, "the watch ended before its time"
