"""PURE: how a data set is cut into chunks, and what becomes of a chunk's tasks. Values in, values out.

A *chunk* is a run of tasks that one trainer holds at a time and walks through in a fixed order: first those never
tried, then those that failed, the least failed first. So the task in hand follows from the chunk's progress alone, and
handing it out needs no write. Only that the chunk is *opened* is written (when it is taken); a chunk that is found
opened and held by nobody had a holder that died, and its task in hand counts one failure.

Rejected: one key per task, as in a queue (a million keys for a million tasks); one value for all tasks, as the original
master had (limited by etcd's request size, and every finish would contend for it).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edl_agent.errors import ConfigurationError

MAX_CHUNKS = 2000
"""Keys per pass: a full read stays far below one etcd page of a MiB, whatever the number of tasks."""

MAX_TASKS = 1_000_000_000
"""Tasks in a data set: a typo must not cost memory."""

DEFAULT_MAX_FAILURES = 3
"""Failures after which a task is tried once more; the next one sets it aside (the original master's rule)."""

DEFAULT_TIMEOUT = 1200.0
"""Seconds without a finish or renewal after which a living holder counts as hung (20 min, the original master's)."""

KEPT_SUMMARIES = 20
"""Finished passes whose counts are kept."""

NAMED_TASKS = 20
"""Set-aside tasks that a summary names; the rest is only counted."""

LONGEST_REASON = 200
"""Characters kept of the text that says why a task failed."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set as cut into tasks.

    Attributes:
        tasks: how many, numbered from 0.
        passes: over the whole data set.
        chunk_size: tasks per chunk.
        max_failures: a task that failed more often in one pass is set aside for this pass.
        timeout: seconds after which a living but silent holder loses its chunk.
        pages: first task of each page of specs; empty where tasks have none.
        digest: of the specs; empty where tasks have none.
    """

    tasks: int
    passes: int = 1
    chunk_size: int = 1
    max_failures: int = DEFAULT_MAX_FAILURES
    timeout: float = DEFAULT_TIMEOUT
    pages: tuple[int, ...] = ()
    digest: str = ""

    def __post_init__(self) -> None:
        _whole("tasks", self.tasks, 1, MAX_TASKS)
        _whole("passes", self.passes, 1, 1_000_000_000)
        _whole("chunk_size", self.chunk_size, 1, MAX_TASKS)
        _whole("max_failures", self.max_failures, 0, 1_000_000_000)
        timeout: object = self.timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 1e9:
            raise ConfigurationError(f"timeout must be a positive number of seconds, not {timeout!r}")
        if self.chunks > MAX_CHUNKS:
            raise ConfigurationError(
                f"chunk_size {self.chunk_size} makes {self.chunks} chunks of {self.tasks} tasks; at most {MAX_CHUNKS} "
                f"are allowed: use at least {default_chunk_size(self.tasks)}"
            )

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return -(-self.tasks // self.chunk_size)

    def size(self, chunk: int) -> int:
        """Tasks in one chunk; the last may be shorter."""
        return min(self.chunk_size, self.tasks - chunk * self.chunk_size)

    def index(self, chunk: int, position: int) -> int:
        """The task at a position of a chunk."""
        return chunk * self.chunk_size + position

    @property
    def identity(self) -> str:
        """The same text for equal data sets and no other."""
        return hashlib.sha256(repr((*_fields(self),)).encode()).hexdigest()[:16]


def default_chunk_size(tasks: int) -> int:
    """The smallest chunks that are not too many: single tasks up to `MAX_CHUNKS` of them."""
    return max(1, -(-tasks // MAX_CHUNKS))


@dataclass(frozen=True, slots=True)
class Progress:
    """What became of the tasks of one chunk, in one pass. Positions count from 0 within the chunk.

    Attributes:
        size: tasks in the chunk.
        tried: positions below this one were tried at least once.
        retry: position -> failures, of tasks to be tried again.
        aside: positions that failed too often.
        failures: all failures in this chunk and pass.
        opened: a holder took it and has not given it back.
        reason: of the latest failure, for people.
    """

    size: int
    tried: int = 0
    retry: Mapping[int, int] = field(default_factory=dict)
    aside: frozenset[int] = frozenset()
    failures: int = 0
    opened: bool = False
    reason: str = ""

    @property
    def due(self) -> int | None:
        """The task in hand, or the next one: ``None`` where nothing is left to do."""
        if self.tried < self.size:
            return self.tried
        return min(self.retry, key=lambda position: (self.retry[position], position), default=None)

    @property
    def complete(self) -> bool:
        """Whether each task is finished or set aside; such a chunk never changes again."""
        return self.tried == self.size and not self.retry

    @property
    def left(self) -> int:
        """How many tasks are neither finished nor set aside."""
        return self.size - self.tried + len(self.retry)

    @property
    def finished(self) -> int:
        """How many tasks are finished."""
        return self.tried - len(self.retry) - len(self.aside)

    def is_finished(self, position: int) -> bool:
        """Whether this task is finished."""
        return position < self.tried and position not in self.retry and position not in self.aside

    def failures_of(self, position: int) -> int:
        """How often a task that is still to be done has failed."""
        return self.retry.get(position, 0)


def opened(progress: Progress, max_failures: int, why: str | None) -> Progress:
    """The chunk as its next holder takes it.

    Found opened, its last holder died or hung: the task it had in hand counts one failure, for the reason ``why``
    (``None``: it is known that none was in hand).
    """
    due = progress.due
    if progress.opened and due is not None and why is not None:
        progress = failed(progress, due, max_failures, why)
    return replace(progress, opened=not progress.complete)


def finished(progress: Progress, position: int) -> Progress:
    """The task in hand is done; a chunk with nothing left is closed."""
    retry = {one: count for one, count in progress.retry.items() if one != position}
    tried = max(progress.tried, position + 1)
    still_open = progress.opened and (tried < progress.size or bool(retry))
    return Progress(progress.size, tried, retry, progress.aside, progress.failures, still_open, progress.reason)


def failed(progress: Progress, position: int, max_failures: int, reason: str) -> Progress:
    """The task in hand failed: it is tried again after the others, or set aside."""
    count = progress.failures_of(position) + 1
    retry = dict(progress.retry)
    aside = progress.aside
    if count > max_failures:
        retry.pop(position, None)
        aside |= {position}
    else:
        retry[position] = count
    after = replace(
        progress,
        tried=max(progress.tried, position + 1),
        retry=retry,
        aside=aside,
        failures=progress.failures + 1,
        reason=reason[:LONGEST_REASON],
    )
    return replace(after, opened=after.opened and not after.complete)


def given_back(progress: Progress) -> Progress:
    """The holder lets go of the chunk by itself; nothing counts as failed."""
    return replace(progress, opened=False)


@dataclass(frozen=True, slots=True)
class PassSummary:
    """The counts of one pass.

    Attributes:
        pass_number: from 0, counted on over changes of the data set.
        tasks: in the data set.
        finished: tasks finished.
        set_aside: tasks that failed too often.
        failures: of all tasks together.
        named: the first of the tasks set aside.
        reason: why one task failed, if possible one of those set aside; for people.
    """

    pass_number: int
    tasks: int
    finished: int = 0
    set_aside: int = 0
    failures: int = 0
    named: tuple[int, ...] = ()
    reason: str = ""


def summary(pass_number: int, dataset: Dataset, chunks: Mapping[int, Progress]) -> PassSummary:
    """Add up the chunks of a pass."""
    named: list[int] = []
    for chunk in sorted(chunks):
        if len(named) < NAMED_TASKS:
            named += [dataset.index(chunk, position) for position in sorted(chunks[chunk].aside)]
    reasons = sorted((not one.aside, one.reason) for one in chunks.values() if one.reason)
    return PassSummary(
        pass_number,
        dataset.tasks,
        sum(one.finished for one in chunks.values()),
        sum(len(one.aside) for one in chunks.values()),
        sum(one.failures for one in chunks.values()),
        tuple(named[:NAMED_TASKS]),
        reasons[0][1] if reasons else "",
    )


@dataclass(frozen=True, slots=True)
class State:
    """Where the work stands.

    Attributes:
        dataset: `Dataset.identity` of the data set in use.
        first: number of its first pass.
        end: number of the pass after its last.
        current: the pass whose tasks are handed out; ``end`` = all is finished.
        history: of the latest finished passes.
    """

    dataset: str
    first: int
    end: int
    current: int
    history: tuple[PassSummary, ...] = ()

    @property
    def over(self) -> bool:
        """Whether all passes are finished."""
        return self.current >= self.end


def begun(dataset: Dataset, before: State | None) -> State:
    """The state with a new data set; pass numbers are never used twice."""
    first = before.current if before is not None else 0
    return State(dataset.identity, first, first + dataset.passes, first, before.history if before is not None else ())


def pass_ended(state: State, counts: PassSummary) -> State:
    """The current pass is over."""
    return replace(state, current=state.current + 1, history=(*state.history, counts)[-KEPT_SUMMARIES:])


def _fields(dataset: Dataset) -> tuple[object, ...]:
    return (
        dataset.tasks,
        dataset.passes,
        dataset.chunk_size,
        dataset.max_failures,
        float(dataset.timeout),
        dataset.pages,
        dataset.digest,
    )


def _whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigurationError(f"{name} must be a whole number in {least}..{most}, not {value!r}")
