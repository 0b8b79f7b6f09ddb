"""`CheckpointStore`: one pserver's checkpoints in a folder, with their metadata in etcd."""

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from edl_agent import errors
from edl_agent.checkpoints.checkpoint import Checkpoint, checkpoint_of
from edl_agent.checkpoints.commitment import Commitment, Holder, ask_whether_held, read_committed
from edl_agent.checkpoints.folder import Buffer, Folder, Writer, storage_errors
from edl_agent.checkpoints.layout import (
    Entry,
    Policy,
    check_place,
    encode_manifest,
    is_uri,
    latest_epoch,
    next_generation,
    prunable,
)
from edl_agent.checkpoints.leftovers import tidy
from edl_agent.checkpoints.manifests import adopted, delete, in_folder, read_manifests
from edl_agent.checkpoints.search import Search, Skipped
from edl_agent.clock import SystemClock
from edl_agent.keys import MAX_DESIRED, check_desired, parse_desired

if TYPE_CHECKING:
    from edl_agent.client import EtcdClient

_log = logging.getLogger(__name__)

_READ_TIMEOUT = 5.0


class CheckpointStore:
    """Saves and finds the checkpoints of one pserver. Thread-safe (one call at a time); owns no thread.

    Args:
        client: holds the slot `index`; ``None``: without etcd, by the manifests in the folder alone. What is saved then
            is not committed, and nobody is fenced off: only one process may save for the shard.
        directory: the folder, by itself or shared by all pservers of the job (not by two jobs); created at the first
            `save`. ``None``: only URIs are committed.
        index: the shard: the slot's index.
        shards: number of shards; default ``/ps_desired``.
        keep: how many checkpoints to keep at least.
        shared: whether all pservers see the same folder. If each has its own, other shards' checkpoints cannot be
            verified from here; a set is then complete when etcd names all its members.
        verify_others: whether to read the other shards' files of a set before it is chosen (all pservers then choose
            the same set), or only to look at their lengths.

    Raises:
        ConfigurationError: a bad argument.

    Example::

        store = CheckpointStore(client, "/checkpoints", client.register(7164))
        found = store.restore("newest")
        if found is not None:
            with found.open() as file:
                parameters = numpy.load(file)
        ...
        store.save(step, lambda file: numpy.save(file, parameters))
    """

    def __init__(
        self,
        client: "EtcdClient | None",
        directory: str | os.PathLike[str] | None,
        index: int,
        *,
        shards: int | None = None,
        keep: int = 2,
        shared: bool = True,
        verify_others: bool = True,
    ) -> None:
        if shards is None and client is None:
            raise errors.ConfigurationError("without a client the number of shards must be given")
        if directory is None and client is None:
            raise errors.ConfigurationError("there must be a client or a directory")
        if shards is not None and index >= check_desired(shards):
            raise errors.ConfigurationError(f"there is no shard {index} of {shards}")
        self.index = _whole("index", index, 0, MAX_DESIRED - 1)
        self._client = client
        self._clock = client._clock if client is not None else SystemClock()
        self._path = None if directory is None else os.path.abspath(os.fspath(directory))
        self._shards = shards
        self._keep = _whole("keep", keep, 1, 16)
        self._shared = shared
        self._verify_others = verify_others
        self._lock = threading.Lock()
        self._writer: tuple[Holder, int] | None = None
        self._saved_at: float | None = None
        self._skipped: tuple[Skipped, ...] = ()

    @property
    def age(self) -> float | None:
        """Seconds since the last `save` or `commit` here, for the `Reporter`; ``None`` before the first."""
        saved_at = self._saved_at
        return None if saved_at is None else self._clock.monotonic() - saved_at

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What the last `restore` passed over, and why. Empty where it returned ``None``: there was nothing at all."""
        return self._skipped

    def save(
        self, step: int, source: Writer | Buffer, *, epoch: int | None = None, timeout: float = 10.0
    ) -> Checkpoint:
        """Write a checkpoint, safely on disk and verified, commit it, and then delete what is no longer needed.

        Args:
            step: the set's step id, the same for the checkpoints that all pservers make at this step.
            source: the bytes; or a function that writes them, in order, into the file it is given (it cannot seek).
            epoch: the incarnation that the state belongs to (``session.epoch`` when it was restored or begun): refused
                when the slot was lost and claimed again since. Needed where one process goes on across a loss.
            timeout: seconds for etcd; the file takes as long as it takes.

        Raises:
            LeaseLost: the slot was lost, before or meanwhile; the file was deleted.
            CheckpointStorageFull, CheckpointStorageDenied, CheckpointCorrupt, CheckpointError: of the file; nothing of
                it is left.
            UnknownOutcome, Unavailable, DeadlineExceeded: of etcd: the file is good and may be restored, but is perhaps
                not committed; the older ones are kept. So after every other error that etcd gives.
            Exception: whatever the function raises; nothing of the file is left.
        """
        step = _whole("step", step, 0, 2**63 - 1)
        if self._path is None:
            raise errors.ConfigurationError("there is no directory to save in")
        with self._lock:
            holder, shards = self._holder(epoch), self._shard_count(timeout)
            with self._storage("save a checkpoint in"), self._made_folder() as folder:
                entry = self._new_entry(folder, holder, shards, step, timeout)
                written = folder.write(entry.file, source, "file")
                entry = replace(entry, place=entry.file, size=written.size, crc32=written.crc32)
                try:
                    self._still(holder)
                    folder.write(entry.manifest, encode_manifest(entry), "manifest")
                except BaseException:
                    with contextlib.suppress(OSError):
                        folder.remove(entry.file)
                    raise
                return self._finish(folder, holder, entry, timeout)

    def commit(
        self,
        place: str | os.PathLike[str],
        step: int,
        *,
        crc32: int | None = None,
        size: int | None = None,
        epoch: int | None = None,
        timeout: float = 10.0,
    ) -> Checkpoint:
        """Make known a checkpoint that the program has saved by itself.

        Args:
            place: a URI (``s3://...``), which is not looked at, or a file directly in the folder, which is made safe on
                disk and summed up. Neither is ever deleted by the store.
            step: as for `save`.
            crc32: for a file, compared.
            size: bytes; for a file, compared.
            epoch: as for `save`.
            timeout: seconds for etcd.

        Raises:
            ConfigurationError: the file is not in the folder, or there is no place to record it in.
            CheckpointCorrupt: the file's length or crc32 is another.
            EdlAgentError: as `save`; the file stays.
        """
        step, text = _whole("step", step, 0, 2**63 - 1), os.fspath(place)
        with self._lock:
            holder, shards = self._holder(epoch), self._shard_count(timeout)
            name = text if is_uri(text) else self._name_in_folder(text)
            try:
                check_place(name)
            except ValueError as error:
                raise errors.ConfigurationError(str(error)) from error
            if self._path is None:
                entry = self._new_entry(None, holder, shards, step, timeout)
                return self._finish(None, holder, replace(entry, place=name, size=size, crc32=crc32), timeout)
            with self._storage("record a checkpoint in"), self._made_folder() as folder:
                entry = self._new_entry(folder, holder, shards, step, timeout)
                entry = replace(entry, place=name, size=size, crc32=crc32)
                if not entry.remote:
                    entry = adopted(folder, entry)
                folder.write(entry.manifest, encode_manifest(entry), "manifest")
                return self._finish(folder, holder, entry, timeout)

    def restore(
        self, policy: Policy = "newest", *, exclude: Collection[str] = (), timeout: float = _READ_TIMEOUT
    ) -> Checkpoint | None:
        """Find what to go on from: the newest checkpoint of this shard that verifies.

        Damaged ones are skipped with a warning; the shard's own are set aside by renaming them to ``.corrupt``.

        Args:
            policy: ``"newest"``: of this shard, whatever the others have (an asynchronous job where one pserver was
                lost); ``"complete_set"``: of the newest step of which every shard has one that verifies (the whole job
                starts again).
            exclude: uuids of checkpoints that the program could not load.
            timeout: seconds for etcd. Where it does not answer, the manifests alone are looked at.

        Returns:
            The checkpoint, or ``None``: there is none that is whole; see `skipped`.

        Raises:
            CheckpointError: the folder cannot be read, or there are checkpoints none of which can be read: to begin
                anew would throw them away.
            EdlAgentError: the number of shards is not known.
        """
        if policy not in ("newest", "complete_set"):
            raise errors.ConfigurationError(f"policy must be 'newest' or 'complete_set', not {policy!r}")
        with self._lock:
            self._skipped = ()
            shards = self._shard_count(timeout)
            committed = self._committed(timeout, everybody=policy == "complete_set")
            search = Search(
                policy,
                self.index,
                shards,
                shared=self._shared,
                verify_others=self._verify_others,
                set_aside=self._owns_shard(),
                exclude=exclude,
            )
            try:
                with self._storage("look for checkpoints in"), self._existing_folder() as folder:
                    found = search.run(folder, committed)
            finally:
                self._skipped = tuple(search.skipped)
            if found is None:
                return None
            return checkpoint_of(found, self._path, any(one.identity == found.identity for one in committed))

    # --- inside ---

    def _passed(self, step: str) -> None:
        """For tests."""

    def _storage(self, what: str) -> contextlib.AbstractContextManager[None]:
        return storage_errors(f"cannot {what} {self._path}")

    def _made_folder(self) -> Folder:
        assert self._path is not None
        os.makedirs(self._path, exist_ok=True)
        return Folder(self._path, self._passed)

    def _existing_folder(self) -> contextlib.AbstractContextManager[Folder | None]:
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                return Folder(self._path)
        return contextlib.nullcontext()

    def _name_in_folder(self, path: str) -> str:
        name = os.path.basename(path)
        parent = os.path.dirname(os.path.abspath(path))
        if self._path is None or os.path.realpath(parent) != os.path.realpath(self._path):
            raise errors.ConfigurationError(f"{path!r} is not a file directly in the store's directory {self._path}")
        return name

    def _owns_shard(self) -> bool:
        try:
            self._holder()
        except errors.LeaseLost:
            return False
        return True

    def _holder(self, epoch: int | None = None) -> Holder:
        """Who saves, which must be the incarnation ``epoch`` if one is given. Without a client: this object."""
        if self._client is None:
            return Holder(0, 0)
        self._client._check_usable()
        view = self._client.session.view()
        if view.slot is None:
            raise view.loss or errors.LeaseLost("no slot is held: a checkpoint is saved by the holder of its slot")
        if view.slot.role != "pserver" or view.slot.index != self.index:
            raise errors.LeaseLost(
                f"the session holds {view.slot.role} slot {view.slot.index}, the store is for shard {self.index}"
            )
        if epoch is not None and epoch != view.slot.epoch:
            raise errors.LeaseLost(f"the state belongs to epoch {epoch}, the session holds {view.slot.epoch} now")
        return Holder(view.slot.epoch, view.lease.lease_id if view.lease is not None else 0)

    def _still(self, holder: Holder) -> None:
        if self._holder() != holder:
            raise errors.LeaseLost(f"the slot was lost while the checkpoint was being saved (epoch {holder.epoch})")

    def _shard_count(self, timeout: float) -> int:
        if self._shards is not None:
            return self._shards
        assert self._client is not None
        raw = self._client.get_key("/ps_desired", timeout)
        if raw is None:
            raise errors.InvalidDesiredCount("/ps_desired is not set: give the number of shards")
        shards = parse_desired(raw)
        if self.index >= shards:
            raise errors.SlotWithdrawn(f"/ps_desired is {shards}: there is no shard {self.index}")
        return shards

    def _committed(self, timeout: float, *, everybody: bool) -> list[Entry]:
        """What etcd names; with a warning nothing, where it does not answer."""
        if self._client is None:
            return []
        try:
            return read_committed(self._client, self.index, everybody, timeout)
        except (errors.Unavailable, errors.DeadlineExceeded) as error:
            _log.warning("etcd was not asked for checkpoints, only manifests are looked at: %s", error)
            return []

    def _new_entry(self, folder: Folder | None, holder: Holder, shards: int, step: int, timeout: float) -> Entry:
        """An entry without a place. The first one of an incarnation looks at what others have left."""
        if self._writer is None or self._writer[0] != holder:
            asked, committed = self._client is not None, []
            if self._client is not None:
                try:
                    committed = read_committed(self._client, self.index, False, timeout)
                except (errors.Unavailable, errors.DeadlineExceeded):
                    if folder is None:
                        raise
                    asked = False
            known = committed if folder is None else committed + read_manifests(folder, self.index).entries
            if self._client is not None and latest_epoch(known) > holder.epoch:
                ask_whether_held(self._client, self.index, holder, timeout)
            generation = next_generation(known, holder.lease, holder.epoch)
            if folder is not None:
                tidy(folder, self.index, holder.epoch, self._clock.wall(), committed if asked else None)
            self._writer = (holder, generation)
        return Entry(
            index=self.index,
            shards=shards,
            step=step,
            epoch=holder.epoch,
            uuid=str(uuid.uuid4()),
            place="",
            timestamp=int(self._clock.wall() * 1e9),
            lease=holder.lease,
            generation=self._writer[1],
        )

    def _finish(self, folder: Folder | None, holder: Holder, entry: Entry, timeout: float) -> Checkpoint:
        """Commit, then prune."""
        known = [entry] if folder is None else [entry, *in_folder(folder, self.index)]
        if self._client is None:
            surplus = prunable(known, entry, self._keep)
        else:
            commitment = Commitment(self._client, holder, self._clock, timeout)
            try:
                surplus = commitment.make(entry, self._path or "", known, self._keep, ask_for_others=not self._shared)
            except errors.LeaseLost:
                if not commitment.perhaps and folder is not None:
                    delete(folder, [entry])
                raise
            self._passed("committed")
        self._saved_at = self._clock.monotonic()
        if folder is not None:
            delete(folder, surplus)
            self._passed("pruned")
        return checkpoint_of(entry, self._path, self._client is not None)


def _whole(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise errors.ConfigurationError(f"{name} must be a whole number in {least}..{most}, not {value!r}")
    return value
