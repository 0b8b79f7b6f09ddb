"""Finding what to restore: manifests and metadata are put together, and candidates verified until one holds."""

import logging
from collections.abc import Collection
from typing import NamedTuple

from edl_agent.checkpoints.folder import Folder, storage_error
from edl_agent.checkpoints.layout import Entry, Identity, Policy, choose, parse_name
from edl_agent.checkpoints.manifests import read_manifests

_log = logging.getLogger(__name__)


class Skipped(NamedTuple):
    """A checkpoint that `CheckpointStore.restore` has passed over. ``name`` is a file name or URI."""

    name: str
    reason: str


class Search:
    """One search. See `CheckpointStore` for the arguments.

    Attributes:
        skipped: what was passed over.
    """

    def __init__(
        self,
        policy: Policy,
        index: int,
        shards: int,
        *,
        shared: bool,
        verify_others: bool,
        set_aside: bool,
        exclude: Collection[str],
    ) -> None:
        self.skipped: list[Skipped] = []
        self._policy = policy
        self._index = index
        self._shards = shards
        self._shared = shared
        self._verify_others = verify_others
        self._may_set_aside = set_aside
        self._exclude = frozenset(exclude)
        self._unreadable: OSError | None = None

    def run(self, folder: Folder | None, committed: Collection[Entry]) -> Entry | None:
        """The shard's own checkpoint to restore, or ``None``.

        Raises:
            CheckpointError: there are some, but none can be read.
            OSError: the folder cannot be read.
        """
        known: dict[Identity, Entry] = {}
        if folder is not None:
            manifests = read_manifests(folder, None if self._policy == "complete_set" else self._index)
            known = {entry.identity: entry for entry in manifests.entries}
            for name, reason in manifests.damaged.items():
                self._skip(name, reason)
                self._set_aside(folder, name)
            for name, error in manifests.unreadable.items():
                self._skip(name, str(error))
                self._unreadable = error
        # Without a folder in common nothing can be said of the others' files but that they were verified once.
        trusted = {one.identity for one in committed if not self._shared and one.index != self._index}
        for entry in committed:
            known.setdefault(entry.identity, entry)
        rejected = {(index, uuid) for index, uuid in known if index == self._index and uuid in self._exclude}
        verified: set[Identity] = set(trusted)
        while chosen := choose(known.values(), self._policy, self._index, self._shards, rejected):
            # The own one first: it is the one whose damage somebody can act upon.
            for entry in sorted(chosen, key=lambda one: one.index != self._index):
                if entry.identity not in verified and not self._verifies(folder, entry):
                    rejected.add(entry.identity)
                    break
                verified.add(entry.identity)
            else:
                return next(one for one in chosen if one.index == self._index)
        if self._unreadable is not None:
            raise storage_error("there are checkpoints, but none can be read", self._unreadable)
        return None

    def _verifies(self, folder: Folder | None, entry: Entry) -> bool:
        if entry.remote:
            return True
        own = entry.index == self._index
        whole = own or self._verify_others
        try:
            reason = "it is missing"
            if folder is not None:
                reason = folder.differs(entry.place, entry.size, entry.crc32 if whole else None, entry.md5)
        except OSError as error:
            self._skip(entry.place, str(error))
            self._unreadable = error
            return False
        if not reason:
            return True
        self._skip(entry.place, reason)
        if folder is not None and own and entry.ours:
            self._set_aside(folder, entry.place)
            self._set_aside(folder, entry.manifest)
        return False

    def _skip(self, name: str, reason: str) -> None:
        self.skipped.append(Skipped(name, reason))
        _log.warning("Checkpoint %s is passed over: %s", name, reason)

    def _set_aside(self, folder: Folder, name: str) -> None:
        parsed = parse_name(name)
        if not self._may_set_aside or parsed is None or parsed.index != self._index:
            return
        try:
            folder.set_aside(name)
        except OSError as error:
            _log.warning("%s could not be set aside: %s", name, storage_error("rename", error))
