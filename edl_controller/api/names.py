"""PURE: the names and labels that follow from a job's name."""

from __future__ import annotations

import hashlib
import re

LABEL_LIMIT = 63
"""Longest label value, and longest name of a Job (its pods carry it as a label)."""
NAME_LIMIT = 253
"""Longest name of an object."""

ROLE_LABELS = {"master": "paddle-job-master", "pserver": "paddle-job-pserver", "trainer": "paddle-job"}
"""The classic label of each role's pods; its value is the job's name (`label_value`)."""

# Each part is a character class bounded on both sides by another one: no backtracking, linear time.
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_HASH_LENGTH = 8


def is_label(text: str) -> bool:
    """Tell whether it is an RFC 1123 label: lower case letters, digits, ``-``; at most 63 characters."""
    return len(text) <= LABEL_LIMIT and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Tell whether it is an RFC 1123 subdomain: labels with dots between them; at most 253 characters."""
    return len(text) <= NAME_LIMIT and all(_LABEL.fullmatch(part) for part in text.split("."))


def child_name(job: str, role: str) -> str:
    """Return the name of a child: ``<job>-<role>``, where too long cut and made unique by a hash of the job's name.

    Args:
        job: name of the job.
        role: ``master``, ``pserver`` or ``trainer``.
    """
    return _short(job, f"-{role}")


def label_value(job: str) -> str:
    """Return the value of the classic labels: the job's name, where too long cut and made unique by a hash."""
    return _short(job, "")


def _short(job: str, tail: str) -> str:
    if len(job) + len(tail) <= LABEL_LIMIT:
        return job + tail
    digest = hashlib.sha256(job.encode()).hexdigest()[:_HASH_LENGTH]
    kept = job[: LABEL_LIMIT - len(tail) - _HASH_LENGTH - 1].rstrip("-.")
    return f"{kept}-{digest}{tail}"
