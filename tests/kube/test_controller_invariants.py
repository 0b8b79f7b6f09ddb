"""The judge of what a controller has written can say no."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.bench.kube_proxy import Call
from tests.kube.controller_bench import Bounds, assert_invariants

UID = "u-1"
BOUNDS = {UID: [Bounds(0.0, 1, 3), Bounds(100.0, 1, 2)]}


def written(verb: str, resource: str, name: str, body: Any, at: float = 1.0) -> Call:
    return Call(verb, resource, "n", name, "/", {}, {}, json.dumps(body).encode(), at, 200)


def child(name: str, role: str = "trainer", parallelism: int = 1, owner: str = UID, at: float = 1.0) -> Call:
    owners = [{"kind": "TrainingJob", "uid": owner, "controller": True}] if owner else []
    labels = {"paddlepaddle.org/job-uid": UID, "paddlepaddle.org/role": role}
    meta = {"name": name, "labels": labels, "ownerReferences": owners}
    kind = "jobs" if role == "trainer" else "replicasets"
    return written("create", kind, "", {"metadata": meta, "spec": {"parallelism": parallelism}}, at)


def sized(parallelism: int, at: float) -> Call:
    return written("patch", "jobs", "tj-trainer", {"spec": {"parallelism": parallelism}}, at)


def status(at: float = 1.0, **fields: Any) -> Call:
    return written("patch", "trainingjobs/status", "tj", {"metadata": {"uid": UID}, "status": fields}, at)


GOOD = [
    child("tj-trainer"),
    child("tj-pserver", "pserver"),
    sized(3, 50.0),
    sized(3, 103.0),
    sized(2, 107.0),
    written("delete", "replicasets", "tj-pserver", {}),
    child("tj-pserver", "pserver"),
    status(phase="creating", observedGeneration=1),
    status(phase="running", observedGeneration=2),
    status(phase="scaling", conditions=[{"type": "A", "status": "True", "lastTransitionTime": "1"}]),
]


def test_what_is_right_passes() -> None:
    assert_invariants(GOOD, BOUNDS)
    assert_invariants([child("tj-trainer"), child("tj-trainer")], BOUNDS, again=["tj-trainer"])


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([child("tj-trainer"), child("tj-trainer")], "C1: a second child"),
        ([child("tj-trainer"), child("tj-trainer-2")], "C1: a second child"),
        ([child("tj-trainer", owner="")], "C1: no controller reference"),
        ([child("tj-trainer", parallelism=0)], "C2"),
        ([child("tj-trainer"), sized(4, 50.0)], "C2"),
        ([child("tj-trainer"), sized(3, 106.0)], "C2"),
        ([status(phase="running"), status(phase="running")], "C5: a status without a change"),
        ([status(a="x", startTime="1"), status(startTime="2")], "C5: a status without a change"),
        ([status(observedGeneration=2), status(observedGeneration=1)], "C5: observedGeneration falls"),
    ],
)
def test_what_is_wrong_does_not(record: list[Call], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        assert_invariants(record, BOUNDS)
