"""`Checkpoint`: what a store hands out."""

from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edl_agent import errors
from edl_agent.checkpoints.folder import Folder, storage_errors
from edl_agent.checkpoints.layout import Entry


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of one shard.

    Attributes:
        index: the shard.
        shards: how many there are; 0 = not known (written by the original's pserver).
        step: the step id of the set it belongs to; 0 where the original wrote it.
        epoch: of the slot when it was begun; 0 = without etcd.
        uuid: unique; for `CheckpointStore.restore` (``exclude``).
        path: the file, verified; ``None`` for a URI.
        uri: where the program saved by itself, not verified; ``None`` for a file.
        size: bytes, ``None`` = not known.
        crc32: IEEE, ``None`` = not known.
        time: seconds since 1970, for people.
        committed: whether etcd names it.
    """

    index: int
    shards: int
    step: int
    epoch: int
    uuid: str
    path: Path | None
    uri: str | None
    size: int | None
    crc32: int | None
    time: float
    committed: bool

    def open(self) -> IO[bytes]:
        """The file, for reading.

        Raises:
            CheckpointError: it cannot be read (any more), or is a URI.
        """
        if self.path is None:
            raise errors.CheckpointError(f"{self.uri} is not a file: the program that saved it has to read it")
        try:
            with storage_errors(f"cannot read {self.path}"), Folder(str(self.path.parent)) as folder:
                return folder.reader(self.path.name)
        except ValueError as error:
            raise errors.CheckpointError(f"cannot read {self.path}: {error}") from error


def checkpoint_of(entry: Entry, folder: str | None, committed: bool) -> Checkpoint:
    """An entry as programs see it."""
    return Checkpoint(
        index=entry.index,
        shards=entry.shards,
        step=entry.step,
        epoch=entry.epoch,
        uuid=entry.uuid,
        path=None if entry.remote or folder is None else Path(folder, entry.place),
        uri=entry.place if entry.remote else None,
        size=entry.size,
        crc32=entry.crc32,
        time=entry.timestamp / 1e9,
        committed=committed,
    )
