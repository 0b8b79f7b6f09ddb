"""Putting a data set, and reading its specs page by page."""

import bisect
import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd import kv as parts
from edl_agent.etcd.kv import Kv
from edl_agent.keys import prefix_end
from edl_agent.tasks.board import Board
from edl_agent.tasks.encoding import TaskKeys, decode_specs, encode_dataset, encode_specs, encode_state
from edl_agent.tasks.rules import Dataset, begun, default_chunk_size
from edl_agent.tasks.store import TaskStore

_KEPT_PAGES = 2
"""Pages of specs in memory: a chunk may lie across the border of two."""


def cut(
    tasks: int | Iterable[object], passes: int, chunk_size: int | None, max_failures: int, timeout: float
) -> tuple[Dataset, list[bytes]]:
    """The data set, and its specs as pages.

    Raises:
        ConfigurationError: names the bad part.
    """
    if isinstance(tasks, int):
        size = default_chunk_size(tasks) if chunk_size is None else chunk_size
        return Dataset(tasks, passes, size, max_failures, timeout), []
    if isinstance(tasks, str | bytes):
        raise errors.ConfigurationError("tasks must be a number or a list of specs, not a text")
    specs = list(tasks)
    if not specs:
        raise errors.ConfigurationError("a data set without tasks would never be finished")
    size = default_chunk_size(len(specs)) if chunk_size is None else chunk_size
    plain = Dataset(len(specs), passes, size, max_failures, timeout)
    pages = encode_specs(specs)
    digest = hashlib.sha256(b"\n".join(page for _, page in pages)).hexdigest()
    return replace(plain, pages=tuple(first for first, _ in pages), digest=digest), [page for _, page in pages]


class DatasetStore:
    """The keys of the data set itself. Deadlines are points on the monotonic clock, in seconds.

    Args:
        kv: the store.
        keys: names.
        clock: for deadlines.
        store: for looking.
        call_timeout: seconds per request.
    """

    def __init__(self, kv: Kv, keys: TaskKeys, clock: Clock, store: TaskStore, call_timeout: float) -> None:
        self._kv = kv
        self._keys = keys
        self._clock = clock
        self._store = store
        self._call_timeout = call_timeout
        self._pages: dict[tuple[str, int], list[Any]] = {}

    def put(self, dataset: Dataset, pages: list[bytes]) -> None:
        """Put a data set unless the same is there already.

        The specs come first: whoever sees the data set can read them.

        Raises:
            DatasetInUse: another one is there, and a pass over it is under way.
        """
        identity = dataset.identity
        put_pages = False
        while True:
            board = Board(self._keys)
            self._store.look(board, self._deadline())
            if board.state is not None and board.state.dataset == identity:
                return
            if board.complete:
                self._store.end_pass(board, self._deadline())
                continue
            if board.working and board.chunks and board.state is not None:
                if put_pages:
                    specs = self._keys.specs(identity)
                    self._kv.txn([], [parts.delete_op(specs, prefix_end(specs))], [], self._deadline())
                raise errors.DatasetInUse(
                    f"pass {board.state.current} over another data set is under way; set this one when it is over"
                )
            if not put_pages:
                for number, page in enumerate(pages):
                    self._put_page(self._keys.page(identity, number), page)
                put_pages = True
            if self._begin(board, dataset):
                return

    def _begin(self, board: Board, dataset: Dataset) -> bool:
        """One transaction against the state and the first take of its pass. Returns whether it surely won."""
        state = begun(dataset, board.state)
        success = [
            parts.put_op(self._keys.dataset, encode_dataset(dataset)),
            parts.put_op(self._keys.state, encode_state(state)),
        ]
        pass_keys = self._keys.of_pass(state.current)
        compares = [
            parts.modified_at(self._keys.state, board.state_revision),
            parts.range_absent(pass_keys, prefix_end(pass_keys)),
        ]
        if board.state is not None and board.state.dataset != dataset.identity:
            old = self._keys.specs(board.state.dataset)
            success.append(parts.delete_op(old, prefix_end(old)))
        try:
            return self._kv.txn(compares, success, [], self._deadline()).succeeded
        except errors.UnknownOutcome:
            return False

    def _put_page(self, key: bytes, page: bytes) -> None:
        deadline = self._deadline()
        while True:
            try:
                self._kv.put(key, page, deadline)
                return
            except errors.UnknownOutcome:  # a page always has the same content, so it may be put twice
                if self._clock.monotonic() >= deadline:
                    raise

    def spec(self, dataset: Dataset, index: int) -> Any:
        """The spec of one task, ``None`` where tasks have none.

        Raises:
            ProtocolError: it is not there.
        """
        if not dataset.pages:
            return None
        number = bisect.bisect_right(dataset.pages, index) - 1
        where = (dataset.identity, number)
        page = self._pages.get(where)
        if page is None:
            raw = self._kv.get(self._keys.page(*where), self._deadline())
            page = decode_specs(raw) if raw is not None else []
            if not index - dataset.pages[number] < len(page):
                raise errors.ProtocolError(f"/edl/task-specs/{where[0]}/{number} lacks the spec of task {index}")
            while len(self._pages) >= _KEPT_PAGES:
                self._pages.pop(next(iter(self._pages)))
            self._pages[where] = page
        return page[index - dataset.pages[number]]

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._call_timeout
