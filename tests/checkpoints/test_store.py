"""Checkpoints in a folder, without etcd: saved, found, damaged in every way, and with no room left."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import resource
import stat
import subprocess
import tempfile
import threading
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from edl_agent import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointStorageDenied,
    CheckpointStorageFull,
    ConfigurationError,
)
from edl_agent.checkpoints import Checkpoint, CheckpointStore, Policy
from tests.bench.waiting import resource_counts


def store(folder: Path, index: int = 0, shards: int = 1, **options: bool | int) -> CheckpointStore:
    return CheckpointStore(None, folder, index, shards=shards, **options)  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def data(found: Checkpoint | None) -> bytes:
    assert found is not None
    with found.open() as file:
        return file.read()


def file_of(made: Checkpoint) -> Path:
    assert made.path is not None
    return made.path


def manifest_of(made: Checkpoint) -> Path:
    return file_of(made).with_name(file_of(made).name + ".json")


# --- saving ---


def test_what_was_saved_is_found_by_the_next_process(tmp_path: Path) -> None:
    saving = store(tmp_path / "made" / "here")
    assert saving.restore() is None
    assert saving.skipped == ()
    assert saving.age is None
    made = saving.save(7, b"state")
    assert saving.age is not None
    found = store(tmp_path / "made" / "here").restore()
    assert found == made
    assert (found.step, found.size, found.crc32) == (7, 5, zlib.crc32(b"state"))
    assert data(found) == b"state"


def test_a_writer_may_write_in_every_way_but_seek(tmp_path: Path) -> None:
    pieces: list[bytes | bytearray | memoryview] = [
        b"a",
        bytearray(b"bc"),
        memoryview(bytes(range(256)) * 30_000),
        b"",
        b"end",
    ]

    def write(file: IO[bytes]) -> None:
        assert not file.seekable()
        for piece in pieces:
            file.write(piece)
        assert file.tell() == sum(len(piece) for piece in pieces)
        with pytest.raises(io.UnsupportedOperation):
            file.seek(0)

    store(tmp_path).save(1, write)
    assert data(store(tmp_path).restore()) == b"".join(pieces)

    def archive(file: IO[bytes]) -> None:  # as numpy.savez does
        with zipfile.ZipFile(file, "w") as target:
            target.writestr("weights", b"w" * 5_000_000)

    store(tmp_path).save(2, archive)
    with zipfile.ZipFile(io.BytesIO(data(store(tmp_path).restore()))) as source:
        assert source.read("weights") == b"w" * 5_000_000
    store(tmp_path).save(3, lambda file: (file.write(b"closed"), file.close()))
    assert data(store(tmp_path).restore()) == b"closed"
    store(tmp_path).save(4, lambda file: None)
    assert data(store(tmp_path).restore()) == b""


def test_a_large_state_is_not_copied_in_memory(tmp_path: Path) -> None:
    state = memoryview(bytearray(64 << 20))
    saving = store(tmp_path)
    tracemalloc.start()
    try:
        saving.save(1, state)
        saving.save(2, lambda file: file.write(state))
        assert saving.restore() is not None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_nothing_takes_its_name_before_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kill shows a missing fsync, only a loss of power would: so the order of the calls is looked at."""
    calls: list[str] = []
    fsync, rename, unlink = os.fsync, os.rename, os.unlink

    def seen_fsync(descriptor: int) -> None:
        calls.append("fsync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync file")
        fsync(descriptor)

    def seen_rename(source: str, target: str, **options: int) -> None:
        calls.append("rename " + target.rpartition(".")[2])
        rename(source, target, **options)

    def seen_unlink(name: str, **options: int) -> None:
        calls.append("unlink " + name.rpartition(".")[2])
        unlink(name, **options)

    saving = store(tmp_path, keep=1)
    saving.save(1, b"x")
    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "rename", seen_rename)
    monkeypatch.setattr(os, "unlink", seen_unlink)
    saving.save(2, b"x")
    assert calls == [
        *("fsync file", "rename ckpt", "fsync folder"),
        *("fsync file", "rename json", "fsync folder"),
        *("unlink json", "unlink ckpt"),
    ]


def test_nothing_is_left_of_what_the_program_could_not_write(tmp_path: Path) -> None:
    saving = store(tmp_path)
    made = saving.save(1, b"good")
    before = names(tmp_path)

    def fail(file: IO[bytes]) -> None:
        file.write(b"x" * 3_000_000)
        raise KeyError("no such parameter")

    with pytest.raises(KeyError, match="no such parameter"):
        saving.save(2, fail)

    def interrupted(file: IO[bytes]) -> None:
        file.write(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        saving.save(2, interrupted)

    def without_its_own_file(file: IO[bytes]) -> None:
        file.write((tmp_path / "absent").read_bytes())

    with pytest.raises(FileNotFoundError, match="absent"):
        saving.save(2, without_its_own_file)
    with pytest.raises(TypeError):
        saving.save(2, "text")  # type: ignore[arg-type]
    assert names(tmp_path) == before
    assert saving.restore() == made


def test_the_newest_are_kept(tmp_path: Path) -> None:
    saving = store(tmp_path, keep=3)
    for step in range(6):
        saving.save(step, b"x")
    assert len(names(tmp_path)) == 6
    assert [name[:35] for name in names(tmp_path)[::2]] == [
        f"shard-00000-of-00001.step-{step:09}" for step in (0, 0, 0)
    ]
    found = saving.restore()
    assert found is not None
    assert found.step == 5


def test_saving_leaves_no_descriptor_open(tmp_path: Path) -> None:
    saving = store(tmp_path)
    saving.save(1, b"x")
    before = resource_counts().fds
    for step in range(5):
        saving.save(step, b"x")
        assert data(saving.restore()) == b"x"
    assert resource_counts().fds == before


def test_threads_take_turns(tmp_path: Path) -> None:
    saving = store(tmp_path, keep=16)
    threads = [threading.Thread(target=saving.save, args=(step, b"x" * step)) for step in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = saving.restore()
    assert found is not None
    assert (found.step, len(names(tmp_path))) == (8, 16)


@pytest.mark.parametrize("step", [-1, 1.5, True, "1", 2**63])
def test_a_step_is_a_whole_number(tmp_path: Path, step: int) -> None:
    with pytest.raises(ConfigurationError):
        store(tmp_path).save(step, b"")


@pytest.mark.parametrize("options", [{"index": -1}, {"index": 1}, {"shards": 0}, {"shards": None}, {"keep": 0}])
def test_bad_settings_are_named(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        CheckpointStore(None, tmp_path, **{"index": 0, "shards": 1, **options})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        store(tmp_path).restore("latest")  # type: ignore[arg-type]


# --- damage ---


def cut(made: Checkpoint) -> None:
    os.truncate(file_of(made), 3)


def flip(made: Checkpoint) -> None:
    content = bytearray(file_of(made).read_bytes())
    content[len(content) // 2] ^= 4
    file_of(made).write_bytes(content)


def empty(made: Checkpoint) -> None:
    file_of(made).write_bytes(b"")


def longer(made: Checkpoint) -> None:
    with file_of(made).open("ab") as file:
        file.write(b"\0")


def missing(made: Checkpoint) -> None:
    file_of(made).unlink()


def garbage_manifest(made: Checkpoint) -> None:
    manifest_of(made).write_bytes(b"\xff\x00 not json")


def empty_manifest(made: Checkpoint) -> None:
    manifest_of(made).write_bytes(b"")


def huge_manifest(made: Checkpoint) -> None:
    manifest_of(made).write_bytes(b" " * 10_000_000)


def wrong_crc(made: Checkpoint) -> None:
    raw = manifest_of(made).read_bytes().replace(str(made.crc32).encode(), b"12345")
    manifest_of(made).write_bytes(raw)


def folder_in_place(made: Checkpoint) -> None:
    file_of(made).unlink()
    file_of(made).mkdir()


def fifo_in_place(made: Checkpoint) -> None:
    file_of(made).unlink()
    os.mkfifo(file_of(made))


def symlink_in_place(made: Checkpoint) -> None:
    """To a file outside with the very content: it is not even looked at."""
    outside = file_of(made).parent.parent / "outside"
    file_of(made).rename(outside)
    file_of(made).symlink_to(outside)


def symlinked_manifest(made: Checkpoint) -> None:
    outside = file_of(made).parent.parent / "outside.json"
    manifest_of(made).rename(outside)
    manifest_of(made).symlink_to(outside)


def other_manifest(made: Checkpoint) -> None:
    """Of another checkpoint of the folder."""
    other = next(path for path in file_of(made).parent.glob("*.json") if path != manifest_of(made))
    manifest_of(made).write_bytes(other.read_bytes())


DAMAGE: list[Callable[[Checkpoint], None]] = [
    cut,
    flip,
    empty,
    longer,
    missing,
    garbage_manifest,
    empty_manifest,
    huge_manifest,
    wrong_crc,
    folder_in_place,
    fifo_in_place,
    symlink_in_place,
    symlinked_manifest,
    other_manifest,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_skipped_with_a_warning_and_set_aside(
    tmp_path: Path, damage: Callable[[Checkpoint], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "checkpoints"
    saving = store(folder)
    good = saving.save(1, b"good state" * 9)
    bad = saving.save(2, b"newer state" * 9)
    damage(bad)
    restarted = store(folder)
    with caplog.at_level(logging.WARNING, "edl_agent"):
        assert restarted.restore() == good
    assert file_of(bad).name in caplog.text
    assert [one.name.removesuffix(".json") for one in restarted.skipped] == [file_of(bad).name]
    assert any(name.endswith(".corrupt") for name in names(folder))
    # Once set aside it is not in the way any more, and the program goes on.
    caplog.clear()
    again = store(folder)
    assert again.restore() == good
    assert again.skipped == ()
    assert caplog.text == ""
    newest = again.save(3, b"newest")
    assert store(folder).restore() == newest


@pytest.mark.parametrize("damage", DAMAGE[:9], ids=lambda damage: damage.__name__)
def test_with_all_damaged_there_is_none_and_no_crash_loop(tmp_path: Path, damage: Callable[[Checkpoint], None]) -> None:
    saving = store(tmp_path)
    for made in (saving.save(1, b"state 1"), saving.save(2, b"state 2")):
        damage(made)
    restarted = store(tmp_path)
    assert restarted.restore() is None
    assert len(restarted.skipped) == 2
    assert store(tmp_path).restore() is None
    assert restarted.save(3, b"x") == store(tmp_path).restore()


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    for name in ("notes.txt", "model.ckpt", "x.tmp", "shard-0.json", "\udcff.ckpt"):
        (tmp_path / name).write_bytes(b"foreign")
    before = names(tmp_path)
    saving = store(tmp_path, keep=1)
    assert saving.restore() is None
    for step in range(3):
        saving.save(step, b"x")
    assert saving.restore() is not None
    assert saving.skipped == ()
    assert set(before) <= set(names(tmp_path))


def test_the_program_may_refuse_one_that_it_cannot_load(tmp_path: Path) -> None:
    saving = store(tmp_path)
    older, newer = saving.save(1, b"old form"), saving.save(2, b"new form")
    assert saving.restore() == newer
    assert saving.restore(exclude=[newer.uuid]) == older
    assert saving.restore(exclude=[newer.uuid, older.uuid]) is None
    assert saving.restore() == newer


def test_damaged_ones_do_not_pile_up(tmp_path: Path) -> None:
    for step in range(8):
        made = store(tmp_path).save(step, b"state")
        flip(made)
        store(tmp_path).restore()
    store(tmp_path).save(9, b"state")
    assert len([name for name in names(tmp_path) if name.endswith(".corrupt")]) == 4


def test_a_file_that_changes_on_its_way_to_the_disk_is_noticed(tmp_path: Path) -> None:
    class BadDisk(CheckpointStore):
        def _passed(self, step: str) -> None:
            if step == "file renamed" and (bad := list(tmp_path.glob("*step-000000000002*.ckpt"))):
                [made] = bad
                content = bytearray(made.read_bytes())
                content[1] ^= 1
                made.write_bytes(content)

    saving = BadDisk(None, tmp_path, 0, shards=1)
    good = saving.save(1, b"state")
    before = names(tmp_path)
    with pytest.raises(CheckpointCorrupt, match="crc32"):
        saving.save(2, b"state")
    assert names(tmp_path) == before
    assert saving.restore() == good


# --- sets ---


def test_the_newest_complete_set_against_the_newest_shard(tmp_path: Path) -> None:
    first, second = store(tmp_path, 0, 2, keep=1), store(tmp_path, 1, 2, keep=1)
    set_80 = [first.save(80, b"0 at 80"), second.save(80, b"1 at 80")]
    ahead = [first.save(step, b"0 ahead") for step in (90, 100)][-1]
    assert first.restore("newest") == ahead
    assert first.restore("complete_set") == set_80[0]
    assert second.restore("newest") == second.restore("complete_set") == set_80[1]
    set_100 = [ahead, second.save(100, b"1 at 100")]
    for index in (0, 1):
        assert store(tmp_path, index, 2).restore("complete_set") == set_100[index]
    # Both keep the last set until the next is whole; then the old one goes.
    first.save(110, b"x")
    assert {name[26:38] for name in names(tmp_path)} == {"000000000100", "000000000110"}


def test_a_set_with_a_damaged_member_is_none_for_anybody(tmp_path: Path) -> None:
    stores = [store(tmp_path, index, 3) for index in range(3)]
    for step in (1, 2):
        made = [one.save(step, b"state") for one in stores]
    flip(made[1])
    for index in (0, 2, 1):
        searching = store(tmp_path, index, 3)
        found = searching.restore("complete_set")
        assert found is not None
        assert (found.step, len(searching.skipped)) == (1, 1)
        # Only its owner sets it aside.
        assert file_of(made[1]).exists() == (index != 1)
    newest = store(tmp_path, 0, 3).restore("newest")
    assert newest is not None
    assert newest.step == 2


def test_lengths_alone_may_do_for_the_others(tmp_path: Path) -> None:
    made = [store(tmp_path, index, 2).save(1, b"state") for index in range(2)]
    flip(made[1])
    assert store(tmp_path, 0, 2).restore("complete_set") is None
    assert store(tmp_path, 0, 2, verify_others=False).restore("complete_set") == made[0]
    cut(made[1])
    assert store(tmp_path, 0, 2, verify_others=False).restore("complete_set") is None


def test_shards_of_another_number_are_not_restored(tmp_path: Path) -> None:
    for index in range(2):
        store(tmp_path, index, 2).save(9, b"of two")
    policies: list[Policy] = ["newest", "complete_set"]
    for policy in policies:
        assert store(tmp_path, 0, 3).restore(policy) is None
        found = store(tmp_path, 0, 2).restore(policy)
        assert found is not None


# --- saved by the program itself ---


def test_a_file_of_the_programs_own_is_summed_up_and_never_deleted(tmp_path: Path) -> None:
    saving = store(tmp_path, keep=1)
    for step in (1, 2, 3):
        (tmp_path / f"weights-{step}.bin").write_bytes(b"weights %d" % step)
        made = saving.commit(tmp_path / f"weights-{step}.bin", step, crc32=zlib.crc32(b"weights %d" % step))
    assert (made.path, made.size) == (tmp_path / "weights-3.bin", 9)
    assert store(tmp_path).restore() == made
    assert len(list(tmp_path.glob("weights-*"))) == 3
    assert len(list(tmp_path.glob("*.json"))) == 1
    (tmp_path / "weights-3.bin").write_bytes(b"weights X")
    restarted = store(tmp_path)
    assert restarted.restore() is None
    assert [one.name for one in restarted.skipped] == ["weights-3.bin"]
    assert (tmp_path / "weights-3.bin").exists()


def test_what_is_not_as_said_is_not_committed(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(b"weights")
    (tmp_path / "outside.bin").write_bytes(b"weights")
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    saving = store(folder)
    before = names(folder)
    with pytest.raises(CheckpointCorrupt, match="crc32"):
        saving.commit(folder / "weights.bin", 1, crc32=5)
    with pytest.raises(CheckpointCorrupt, match="bytes"):
        saving.commit(folder / "weights.bin", 1, size=5)
    for place in (tmp_path / "outside.bin", folder / ".." / "outside.bin", folder, "s3://a b", folder / "a b"):
        with pytest.raises(ConfigurationError):
            saving.commit(place, 1)
    with pytest.raises(CheckpointError, match="no plain file"):
        saving.commit(folder / "link.bin", 1)
    with pytest.raises(CheckpointError):
        saving.commit(folder / "absent.bin", 1)
    assert names(folder) == before


def test_uris_are_found_by_their_manifests(tmp_path: Path) -> None:
    stores = [store(tmp_path, index, 2) for index in range(2)]
    for step in (1, 2):
        made = [one.commit(f"s3://bucket/{step}/{index}", step, crc32=5) for index, one in enumerate(stores)]
    stores[0].commit("s3://bucket/3/0", 3)
    found = store(tmp_path, 1, 2).restore("complete_set")
    assert found == made[1]
    assert (found.uri, found.path) == ("s3://bucket/2/1", None)
    with pytest.raises(CheckpointError, match="not a file"):
        found.open()


# --- leftovers ---


def test_leftovers_go_by_age_where_nobody_is_fenced(tmp_path: Path) -> None:
    made = store(tmp_path).save(1, b"state")
    stem = file_of(made).name.replace(made.uuid[:8], "0" * 8).removesuffix(".ckpt")
    leftovers = [stem + kind for kind in (".ckpt.tmp", ".ckpt.json.tmp", ".ckpt")]
    for name in leftovers:
        (tmp_path / name).write_bytes(b"half")
    store(tmp_path).save(2, b"state")
    assert set(leftovers) <= set(names(tmp_path))
    yesterday = time.time() - 25 * 3600
    for name in leftovers:
        os.utime(tmp_path / name, (yesterday, yesterday))
    os.utime(file_of(made), (yesterday, yesterday))
    assert store(tmp_path).restore() is not None
    assert set(leftovers) <= set(names(tmp_path)), "only who saves tidies"
    store(tmp_path).save(3, b"state")
    assert not set(leftovers) & set(names(tmp_path))


# --- no room, no permission ---


@contextlib.contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_said_and_the_old_checkpoint_is_intact(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    with tmpfs(folder, "size=256k"):
        saving = store(folder)
        made = saving.save(1, b"x" * 50_000)
        before = names(folder)

        def swallowing(file: IO[bytes]) -> None:
            with contextlib.suppress(OSError):
                file.write(b"y" * 3_000_000)

        def wrapping(file: IO[bytes]) -> None:
            try:
                file.write(b"y" * 3_000_000)
            except OSError as error:
                raise RuntimeError("could not serialise") from error

        for source in (b"y" * 3_000_000, lambda file: file.write(b"y" * 300_000), swallowing, wrapping):
            with pytest.raises(CheckpointStorageFull, match="No space left") as caught:
                saving.save(2, source)
            assert isinstance(caught.value.__cause__, OSError)
            assert names(folder) == before
        assert saving.restore() == made
        # What fits is saved again.
        assert saving.save(3, b"z" * 50_000) == store(folder).restore()


def test_a_limit_on_file_sizes_is_said(tmp_path: Path) -> None:
    saving = store(tmp_path)
    made = saving.save(1, b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(CheckpointStorageFull, match="too large"):
            saving.save(2, b"y" * (2 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(names(tmp_path)) == 2
    assert saving.restore() == made


def test_a_read_only_folder_can_be_restored_from_but_not_saved_to(tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    with tmpfs(folder, "size=1m"):
        made = [store(folder).save(step, b"x") for step in (1, 2)]
        flip(made[1])
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        with pytest.raises(CheckpointStorageDenied, match="Read-only"):
            store(folder).save(3, b"x")
        # The damaged one cannot be set aside, and is passed over each time.
        assert store(folder).restore() == store(folder).restore() == made[0]


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that another user may reach, as pytest's own may not be."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        yield Path(path) / "checkpoints"


def test_what_may_not_be_read_is_an_error_and_no_new_beginning(public_folder: Path) -> None:
    folder = public_folder
    older, newer = [store(folder).save(step, b"x") for step in (1, 2)]
    with nobody():
        assert store(folder).restore() == newer
        with pytest.raises(CheckpointStorageDenied):
            store(folder).save(3, b"x")
    file_of(newer).chmod(0)
    with nobody():
        assert store(folder).restore() == older
    file_of(older).chmod(0)
    with nobody(), pytest.raises(CheckpointStorageDenied, match="none can be read"):
        store(folder).restore()
    folder.chmod(0)
    with nobody(), pytest.raises(CheckpointStorageDenied):
        store(folder).restore()
    folder.chmod(0o755)


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Not as root, whom no permission stops."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
