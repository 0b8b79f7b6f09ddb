"""PURE: which keys a program may read and write through the sidecar."""

import re

from edl_agent.sidecar.statuses import Refusal

LONGEST_KEY = 1024
"""Bytes."""

_FAMILIES = (b"ps", b"trainer")
"""Every first part that begins like this is the agent's: ``/ps/<i>``, ``/ps_desired``, ``/trainer/<i>``."""

_RESERVED = (b"edl", b"init_ps", b"master", b"checkpoints")

_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_BAD_PART = re.compile(rb"/\.{0,2}(?:/|\Z)")


def check_readable(key: bytes, prefix: str) -> bytes:
    """A key that may be read: any below the job's prefix; without a prefix the agent's classic names only.

    Raises:
        Refusal: it may not, or is no good key.
    """
    _checked(key)
    if not prefix and not _is_reserved(key):
        raise Refusal("KEY_RESERVED", "without a prefix only the job's own classic keys may be read: give --prefix")
    return key


def check_writable(key: bytes, prefix: str, index: int | None, epoch: int | None) -> bytes:
    """A key that may be written: below the job's prefix, and neither the agent's nor another slot's.

    The one exception is the program's own ``/checkpoints/<index>``, guarded by the epoch.

    Args:
        key: as the program names it.
        prefix: of the job, empty = none.
        index: of the pserver slot held by this program.
        epoch: by which the write is guarded.

    Raises:
        Refusal: it may not, or is no good key.
    """
    _checked(key)
    if index is not None and key == b"/checkpoints/%d" % index:
        if epoch is None:
            raise Refusal("KEY_RESERVED", "a checkpoint's key is written with the epoch only")
        return key
    if _is_reserved(key):
        raise Refusal("KEY_RESERVED", f"{_shown(key)} belongs to the agent or to another slot")
    if not prefix:
        raise Refusal("KEY_RESERVED", "without a prefix the key would lie outside of every job: give --prefix")
    return key


def _checked(key: bytes) -> bytes:
    if not key.startswith(b"/"):
        raise Refusal("KEY_RESERVED", f"the key {_shown(key)} must begin with a slash")
    if len(key) > LONGEST_KEY:
        raise Refusal("KEY_RESERVED", f"the key is longer than {LONGEST_KEY} bytes")
    if _CONTROL.search(key):
        raise Refusal("KEY_RESERVED", f"the key {_shown(key)} holds a control character")
    if _BAD_PART.search(key):
        raise Refusal("KEY_RESERVED", f"the key {_shown(key)} has an empty part, '.' or '..'")
    return key


def _is_reserved(key: bytes) -> bool:
    first = key.split(b"/")[1].lower()
    return first.startswith(_FAMILIES) or first in _RESERVED


def _shown(key: bytes) -> str:
    return repr(key[:60])
