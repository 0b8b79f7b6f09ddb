"""Putting ``/checkpoints/<i>``: guarded by the slot, begun and ended in one epoch, repeated where that is safe."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from edl_agent import errors
from edl_agent.checkpoints.layout import NEWEST_OF_ALL, Entry, decode_metadata, encode_metadata, prunable
from edl_agent.clock import Clock

if TYPE_CHECKING:
    from edl_agent.client import EtcdClient

_ATTEMPT = 3.0
"""Seconds for one call, as the original's."""

_PAUSE = 0.2


class Holder(NamedTuple):
    """Who saves: the epoch and lease of the slot; zeros without etcd."""

    epoch: int
    lease: int


def key_of(index: int) -> str:
    """The key of a shard's metadata."""
    return f"/checkpoints/{index}"


def read_committed(client: "EtcdClient", index: int, everybody: bool, timeout: float) -> list[Entry]:
    """What etcd names, of one shard or of all. What cannot be understood is left out.

    Raises:
        EdlAgentError: as `EtcdClient.get_key`.
    """
    if not everybody:
        raw = client.get_key(key_of(index), timeout)
        return [] if raw is None else _decoded(index, raw)
    prefix = b"/checkpoints/"
    found: list[Entry] = []
    for pair in client.get_prefix(prefix, timeout):
        name = pair.key.removeprefix(prefix)
        if name.isdigit() and len(name) < 10:
            found += _decoded(int(name), pair.value)
    return found


def ask_whether_held(client: "EtcdClient", index: int, holder: Holder, timeout: float) -> None:
    """Ask etcd, and not the own view of it, whether the slot is held.

    Raises:
        LeaseLost: it is not.
        EdlAgentError: as `EtcdClient.get_prefix`.
    """
    name = f"/ps/{index}"
    for pair in client.get_prefix(name, timeout):
        if pair.key == name.encode() and (pair.mod_revision, pair.lease) == holder:
            return
    raise errors.LeaseLost(f"slot {index} is no longer held in epoch {holder.epoch}; a later incarnation has saved")


class Commitment:
    """One attempt to commit, which may take several calls.

    Attributes:
        perhaps: whether a put was sent whose outcome is not known: the file must stay.
    """

    def __init__(self, client: "EtcdClient", holder: Holder, clock: Clock, timeout: float) -> None:
        self.perhaps = False
        self._client = client
        self._holder = holder
        self._clock = clock
        self._end = clock.monotonic() + timeout

    def make(
        self, entry: Entry, folder: str, known: Iterable[Entry], keep: int, *, ask_for_others: bool
    ) -> list[Entry]:
        """Commit, and say what can be deleted now.

        Args:
            entry: the new one.
            folder: its absolute path.
            known: all that is in the folder.
            keep: see `prunable`.
            ask_for_others: whether the other shards' checkpoints are known by etcd only.

        Raises:
            LeaseLost: the slot is not held any more in the epoch in which the checkpoint was begun.
            UnknownOutcome, Unavailable, DeadlineExceeded: not known to be committed when the time was over.
            EdlAgentError: etcd refuses.
        """
        known = list(known)
        key = key_of(entry.index)
        while True:
            try:
                others = []
                if ask_for_others:
                    others = read_committed(self._client, entry.index, True, self._left())
                    others = [one for one in others if one.index != entry.index]
                raw = self._client.get_key(key, self._left())
                present = [] if raw is None else _decoded(entry.index, raw)
                surplus = prunable(_merged([entry, *known, *others, *map(_older, present)]), entry, keep)
                if present and present[0].identity == entry.identity:
                    return surplus  # an earlier attempt, whose answer was lost
                gone = {one.identity for one in surplus}
                previous = [one for one in map(_older, present) if one.identity not in gone]
                value = encode_metadata(entry, folder, previous)
                if self._client.compare_and_set(
                    key, value, expected=raw, epoch=self._holder.epoch, timeout=self._left()
                ):
                    return surplus
                # Somebody else's put came in between: one of ours that was late, or by hand.
            except errors.UnknownOutcome:
                self.perhaps = True
                if self._over():
                    raise
            except (errors.Unavailable, errors.DeadlineExceeded):
                if self._over():
                    raise
            if self._over():
                raise errors.DeadlineExceeded(f"{key} was not committed in time: somebody else is writing it")
            self._client.session.lost.wait(_PAUSE)

    def _left(self) -> float:
        return max(0.05, min(_ATTEMPT, self._end - self._clock.monotonic()))

    def _over(self) -> bool:
        return self._clock.monotonic() >= self._end


def _decoded(index: int, raw: bytes) -> list[Entry]:
    try:
        return decode_metadata(index, raw)
    except ValueError:
        return []


def _older(entry: Entry) -> Entry:
    """As it ranks once another one has been committed after it."""
    return replace(entry, generation=0) if entry.generation == NEWEST_OF_ALL else entry


def _merged(entries: Iterable[Entry]) -> list[Entry]:
    found: dict[tuple[int, str], Entry] = {}
    for entry in entries:
        found.setdefault(entry.identity, entry)
    return list(found.values())
