"""PURE: where a watch stands. Each answer of the server moves the cursor; after a break the watch resumes from it.

etcd's rules (client/v3/watch.go): begin at the revision of the read + 1; after an event resume at its mod revision + 1;
a progress notice moves the cursor too; compaction and cancellation by the server are two different ends. A fragment
(one revision split over several answers) moves the cursor only when its last part has come, so a break in between
repeats the whole revision.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple


class EventType(enum.Enum):
    """What happened to a key."""

    PUT = "put"
    DELETE = "delete"


class WatchEvent(NamedTuple):
    """One change of one key.

    Attributes:
        type: put or delete.
        key: without the client's prefix where it comes from `EtcdClient.watch_prefix`.
        value: new value, empty for a delete.
        mod_revision: revision of the change.
        lease: lease of the key, 0 = none.
        previous: value before the change, where the watch asked for it and etcd still has it.
    """

    type: EventType
    key: bytes
    value: bytes
    mod_revision: int
    lease: int
    previous: bytes = b""


class WatchAnswer(NamedTuple):
    """One message of a watch stream, decoded."""

    revision: int
    events: tuple[WatchEvent, ...]
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    fragment: bool = False


@dataclass(frozen=True, slots=True)
class Cursor:
    """``next_revision``: the first revision not yet seen.

    ``pending``: events of a fragmented revision, still incomplete.
    """

    next_revision: int
    pending: tuple[WatchEvent, ...] = ()


class Step(NamedTuple):
    """What one answer means: the moved cursor, the events to deliver, and the end if it is one."""

    cursor: Cursor
    events: tuple[WatchEvent, ...] = ()
    compacted: int | None = None
    ended: str | None = None


def advance(cursor: Cursor, answer: WatchAnswer) -> Step:
    """Take one answer of the server.

    Returns:
        The step. ``compacted`` is the server's oldest kept revision (read afresh); ``ended`` the reason of any other
        cancellation. Events older than the cursor (sent again after a resume) are dropped, so none is delivered twice.
    """
    if answer.compact_revision:
        return Step(cursor, compacted=answer.compact_revision)
    if answer.canceled:
        return Step(cursor, ended=answer.cancel_reason or "cancelled by the server without a reason")
    fresh = tuple(event for event in answer.events if event.mod_revision >= cursor.next_revision)
    if answer.fragment:
        return Step(Cursor(cursor.next_revision, cursor.pending + fresh))
    events = cursor.pending + fresh
    if events:
        return Step(Cursor(events[-1].mod_revision + 1), events)
    # An empty answer that is no creation is a progress notice: everything up to its revision has been delivered.
    if not answer.created and not answer.events and answer.revision >= cursor.next_revision:
        return Step(Cursor(answer.revision + 1))
    return Step(Cursor(cursor.next_revision))


def resumed(cursor: Cursor) -> Cursor:
    """The cursor for a new stream: half-received revisions are asked for again."""
    return Cursor(cursor.next_revision)


class Known(NamedTuple):
    """A key as last seen by a watcher."""

    value: bytes
    mod_revision: int
    lease: int


def differences(before: dict[bytes, Known], after: dict[bytes, Known], revision: int) -> tuple[WatchEvent, ...]:
    """The events that lead from one full read to another.

    What a watch that missed them (compaction) must still deliver.

    Args:
        before: what the watcher knew.
        after: a fresh read.
        revision: the revision of the fresh read; stands in for the unknown revision of a delete.

    Returns:
        Deletes first, then puts in the order of their mod revisions.
    """
    deletes = [WatchEvent(EventType.DELETE, key, b"", revision, 0) for key in sorted(before.keys() - after.keys())]
    puts = [
        WatchEvent(EventType.PUT, key, known.value, known.mod_revision, known.lease)
        for key, known in after.items()
        if key not in before or before[key].mod_revision != known.mod_revision
    ]
    return tuple(deletes) + tuple(sorted(puts, key=lambda event: event.mod_revision))
