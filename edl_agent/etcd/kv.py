"""Keys and values: reads (paged at one revision), puts, deletes and transactions.

With typed values instead of messages.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from edl_agent.etcd import quick_requests, wire
from edl_agent.etcd.connection import Connection

PAGE_KEYS = 500
"""Keys per page of a prefix read: bounds one answer to a few MiB for values of a few KiB.

Above gRPC's default limit of 4 MiB or not.
"""


class KeyValue(NamedTuple):
    """One key as stored; ``lease`` 0 = none; ``version`` counts the puts since it was created."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


class TxnResult(NamedTuple):
    """Outcome of a transaction: whether its comparisons held, its revision.

    And the pairs of each range that its branch read, and how many keys each has (also where only they were asked for).
    """

    succeeded: bool
    revision: int
    ranges: tuple[tuple[KeyValue, ...], ...]
    counts: tuple[int, ...] = ()


class Kv:
    """The KV service. All deadlines are points on the monotonic clock, in seconds; all keys are full keys."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, key: bytes, deadline: float) -> bytes | None:
        """The value, linearizable; ``None`` where the key is absent."""
        kvs = wire.RANGE.parse(self._connection.send(wire.RANGE, quick_requests.read_key(key), deadline)).kvs
        return kvs[0].value if kvs else None

    def range(self, key: bytes, end: bytes, deadline: float) -> tuple[tuple[KeyValue, ...], int]:
        """All pairs of [key, end) in one answer, and the revision of the read."""
        answer = self._connection.call(wire.RANGE, wire.RangeRequest(key=key, range_end=end), deadline)
        return _pairs(answer.kvs), answer.header.revision

    def pages(self, key: bytes, end: bytes, deadline: float) -> Iterator[tuple[list[KeyValue], int]]:
        """The pairs of [key, end) page by page, all at the revision of the first page.

        Raises:
            WatchCompacted: the revision was compacted between two pages; begin again.
        """
        revision = 0
        while True:
            request = wire.RangeRequest(key=key, range_end=end, limit=PAGE_KEYS, revision=revision)
            answer = self._connection.call(wire.RANGE, request, deadline)
            revision = revision or answer.header.revision
            page = list(_pairs(answer.kvs))
            yield page, revision
            if not answer.more:
                return
            key = page[-1].key + b"\0"

    def put(self, key: bytes, value: bytes, deadline: float, lease: int = 0) -> None:
        """Write one key."""
        self._connection.send(wire.PUT, quick_requests.put_key(key, value, lease), deadline)

    def delete(self, key: bytes, deadline: float) -> bool:
        """Delete one key; returns whether it was there."""
        return bool(self._connection.call(wire.DELETE_RANGE, wire.DeleteRangeRequest(key=key), deadline).deleted)

    def txn(self, compares: list[Any], success: list[Any], failure: list[Any], deadline: float) -> TxnResult:
        """If all comparisons hold do ``success``, else ``failure``; see the functions below for the parts."""
        answer = self._connection.call(
            wire.TXN, wire.TxnRequest(compare=compares, success=success, failure=failure), deadline
        )
        ranges = [one.response_range for one in answer.responses if one.WhichOneof("response") == "response_range"]
        return TxnResult(
            answer.succeeded,
            answer.header.revision,
            tuple(_pairs(one.kvs) for one in ranges),
            tuple(one.count for one in ranges),
        )


def _pairs(kvs: Any) -> tuple[KeyValue, ...]:
    return tuple(KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease) for kv in kvs)


# --- parts of transactions ---


def absent(key: bytes) -> Any:
    """Compare: the key does not exist."""
    return wire.Compare(result="EQUAL", target="CREATE", key=key, create_revision=0)


def range_absent(key: bytes, end: bytes) -> Any:
    """Compare: no key of [key, end) exists. etcd reads the whole range for it."""
    return wire.Compare(result="EQUAL", target="VERSION", key=key, range_end=end, version=0)


def modified_at(key: bytes, revision: int) -> Any:
    """Compare: the key was last put at exactly this revision; 0 = it does not exist."""
    return wire.Compare(result="EQUAL", target="MOD", key=key, mod_revision=revision)


def value_is(key: bytes, value: bytes) -> Any:
    """Compare: the key exists with this value."""
    return wire.Compare(result="EQUAL", target="VALUE", key=key, value=value)


def leased_by(key: bytes, lease: int) -> Any:
    """Compare: the key is under this lease."""
    return wire.Compare(result="EQUAL", target="LEASE", key=key, lease=lease)


def put_op(key: bytes, value: bytes, lease: int = 0) -> Any:
    """Operation: put."""
    return wire.RequestOp(request_put=wire.PutRequest(key=key, value=value, lease=lease))


def delete_op(key: bytes, end: bytes = b"") -> Any:
    """Operation: delete [key, end), or the one key."""
    return wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(key=key, range_end=end))


def create_op(key: bytes, value: bytes) -> Any:
    """Operation: put the key if it is absent (a transaction within the transaction)."""
    return wire.RequestOp(request_txn=wire.TxnRequest(compare=[absent(key)], success=[put_op(key, value)]))


def range_op(key: bytes, end: bytes = b"", min_mod_revision: int = 0) -> Any:
    """Operation: read [key, end), or the one key; of these only what was put at ``min_mod_revision`` or later."""
    return wire.RequestOp(request_range=wire.RangeRequest(key=key, range_end=end, min_mod_revision=min_mod_revision))


def count_op(key: bytes, end: bytes) -> Any:
    """Operation: count the keys of [key, end)."""
    return wire.RequestOp(request_range=wire.RangeRequest(key=key, range_end=end, count_only=True))
