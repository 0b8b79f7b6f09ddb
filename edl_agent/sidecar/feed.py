"""News for streams: everybody gets the newest, nobody each one, so a slow reader costs nothing."""

import threading


class Feed:
    """A counter of changes that can be waited for."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._version = 0

    @property
    def version(self) -> int:
        """Grows with each change."""
        return self._version

    def tell(self, *_: object) -> None:
        """Something changed. From any thread; usable as a callback of any signature."""
        with self._condition:
            self._version += 1
            self._condition.notify_all()

    def wait(self, seen: int, seconds: float | None = None) -> int:
        """Wait until there is a change after ``seen``; returns the present version."""
        with self._condition:
            self._condition.wait_for(lambda: self._version != seen, seconds)
            return self._version
