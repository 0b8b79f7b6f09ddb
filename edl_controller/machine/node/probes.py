"""PURE: what the answers to a probe mean. Source of the rules: kubelet's prober (``pkg/kubelet/prober/worker.go``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from edl_controller.api.pods import Probe

ProbeKind = Literal["startup", "liveness", "readiness"]


@dataclass(frozen=True)
class ProbeState:
    """Where one probe of one run of a container stands. Times are seconds on the caller's clock.

    Attributes:
        due: when to ask next.
        successes: in a row.
        failures: in a row.
        passed: the verdict: readiness and startup begin with False, liveness with True.
        gave_up: liveness or startup failed as often as is allowed: the container is to be stopped.
    """

    due: float
    successes: int = 0
    failures: int = 0
    passed: bool = False
    gave_up: bool = False


def begun(kind: ProbeKind, probe: Probe, now: float) -> ProbeState:
    """Return the state of a probe of a container that started at ``now``."""
    return ProbeState(due=now + probe.initial_delay_seconds, passed=kind == "liveness")


def answered(kind: ProbeKind, probe: Probe, state: ProbeState, good: bool, now: float) -> ProbeState:
    """Return the state after one answer; a timeout is a bad answer.

    The verdict changes only after as many equal answers in a row as the thresholds say.
    """
    state = replace(state, due=max(now, state.due + max(1, probe.period_seconds)))
    if good:
        state = replace(state, successes=state.successes + 1, failures=0)
        enough = max(1, probe.success_threshold) if kind == "readiness" else 1
        return replace(state, passed=True) if state.successes >= enough else state
    state = replace(state, failures=state.failures + 1, successes=0)
    if state.failures < max(1, probe.failure_threshold):
        return state
    return replace(state, passed=False, gave_up=kind != "readiness")
