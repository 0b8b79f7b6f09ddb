"""The whole error tree of the controller, drawn once.

EdlControllerError
├── ConfigurationError (ValueError)  a setting or argument that cannot be right
├── InvalidQuantity (ValueError)     a resource amount that is none
├── InvalidTrainingJob (ValueError)  a TrainingJob with faults; all of them
├── MissingExtra (ImportError)       an optional dependency is not installed
└── ClusterError                     what a cluster answered
    ├── NotFound                     404
    ├── AlreadyExists                409: an object of this name is there
    ├── Conflict                     409: a precondition (version, uid) does not hold
    ├── Gone                         410: the version asked for is no longer kept; list again
    ├── Forbidden                    403
    ├── Invalid                      422: the object breaks a rule; `details` names it
    ├── NotLeading                   not asked at all: this replica may not write
    └── Unavailable                  the cluster does not answer, or asks to wait
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class EdlControllerError(Exception):
    """Root of all errors of this package."""


class ConfigurationError(EdlControllerError, ValueError):
    """A setting or argument that cannot be right; the text names the bad part."""


class InvalidQuantity(EdlControllerError, ValueError):
    """A resource amount that Kubernetes would refuse; `why` says which rule it breaks."""

    def __init__(self, what: object, why: str) -> None:
        shown = repr(what)
        super().__init__(f"{shown if len(shown) <= 70 else shown[:64] + '...'} is no amount of a resource: {why}")
        self.why = why


class Fault(NamedTuple):
    """One thing that is wrong with a TrainingJob."""

    path: str
    """Of the field, with its classic name: ``spec.trainer.min-instance``, ``spec.env[2].name``."""
    reason: str
    """One of Duplicate, Forbidden, Invalid, NotSupported, Required, TooLong, TypeInvalid, Unknown."""
    message: str
    """For people."""

    def __str__(self) -> str:
        # A path has names of users' maps in it, which may hold anything.
        path = self.path if self.path.isprintable() else ascii(self.path)[1:-1]
        return f"{path}: {self.message}" if path else self.message


class InvalidTrainingJob(EdlControllerError, ValueError):
    """A TrainingJob with faults; the message lists every one with its path, and so does `faults`."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(map(str, self.faults)))


class MissingExtra(EdlControllerError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


class ClusterError(EdlControllerError):
    """What a cluster answered in place of doing what was asked."""


class NotFound(ClusterError):
    """There is no such object."""


class Conflict(ClusterError):
    """The object is not as it was assumed to be (another version or uid): read it again."""


class AlreadyExists(Conflict):
    """An object of this name is there already."""


class Gone(ClusterError):
    """The version asked for is no longer kept: list again."""


class Forbidden(ClusterError):
    """The cluster does not allow it."""


class Invalid(ClusterError):
    """The object breaks a rule of its kind."""


class NotLeading(ClusterError):
    """This replica does not lead, or no longer: nothing was sent (`edl_controller.runtime.fenced_cluster`)."""


class Unavailable(ClusterError):
    """The cluster does not answer; `retry_after` is what it asked to wait, in seconds, or None."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
