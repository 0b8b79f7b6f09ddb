"""The recorded history of a random test: typed records, one JSON object per line.

Three parties write: every agent process its own file (what it believed, and when), the runner its file (what was done
to whom, what etcd looked like in a snapshot), and after the run the store's own change log, read back from etcd
revision by revision. The checker reads them together. Nothing here knows the product: a history could as well come from
another implementation.

Times are seconds of CLOCK_MONOTONIC. On Linux that clock is one for all processes of a machine, so times of different
files may be compared with each other. Changes of the store carry a revision instead of a time: the revision is etcd's
own commit order.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

SLOT_PREFIX = "/ps/"
DESIRED_KEY = "/ps_desired"
WRITE_PREFIX = "/soak/"
"""Guarded keys live under this prefix; the value says who wrote it, see `GuardedValue`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Base of all records.

    Attributes:
        kind: the name of the record in a file.
    """

    kind: ClassVar[str] = ""


@dataclasses.dataclass(frozen=True, slots=True)
class AgentRecord(Record):
    """Something about one agent. One process is one agent: a restarted process has a new name, perhaps the old address.

    Attributes:
        at: seconds on the monotonic clock.
        agent: name of the agent.
    """

    at: float
    agent: str


# --- written by the runner: what was done to an agent ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class AgentStarted(AgentRecord):
    """The process was started (recorded before the start)."""

    kind: ClassVar[str] = "agent_started"
    address: str


@dataclasses.dataclass(frozen=True, slots=True)
class AgentStopAsked(AgentRecord):
    """SIGTERM was sent (recorded before the signal). From here on the agent need not hold a slot."""

    kind: ClassVar[str] = "agent_stop_asked"


@dataclasses.dataclass(frozen=True, slots=True)
class AgentStopped(AgentRecord):
    """The process ended by itself and was waited for.

    Attributes:
        code: exit code, negative for a signal.
        asked: whether anybody had asked it to stop.
    """

    kind: ClassVar[str] = "agent_stopped"
    code: int
    asked: bool


@dataclasses.dataclass(frozen=True, slots=True)
class AgentKilled(AgentRecord):
    """The process was killed with SIGKILL and is surely gone (recorded after it was waited for)."""

    kind: ClassVar[str] = "agent_killed"


@dataclasses.dataclass(frozen=True, slots=True)
class AgentPaused(AgentRecord):
    """SIGSTOP was sent (recorded before the signal)."""

    kind: ClassVar[str] = "agent_paused"


@dataclasses.dataclass(frozen=True, slots=True)
class AgentResumed(AgentRecord):
    """SIGCONT was sent (recorded after the signal)."""

    kind: ClassVar[str] = "agent_resumed"


# --- written by the agent: what it believed -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Claimed(AgentRecord):
    """A claim was acknowledged: from `at` on the agent serves this index.

    Attributes:
        index: the slot.
        epoch: mod revision of the slot key.
        lease: the session's lease.
        deadline: the local deadline, on the same clock as `at`.
    """

    kind: ClassVar[str] = "claimed"
    index: int
    epoch: int
    lease: int
    deadline: float


@dataclasses.dataclass(frozen=True, slots=True)
class Held(AgentRecord):
    """A sample: at `at` or a little later the agent's session said that it holds the slot, until `deadline` at least.

    `at` is read before the session is, so that a sample never looks later than it was.
    """

    kind: ClassVar[str] = "held"
    index: int
    epoch: int
    deadline: float


@dataclasses.dataclass(frozen=True, slots=True)
class Suspended(AgentRecord):
    """The agent was told that the store does not answer; it still holds its slot until the deadline."""

    kind: ClassVar[str] = "suspended"


@dataclasses.dataclass(frozen=True, slots=True)
class Connected(AgentRecord):
    """The session is fresh again."""

    kind: ClassVar[str] = "connected"


@dataclasses.dataclass(frozen=True, slots=True)
class Lost(AgentRecord):
    """The agent learned that the slot is lost.

    Attributes:
        index: the slot that was held.
        epoch: its epoch.
        reason: what the product said, for the reader.
    """

    kind: ClassVar[str] = "lost"
    index: int
    epoch: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Released(AgentRecord):
    """The agent gives its slot back (recorded before the release is sent, because from then on it does not serve)."""

    kind: ClassVar[str] = "released"
    index: int
    epoch: int


@dataclasses.dataclass(frozen=True, slots=True)
class WriteAttempted(AgentRecord):
    """A guarded write is about to go out.

    Attributes:
        seq: number of the write, unique for the agent.
        key: the key.
        index: the slot the writer believes to hold.
        epoch: and its epoch.
    """

    kind: ClassVar[str] = "write_attempted"
    seq: int
    key: str
    index: int
    epoch: int


@dataclasses.dataclass(frozen=True, slots=True)
class WriteCommitted(AgentRecord):
    """The product said that the write is in the store."""

    kind: ClassVar[str] = "write_committed"
    seq: int


@dataclasses.dataclass(frozen=True, slots=True)
class WriteRefused(AgentRecord):
    """The product said that the write is not in the store and never will be."""

    kind: ClassVar[str] = "write_refused"
    seq: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class WriteUnknown(AgentRecord):
    """The product said that it does not know (a timeout, a lost answer)."""

    kind: ClassVar[str] = "write_unknown"
    seq: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Usage(AgentRecord):
    """What the agent's process uses.

    Attributes:
        calls: remote calls started since the process began.
        threads: threads of the process.
        descriptors: open file descriptors.
        resident: resident memory in KiB.
    """

    kind: ClassVar[str] = "usage"
    calls: int
    threads: int
    descriptors: int
    resident: int


# --- written by the runner: faults, desired count, snapshots --------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class FaultBegan(Record):
    """A fault is about to be brought in.

    Attributes:
        at: seconds on the monotonic clock.
        fault: number of the fault, to find its end.
        name: what it is: `cut`, `pause`, `member_kill`, `store_away`, `slot_changed` …
        agents: the agents that it concerns; empty where it concerns everybody.
        indexes: slots whose key is removed or replaced from outside.
    """

    kind: ClassVar[str] = "fault_began"
    at: float
    fault: int
    name: str
    agents: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class FaultEnded(Record):
    """The cause of a fault is gone."""

    kind: ClassVar[str] = "fault_ended"
    at: float
    fault: int


@dataclasses.dataclass(frozen=True, slots=True)
class DesiredChanged(Record):
    """The desired count was written (recorded after the answer)."""

    kind: ClassVar[str] = "desired_changed"
    at: float
    value: int


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """One slot key as read from etcd.

    Attributes:
        index: from the key.
        address: the value.
        lease: 0 where there is none.
        revision: mod revision of the key.
    """

    index: int
    address: str
    lease: int
    revision: int


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot(Record):
    """The slots at one moment, one linearizable read. `at` is read before the request goes out, `done` after the
    answer.

    Attributes:
        at: before the request.
        done: after the answer.
        desired: the desired count in the store.
        slots: all slot keys, in order of index.
    """

    kind: ClassVar[str] = "snapshot"
    at: float
    done: float
    desired: int
    slots: tuple[Slot, ...]


# --- read back from etcd after the run ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class StoreChange(Record):
    """One change of one key, in commit order.

    Attributes:
        revision: the revision of the change (mod revision of the key).
        key: the key.
        value: the new value as text, `None` for a deletion.
        lease: the lease of a put, 0 where there is none.
    """

    kind: ClassVar[str] = "store_change"
    revision: int
    key: str
    value: str | None
    lease: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class GuardedValue:
    """The value of a guarded key: who wrote it, for which slot, under which epoch."""

    agent: str
    seq: int
    index: int
    epoch: int

    def text(self) -> str:
        """Return the value as it stands in the store."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> GuardedValue:
        """Read a value back.

        Raises:
            ValueError: the text is not such a value.
        """
        data = json.loads(text)
        try:
            return cls(
                agent=str(data["agent"]), seq=int(data["seq"]), index=int(data["index"]), epoch=int(data["epoch"])
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a guarded value: {text!r}") from error


KINDS: dict[str, type[Record]] = {
    record.kind: record
    for record in (
        AgentStarted,
        AgentStopAsked,
        AgentStopped,
        AgentKilled,
        AgentPaused,
        AgentResumed,
        Claimed,
        Held,
        Suspended,
        Connected,
        Lost,
        Released,
        WriteAttempted,
        WriteCommitted,
        WriteRefused,
        WriteUnknown,
        Usage,
        FaultBegan,
        FaultEnded,
        DesiredChanged,
        Snapshot,
        StoreChange,
    )
}


def to_line(record: Record) -> str:
    """Return the record as one line of JSON, without the line's end."""
    return json.dumps({"kind": record.kind, **dataclasses.asdict(record)}, separators=(",", ":"))


def from_line(line: str) -> Record:
    """Read one line.

    Raises:
        ValueError: no JSON object, an unknown kind, a missing or an unknown field.
    """
    data: dict[str, Any] = json.loads(line)
    kind = data.pop("kind", None)
    record_type = KINDS.get(str(kind))
    if record_type is None:
        raise ValueError(f"unknown kind of record: {kind!r}")
    for name in ("agents", "indexes"):
        if name in data:
            data[name] = tuple(data[name])
    try:
        if record_type is Snapshot:
            data["slots"] = tuple(Slot(**slot) for slot in data["slots"])
        return record_type(**data)
    except (TypeError, KeyError) as error:
        raise ValueError(f"bad record {line!r}: {error}") from error


class HistoryWriter:
    """Appends records to a file, each with one write: a killed process loses at most the line it was writing."""

    def __init__(self, path: Path) -> None:
        """Open the file for appending."""
        # Unbuffered: one record is one write(2), so lines of two threads never mix and nothing is lost in a buffer.
        self._file = path.open("ab", buffering=0)

    def write(self, record: Record) -> None:
        """Append one record."""
        self._file.write(to_line(record).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_history(paths: Iterable[Path]) -> list[Record]:
    """Read files of records. A last line without its end is dropped: its writer was killed while writing it.

    Raises:
        ValueError: a whole line cannot be read; the message names file and line.
    """
    records: list[Record] = []
    for path in paths:
        lines = path.read_bytes().decode().split("\n")
        for number, line in enumerate(lines[:-1], start=1):
            try:
                records.append(from_line(line))
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from error
    return records
