"""What each status of etcd means: whether it may have been applied, and what helps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_agent import errors
from edl_agent.etcd.status import Remedy, judge

CASES = [
    # an old token, in the words of 3.4, 3.5 and 3.6
    ("UNAUTHENTICATED", "etcdserver: invalid auth token", errors.AuthenticationFailed, Remedy.AUTHENTICATE),
    ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", errors.AuthenticationFailed, Remedy.AUTHENTICATE),
    ("UNKNOWN", "auth: revision in header is old", errors.AuthenticationFailed, Remedy.AUTHENTICATE),
    ("INVALID_ARGUMENT", "etcdserver: user name is empty", errors.AuthenticationFailed, Remedy.AUTHENTICATE),
    # wrong for good
    ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password",
     errors.AuthenticationFailed, Remedy.NONE),
    ("PERMISSION_DENIED", "etcdserver: permission denied", errors.PermissionDenied, Remedy.NONE),
    ("NOT_FOUND", "etcdserver: requested lease not found", errors.LeaseLost, Remedy.NONE),
    ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", errors.NoSpace, Remedy.NONE),
    ("INVALID_ARGUMENT", "etcdserver: request is too large", errors.RequestTooLarge, Remedy.NONE),
    ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (3 vs. 2)", errors.RequestTooLarge, Remedy.NONE),
    ("RESOURCE_EXHAUSTED", "trying to send message larger than max (3 vs. 2)", errors.RequestTooLarge, Remedy.NONE),
    ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", errors.WatchCompacted, Remedy.NONE),
    ("INVALID_ARGUMENT", "etcdserver: key is not provided", errors.RequestRefused, Remedy.NONE),
    # for the moment
    ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", errors.TooManyRequests, Remedy.BACK_OFF),
    ("UNAVAILABLE", "etcdserver: no leader", errors.Unavailable, Remedy.FAIL_OVER),
    ("UNAVAILABLE", "failed to connect to all addresses; last error: UNKNOWN: Connection refused",
     errors.Unavailable, Remedy.FAIL_OVER),
    ("UNAVAILABLE", "DNS resolution failed for etcd:2379", errors.Unavailable, Remedy.FAIL_OVER),
    ("UNAVAILABLE", "last error: Ssl handshake failed: SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED",
     errors.AuthenticationFailed, Remedy.FAIL_OVER),
]  # fmt: skip

AMBIGUOUS = [
    ("UNAVAILABLE", "etcdserver: leader changed"),
    ("UNAVAILABLE", "etcdserver: request timed out"),
    ("UNAVAILABLE", "Socket closed"),
    ("UNAVAILABLE", "etcdserver: server stopped"),
    ("DEADLINE_EXCEEDED", "Deadline Exceeded"),
    ("CANCELLED", "Locally cancelled by application!"),
    ("UNKNOWN", "context canceled"),
    ("INTERNAL", "stream terminated by RST_STREAM"),
]


@pytest.mark.parametrize(("code", "details", "error", "remedy"), CASES, ids=lambda value: str(value)[:40])
def test_known_statuses(code: str, details: str, error: type[errors.EdlAgentError], remedy: Remedy) -> None:
    verdict = judge(code, details)
    assert verdict.error is error
    assert verdict.remedy is remedy
    assert verdict.applied is False


@pytest.mark.parametrize(("code", "details"), AMBIGUOUS)
def test_lost_answers_are_never_called_not_applied(code: str, details: str) -> None:
    verdict = judge(code, details)
    assert verdict.applied is None
    assert verdict.error is errors.UnknownOutcome


@given(st.text(max_size=20), st.text(max_size=60))
def test_any_status_has_a_meaning(code: str, details: str) -> None:
    assert issubclass(judge(code, details).error, errors.EdlAgentError)
