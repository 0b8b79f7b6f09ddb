"""The error tree, the protocol's reasons and gRPC's codes: one to one."""

from __future__ import annotations

import grpc
import pytest

from edl_agent import errors
from edl_agent.sidecar import wire
from edl_agent.sidecar.statuses import CODES, Refusal, judge, reason_of

REASONS = wire.message("ErrorDetail").DESCRIPTOR.fields_by_name["reason"].enum_type.values_by_name


def tree(root: type = errors.EdlAgentError) -> set[type]:
    own = {root} if root.__module__ == errors.__name__ else set()
    below: list[type] = root.__subclasses__()
    return own.union(*(tree(one) for one in below))


def test_each_class_has_a_code_and_a_reason_of_its_own() -> None:
    assert set(CODES) == tree()
    names = [reason_of(kind) for kind in CODES]
    assert len(set(names)) == len(names)
    in_protocol = {name for name, value in REASONS.items() if 0 < value.number < 100}
    assert set(names) == in_protocol


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_codes_are_grpcs_and_a_write_of_unknown_outcome_is_not_repeated_by_clients(
    kind: type[errors.EdlAgentError],
) -> None:
    status = judge(kind("text"))
    assert grpc.StatusCode[status.code] is not grpc.StatusCode.OK
    assert status.may_have_been_applied == issubclass(kind, errors.UnknownOutcome)
    if status.may_have_been_applied:
        assert status.code != "UNAVAILABLE"
        assert not status.retryable


def test_what_is_not_ours_is_internal_and_subclasses_count_as_their_parent() -> None:
    assert judge(KeyError("x")).reason == "ERROR_REASON_INTERNAL"

    class Newer(errors.LeaseLost):
        pass

    assert judge(Newer("x")) == judge(errors.LeaseLost("x"))


@pytest.mark.parametrize(
    "reason",
    [
        name.removeprefix("ERROR_REASON_")
        for name, value in REASONS.items()
        if value.number >= 100 and name != "ERROR_REASON_INTERNAL"
    ],
)
def test_each_refusal_of_the_sidecar_has_a_code(reason: str) -> None:
    assert judge(Refusal(reason, "x")).reason == f"ERROR_REASON_{reason}"
