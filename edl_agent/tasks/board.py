"""PURE: one trainer's view of the current pass: what is done, what is held by whom, and since when nothing was heard.

It is allowed to be old. Each take compares the revisions that it relied on, so an old view costs a refused take, whose
answer brings the view up to date; it never costs correctness.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from edl_agent.tasks.encoding import Holder, TaskKeys, decode_dataset, decode_holder, decode_progress, decode_state
from edl_agent.tasks.rules import Dataset, Progress, State


class Pair(Protocol):
    """A stored key, as far as it matters here."""

    @property
    def key(self) -> bytes:
        """Full key."""

    @property
    def value(self) -> bytes:
        """Stored value."""

    @property
    def mod_revision(self) -> int:
        """Revision of the last put."""

    @property
    def lease(self) -> int:
        """Its lease, 0 = none."""


@dataclass(frozen=True, slots=True)
class SeenChunk:
    """Progress of a chunk and the revision of its key, 0 = there is no key yet."""

    progress: Progress
    mod_revision: int


@dataclass(frozen=True, slots=True)
class SeenHold:
    """A holder.

    Attributes:
        holder: who.
        mod_revision: of the held key.
        lease: under which it is.
        progress_revision: of the chunk's key.
        since: on the local monotonic clock: when the hold was first seen with these two revisions. Each finish or
            renewal changes one of them, so nothing was heard since then; no other machine's clock comes into it.
    """

    holder: Holder
    mod_revision: int
    lease: int
    progress_revision: int
    since: float


class Board:
    """What is known of the job's tasks, kept up to date by reads and by events. Not thread-safe.

    Args:
        keys: names.

    Attributes:
        revision: up to which everything is known; 0 = nothing is.
        dataset: the data set in use, ``None`` = none was set.
        state: where the work stands.
        state_revision: mod revision of the state's key.
        chunks: those of the current pass that have a key.
        held: their holders.
    """

    def __init__(self, keys: TaskKeys) -> None:
        self.keys = keys
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.revision = 0
        self.dataset: Dataset | None = None
        self.state: State | None = None
        self.state_revision = 0
        self.chunks: dict[int, SeenChunk] = {}
        self.held: dict[int, SeenHold] = {}
        self._complete: set[int] = set()

    # --- news ---

    def loaded(self, pairs: Iterable[Pair], revision: int, now: float) -> None:
        """Everything below the tasks' prefix, as read at one revision."""
        seen = self.held
        self.clear()
        self._puts(pairs, now, seen)
        self.revision = revision

    def refreshed(
        self, state: Iterable[Pair], changed: Iterable[Pair], held: Iterable[Pair], revision: int, now: float
    ) -> None:
        """The answer to a refresh.

        Args:
            state: the state's key, empty where it is gone.
            changed: all keys put after `revision`.
            held: all held keys of the pass that was current; a deleted one shows by its absence only.
            revision: of the answer.
            now: monotonic seconds.
        """
        if not list(state) or revision < self.revision:
            self.clear()  # wiped, or another store: read all of it
            return
        before = self.state
        seen, self.held = self.held, {}
        same_pass: list[Pair] = [*held]
        self._puts(changed, now, seen)
        if before is not None and self.state is not None and self.state.current == before.current:
            listed = {pair.key for pair in same_pass}
            self.held = {
                chunk: hold for chunk, hold in self.held.items() if self.keys.held(self.state.current, chunk) in listed
            }
            self._puts(same_pass, now, seen)
        self.revision = revision

    def put(self, pair: Pair, now: float) -> None:
        """One key was put."""
        self._puts([pair], now, self.held)
        self.revision = max(self.revision, pair.mod_revision)

    def wrote(self, pass_number: int, chunk: int, progress: Progress, revision: int) -> None:
        """This process put a chunk's progress. What others did before that is still unknown, so `revision` stays."""
        if self.state is None or self.state.current != pass_number or self.chunk(chunk).mod_revision >= revision:
            return
        self.held.pop(chunk, None)
        self._progress(chunk, progress, revision, 0.0)

    def deleted(self, key: bytes, revision: int) -> None:
        """One key was deleted."""
        self.revision = max(self.revision, revision)
        if key in (self.keys.state, self.keys.dataset):
            self.clear()
            return
        parsed = self.keys.parse(key)
        if parsed is None or self.state is None or parsed.pass_number != self.state.current:
            return
        if parsed.held:
            self.held.pop(parsed.chunk, None)
        else:
            self.chunks.pop(parsed.chunk, None)
            self._complete.discard(parsed.chunk)

    # --- questions ---

    def chunk(self, number: int) -> SeenChunk:
        """A chunk, untouched where it has no key."""
        assert self.dataset is not None
        return self.chunks.get(number) or SeenChunk(Progress(self.dataset.size(number)), 0)

    @property
    def over(self) -> bool:
        """Whether all passes are finished."""
        return self.state is not None and self.state.over

    @property
    def working(self) -> bool:
        """Whether there is a pass to work on."""
        return self.dataset is not None and self.state is not None and not self.state.over

    @property
    def complete(self) -> bool:
        """Whether each chunk of the current pass is complete."""
        return self.working and self.dataset is not None and len(self._complete) == self.dataset.chunks

    @property
    def something_free(self) -> bool:
        """Whether `free` is not empty; cheap."""
        if not self.working or self.dataset is None:
            return False
        return len(self._complete) + sum(chunk not in self._complete for chunk in self.held) < self.dataset.chunks

    def free(self) -> list[int]:
        """The chunks that nobody holds and that have tasks left."""
        if not self.something_free or self.dataset is None:
            return []
        return [one for one in range(self.dataset.chunks) if one not in self._complete and one not in self.held]

    def is_open_to(self, chunk: int, queue: str, now: float) -> bool:
        """Whether a take may succeed: free, held by this very queue without its knowledge, or silent for too long."""
        if not self.working or self.dataset is None or chunk in self._complete or chunk >= self.dataset.chunks:
            return False
        hold = self.held.get(chunk)
        return hold is None or hold.holder.queue == queue or now >= hold.since + self.dataset.timeout

    def own(self, queue: str) -> list[int]:
        """The chunks that a queue holds without knowing it: the answer to a take was lost."""
        return [chunk for chunk, hold in self.held.items() if hold.holder.queue == queue]

    def overdue(self, queue: str, now: float) -> list[int]:
        """The held chunks that may be taken all the same, see `is_open_to`."""
        return [chunk for chunk in self.held if self.is_open_to(chunk, queue, now)]

    def next_overdue(self) -> float:
        """When the first silent holder counts as hung, on the monotonic clock; infinite where nothing is held."""
        if self.dataset is None:
            return float("inf")
        return min((hold.since + self.dataset.timeout for hold in self.held.values()), default=float("inf"))

    # --- inside ---

    def _puts(self, pairs: Iterable[Pair], now: float, seen: dict[int, SeenHold]) -> None:
        rest: list[tuple[int, bool, Pair]] = []
        # The state decides what the other keys mean, and sorts after them.
        state = dataset = None
        for pair in pairs:
            if pair.key == self.keys.state:
                state = pair
            elif pair.key == self.keys.dataset:
                dataset = pair
            elif (parsed := self.keys.parse(pair.key)) is not None:
                rest.append((parsed.pass_number, parsed.held, pair))
        if dataset is not None:
            self.dataset = decode_dataset(dataset.value)
        if state is not None and state.mod_revision != self.state_revision:
            self._new_state(decode_state(state.value), state.mod_revision)
        if self.state is None or self.dataset is None:
            return
        for pass_number, is_held, pair in sorted(rest, key=lambda one: one[1]):
            parsed = self.keys.parse(pair.key)
            if parsed is None or pass_number != self.state.current or parsed.chunk >= self.dataset.chunks:
                continue
            if is_held:
                self._hold(parsed.chunk, pair, now, seen)
            else:
                progress = decode_progress(pair.value, self.dataset.size(parsed.chunk))
                self._progress(parsed.chunk, progress, pair.mod_revision, now)

    def _new_state(self, state: State, revision: int) -> None:
        self.state, self.state_revision = state, revision
        self.chunks, self.held, self._complete = {}, {}, set()

    def _progress(self, chunk: int, progress: Progress, revision: int, now: float) -> None:
        self.chunks[chunk] = SeenChunk(progress, revision)
        if progress.complete:
            self._complete.add(chunk)
        hold = self.held.get(chunk)
        if hold is not None and hold.progress_revision != revision:
            self.held[chunk] = replace(hold, progress_revision=revision, since=now)

    def _hold(self, chunk: int, pair: Pair, now: float, seen: dict[int, SeenHold]) -> None:
        progress_revision = self.chunks[chunk].mod_revision if chunk in self.chunks else 0
        before = seen.get(chunk)
        since = now
        if before is not None and (before.mod_revision, before.progress_revision) == (
            pair.mod_revision,
            progress_revision,
        ):
            since = before.since
        self.held[chunk] = SeenHold(decode_holder(pair.value), pair.mod_revision, pair.lease, progress_revision, since)
