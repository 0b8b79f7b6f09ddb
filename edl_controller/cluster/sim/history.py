"""The changes of one kind of object, as far as they are kept: what a watch reads."""

from __future__ import annotations

from bisect import bisect_right
from typing import Generic, TypeVar

from edl_controller.api.kinds import ApiObject
from edl_controller.cluster.port import Change
from edl_controller.errors import Gone

T = TypeVar("T", bound=ApiObject)


class History(Generic[T]):
    """The newest changes, at least ``limit`` and at most twice as many; older ones are dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._versions: list[int] = []
        self._changes: list[Change[T]] = []
        self._dropped = 0

    def add(self, version: int, change: Change[T]) -> None:
        """Add the newest change."""
        self._versions.append(version)
        self._changes.append(change)
        if len(self._changes) >= 2 * self._limit:
            self.drop(self._versions[-self._limit - 1])

    def drop(self, version: int) -> None:
        """Forget the changes up to this version."""
        place = bisect_right(self._versions, version)
        del self._versions[:place]
        del self._changes[:place]
        self._dropped = max(self._dropped, version)

    def after(self, version: int, limit: int = 1000) -> list[Change[T]]:
        """Return the first changes after a version, at most ``limit``.

        Raises:
            Gone: some of them are no longer kept.
        """
        if version < self._dropped:
            raise Gone(f"the changes after version {version} are no longer kept, those after {self._dropped} are")
        place = bisect_right(self._versions, version)
        return self._changes[place : place + limit]
