"""PURE: what an API server's refusals mean in the words of the port.

A message for people is cut to `LONGEST` characters and has no control characters. Bodies that are no ``Status`` (a
proxy's page) are not repeated at all, and of a Secret only where it is wrong, never the text, which may quote a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from edl_controller.errors import AlreadyExists, ClusterError, Conflict, Forbidden, Gone, Invalid, NotFound, Unavailable

LONGEST = 512
"""Characters of a message that are kept."""

_REFUSALS: Mapping[int, type[ClusterError]] = {
    400: Invalid,
    401: Forbidden,  # the credentials are not known, and were not after they had been read anew
    403: Forbidden,
    404: NotFound,
    405: Invalid,
    406: Invalid,
    409: Conflict,
    410: Gone,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}
"""HTTP status to error; any other one asks to try again later."""


class Cause(msgspec.Struct, frozen=True):
    """One of the reasons of a refusal."""

    reason: str = ""
    field: str = ""


class Details(msgspec.Struct, frozen=True, rename="camel"):
    """What a refusal is about."""

    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: float | None = None


NOT_KNOWN_YET = "cannot find RESTMapping"
"""In the refusal of an owner reference whose kind is so new that the API server's admission has not read it yet (it
looks every 30 s): ``plugin/pkg/admission/gc`` of Kubernetes 1.36. It passes by itself."""
WAIT_AT_MOST = 60.0
"""Seconds; a server that asks for more is asked after them nevertheless."""


class Status(msgspec.Struct, frozen=True):
    """``v1.Status``, as far as it is read."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The reasons, never None."""
        return (self.details.causes if self.details is not None else None) or ()


def read_status(body: bytes) -> Status | None:
    """Return the Status in a body; None: it is something else."""
    try:
        return msgspec.json.decode(body, type=Status)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def error_of(
    code: int, body: bytes, *, asked: str, retry_after: str | None = None, secret: bool = False
) -> ClusterError:
    """Return the error that an answer stands for.

    Args:
        code: HTTP status, or the code of a Status in a watch.
        body: of the answer.
        asked: method and path, for the message.
        retry_after: the header of this name; a date counts as absent.
        secret: whether the answer is about Secrets.
    """
    status = read_status(body)
    if status is None:
        # Not repeated: it may be anything, from a page of a proxy to half an object.
        return _error_type(code, Status())(f"{asked}: HTTP {code}, {len(body)} bytes that are no Status")
    if secret:
        text = f"{status.reason or code}: {', '.join(cause.field for cause in status.causes) or 'no more is shown'}"
    else:
        text = status.message or status.reason or f"HTTP {code}"
    kind = _error_type(code, status)
    message = plain(text if kind is not Unavailable else f"{asked}: {text}")
    if kind is Unavailable:
        return Unavailable(message, retry_after=_seconds(retry_after, status))
    return kind(message)


def plain(text: str) -> str:
    """Return the text, cut, without control characters."""
    shown = text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 3] + "..."


def is_version_too_large(status: Status) -> bool:
    """Tell whether the server has never been as far as the version that was asked for (it came from a backup)."""
    return any(cause.reason == "ResourceVersionTooLarge" for cause in status.causes) or (
        "Too large resource version" in status.message
    )


def _error_type(code: int, status: Status) -> type[ClusterError]:
    kind = _REFUSALS.get(code, Unavailable)
    if kind is Forbidden and NOT_KNOWN_YET in status.message:
        return Unavailable
    if kind is Conflict and status.reason == "AlreadyExists":
        return AlreadyExists
    if kind is Invalid and any(cause.field == "metadata.uid" for cause in status.causes):
        return Conflict  # a merge patch that carries another uid: "field is immutable"
    if status.reason in ("Expired", "Gone"):
        return Gone
    return kind


def _seconds(header: str | None, status: Status) -> float | None:
    wait: Any = status.details.retry_after_seconds if status.details is not None else None
    if header is not None and header.strip().isdecimal():
        wait = float(header)
    return min(float(wait), WAIT_AT_MOST) if wait else None
