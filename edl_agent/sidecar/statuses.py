"""PURE: the agent's errors as gRPC statuses: a code that any language knows, and a reason for each class."""

import re
from dataclasses import dataclass

from edl_agent import errors


class Refusal(errors.EdlAgentError):
    """What the sidecar itself refuses.

    Attributes:
        reason: name of an ``ErrorReason`` without its prefix.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Status:
    """A call's bad end.

    Attributes:
        code: name of the gRPC status code.
        reason: name of the ``ErrorReason``.
        may_have_been_applied: a write was sent and its answer lost.
        retryable: the same call may succeed later.
    """

    code: str
    reason: str
    may_have_been_applied: bool
    retryable: bool


CODES: dict[type[errors.EdlAgentError], str] = {
    errors.EdlAgentError: "UNKNOWN",
    errors.ConfigurationError: "INVALID_ARGUMENT",
    errors.ClientClosed: "UNAVAILABLE",
    errors.ForkedClient: "INTERNAL",
    errors.DeadlineExceeded: "DEADLINE_EXCEEDED",
    errors.WriteDeadlineExceeded: "DEADLINE_EXCEEDED",
    # Not UNAVAILABLE: clients repeat that by themselves, and this may have been applied.
    errors.UnknownOutcome: "UNKNOWN",
    errors.Unavailable: "UNAVAILABLE",
    errors.TooManyRequests: "RESOURCE_EXHAUSTED",
    errors.ClusterMismatch: "UNAVAILABLE",
    errors.LeaseLost: "ABORTED",
    errors.SlotTakenOver: "FAILED_PRECONDITION",
    errors.SlotWithdrawn: "FAILED_PRECONDITION",
    errors.InvalidDesiredCount: "FAILED_PRECONDITION",
    errors.SlotsFull: "RESOURCE_EXHAUSTED",
    errors.AuthenticationFailed: "UNAUTHENTICATED",
    errors.PermissionDenied: "PERMISSION_DENIED",
    errors.NoSpace: "RESOURCE_EXHAUSTED",
    errors.RequestRefused: "INVALID_ARGUMENT",
    errors.RequestTooLarge: "INVALID_ARGUMENT",
    errors.TaskLost: "ABORTED",
    errors.DatasetInUse: "FAILED_PRECONDITION",
    errors.CheckpointError: "UNKNOWN",
    errors.CheckpointStorageFull: "RESOURCE_EXHAUSTED",
    errors.CheckpointStorageDenied: "PERMISSION_DENIED",
    errors.CheckpointCorrupt: "DATA_LOSS",
    errors.WatchCompacted: "OUT_OF_RANGE",
    errors.WatchEnded: "ABORTED",
    errors.ProtocolError: "INTERNAL",
}
"""One code for each class of the error tree; a test compares it with the tree and with the protocol's enum."""

_REFUSALS = {
    "NOT_ATTACHED": "FAILED_PRECONDITION",
    "ALREADY_ATTACHED": "ALREADY_EXISTS",
    "NOT_REGISTERED": "FAILED_PRECONDITION",
    "KEY_RESERVED": "PERMISSION_DENIED",
    "MALFORMED_REQUEST": "INVALID_ARGUMENT",
    "TOO_MANY_CALLS": "RESOURCE_EXHAUSTED",
    "UNKNOWN_SERVICE": "NOT_FOUND",
}

_PREFIX = "ERROR_REASON_"


def reason_of(kind: type[errors.EdlAgentError]) -> str:
    """The ``ErrorReason`` of a class: its name in capitals."""
    return _PREFIX + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).upper()


def judge(error: BaseException) -> Status:
    """How the call ends. An error that is none of the agent's is the sidecar's own fault."""
    if isinstance(error, Refusal):
        retryable = error.reason in ("ALREADY_ATTACHED", "TOO_MANY_CALLS")
        return Status(_REFUSALS[error.reason], _PREFIX + error.reason, False, retryable)
    if not isinstance(error, errors.EdlAgentError):
        return Status("INTERNAL", _PREFIX + "INTERNAL", False, False)
    kind = next(one for one in type(error).__mro__ if one in CODES)
    unknown = isinstance(error, errors.UnknownOutcome)
    retryable = isinstance(error, errors.Unavailable | errors.DeadlineExceeded | errors.SlotsFull) and not unknown
    return Status(CODES[kind], reason_of(kind), unknown, retryable)
