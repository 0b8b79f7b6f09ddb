"""Requests written straight to bytes are what protobuf's own messages say."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from edl_agent.etcd import quick_requests, wire

KEYS = st.binary(min_size=1, max_size=300)


@given(KEYS)
@example(b"/" + b"k" * 126)
@example(b"/" + b"k" * 127)
@example(b"/" + b"k" * 20_000)
def test_a_read_is_the_message_of_etcd(key: bytes) -> None:
    assert quick_requests.read_key(key) == wire.RangeRequest(key=key).SerializeToString()


@given(KEYS, st.binary(max_size=300), st.integers(0, 2**63 - 1))
@example(b"/k", b"", 0)
@example(b"/k", b"v" * 2_000_000, 127)
@example(b"/k", b"v", 2**63 - 1)
def test_a_put_is_the_message_of_etcd(key: bytes, value: bytes, lease: int) -> None:
    said = wire.PutRequest.FromString(quick_requests.put_key(key, value, lease))
    assert (said.key, said.value, said.lease) == (key, value, lease)
    assert said == wire.PutRequest(key=key, value=value, lease=lease)
