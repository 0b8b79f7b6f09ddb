"""PURE: names and values of the keys below ``/edl/tasks/``, JSON with a version, small.

====================================== ======================================================== =====================
key                                    value                                                    written by
====================================== ======================================================== =====================
``/edl/tasks/dataset``                 the data set                                             `set_dataset`
``/edl/tasks/state``                   current pass, counts of finished passes                  ... and each pass's end
``/edl/tasks/<pass>/<chunk>``          progress and failures; absent = untouched                the holder
``/edl/tasks/<pass>/held/<chunk>``     the holder, under its lease                              the holder
``/edl/tasks/saver``                   the last pass for which somebody was told to save        who is told
``/edl/tasks/saving``                  the same by time, under a lease of that length           who is told
``/edl/task-specs/<id>/<page>``        specs of some tasks                                      `set_dataset`
====================================== ======================================================== =====================
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from edl_agent.errors import ConfigurationError, EdlAgentError, ProtocolError
from edl_agent.keys import KeySchema, prefix_end
from edl_agent.tasks.rules import Dataset, PassSummary, Progress, State

VERSION = 1
PAGE_BYTES = 256 * 1024
"""Wanted size of a page of specs: far below etcd's limit of 1.5 MiB per request."""

LARGEST_SPEC = 1024 * 1024
"""Bytes of one spec as JSON."""

_Value = TypeVar("_Value")
_CHUNK = re.compile(rb"(0|[1-9][0-9]{0,9})/(held/)?(0|[1-9][0-9]{0,9})")


class ChunkKey(NamedTuple):
    """What a key stands for: a chunk's progress, or (``held``) its holder."""

    pass_number: int
    chunk: int
    held: bool


class TaskKeys:
    """All keys of one job's tasks.

    Args:
        schema: of the job.

    Attributes:
        prefix: of everything that a trainer follows.
        end: end of that range.
        dataset: the data set.
        state: where the work stands.
        saver: who saves the model of which pass.
        saving: who saves the model in this interval.
    """

    def __init__(self, schema: KeySchema) -> None:
        self._schema = schema
        self.prefix = schema.full("/edl/tasks/")
        self.end = prefix_end(self.prefix)
        self.dataset = self.prefix + b"dataset"
        self.state = self.prefix + b"state"
        self.saver = self.prefix + b"saver"
        self.saving = self.prefix + b"saving"

    def of_pass(self, number: int) -> bytes:
        """Prefix of one pass: its chunks and their holders."""
        return self.prefix + b"%d/" % number

    def chunk(self, number: int, chunk: int) -> bytes:
        """Progress of one chunk."""
        return self.prefix + b"%d/%d" % (number, chunk)

    def held(self, number: int, chunk: int) -> bytes:
        """Holder of one chunk."""
        return self.prefix + b"%d/held/%d" % (number, chunk)

    def all_held(self, number: int) -> bytes:
        """Prefix of all holders of a pass."""
        return self.of_pass(number) + b"held/"

    def parse(self, full: bytes) -> ChunkKey | None:
        """What a full key below `prefix` stands for, ``None`` where it is no chunk's."""
        match = _CHUNK.fullmatch(full, len(self.prefix))
        return ChunkKey(int(match[1]), int(match[3]), match[2] is not None) if match else None

    def specs(self, identity: str) -> bytes:
        """Prefix of the specs of one data set."""
        return self._schema.full(f"/edl/task-specs/{identity}/")

    def page(self, identity: str, number: int) -> bytes:
        """One page of specs."""
        return self.specs(identity) + b"%d" % number


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a chunk.

    Attributes:
        name: for people.
        queue: random, of the `TaskQueue`; two of one process share name and lease.
        time: seconds since 1970 when taken or renewed; for people only.
    """

    name: str
    queue: str
    time: float


def encode_dataset(dataset: Dataset) -> bytes:
    """As stored."""
    return _dump(
        {
            "tasks": dataset.tasks,
            "passes": dataset.passes,
            "chunk": dataset.chunk_size,
            "max_failures": dataset.max_failures,
            "timeout": float(dataset.timeout),
            "pages": list(dataset.pages),
            "specs": dataset.digest,
        }
    )


def decode_dataset(raw: bytes) -> Dataset:
    """The inverse of `encode_dataset`.

    Raises:
        ProtocolError: anything else is stored.
    """

    def build(value: dict[str, Any]) -> Dataset:
        pages = tuple(int(one) for one in value["pages"])
        return Dataset(
            value["tasks"],
            value["passes"],
            value["chunk"],
            value["max_failures"],
            value["timeout"],
            pages,
            str(value["specs"]),
        )

    return _load(raw, build, "/edl/tasks/dataset")


def encode_state(state: State) -> bytes:
    """As stored."""
    return _dump(
        {
            "dataset": state.dataset,
            "first": state.first,
            "end": state.end,
            "pass": state.current,
            "history": [
                [one.pass_number, one.tasks, one.finished, one.set_aside, one.failures, list(one.named), one.reason]
                for one in state.history
            ],
        }
    )


def decode_state(raw: bytes) -> State:
    """The inverse of `encode_state`.

    Raises:
        ProtocolError: anything else is stored.
    """

    def build(value: dict[str, Any]) -> State:
        history = tuple(
            PassSummary(
                int(number), int(tasks), int(done), int(aside), int(failures), tuple(map(int, named)), str(reason)
            )
            for number, tasks, done, aside, failures, named, reason in value["history"]
        )
        return State(str(value["dataset"]), int(value["first"]), int(value["end"]), int(value["pass"]), history)

    return _load(raw, build, "/edl/tasks/state")


def encode_progress(progress: Progress) -> bytes:
    """As stored; what is as in an untouched chunk is left out."""
    if not progress.failures:  # the usual case, and the one that has to be fast
        return (
            b'{"v":1,"tried":%d,"open":1}' % progress.tried
            if progress.opened
            else b'{"v":1,"tried":%d}' % progress.tried
        )
    value: dict[str, Any] = {"tried": progress.tried}
    if progress.retry:
        counts = sorted(set(progress.retry.values()))
        value["retry"] = {
            str(count): to_runs(place for place, times in progress.retry.items() if times == count) for count in counts
        }
    if progress.aside:
        value["aside"] = to_runs(progress.aside)
    if progress.failures:
        value["failures"] = progress.failures
    if progress.opened:
        value["open"] = 1
    if progress.reason:
        value["reason"] = progress.reason
    return _dump(value)


def decode_progress(raw: bytes, size: int) -> Progress:
    """The inverse of `encode_progress`.

    Raises:
        ProtocolError: anything else is stored.
    """

    def build(value: dict[str, Any]) -> Progress:
        retry = {place: int(count) for count, runs in value.get("retry", {}).items() for place in from_runs(runs, size)}
        tried = int(value["tried"])
        aside = frozenset(from_runs(value.get("aside", ""), size))
        if not 0 <= tried <= size or any(place >= tried for place in (*retry, *aside)):
            raise ValueError("positions outside of the chunk")
        return Progress(
            size,
            tried,
            retry,
            aside,
            int(value.get("failures", 0)),
            bool(value.get("open", 0)),
            str(value.get("reason", "")),
        )

    return _load(raw, build, "a chunk of /edl/tasks")


def encode_holder(holder: Holder) -> bytes:
    """As stored."""
    return _dump({"holder": holder.name, "queue": holder.queue, "time": round(holder.time, 3)})


def decode_holder(raw: bytes) -> Holder:
    """The inverse of `encode_holder`; a value of somebody else is a holder without a name."""
    try:
        return _load(raw, lambda value: Holder(str(value["holder"]), str(value["queue"]), float(value["time"])), "")
    except ProtocolError:
        return Holder("?", "", 0.0)


@dataclass(frozen=True, slots=True)
class Saver:
    """Who was told to save a model.

    Attributes:
        pass_number: of which pass; -1 where it goes by time.
        token: random, of the one question that was answered with yes.
        name: for people.
        time: seconds since 1970, for people.
    """

    pass_number: int
    token: str
    name: str
    time: float


def encode_saver(saver: Saver) -> bytes:
    """As stored."""
    return _dump({"pass": saver.pass_number, "token": saver.token, "holder": saver.name, "time": round(saver.time, 3)})


def decode_saver(raw: bytes) -> Saver:
    """The inverse of `encode_saver`.

    Raises:
        ProtocolError: anything else is stored.
    """
    return _load(
        raw,
        lambda value: Saver(int(value["pass"]), str(value["token"]), str(value["holder"]), float(value["time"])),
        "/edl/tasks/saver",
    )


def encode_specs(specs: Iterable[object]) -> list[tuple[int, bytes]]:
    """Cut specs into pages.

    Returns:
        The first task and the stored bytes of each page.

    Raises:
        ConfigurationError: one is no JSON value, or too large.
    """
    pages: list[tuple[int, bytes]] = []
    texts: list[str] = []
    first = length = 0

    def close() -> None:
        pages.append((first, ("[" + ",".join(texts) + "]").encode()))

    for index, spec in enumerate(specs):
        try:
            text = json.dumps(spec, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the spec of task {index} is no JSON value: {error}") from None
        if len(text) > LARGEST_SPEC:
            raise ConfigurationError(
                f"the spec of task {index} takes {len(text)} bytes; at most {LARGEST_SPEC}: store a path in its place"
            )
        if texts and length + len(text) > PAGE_BYTES:
            close()
            texts, first, length = [], index, 0
        texts.append(text)
        length += len(text) + 1
    if texts:
        close()
    return pages


def decode_specs(raw: bytes) -> list[Any]:
    """The specs of one page.

    Raises:
        ProtocolError: anything else is stored.
    """
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, list):
        raise ProtocolError("a page of /edl/task-specs holds no JSON list")
    return value


def to_runs(positions: Iterable[int]) -> str:
    """Positions as text: ``0-3,7``. Many that lie together take little room."""
    runs: list[list[int]] = []
    for position in sorted(positions):
        if runs and runs[-1][1] + 1 == position:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def from_runs(text: str, size: int) -> list[int]:
    """The inverse of `to_runs`.

    Raises:
        ValueError: not such a text, a position that is not below ``size``, or one that does not ascend (so that the
            result is no longer than ``size``).
    """
    positions: list[int] = []
    least = 0
    for run in text.split(",") if text else ():
        first, _, last = run.partition("-")
        begin, end = int(first), int(last or first)
        if not least <= begin <= end < size:
            raise ValueError(f"bad run {run[:40]!r}")
        positions += range(begin, end + 1)
        least = end + 1
    return positions


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, **value}, separators=(",", ":")).encode()


def _load(raw: bytes, build: Callable[[dict[str, Any]], _Value], where: str) -> _Value:
    try:
        value = json.loads(raw)
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
        if value.get("v") != VERSION:
            raise ValueError(f"version {value.get('v')!r}, only {VERSION} is known here")
        return build(value)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError, EdlAgentError) as error:
        raise ProtocolError(f"{where} holds a value that is not understood: {error}") from None
