"""JSON that is nested too deep for readers that call themselves."""

from __future__ import annotations

import contextlib
import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_controller.api import nesting
from edl_controller.api.kinds import TRAINING_JOBS, UNREADABLE
from edl_controller.api.validation import validate

VALUES = st.recursive(
    st.none() | st.integers() | st.text('[]{}"\\\\a', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}"\\\\a', max_size=4), inner, max_size=3),
    max_leaves=30,
)


def cut(value: object, limit: int) -> object:
    """The same by calling oneself."""
    if not isinstance(value, dict | list):
        return value
    if limit == 0:
        return json.loads(nesting.TOO_DEEP)
    if isinstance(value, list):
        return [cut(one, limit - 1) for one in value]
    return {key: cut(one, limit - 1) for key, one in value.items()}


def levels(value: object) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(levels, value.values() if isinstance(value, dict) else value), default=0)


@pytest.mark.security(16)
@given(VALUES, st.integers(0, 5))
def test_what_is_deep_is_cut_out_and_the_rest_stays(value: object, limit: int) -> None:
    data = json.dumps(value).encode()
    assert json.loads(nesting.shallow(data, limit)) == cut(value, limit)
    if levels(value) <= limit:
        assert nesting.shallow(data, limit) is data
    deep = b"[" * 60 + data + b"]" * 60
    assert nesting.depth(deep) == 60 + levels(value)


@given(st.text('[]{}"\\\\a,:1', max_size=300))
def test_any_bytes_give_bytes_or_a_typed_error(text: str) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        nesting.shallow(text.encode(), 3)
    assert nesting.depth(text.encode()) >= 0


@pytest.mark.security(20)
@pytest.mark.parametrize("unit", ['"', '\\"', '"\\', "[", "]", '["', '{"a":', "[]", "\\"])
def test_it_is_linear(unit: str) -> None:
    begin = time.thread_time()
    with_brackets = (unit * 200_000).encode()
    with contextlib.suppress(msgspec.DecodeError):
        nesting.shallow(with_brackets)
    nesting.depth(with_brackets)
    assert time.thread_time() - begin < 5


@pytest.mark.security(16)
@pytest.mark.parametrize("depth", [40, 60, 500, 900, 985, 1200, 9_000])
def test_a_stored_job_is_read_marked_or_refused_whatever_its_depth(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    for field in (b'"volumes":[{"name":"v","secret":{"a":%s}}]', b'"unknown":%s', b'"port":%s', b'"trainer":%s'):
        job = TRAINING_JOBS.decode_marked(b'{"metadata":{"name":"j"},"spec":{%s}}' % (field % nested))
        assert job.metadata.name == "j"
        if UNREADABLE not in job.metadata.annotations and b"volumes" in field:
            faults = validate(job)
            assert (depth > 46) == any(fault.path == "spec" and "nested" in fault.message for fault in faults)
