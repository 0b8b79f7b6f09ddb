"""The pure part: names, manifests, metadata; what is chosen and what is thrown away."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_agent.checkpoints.layout import (
    Entry,
    choose,
    complete_sets,
    decode_manifest,
    decode_metadata,
    encode_manifest,
    encode_metadata,
    file_name,
    latest_epoch,
    next_generation,
    parse_name,
    prunable,
)

UUID = "00000000-0000-4000-8000-{:012x}"


def entry(index: int = 0, step: int = 1, *, number: int = 1, **fields: Any) -> Entry:
    made = Entry(
        **{
            "index": index,
            "shards": 2,
            "step": step,
            "epoch": 5,
            "uuid": UUID.format(number),
            "place": "",
            "size": 7,
            "crc32": 9,
            "timestamp": 1_500_000_000_000_000_000,
            "lease": 3,
            "generation": 1,
            **fields,
        }
    )
    return made if made.place else replace(made, place=made.file)


# --- names ---


@pytest.mark.parametrize("ending", [".ckpt", ".ckpt.json", ".ckpt.tmp", ".ckpt.json.tmp", ".ckpt.corrupt"])
def test_a_name_says_shard_step_epoch_and_uuid(ending: str) -> None:
    parsed = parse_name(file_name(3, 8, 1200, 77, UUID.format(1)).removesuffix(".ckpt") + ending)
    assert parsed is not None
    assert (parsed.index, parsed.shards, parsed.step, parsed.epoch) == (3, 8, 1200, 77)
    assert (parsed.uuid, parsed.kind) == (UUID.format(1), ending)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "model.ckpt",
        "../" + file_name(0, 1, 1, 1, UUID.format(1)),
        file_name(0, 1, 1, 1, UUID.format(1)) + "\n",
        file_name(2, 2, 1, 1, UUID.format(1)),
        file_name(0, 1, 10**18 * 99, 1, UUID.format(1)),
        file_name(0, 1, 1, 1, UUID.format(1)).replace("shard-00000", "shard-000000"),
        file_name(0, 1, 1, 1, UUID.format(1)).replace("epoch-1", "epoch-01"),
        file_name(0, 1, 1, 1, "not-a-uuid"),
        file_name(0, 1, 1, 1, UUID.format(1)).replace("00000-of", "0000\u0660-of"),
    ],
)
def test_other_names_are_nobodys(name: str) -> None:
    assert parse_name(name) is None


# --- manifests ---


def test_a_manifest_tells_what_it_was_told() -> None:
    for one in (entry(), entry(place="s3://bucket/key", size=None, crc32=None), entry(place="weights-1.bin")):
        assert decode_manifest(one.manifest, encode_manifest(one)) == one


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_changed_manifest_is_found_out(data: st.DataObject) -> None:
    one = entry()
    raw = bytearray(encode_manifest(one))
    position = data.draw(st.integers(0, len(raw) - 2))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    if kind == "flip":
        raw[position] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del raw[position:]
    else:
        raw[position:position] = data.draw(st.binary(min_size=1, max_size=4))
    try:
        found = decode_manifest(one.manifest, bytes(raw))
    except ValueError:
        return
    assert found == one  # white space, say


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_nothing_but_value_errors_from_foreign_content(raw: bytes | str) -> None:
    content = raw if isinstance(raw, bytes) else raw.encode()
    with pytest.raises(ValueError):
        decode_manifest(entry().manifest, content)
    with pytest.raises(ValueError):
        decode_metadata(0, content)


def test_a_manifest_counts_under_its_own_name_only() -> None:
    one, other = entry(), entry(step=2)
    with pytest.raises(ValueError, match="another name"):
        decode_manifest(other.manifest, encode_manifest(one))


# --- metadata ---


def test_metadata_are_the_originals_json_and_name_the_older_ones() -> None:
    old, new = entry(step=1), entry(step=2, number=2, place="s3://bucket/x", crc32=None)
    raw = encode_metadata(new, "/checkpoints", [old])
    found = json.loads(raw)
    assert found["uuid"] == new.uuid
    assert found["path"] == "s3://bucket/x"
    assert found["previous"][0]["path"] == f"/checkpoints/{old.file}"
    assert decode_metadata(0, raw) == [new, old]
    fields = json.loads(encode_metadata(old, "/checkpoints/"))
    assert (fields["path"], fields["crc32"]) == (f"/checkpoints/{old.file}", 9)
    assert isinstance(fields["timestamp"], int)
    # Go's decoder does not mind the case of names: there must be no second field that it would take for one of its own.
    assert [name for name in fields if name.lower() in ("uuid", "path", "crc32", "timestamp")] == [
        "uuid",
        "path",
        "crc32",
        "timestamp",
    ]


@pytest.mark.parametrize(
    ("fields", "place", "crc32", "md5", "timestamp"),
    [
        ({"uuid": "a-1", "path": "/checkpoints/a-1", "crc32": 5, "timestamp": 8}, "a-1", 5, "", 8),
        ({"uuid": "a-1", "md5": "0" * 32, "timestamp": "8"}, "a-1", None, "0" * 32, 8),
        ({"uuid": "a-1", "path": "", "crc32": 5, "timestamp": "yesterday"}, "a-1", 5, "", 0),
        ({"uuid": "a-1", "path": "relative/a-1", "timestamp": None}, "a-1", None, "", 0),
    ],
)
def test_the_originals_forms_are_read(
    fields: dict[str, Any], place: str, crc32: int | None, md5: str, timestamp: int
) -> None:
    [found] = decode_metadata(4, json.dumps(fields).encode())
    assert (found.index, found.place, found.crc32, found.md5, found.timestamp) == (4, place, crc32, md5, timestamp)
    assert found.shards == 0


@pytest.mark.parametrize(
    "path",
    [
        "/checkpoints/..",
        "../..",
        ".",
        "/checkpoints/",
        "a/.hidden",
        "x\x00y",
        "a b",
        "s3://a b",
        "x.tmp",
        "x.json",
        "-rf",
    ],
)
def test_a_path_in_metadata_never_leads_elsewhere(path: str) -> None:
    with pytest.raises(ValueError):
        decode_metadata(0, json.dumps({"uuid": "a-1", "path": path, "crc32": 5}).encode())


@pytest.mark.parametrize("fields", [{"crc32": -1}, {"crc32": 2**32}, {"crc32": True}, {"crc32": "5"}, {"uuid": "../x"}])
def test_unusable_metadata_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        decode_metadata(0, json.dumps({"uuid": "a-1", "crc32": 5, **fields}).encode())


def test_what_etcd_names_in_the_originals_form_is_the_newest() -> None:
    [classic] = decode_metadata(0, b'{"uuid":"a-1","path":"/c/a-1","crc32":5,"timestamp":8}')
    assert choose([classic, entry(step=900)], "newest", 0, 2) == (classic,)
    # ... until we have committed after it: then it is one of the older ones.
    ours = entry(step=2, number=2)
    raw = encode_metadata(ours, "/c", [replace(classic, generation=0)])
    assert choose(decode_metadata(0, raw), "newest", 0, 2) == (ours,)


# --- choice ---


def test_newest_means_the_last_incarnation_not_the_highest_step() -> None:
    abandoned = entry(step=120, number=1, epoch=5, generation=3)
    present = entry(step=110, number=2, epoch=9, generation=4)
    fenced = entry(step=130, number=3, epoch=5, generation=4)
    after_a_new_etcd = entry(step=90, number=4, epoch=2, lease=8, generation=5)
    assert choose([abandoned, present, fenced], "newest", 0, 2) == (present,)
    assert choose([abandoned, present, fenced, after_a_new_etcd], "newest", 0, 2) == (after_a_new_etcd,)


def test_the_same_incarnation_has_one_generation() -> None:
    assert next_generation([entry(generation=4), entry(generation=9, epoch=7, lease=4)], 3, 5) == 4
    assert next_generation([entry(generation=4, lease=0, epoch=0)], 0, 0) == 5


def test_another_number_of_shards_is_another_set() -> None:
    entries = [entry(0, 5, shards=3), entry(0, 3), entry(1, 3), entry(1, 5, shards=3), entry(2, 5, shards=3)]
    assert [one.step for one in choose(entries, "complete_set", 0, 2)] == [3, 3]
    assert [one.step for one in choose(entries, "complete_set", 0, 3)] == [5, 5, 5]
    assert choose(entries, "complete_set", 0, 4) == ()
    assert choose(entries, "newest", 0, 4) == ()


def test_a_set_does_not_mix_what_was_abandoned() -> None:
    # The job was set back from 100 to 80; shard 0 has gone through 90 since, shard 1 has come to 100 again.
    before = [entry(index, step, number=step + index) for index in (0, 1) for step in (80, 100)]
    again = [
        entry(0, 90, number=501, epoch=8, generation=2),
        entry(1, 90, number=502, epoch=9, generation=2),
        entry(1, 100, number=503, epoch=9, generation=2),
    ]
    assert [one.uuid for one in choose(before + again, "complete_set", 0, 2)] == [again[0].uuid, again[1].uuid]
    both = [*before, *again, entry(0, 100, number=504, epoch=8, generation=2)]
    assert [one.uuid for one in choose(both, "complete_set", 0, 2)] == [UUID.format(504), UUID.format(503)]


def test_generations() -> None:
    assert next_generation([], 3, 5) == 1
    assert next_generation([entry(generation=4)], 3, 5) == 4
    assert next_generation([entry(generation=4)], 3, 6) == 5
    assert next_generation([entry(generation=4)], 8, 2) == 5
    assert next_generation([entry(generation=4)], 0, 0) == 5
    # After a loss of etcd's data the same epoch comes again, under another lease.
    assert next_generation([entry(generation=4), entry(generation=6, epoch=9)], 8, 5) == 7
    assert latest_epoch([entry(epoch=4), entry()]) == 5
    assert latest_epoch([]) == 0


entries_of_a_folder = st.lists(
    st.builds(
        lambda index, shards, step, epoch, generation: (index % shards, shards, step, epoch, generation),
        st.integers(0, 2),
        st.integers(1, 3),
        st.integers(0, 5),
        st.integers(1, 4),
        st.integers(1, 3),
    ),
    max_size=14,
).map(
    lambda rows: [
        entry(index, step, shards=shards, epoch=epoch, generation=generation, number=number)
        for number, (index, shards, step, epoch, generation) in enumerate(rows)
    ]
)


@given(entries_of_a_folder, st.integers(1, 3), st.integers(0, 2), st.data())
@settings(max_examples=300, deadline=None)
def test_the_choice_holds_for_any_folder(entries: list[Entry], shards: int, index: int, data: st.DataObject) -> None:
    index %= shards
    rejected = {one.identity for one in entries if data.draw(st.booleans())}
    left = [one for one in entries if one.identity not in rejected]
    newest = choose(entries, "newest", index, shards, rejected)
    own = [one for one in left if (one.index, one.shards) == (index, shards)]
    assert bool(newest) == bool(own)
    assert all(newest[0].rank >= one.rank for one in own)
    chosen = choose(entries, "complete_set", index, shards, rejected)
    assert [one.index for one in chosen] == list(range(shards if chosen else 0))
    assert len({one.step for one in chosen}) <= 1
    assert all(one in left and one.shards == shards for one in chosen)
    # Every shard chooses the same set, in whatever order it reads the folder.
    for other in range(shards):
        assert choose(entries[::-1], "complete_set", other, shards, rejected) == chosen
    # The first that is rejected makes it choose another one, and in the end nothing: the search ends.
    tried = set(rejected)
    for _ in range(len(entries) + 1):
        following = choose(entries, "complete_set", index, shards, tried)
        if not following:
            break
        tried.add(following[0].identity)
    assert choose(entries, "complete_set", index, shards, tried) == ()


@given(entries_of_a_folder, st.integers(1, 3), st.data())
@settings(max_examples=300, deadline=None)
def test_pruning_takes_nothing_that_is_needed(entries: list[Entry], keep: int, data: st.DataObject) -> None:
    if not entries:
        return
    new = data.draw(st.sampled_from(entries))
    gone = prunable(entries, new, keep)
    left = [one for one in entries if one not in gone]
    assert new in left
    assert all(one.index == new.index and one.rank < new.rank for one in gone)
    older = [one for one in entries if one.index == new.index and one.rank <= new.rank]
    assert len([one for one in older if one in left]) >= min(keep, len(older))
    # What could be restored before can be restored after: the newest, and the newest complete set.
    for shards in {new.shards}:
        assert choose(left, "newest", new.index, shards) == choose(entries, "newest", new.index, shards)
    newest_set = max(
        (members for members in complete_sets(entries) if new.index < len(members)),
        key=lambda members: members[new.index].rank,
        default=None,
    )
    if newest_set is not None:
        assert set(newest_set) <= set(left)


def test_a_slow_shard_keeps_the_others_set_alive() -> None:
    both = [entry(index, 80, number=index) for index in (0, 1)]
    fast = [entry(0, step, number=step) for step in (90, 100, 110, 120)]
    assert [one.step for one in prunable([*both, *fast], fast[-1], 2)] == [100, 90]
    caught_up = [*both, *fast, entry(1, 120, number=700)]
    assert [one.step for one in prunable(caught_up, fast[-1], 1)] == [110, 100, 90, 80]
