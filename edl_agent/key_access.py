"""The job's keys as a program reads and writes them: plain, under the lease, or guarded by the slot."""

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.config import MAX_TIMEOUT, check_start_revision, check_timeout
from edl_agent.etcd import kv as kv_parts
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.kv import KeyValue, Kv
from edl_agent.keys import KeySchema, prefix_end
from edl_agent.live_session import Session
from edl_agent.prefix_watch import PrefixWatch, read_prefix
from edl_agent.session import Slot, lost, renewed

Key = str | bytes


class _Anything:
    def __repr__(self) -> str:
        return "ANY"


ANY = _Anything()
"""For ``compare_and_set(expected=ANY)``: whatever the key holds."""


class KeyAccess:
    """The part of `EtcdClient` that reads, writes and watches keys. All keys are below the client's prefix."""

    _keys: KeySchema
    _clock: Clock
    _connection: Connection
    _kv: Kv
    _session: Session

    def _check_usable(self) -> None:
        """Raise `ClientClosed` or `ForkedClient` where the client cannot be used."""
        raise NotImplementedError

    def get_key(self, key: Key, timeout: float = 1.0) -> bytes | None:
        """Read one key, linearizable.

        Args:
            key: below the client's prefix.
            timeout: seconds.

        Returns:
            The value, ``None`` where the key is absent.

        Raises:
            DeadlineExceeded: no answer in time; and the other errors of the tree that etcd gives cause for.
        """
        self._check_usable()
        return self._kv.get(self._keys.full(key), self._deadline(timeout))

    def get_prefix(self, prefix: Key, timeout: float = 5.0) -> list[KeyValue]:
        """Read all keys with a prefix, in pages at one revision, sorted by key.

        Returns:
            Pairs with keys as this client names them (without its own prefix).
        """
        self._check_usable()
        full = self._keys.full(prefix)
        pairs, _ = read_prefix(self._kv, full, prefix_end(full), self._deadline(timeout))
        return [pair._replace(key=self._keys.relative(pair.key)) for pair in pairs]

    def put_key(self, key: Key, value: bytes, timeout: float = 1.0, with_lease: bool = False) -> None:
        """Write one key. Sent at most once.

        Args:
            key: below the client's prefix.
            value: up to etcd's request limit (1.5 MiB by default).
            timeout: seconds.
            with_lease: bind the key to the session's lease, so that it vanishes with this process.

        Raises:
            UnknownOutcome: the answer was lost; at the deadline it is a `WriteDeadlineExceeded`, which is a
                `DeadlineExceeded` too.
            DeadlineExceeded: never sent.
            LeaseLost: ``with_lease`` and no live lease; nothing was written.
        """
        self._check_usable()
        lease = self._live_lease() if with_lease else 0
        try:
            self._kv.put(self._keys.full(key), _bytes(value), self._deadline(timeout), lease)
        except errors.LeaseLost as error:
            self._server_lost(lease, error)
            raise

    def delete_key(self, key: Key, timeout: float = 1.0) -> bool:
        """Delete one key. Sent at most once, errors as `put_key`. Returns whether it was there."""
        self._check_usable()
        return self._kv.delete(self._keys.full(key), self._deadline(timeout))

    def compare_and_set(
        self,
        key: Key,
        value: bytes,
        *,
        expected: bytes | _Anything | None = ANY,
        guarded: bool = True,
        epoch: int | None = None,
        with_lease: bool = False,
        timeout: float = 1.0,
    ) -> bool:
        """Write one key if it holds what is expected and, when ``guarded``.

        If this session still holds its slot; in one transaction.

        Args:
            key: below the client's prefix.
            value: the new value.
            expected: the value that the key must hold, ``None`` = absent, `ANY` = whatever.
            guarded: compare the slot key's mod revision and lease, so that nobody who lost a slot can still write for
                it.
            epoch: guarded: the incarnation that the value belongs to; refused when the session holds another one.
            with_lease: bind the key to the session's lease.
            timeout: seconds.

        Returns:
            Whether it was written; ``False`` = the key holds something else than expected.

        Raises:
            LeaseLost: guarded, and the slot is not (or no longer) held; nothing was written.
            UnknownOutcome: the answer was lost.
        """
        self._check_usable()
        full = self._keys.full(key)
        compares, failure = [], []
        view = self._session.view()
        if guarded:
            if view.slot is None or view.lease is None:
                raise view.loss or errors.LeaseLost("no slot is held")
            if epoch is not None and epoch != view.slot.epoch:
                raise errors.LeaseLost(
                    f"the value belongs to epoch {epoch}, the session now holds epoch {view.slot.epoch}"
                )
            slot_key = self._keys.family(view.slot.role).key(view.slot.index)
            compares += [
                kv_parts.modified_at(slot_key, view.slot.epoch),
                kv_parts.leased_by(slot_key, view.lease.lease_id),
            ]
            failure.append(kv_parts.range_op(slot_key))
        if expected is None:
            compares.append(kv_parts.absent(full))
        elif not isinstance(expected, _Anything):
            compares.append(kv_parts.value_is(full, _bytes(expected)))
        lease = self._live_lease() if with_lease else 0
        try:
            result = self._kv.txn(
                compares, [kv_parts.put_op(full, _bytes(value), lease)], failure, self._deadline(timeout)
            )
        except errors.LeaseLost as error:
            self._server_lost(lease, error)
            raise
        if not result.succeeded and guarded and view.slot is not None and view.lease is not None:
            found = result.ranges[0]
            if not found or found[0].mod_revision != view.slot.epoch or found[0].lease != view.lease.lease_id:
                raise self._slot_refused(view.slot, view.lease.lease_id, found[0] if found else None)
        return result.succeeded

    def guarded_put(self, key: Key, value: bytes, timeout: float = 1.0, *, epoch: int | None = None) -> None:
        """Write one key if this session still holds its slot: `compare_and_set` without an expectation."""
        self.compare_and_set(key, value, epoch=epoch, timeout=timeout)

    def renew_epoch(self, timeout: float = 2.0) -> Slot:
        """Put the key of the held slot anew under the same lease: the same slot with a higher epoch.

        For who starts a program anew behind a slot that it keeps (`edl-agent run`): calls and writes of the program
        before carry the old epoch and are refused from now on. Each attempt compares the key's mod revision and lease,
        and is repeated until one is answered; an attempt whose answer was lost and that arrives late finds the key put
        since, and does nothing.

        Args:
            timeout: seconds.

        Returns:
            The slot, as the session has it now too.

        Raises:
            LeaseLost: the slot is not, or no longer, held.
            DeadlineExceeded: no answer in time; the epoch may have been raised or may yet be.
            EdlAgentError: etcd refuses.
        """
        self._check_usable()
        end = self._deadline(timeout)
        view = self._session.view()
        slot = view.slot
        if slot is None or view.lease is None:
            raise view.loss or errors.LeaseLost("no slot is held")
        lease_id = slot.lease_id
        key, known = self._keys.family(slot.role).key(slot.index), slot.epoch
        while True:
            try:
                result = self._kv.txn(
                    [kv_parts.modified_at(key, known), kv_parts.leased_by(key, lease_id)],
                    [kv_parts.put_op(key, slot.address.encode(), lease_id)],
                    [kv_parts.range_op(key)],
                    end,
                )
            except errors.DeadlineExceeded:
                raise
            except errors.UnknownOutcome:
                continue
            except errors.LeaseLost as error:
                self._server_lost(lease_id, error)
                raise
            if result.succeeded:
                return self._renewed(lease_id, result.revision)
            found = result.ranges[0][0] if result.ranges[0] else None
            if found is None or (found.lease, found.value) != (lease_id, slot.address.encode()):
                refused = self._slot_refused(slot, lease_id, found)
                raise self._session.view().loss or refused
            known = found.mod_revision  # an attempt of ours whose answer was lost

    def watch_prefix(self, prefix: Key, *, start_revision: int | None = None, timeout: float = 5.0) -> PrefixWatch:
        """Read a prefix and watch it from there.

        Args:
            prefix: below the client's prefix; not empty.
            start_revision: begin at this revision (>= 1) in place of a read.
            timeout: seconds for each full read.

        Returns:
            An iterator over `WatchEvent` with the initial pairs in ``snapshot``.
        """
        self._check_usable()
        start_revision = check_start_revision(start_revision)
        full = self._keys.full(prefix)
        return PrefixWatch(
            self._connection, self._kv, self._keys, full, start_revision, check_timeout(timeout), self._clock
        )

    def _deadline(self, timeout: float) -> float:
        if type(timeout) is not float or not 0.0 <= timeout <= MAX_TIMEOUT:
            timeout = check_timeout(timeout)
        return self._clock.monotonic() + timeout

    def _live_lease(self) -> int:
        view = self._session.view()
        if not view.alive or view.lease is None:
            raise view.loss or errors.LeaseLost("there is no session: call register() or open() first")
        return view.lease.lease_id

    def _server_lost(self, lease_id: int, error: errors.LeaseLost) -> None:
        self._session.change(
            lambda view, now: lost(view, error) if view.lease is not None and view.lease.lease_id == lease_id else view
        )

    def _renewed(self, lease_id: int, epoch: int) -> Slot:
        after = self._session.change(lambda view, now: renewed(view, lease_id, epoch))
        slot = after.slot
        if slot is None or slot.lease_id != lease_id:
            raise after.loss or errors.LeaseLost("the slot was lost meanwhile")
        return slot

    def _slot_refused(self, slot: Slot, lease_id: int, found: KeyValue | None) -> errors.LeaseLost:
        """A guarded write was refused: that is news of the loss, which may be here before the watch's."""
        from edl_agent.slots import Holding, SlotKey, judge_slot

        gone = errors.LeaseLost(f"slot {slot.index} is no longer held with epoch {slot.epoch}; nothing was written")
        lease = self._session.view().lease
        if lease is None or lease.lease_id != lease_id:
            return gone  # known already; the key found may even be our own newer one
        present = SlotKey(slot.index, found.value, found.mod_revision, found.lease) if found else None
        mine = Holding(slot.index, slot.address.encode(), slot.epoch, lease_id)
        if present is not None and mine.renewed_by(present):
            # Our own `renew_epoch`, before its answer: the write belongs to an earlier epoch, but the slot is held.
            epoch = present.mod_revision
            self._session.change(lambda view, now: renewed(view, lease_id, epoch))
            return gone
        loss = judge_slot(present, mine) or gone
        self._server_lost(lease_id, loss)
        return loss


def _bytes(value: bytes) -> bytes:
    if type(value) is bytes:
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise errors.ConfigurationError(f"a value must be bytes, not {type(value).__name__}")
    return bytes(value)
