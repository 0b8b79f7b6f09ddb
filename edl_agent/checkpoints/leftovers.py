"""What crashes leave behind in the folder, and when it may be deleted."""

import logging
from collections.abc import Collection

from edl_agent.checkpoints.folder import Folder
from edl_agent.checkpoints.layout import Entry, Name, parse_name

_log = logging.getLogger(__name__)

LEFTOVER_AGE = 24 * 3600.0
"""Seconds without a change after which half a file is deleted, whosever it was."""

SET_ASIDE = 4
"""How many damaged files of a shard are left for people to look at."""


def tidy(folder: Folder, index: int, epoch: int, now: float, committed: Collection[Entry] | None) -> None:
    """Delete leftovers; what cannot be deleted is left with a warning.

    Args:
        folder: where.
        index: the own shard. Its half-written files of earlier epochs are deleted at once (their writer can commit
            nothing any more), and so are its files without a manifest.
        epoch: the own, 0 = without etcd: then only age counts.
        now: seconds since 1970.
        committed: what etcd names, which is kept; ``None`` = not known.

    Raises:
        OSError: the folder cannot be read.
    """
    names = folder.names()
    named = {entry.place for entry in committed or ()}
    damaged: list[tuple[float, str]] = []
    for name in names:
        parsed = parse_name(name)
        if parsed is None:
            continue
        try:
            if parsed.kind.endswith(".corrupt"):
                if parsed.index == index:
                    damaged.append((folder.modified(name), name))
            elif _is_leftover(parsed, name, names, index, named, committed is not None):
                dead = parsed.index == index and parsed.epoch < epoch
                if dead or now - folder.modified(name) > LEFTOVER_AGE:
                    folder.remove(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.warning("The leftover %s could not be deleted: %s", name, error)
    for _, name in sorted(damaged, reverse=True)[SET_ASIDE:]:
        try:
            folder.remove(name)
        except OSError as error:
            _log.warning("The damaged %s could not be deleted: %s", name, error)


def _is_leftover(parsed: Name, name: str, names: list[str], index: int, named: set[str], asked: bool) -> bool:
    if parsed.kind.endswith(".tmp"):
        return True
    if parsed.kind != ".ckpt" or parsed.index != index:
        return False
    # With etcd, a file whose manifest was lost may be one that is committed.
    without_manifest = name + ".json" not in names
    return without_manifest and name not in named and (asked or parsed.epoch == 0)
