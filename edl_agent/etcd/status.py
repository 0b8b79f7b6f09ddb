"""PURE: what a gRPC status from etcd means.

Which error it is, whether the request may have been applied, and what helps.

Sources: etcd's ``api/v3rpc/rpctypes/error.go`` for the texts, ``client/v3/retry.go`` for what may be repeated.
"""

import enum
from typing import NamedTuple

from edl_agent import errors


class Remedy(enum.Enum):
    """What may help before the same request is sent again."""

    NONE = "none"
    FAIL_OVER = "another endpoint"
    AUTHENTICATE = "a new token"
    BACK_OFF = "patience"


class Verdict(NamedTuple):
    """The meaning of one failed call.

    Attributes:
        error: class to raise where nothing helps.
        applied: ``False``: surely not applied; ``None``: unknown.
        remedy: what may help.
    """

    error: type[errors.EdlAgentError]
    applied: bool | None
    remedy: Remedy


def _refused(error: type[errors.EdlAgentError], remedy: Remedy = Remedy.NONE) -> Verdict:
    return Verdict(error, False, remedy)


UNKNOWN = Verdict(errors.UnknownOutcome, None, Remedy.FAIL_OVER)
LEASE_NOT_FOUND = "requested lease not found"
LEASE_EXISTS = "lease already exists"

# Looked up by a part of the status text, first match; the texts are stable across etcd 3.4 to 3.6.
_BY_TEXT: tuple[tuple[str, Verdict], ...] = (
    ("invalid auth token", _refused(errors.AuthenticationFailed, Remedy.AUTHENTICATE)),
    ("revision of auth store is old", _refused(errors.AuthenticationFailed, Remedy.AUTHENTICATE)),
    # What etcd before 3.5.9 says of the same, with the code UNKNOWN.
    ("auth: revision in header is old", _refused(errors.AuthenticationFailed, Remedy.AUTHENTICATE)),
    ("user name is empty", _refused(errors.AuthenticationFailed, Remedy.AUTHENTICATE)),
    ("authentication failed", _refused(errors.AuthenticationFailed)),
    ("authentication is not enabled", _refused(errors.RequestRefused)),
    ("permission denied", _refused(errors.PermissionDenied)),
    (LEASE_NOT_FOUND, _refused(errors.LeaseLost)),
    (LEASE_EXISTS, _refused(errors.RequestRefused)),
    ("database space exceeded", _refused(errors.NoSpace)),
    ("request is too large", _refused(errors.RequestTooLarge)),
    ("too many requests", _refused(errors.TooManyRequests, Remedy.BACK_OFF)),
    ("required revision has been compacted", _refused(errors.WatchCompacted)),
    ("required revision is a future revision", _refused(errors.RequestRefused)),
    ("key is not provided", _refused(errors.RequestRefused)),
    ("no leader", _refused(errors.Unavailable, Remedy.FAIL_OVER)),
    ("not supported for learner", _refused(errors.Unavailable, Remedy.FAIL_OVER)),
    ("member not found", _refused(errors.Unavailable, Remedy.FAIL_OVER)),
    # The subchannel never came up, so nothing was sent.
    ("failed to connect", _refused(errors.Unavailable, Remedy.FAIL_OVER)),
    ("Connection refused", _refused(errors.Unavailable, Remedy.FAIL_OVER)),
    ("DNS resolution failed", _refused(errors.Unavailable, Remedy.FAIL_OVER)),
    ("name resolution", _refused(errors.Unavailable, Remedy.FAIL_OVER)),
    ("Handshake failed", _refused(errors.AuthenticationFailed, Remedy.FAIL_OVER)),
    ("handshake failed", _refused(errors.AuthenticationFailed, Remedy.FAIL_OVER)),
)

_BY_CODE: dict[str, Verdict] = {
    "UNAVAILABLE": UNKNOWN,  # server stopping, leader changed, connection broken: may have been applied
    "DEADLINE_EXCEEDED": UNKNOWN,
    "CANCELLED": UNKNOWN,
    "UNKNOWN": UNKNOWN,
    "INTERNAL": UNKNOWN,
    "ABORTED": UNKNOWN,
    "DATA_LOSS": UNKNOWN,
    "UNAUTHENTICATED": _refused(errors.AuthenticationFailed, Remedy.AUTHENTICATE),
    "PERMISSION_DENIED": _refused(errors.PermissionDenied),
    "RESOURCE_EXHAUSTED": _refused(errors.TooManyRequests, Remedy.BACK_OFF),
    "INVALID_ARGUMENT": _refused(errors.RequestRefused),
    "FAILED_PRECONDITION": _refused(errors.RequestRefused),
    "OUT_OF_RANGE": _refused(errors.RequestRefused),
    "NOT_FOUND": _refused(errors.RequestRefused),
    "ALREADY_EXISTS": _refused(errors.RequestRefused),
    "UNIMPLEMENTED": _refused(errors.ProtocolError),
}


def judge(code: str, details: str) -> Verdict:
    """The meaning of a gRPC status.

    Args:
        code: name of the code, for example ``"UNAVAILABLE"``.
        details: the status text.
    """
    # "failed to connect to all addresses; last error: ... Ssl handshake failed" is an identity fault, not a network
    # fault.
    if "andshake failed" in details and code == "UNAVAILABLE":
        return _refused(errors.AuthenticationFailed, Remedy.FAIL_OVER)
    if code == "RESOURCE_EXHAUSTED" and "message larger than max" in details:
        return _refused(errors.RequestTooLarge)
    for text, verdict in _BY_TEXT:
        if text in details:
            return verdict
    return _BY_CODE.get(code, Verdict(errors.ProtocolError, None, Remedy.NONE))
