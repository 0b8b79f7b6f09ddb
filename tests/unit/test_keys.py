"""The key schema: no name that a program chooses can leave the job's prefix."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl_agent import ConfigurationError, InvalidDesiredCount
from edl_agent.address import check_name, check_port, join
from edl_agent.keys import MAX_DESIRED, KeySchema, check_desired, parse_desired, prefix_end

PARTS = st.text(
    st.sampled_from("abcXYZ019._~-"), min_size=1, max_size=12
).filter(lambda part: part not in (".", ".."))  # fmt: skip
PREFIXES = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
NASTY = ["..", "/..", "/../other", "/%2f", "/%2e%2e%2f", "/\0", "\0", "//", "/a/../../b", "/\n", "/\x1b[31m", "/\ud800"]


def in_range(key: bytes, prefix: str) -> bool:
    """Whether the role of docs/etcd-roles.md for that prefix reaches the key."""
    start = f"{prefix}/".encode()
    return start <= key < prefix_end(start)


@given(prefix=PREFIXES, key=st.one_of(st.text(), st.binary(), st.sampled_from(NASTY)))
@example(prefix="/job", key="/../job2/ps/0")
@example(prefix="/job", key="2/ps/0")
@example(prefix="/job", key=b"\xff/ps/0")
@example(prefix="/job", key="/\0/ps")
@pytest.mark.security(13)
def test_no_key_leaves_its_prefix(prefix: str, key: str | bytes) -> None:
    schema = KeySchema(prefix)
    try:
        full = schema.full(key)
    except ConfigurationError:
        return
    assert in_range(full, prefix)
    raw = key.encode() if isinstance(key, str) else key
    assert full == prefix.encode() + raw, "nothing is resolved, decoded or cut: etcd's keys are bytes"
    assert schema.relative(full) == raw


@given(st.one_of(st.text(), st.binary(), st.sampled_from(NASTY)))
def test_without_a_prefix_keys_are_taken_as_they_are_or_refused(key: str | bytes) -> None:
    try:
        assert KeySchema().full(key) == (key.encode() if isinstance(key, str) else key)
    except ConfigurationError:
        assert not key or (isinstance(key, str) and any("\ud800" <= char <= "\udfff" for char in key))


@given(st.text())
@pytest.mark.security(13)
def test_a_prefix_is_plain_or_refused(text: str) -> None:
    try:
        schema = KeySchema(text)
    except ConfigurationError:
        return
    assert text == "" or text.startswith("/")
    parts = text.split("/")[1:]
    assert not {"", ".", ".."} & set(parts) or text == ""
    assert schema.pservers.prefix == f"{text}/ps/".encode()


@pytest.mark.parametrize(
    "prefix", ["job", "/", "//", "/a//b", "/a/", "/..", "/a/../b", "/.", "/a b", "/a\0", "/a\n", "/%2f", "/ä", "/a/*"]
)
def test_bad_prefixes_are_refused_by_name(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        KeySchema(prefix)


@pytest.mark.parametrize("key", ["", b"", None, 5, ["/a"], "/\ud800"])
def test_what_is_no_key_is_refused(key: object) -> None:
    for schema in (KeySchema(), KeySchema("/job")):
        with pytest.raises(ConfigurationError, match="key"):
            schema.full(key)  # type: ignore[arg-type]


@given(prefix=st.one_of(st.just(""), PREFIXES), index=st.integers(0, MAX_DESIRED - 1))
def test_slot_keys_are_read_back_and_lie_in_the_ranges(prefix: str, index: int) -> None:
    schema = KeySchema(prefix)
    for family in (schema.pservers, schema.trainers):
        key = family.key(index)
        assert family.index(key) == index
        assert family.prefix <= key < family.end <= family.board_end
        for root in (family.prefix, family.claims, family.queue):
            assert root.startswith(prefix.encode() + b"/")
    pservers = schema.pservers
    assert pservers.desired is not None
    assert pservers.prefix <= pservers.desired < pservers.board_end
    assert schema.trainers.index(pservers.key(index)) is None


@pytest.mark.parametrize("tail", [b"", b"01", b"-1", b"+1", b"1 ", b"x", b"1/2", b"1\n", b"1" * 10, "\uff11".encode()])
def test_what_is_no_slot_key_is_none(tail: bytes) -> None:
    family = KeySchema("/job").pservers
    assert family.index(family.prefix + tail) is None
    assert family.index(b"/ps/1") is None


@given(name=st.from_regex(r"[!-~]{1,20}", fullmatch=True), other=st.from_regex(r"[!-~]{1,20}", fullmatch=True))
@example(name="a", other="a/b")
def test_the_places_of_two_names_in_the_queue_do_not_mix(name: str, other: str) -> None:
    try:
        one, two = check_name(name).encode(), check_name(other).encode()
    except ConfigurationError:
        return
    family = KeySchema("/job").trainers
    if one != two:
        assert not family.places(two).startswith(family.places(one))


@given(st.binary(min_size=1, max_size=6), st.binary(max_size=8))
def test_prefix_end_is_the_end_of_the_prefix_and_of_nothing_more(prefix: bytes, tail: bytes) -> None:
    end = prefix_end(prefix)
    if end == b"\0":
        assert set(prefix) == {0xFF}
        return
    assert prefix <= prefix + tail < end
    assert not (end + tail).startswith(prefix)
    assert end[:-1] == prefix[: len(end) - 1], "no smaller end exists"
    assert end[-1] == prefix[len(end) - 1] + 1


# --- the count (A32) ---


@pytest.mark.fault("A32")
@given(st.one_of(st.binary(), st.from_regex(rb"[0-9]{1,12}", fullmatch=True), st.integers().map(lambda n: b"%d" % n)))
@example(b"1000000000")
@example(b"9" * 100_000)
def test_a_count_is_a_number_in_range_or_a_typed_error(raw: bytes) -> None:
    value: int | None
    text = ""
    try:
        value = parse_desired(raw)
    except InvalidDesiredCount as error:
        text = str(error)
        value = None
    if value is None:
        assert len(text) < 300
        assert "\n" not in text
        return
    assert 1 <= value <= MAX_DESIRED
    assert int(raw) == value
    assert raw.isdigit()


@given(st.integers(1, MAX_DESIRED))
def test_good_counts_are_read_back(value: int) -> None:
    assert parse_desired(str(value).encode()) == check_desired(value) == value


@pytest.mark.parametrize("value", [0, -1, MAX_DESIRED + 1, 10**9, True, 2.0, "2", float("nan"), b"2", []])
def test_a_bad_number_of_pservers_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="num_pservers"):
        check_desired(value)


@pytest.mark.parametrize("port", [0, -1, 65_536, 70_000, True, "7164", 7164.0, None])
def test_a_bad_port_is_refused(port: object) -> None:
    with pytest.raises(ConfigurationError, match="port"):
        check_port(port)


@pytest.mark.security(23)
def test_addresses_are_joined_as_urls_have_them() -> None:
    assert join("10.0.0.7", check_port(7164)) == "10.0.0.7:7164"
    assert join("fd00::7", 1) == "[fd00::7]:1"
