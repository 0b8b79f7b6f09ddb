"""The rules of the task queue, as tables and as properties: no etcd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_agent import ConfigurationError, ProtocolError
from edl_agent.keys import KeySchema
from edl_agent.tasks import encoding, rules
from edl_agent.tasks.dataset_store import cut
from edl_agent.tasks.encoding import ChunkKey, TaskKeys
from edl_agent.tasks.rules import Dataset, PassSummary, Progress, State


@pytest.mark.parametrize(
    ("tasks", "chunk_size", "chunks"),
    [(1, 1, 1), (1999, 1, 1999), (2000, 1, 2000), (2001, 2, 1001), (1_000_000, 500, 2000), (1_000_001, 501, 1997)],
)
def test_default_chunks_are_as_small_as_2000_keys_allow(tasks: int, chunk_size: int, chunks: int) -> None:
    dataset, pages = cut(tasks, 1, None, 3, 60)
    assert (dataset.chunk_size, dataset.chunks, pages) == (chunk_size, chunks, [])
    sizes = [dataset.size(chunk) for chunk in range(dataset.chunks)]
    assert sum(sizes) == tasks
    assert min(sizes) >= 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 1, None, 3, 60.0), "tasks"),
        ((-1, 1, None, 3, 60.0), "tasks"),
        ((True, 1, None, 3, 60.0), "tasks"),
        (([], 1, None, 3, 60.0), "without tasks"),
        (("abc", 1, None, 3, 60.0), "text"),
        (([object()], 1, None, 3, 60.0), "task 0"),
        ((["a", float("nan")], 1, None, 3, 60.0), "task 1"),
        ((["x" * 2_000_000], 1, None, 3, 60.0), "store a path"),
        ((5, 0, None, 3, 60.0), "passes"),
        ((5, 1.5, None, 3, 60.0), "passes"),
        ((5, 1, 0, 3, 60.0), "chunk_size"),
        ((4001, 1, 2, 3, 60.0), "at least 3"),
        ((5, 1, None, -1, 60.0), "max_failures"),
        ((5, 1, None, 3, 0), "timeout"),
        ((5, 1, None, 3, float("nan")), "timeout"),
        ((5, 1, None, 3, True), "timeout"),
    ],
)
def test_bad_data_sets_are_refused_with_the_bad_part_named(arguments: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        cut(*arguments)


class Case(NamedTuple):
    story: str
    before: Progress
    change: Callable[[Progress], Progress]
    after: Progress


OPEN = Progress(3, opened=True)
CASES = [
    Case("an untouched chunk is opened", Progress(3), lambda p: rules.opened(p, 3, "died"), OPEN),
    Case(
        "found opened, the first task counts a failure and is tried after the others",
        OPEN,
        lambda p: rules.opened(p, 3, "died"),
        Progress(3, 1, {0: 1}, failures=1, opened=True, reason="died"),
    ),
    Case("taken again by the queue that took it: nothing was in hand", OPEN, lambda p: rules.opened(p, 3, None), OPEN),
    Case(
        "a death on the very last chance sets the task aside; nothing is left, so the chunk is closed at once",
        Progress(1, 1, {0: 3}, failures=3, opened=True),
        lambda p: rules.opened(p, 3, "died"),
        Progress(1, 1, {}, frozenset({0}), 4, False, "died"),
    ),
    Case("tasks are finished in order", OPEN, lambda p: rules.finished(p, 0), Progress(3, 1, opened=True)),
    Case(
        "the last finish closes the chunk",
        Progress(3, 2, opened=True),
        lambda p: rules.finished(p, 2),
        Progress(3, 3, opened=False),
    ),
    Case(
        "... but not while one is to be tried again",
        Progress(3, 2, {0: 1}, opened=True),
        lambda p: rules.finished(p, 2),
        Progress(3, 3, {0: 1}, opened=True),
    ),
    Case(
        "a failed task succeeds in its second try",
        Progress(3, 3, {0: 1}, failures=1, opened=True),
        lambda p: rules.finished(p, 0),
        Progress(3, 3, {}, failures=1, opened=False),
    ),
    Case(
        "with no retries allowed the first failure sets aside",
        OPEN,
        lambda p: rules.failed(p, 0, 0, "bad"),
        Progress(3, 1, {}, frozenset({0}), 1, True, "bad"),
    ),
    Case("giving back counts nothing", Progress(3, 1, opened=True), rules.given_back, Progress(3, 1)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.story)
def test_progress(case: Case) -> None:
    assert case.change(case.before) == case.after


@given(st.integers(1, 12), st.integers(0, 3), st.data())
@settings(max_examples=200, deadline=None)
def test_every_task_of_a_chunk_ends_finished_or_set_aside(size: int, most: int, data: st.DataObject) -> None:
    """Whatever happens, each task is tried at most ``most + 1`` times, and the counts are right at each step."""
    progress = rules.opened(Progress(size), most, "died")
    tried: dict[int, int] = {}
    lost: set[int] = set()
    done: set[int] = set()
    failures = 0
    while not progress.complete:
        due = progress.due
        assert due is not None
        assert due not in done | lost
        assert progress.failures_of(due) == tried.get(due, 0)
        match data.draw(st.sampled_from(["finish", "fail", "die", "give back"])):
            case "finish":
                progress = rules.finished(progress, due)
                done.add(due)
            case "give back":
                progress = rules.opened(rules.given_back(progress), most, "died")
            case "fail" | "die" as how:
                if how == "die":
                    progress = rules.opened(progress, most, "died")
                else:
                    progress = rules.failed(progress, due, most, "bad")
                failures += 1
                tried[due] = tried.get(due, 0) + 1
                if tried[due] > most:
                    lost.add(due)
        assert encoding.decode_progress(encoding.encode_progress(progress), size) == progress
        assert {one for one in range(size) if progress.is_finished(one)} == done
        assert (progress.finished, set(progress.aside), progress.failures) == (len(done), lost, failures)
    assert not progress.opened
    assert done | lost == set(range(size))
    assert all(times <= most + 1 for times in tried.values())


@given(st.sets(st.integers(0, 300)))
def test_runs(positions: set[int]) -> None:
    assert encoding.from_runs(encoding.to_runs(positions), 301) == sorted(positions)


def test_a_chunk_of_500_failed_tasks_takes_few_bytes() -> None:
    progress = Progress(500)
    for position in range(500):
        progress = rules.failed(progress, position, 0, "x" * 10_000)
    assert len(encoding.encode_progress(progress)) < 300


def test_values_survive_encoding() -> None:
    dataset, pages = cut([{"path": "a b", "lines": [1, 2]}, "ü", None] * 3, 2, 2, 5, 1.5)
    assert encoding.decode_dataset(encoding.encode_dataset(dataset)) == dataset
    assert [encoding.decode_specs(page) for page in pages] == [[{"path": "a b", "lines": [1, 2]}, "ü", None] * 3]
    state = State("x", 3, 9, 5, (PassSummary(3, 10, 8, 2, 9, (1, 2), "bad"), PassSummary(4, 10, 10)))
    assert encoding.decode_state(encoding.encode_state(state)) == state
    saver = encoding.Saver(3, "t", "me", 1.5)
    assert encoding.decode_saver(encoding.encode_saver(saver)) == saver


def test_identity_is_that_of_the_content() -> None:
    same = [cut(["a", "b"], 2, None, 3, timeout)[0].identity for timeout in (60, 60.0)]
    others = [
        cut(["a", "c"], 2, None, 3, 60)[0],
        cut(2, 2, None, 3, 60)[0],
        cut(["a", "b"], 3, None, 3, 60)[0],
        cut(["a", "b"], 2, 2, 3, 60)[0],
        cut(["a", "b"], 2, None, 4, 60)[0],
        cut(["a", "b"], 2, None, 3, 61)[0],
    ]
    assert len(set(same)) == 1
    assert len({*same, *(one.identity for one in others)}) == 7


def test_large_specs_are_cut_into_pages() -> None:
    specs = [f"/data/part-{number:07d}" + "x" * 100 for number in range(10_000)]
    dataset, pages = cut(specs, 1, None, 3, 60)
    assert len(pages) > 3
    assert max(map(len, pages)) <= encoding.PAGE_BYTES + 200
    assert [spec for page in pages for spec in encoding.decode_specs(page)] == specs
    assert dataset.pages == tuple(
        sum(len(encoding.decode_specs(page)) for page in pages[:number]) for number in range(len(pages))
    )


GARBAGE = [b"", b"x", b"[]", b"{}", b'{"v":2}', b'{"v":1}', b"\xff", b'{"v":1,"tried":-1}', b'{"v":1,"tried":"x"}']


@pytest.mark.parametrize("raw", [*GARBAGE, b'{"v":1,"tried":9}', b'{"v":1,"tried":1,"aside":"0-99999999999"}'])
def test_values_of_others_give_a_typed_error(raw: bytes) -> None:
    for decode in (lambda r: encoding.decode_progress(r, 3), encoding.decode_dataset, encoding.decode_state):
        with pytest.raises(ProtocolError):
            decode(raw)
    assert encoding.decode_holder(raw).queue == ""


@pytest.mark.parametrize(
    ("key", "meaning"),
    [
        ("/j/edl/tasks/0/0", ChunkKey(0, 0, False)),
        ("/j/edl/tasks/12/held/1999", ChunkKey(12, 1999, True)),
        ("/j/edl/tasks/state", None),
        ("/j/edl/tasks/01/0", None),
        ("/j/edl/tasks/1/held/", None),
        ("/j/edl/tasks/1/2/3", None),
    ],
)
def test_keys(key: str, meaning: ChunkKey | None) -> None:
    keys = TaskKeys(KeySchema("/j"))
    assert keys.parse(key.encode()) == meaning
    if meaning is not None:
        name = keys.held if meaning.held else keys.chunk
        assert name(meaning.pass_number, meaning.chunk) == key.encode()


def test_passes() -> None:
    first = Dataset(10, passes=2)
    state = rules.begun(first, None)
    assert (state.first, state.current, state.end, state.over) == (0, 0, 2, False)
    for number in range(2):
        state = rules.pass_ended(state, PassSummary(number, 10, 10))
    assert state.over
    other = rules.begun(Dataset(5, passes=3), state)
    assert (other.first, other.current, other.end) == (2, 2, 5)
    assert other.history == state.history
    for number in range(100):
        other = rules.pass_ended(other, PassSummary(number, 10, 10))
    assert len(other.history) == rules.KEPT_SUMMARIES


def test_summary_names_the_first_tasks_set_aside() -> None:
    dataset = Dataset(100, chunk_size=50)
    chunks = {
        1: Progress(50, 50, {}, frozenset(range(40)), 160, False, "no such file"),
        0: Progress(50, 50, {}, frozenset({7}), 5),
    }
    counts = rules.summary(4, dataset, chunks)
    assert (counts.finished, counts.set_aside, counts.failures) == (59, 41, 165)
    assert counts.named == (7, *range(50, 69))
    assert counts.reason == "no such file"
