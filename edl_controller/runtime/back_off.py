"""Delays that grow: of single items (exponential), and of everything together (a token bucket).

The figures are client-go's: 5 ms doubling to 1000 s for an item, so that one item that always fails costs nobody else
anything (`util/workqueue/default_rate_limiters.go`). Nothing here waits: the caller is told how long.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class ItemBackOff(Generic[K]):
    """Counts the failures of each item: ``base`` seconds after the first, doubling, at most ``cap``.

    Not thread-safe: its owner holds a lock.
    """

    def __init__(self, base: float = 0.005, cap: float = 1000.0) -> None:
        self._base, self._cap = base, cap
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, item: K) -> float:
        """Count one more failure and return the seconds to wait."""
        failures = self._failures.get(item, 0)
        self._failures[item] = failures + 1
        # The exponent is bounded: an item that fails for months must not overflow a float.
        return min(self._cap, self._base * 2.0 ** min(failures, 64))

    def failures(self, item: K) -> int:
        """Return how often the item has failed since it was last forgotten."""
        return self._failures.get(item, 0)

    def forget(self, item: K) -> None:
        """Start anew with this item."""
        self._failures.pop(item, None)


class TokenBucket:
    """``burst`` tokens, refilled at ``rate`` per second. Not thread-safe: its owner holds a lock."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._filled = float(burst), now

    def take(self, now: float) -> bool:
        """Take a token if there is one."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def reserve(self, now: float) -> float:
        """Take a token in any case, on credit if need be, and return the seconds until it is really there."""
        self._fill(now)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)

    def full(self, now: float) -> bool:
        """Tell whether nothing was taken lately: such a bucket need not be kept."""
        self._fill(now)
        return self._tokens >= self._burst

    def _fill(self, now: float) -> None:
        self._tokens = min(float(self._burst), self._tokens + max(0.0, now - self._filled) * self._rate)
        self._filled = max(now, self._filled)


class JitteredBackOff:
    """Delays of one thing that is tried again and again: ``base`` doubling to ``cap``.

    Each has up to as much again by chance (never above ``cap``), so that many clients do not return at once.
    """

    def __init__(self, base: float = 0.8, cap: float = 30.0, *, chance: Callable[[], float] = random.random) -> None:
        self._base, self._cap, self._chance = base, cap, chance
        self._next = base

    @property
    def rested(self) -> bool:
        """Whether nothing has failed since the last `reset`."""
        return self._next == self._base

    def failed(self) -> float:
        """Count a failure and return the seconds to wait."""
        delay = self._next
        self._next = min(self._cap, self._next * 2.0)
        return min(self._cap, delay * (1.0 + self._chance()))

    def reset(self) -> None:
        """Begin anew: it worked."""
        self._next = self._base
