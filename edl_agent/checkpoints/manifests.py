"""The checkpoints that stand in a folder: read, adopted, deleted."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from edl_agent import errors
from edl_agent.checkpoints.folder import Folder
from edl_agent.checkpoints.layout import LARGEST_MANIFEST, Entry, decode_manifest, parse_name

_log = logging.getLogger(__name__)


class Manifests(NamedTuple):
    """What the manifests of a folder say.

    Attributes:
        entries: of those that are whole.
        damaged: name of the manifest -> what is wrong with it.
        unreadable: name of the manifest -> the operating system's error.
    """

    entries: list[Entry]
    damaged: dict[str, str]
    unreadable: dict[str, OSError]


def read_manifests(folder: Folder, index: int | None) -> Manifests:
    """Read the manifests of one shard, or with ``None`` of all.

    Raises:
        OSError: the folder cannot be read.
    """
    found = Manifests([], {}, {})
    for name in folder.names():
        parsed = parse_name(name)
        if parsed is None or parsed.kind != ".ckpt.json" or (index is not None and parsed.index != index):
            continue
        try:
            found.entries.append(decode_manifest(name, folder.read(name, LARGEST_MANIFEST)))
        except FileNotFoundError:
            continue  # pruned by its owner meanwhile
        except OSError as error:
            found.unreadable[name] = error
        except ValueError as error:
            found.damaged[name] = str(error)
    return found


def adopted(folder: Folder, entry: Entry) -> Entry:
    """The entry of a file that the program wrote: safe on disk, and with what it really holds."""
    try:
        written = folder.adopt(entry.place)
    except ValueError as error:
        raise errors.CheckpointError(f"{entry.place}: {error}") from error
    for given, found, what in ((entry.size, written.size, "bytes"), (entry.crc32, written.crc32, "as crc32")):
        if given is not None and given != found:
            raise errors.CheckpointCorrupt(f"{entry.place} has {found} {what}, not {given}")
    return replace(entry, size=written.size, crc32=written.crc32)


def in_folder(folder: Folder, index: int) -> list[Entry]:
    """All that is in the folder; of other shards only what names say, which is enough to see what sets need."""
    found = read_manifests(folder, index).entries
    for name in folder.names():
        parsed = parse_name(name)
        if parsed is not None and parsed.kind == ".ckpt.json" and parsed.index != index:
            found.append(Entry(parsed.index, parsed.shards, parsed.step, parsed.epoch, parsed.uuid, place=""))
    return found


def delete(folder: Folder, entries: Iterable[Entry]) -> None:
    """Delete as far as possible.

    The manifest first: a file without one is a leftover, a manifest without its file would look like damage.
    """
    for entry in entries:
        try:
            folder.remove(entry.manifest)
            if entry.ours:
                folder.remove(entry.file)
        except OSError as error:
            _log.warning("A checkpoint that is no longer needed could not be deleted: %s", error)
