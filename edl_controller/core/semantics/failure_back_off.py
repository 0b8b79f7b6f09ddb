"""PURE: how long a Job waits before it replaces a failed pod: 10 s, doubled by each further failure, at most 10 min."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edl_controller.api.pods import Pod
from edl_controller.core.semantics.pod_state import finished_at

FIRST_WAIT = 10.0
LONGEST_WAIT = 600.0


@dataclass(frozen=True)
class FailureMemory:
    """What the Job controller remembers of one Job, in memory only: a restart forgets it, as Kubernetes' does.

    Attributes:
        failures: since the last success.
        last: when the latest of them was (Unix seconds).
        counted: uids of the pods that ended last: a pass that was broken off sees them once more.
    """

    failures: int = 0
    last: float = 0.0
    counted: frozenset[str] = frozenset()

    def after(self, succeeded: Iterable[Pod], failed: Iterable[Pod]) -> FailureMemory:
        """Return the memory after pods that have newly ended; failures before a success no longer count."""
        good, bad = tuple(succeeded), tuple(failed)
        counted = frozenset(pod.metadata.uid for pod in (*good, *bad))
        successes = [finished_at(pod) for pod in good if pod.metadata.uid not in self.counted]
        failures = [finished_at(pod) for pod in bad if pod.metadata.uid not in self.counted]
        if not successes:
            last = max([self.last, *failures])
            return FailureMemory(self.failures + len(failures), last, counted)
        later = [moment for moment in failures if moment > max(successes)]
        return FailureMemory(len(later), max(later, default=0.0), counted)

    def wait(self, now: float) -> float:
        """Return the seconds before a pod may be created again; 0 = now."""
        if self.failures == 0:
            return 0.0
        # The exponent is bounded: thousands of failures must not make a number of thousands of digits.
        pause = min(FIRST_WAIT * 2.0 ** min(self.failures - 1, 16), LONGEST_WAIT)
        return max(0.0, self.last + pause - now)


FRESH = FailureMemory()
