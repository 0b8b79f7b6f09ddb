"""Probes, restarts and phases, by tables."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edl_controller.api.kinds import PODS
from edl_controller.api.meta import Condition
from edl_controller.api.pods import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodSpec,
    Probe,
)
from edl_controller.machine.node.pod_phase import Observation, composed, phase
from edl_controller.machine.node.probes import ProbeKind, answered, begun
from edl_controller.machine.node.restart import BackOff, runs_again
from tests.node.conftest import condition


@pytest.mark.parametrize(
    ("kind", "success", "failure", "answers", "verdicts"),
    [
        ("readiness", 1, 3, "+", "T"),
        ("readiness", 1, 3, "+--+---+", "TTTTTTFT"),
        ("readiness", 2, 2, "+-++-+--", "FFFTTTTF"),
        ("readiness", 1, 1, "-+-", "FTF"),
        ("liveness", 1, 3, "--+---", "TTTTTX"),
        ("liveness", 1, 1, "-", "X"),
        ("startup", 1, 3, "--+", "FFT"),
        ("startup", 1, 2, "--", "FX"),
    ],
)
def test_verdicts(kind: ProbeKind, success: int, failure: int, answers: str, verdicts: str) -> None:
    """T: passed, F: not passed, X: the container is to be stopped."""
    probe = Probe(success_threshold=success, failure_threshold=failure)
    state = begun(kind, probe, 0.0)
    seen = ""
    for answer in answers:
        state = answered(kind, probe, state, answer == "+", state.due)
        seen += "X" if state.gave_up else "T" if state.passed else "F"
    assert seen == verdicts


def test_when_it_is_asked() -> None:
    probe = Probe(initial_delay_seconds=5, period_seconds=10)
    state = begun("liveness", probe, 100.0)
    assert (state.due, state.passed) == (105.0, True)
    state = answered("liveness", probe, state, True, 105.5)
    assert state.due == 115.0  # the period is not stretched by slow answers
    state = answered("liveness", probe, state, True, 140.0)
    assert state.due == 140.0  # and what was missed is not made up for
    assert begun("readiness", Probe(), 1.0).passed is False
    assert answered("readiness", Probe(period_seconds=0), begun("readiness", Probe(), 0.0), True, 0.0).due == 1.0


@pytest.mark.parametrize(
    ("policy", "code", "init", "sidecar", "again"),
    [
        ("Always", 0, False, False, True),
        ("Always", 1, False, False, True),
        ("", 0, False, False, True),
        ("OnFailure", 0, False, False, False),
        ("OnFailure", 137, False, False, True),
        ("Never", 0, False, False, False),
        ("Never", 1, False, False, False),
        ("Always", 0, True, False, False),
        ("Always", 1, True, False, True),
        ("OnFailure", 1, True, False, True),
        ("Never", 1, True, False, False),
        ("Never", 0, True, True, True),
        ("OnFailure", 0, True, True, True),
    ],
)
def test_restart(policy: str, code: int, init: bool, sidecar: bool, again: bool) -> None:
    container = Container(name="c", restart_policy="Always" if sidecar else None)
    assert runs_again(PodSpec(restart_policy=policy), container, code, init=init) is again


def test_back_off() -> None:
    rules, delay, delays = BackOff(), None, []
    for _ in range(8):
        delay = rules.after(delay, ran=1.0)
        delays.append(delay)
    assert delays == [0, 10, 20, 40, 80, 160, 300, 300]
    assert rules.after(300.0, ran=600.0) == 0.0
    assert rules.after(300.0, ran=599.0) == 300.0


W = ContainerState(waiting=ContainerStateWaiting(reason="ContainerCreating"))
R = ContainerState(running=ContainerStateRunning())
OK = ContainerState(terminated=ContainerStateTerminated(exit_code=0))
BAD = ContainerState(terminated=ContainerStateTerminated(exit_code=1))


def status(text: str, name: str) -> ContainerStatus:
    """``W`` waits first, ``R`` runs, ``S`` runs and has started, ``0``/``1`` ended, ``b`` waits after a failure."""
    match text:
        case "R" | "S":
            return ContainerStatus(name=name, state=R, started=text == "S", ready=text == "S")
        case "0" | "1":
            return ContainerStatus(name=name, state=OK if text == "0" else BAD)
        case "b":
            return ContainerStatus(name=name, state=W, last_state=BAD)
    return ContainerStatus(name=name, state=W)


def seen(init: str, main: str, **options: Any) -> Observation:
    return Observation(
        init=tuple(status(one, f"i{number}") for number, one in enumerate(init)),
        main=tuple(status(one, f"m{number}") for number, one in enumerate(main)),
        pod_ip="127.1.1.2",
        host_ip="127.1.1.1",
        start_time="2026-01-01T00:00:00Z",
        **options,
    )


def pod_with(policy: str, init: int, main: int, sidecars: int = 0, **spec: Any) -> Pod:
    """The last ``sidecars`` of the init containers are sidecars."""
    containers = [{"name": f"m{number}"} for number in range(main)]
    inits: list[dict[str, Any]] = [{"name": f"i{number}"} for number in range(init)]
    for one in inits[init - sidecars :]:
        one["restartPolicy"] = "Always"
    return PODS.from_json(
        {"spec": {"restartPolicy": policy, "containers": containers, "initContainers": inits, **spec}}
    )


@pytest.mark.parametrize(
    ("policy", "init", "sidecars", "main", "over", "expected"),
    [
        ("Always", "", 0, "W", False, "Pending"),
        ("Always", "", 0, "S", False, "Running"),
        ("Always", "", 0, "SW", False, "Pending"),
        ("Always", "", 0, "0", False, "Running"),
        ("Always", "", 0, "b", False, "Running"),
        ("Always", "", 0, "0", True, "Succeeded"),
        ("Always", "", 0, "1", True, "Failed"),
        ("OnFailure", "", 0, "0", False, "Succeeded"),
        ("OnFailure", "", 0, "1", False, "Running"),
        ("OnFailure", "", 0, "b", False, "Running"),
        ("OnFailure", "", 0, "0S", False, "Running"),
        ("Never", "", 0, "1", False, "Failed"),
        ("Never", "", 0, "01", False, "Failed"),
        ("Never", "", 0, "00", False, "Succeeded"),
        ("Never", "", 0, "1S", False, "Running"),
        ("Never", "R", 0, "W", False, "Pending"),
        ("Never", "1", 0, "W", False, "Failed"),
        ("OnFailure", "b", 0, "W", False, "Pending"),
        ("Never", "0R", 1, "W", False, "Pending"),
        ("Never", "0S", 1, "W", False, "Pending"),
        ("Never", "0S", 1, "S", False, "Running"),
        ("Never", "0S", 1, "0", False, "Running"),  # until the sidecar has ended
        ("Never", "01", 1, "0", True, "Succeeded"),  # its exit code does not count
        ("Never", "", 0, "W", True, "Failed"),  # deleted before it began
    ],
)  # fmt: skip
def test_phases(policy: str, init: str, sidecars: int, main: str, over: bool, expected: str) -> None:
    pod = pod_with(policy, len(init), len(main), sidecars)
    assert phase(pod.spec, seen(init, main, over=over)) == expected


def test_a_deadline_fails_the_pod_when_it_has_ended() -> None:
    pod = pod_with("Never", 0, 1)
    assert phase(pod.spec, seen("", "0", over=True, reason="DeadlineExceeded")) == "Failed"
    status = composed(pod, seen("", "0", over=True, reason="DeadlineExceeded", message="too long"), 0.0)
    assert (status.reason, status.message) == ("DeadlineExceeded", "too long")


GATED: dict[str, Any] = {"readinessGates": [{"conditionType": "edl/active"}]}


@pytest.mark.parametrize(
    ("gate", "main", "ready", "reason"),
    [
        (None, "S", "False", "ReadinessGatesNotReady"),
        ("False", "S", "False", "ReadinessGatesNotReady"),
        ("True", "S", "True", ""),
        ("True", "R", "False", "ContainersNotReady"),
        ("True", "0", "False", "PodCompleted"),
        ("True", "1", "False", "PodFailed"),
    ],
)
def test_readiness_gates(gate: str | None, main: str, ready: str, reason: str) -> None:
    pod = pod_with("Never", 0, 1, **GATED)
    if gate:
        pod = PODS.from_json({**PODS.to_json(pod), "status": {"conditions": [{"type": "edl/active", "status": gate}]}})
    status = composed(pod, seen("", main, over=main in "01"), 0.0)
    found = next(one for one in status.conditions if one.type == "Ready")
    assert (found.status, found.reason) == (ready, reason)


def test_conditions_of_others_stay_and_times_change_with_the_status_only() -> None:
    scheduled = Condition(type="PodScheduled", status="True", last_transition_time="2026-01-01T00:00:00Z")
    raw = PODS.to_json(pod_with("Never", 0, 1)) | {"status": {"conditions": [{"type": "x", "status": "True"}]}}
    raw["status"]["conditions"].append(
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    )
    pod = PODS.from_json(raw)
    first = composed(pod, seen("", "S", sandbox=True), 1000.0)
    assert scheduled in first.conditions
    again = composed(PODS.from_json({**raw, "status": {}}), seen("", "S"), 0.0)
    assert {one.type for one in again.conditions} == {
        "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready",
    }  # fmt: skip
    kept = msgspec.structs.replace(pod, status=first)
    second = composed(kept, seen("", "S", sandbox=True), 2000.0)
    assert second == first
    third = composed(kept, seen("", "R", sandbox=True), 3000.0)
    changed = {one.type for one in third.conditions} - {one.type for one in third.conditions if one in first.conditions}
    assert changed == {"ContainersReady", "Ready"}


def test_what_is_not_ready_is_named() -> None:
    status = composed(pod_with("Never", 2, 2), seen("0R", "WW"), 0.0)
    pod = Pod(status=status)
    assert condition(pod, "Initialized") == (
        "False", "ContainersNotInitialized", "containers with incomplete status: [i1]",
    )  # fmt: skip
    assert condition(pod, "Ready") == ("False", "ContainersNotReady", "containers with unready status: [m0 m1]")
