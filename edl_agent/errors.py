"""The whole error tree of ``edl_agent``, drawn once.

::

    EdlAgentError
    ├── ConfigurationError          (also ValueError) a setting that cannot be right
    ├── ClientClosed                shutdown() was called
    ├── ForkedClient                used in a forked child
    ├── DeadlineExceeded            (also TimeoutError) the call's own time is over
    │   └── WriteDeadlineExceeded   ... of a write that may have been applied (also UnknownOutcome)
    ├── UnknownOutcome              a write was sent and its answer lost: applied or not, nobody knows
    ├── Unavailable                 etcd is not reached; nothing was applied
    │   ├── TooManyRequests         etcd asks for patience
    │   └── ClusterMismatch         the endpoint belongs to another cluster than before
    ├── LeaseLost                   the session's lease or slot is gone
    │   ├── SlotTakenOver           a newer process with the same address has the slot; final
    │   └── SlotWithdrawn           the desired count fell to or below this index
    ├── InvalidDesiredCount         /ps_desired does not hold a usable number
    ├── SlotsFull                   no free slot, and the caller did not want to wait
    ├── AuthenticationFailed        no, wrong or refused credentials (also TLS identity)
    ├── PermissionDenied            known user, not allowed
    ├── NoSpace                     etcd's space quota is used up
    ├── RequestRefused              etcd will never accept this request as it is
    │   └── RequestTooLarge
    ├── TaskLost                    a training task is no longer held: its outcome was not recorded
    ├── DatasetInUse                the data set cannot be changed in the middle of a pass
    ├── CheckpointError             a checkpoint was not saved, or none can be read; older ones are as they were
    │   ├── CheckpointStorageFull   no space, quota or file size left
    │   ├── CheckpointStorageDenied no permission, or a read-only file system
    │   └── CheckpointCorrupt       what was read back is not what was written
    ├── WatchCompacted              the wanted revision is no longer kept
    ├── WatchEnded                  a watch was ended by the server, with its reason
    └── ProtocolError               an answer that etcd should not give

A class exists where somebody acts on it. The foreign exception, where there is one, is the ``__cause__``; none leaves
the package by itself. Texts never contain passwords, tokens or values.
"""


class EdlAgentError(Exception):
    """Root of all errors raised by ``edl_agent``."""


class ConfigurationError(EdlAgentError, ValueError):
    """A setting or argument that cannot be right; the text names the bad part."""


class ClientClosed(EdlAgentError):
    """The client was shut down (before or during the call)."""


class ForkedClient(EdlAgentError):
    """The client was made in a parent process.

    Nor can a forked child make its own once the parent's was in use: gRPC does not survive that for sure. Start workers
    that need etcd by ``spawn`` or ``forkserver``.
    """


class DeadlineExceeded(EdlAgentError, TimeoutError):
    """The time that the caller allowed is over.

    Nothing was changed by a read, see `WriteDeadlineExceeded` for writes.
    """


class UnknownOutcome(EdlAgentError):
    """A write was sent and no answer came back: it may have been applied, may yet be, or never.

    It is never repeated by the client; read the key to learn more (reading may prove *applied*, never *not applied*).
    """


class WriteDeadlineExceeded(UnknownOutcome, DeadlineExceeded):
    """The deadline passed after a write was sent: both an `UnknownOutcome` and a `DeadlineExceeded`."""


class Unavailable(EdlAgentError):
    """etcd could not be reached or has no leader; the request was surely not applied."""


class TooManyRequests(Unavailable):
    """etcd is overloaded and refused the request before looking at it; try again later."""


class ClusterMismatch(Unavailable):
    """An endpoint answers with another cluster id than the one this client began with."""


class LeaseLost(EdlAgentError):
    """The session's lease or slot is gone: stop serving the index."""


class SlotTakenOver(LeaseLost):
    """A newer process with the same address holds the slot. Final: this client never claims again."""


class SlotWithdrawn(LeaseLost):
    """``/ps_desired`` was lowered to or below the held index; the slot was released."""


class InvalidDesiredCount(EdlAgentError):
    """``/ps_desired`` holds something else than a decimal number in 1..`MAX_DESIRED <edl_agent.keys.MAX_DESIRED>`."""


class SlotsFull(EdlAgentError):
    """Every index below ``/ps_desired`` is held, and ``register(wait=False)`` was asked for."""


class AuthenticationFailed(EdlAgentError):
    """etcd refused the credentials, wants some and none are configured, or the TLS identity cannot be trusted."""


class PermissionDenied(EdlAgentError):
    """The user is known but its roles do not allow the request."""


class NoSpace(EdlAgentError):
    """etcd's space quota is used up: puts and lease grants fail until it is compacted.

    Defragmented and the alarm disarmed.
    """


class RequestRefused(EdlAgentError):
    """etcd will never accept this request as it is (for example an empty key)."""


class RequestTooLarge(RequestRefused):
    """The request is larger than etcd's limit (1.5 MiB by default)."""


class TaskLost(EdlAgentError):
    """The training task is no longer held here: its outcome was not recorded, somebody else gets or has got it."""


class DatasetInUse(EdlAgentError):
    """Another data set is in use; it can be changed between two passes only, before the first task is taken."""


class CheckpointError(EdlAgentError):
    """A checkpoint was not saved, or there are some and none can be read; the older ones are as they were."""


class CheckpointStorageFull(CheckpointError):
    """The file system, the quota or the allowed file size is used up."""


class CheckpointStorageDenied(CheckpointError):
    """No permission for the folder or file, or the file system is read-only."""


class CheckpointCorrupt(CheckpointError):
    """A file does not hold what it should: what was read back after writing, or what was to be committed."""


class WatchCompacted(EdlAgentError):
    """The revision that a watch or read wanted has been compacted."""


class WatchEnded(EdlAgentError):
    """The server ended a watch for good; the text carries its reason."""


class ProtocolError(EdlAgentError):
    """etcd gave an answer or a status that is not part of its protocol as known here."""
