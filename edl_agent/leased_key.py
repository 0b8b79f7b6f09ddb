"""One key that says something about this process, kept under the lease it has now."""

from typing import TYPE_CHECKING

from edl_agent import errors
from edl_agent.etcd import kv as kv_parts

if TYPE_CHECKING:
    from edl_agent.client import EtcdClient

_RACES = 4


class LeasedKey:
    """Writes one key under the session's lease. Not thread-safe: it belongs to one thread.

    Each write compares the key's mod revision with the last one known. So a write whose answer was lost and that
    arrives late cannot undo a newer one: the key has moved on by then, or its lease is gone.

    Args:
        client: whose session.
        key: full key.
    """

    def __init__(self, client: "EtcdClient", key: bytes) -> None:
        self._client = client
        self._key = key
        self._known = 0

    def put(self, value: bytes, timeout: float, *, take_over: bool = True) -> int:
        """Write the key.

        Args:
            value: the whole new value.
            timeout: seconds.
            take_over: whether to replace a key that somebody else keeps under a live lease.

        Returns:
            The lease that the key is under now.

        Raises:
            LeaseLost: there is no live lease; nothing was written.
            UnknownOutcome: the answer was lost. Calling again is safe.
            RequestRefused: somebody else keeps the key, and it is not to be taken over.
            EdlAgentError: etcd was not reached, or refuses.
        """
        client = self._client
        deadline = client._clock.monotonic() + timeout
        lease = client._live_lease()
        for _ in range(_RACES):
            try:
                result = client._kv.txn(
                    [kv_parts.modified_at(self._key, self._known)],
                    [kv_parts.put_op(self._key, value, lease)],
                    [kv_parts.range_op(self._key)],
                    deadline,
                )
            except errors.LeaseLost as error:
                client._server_lost(lease, error)
                raise
            if result.succeeded:
                self._known = result.revision
                return lease
            found = result.ranges[0][0] if result.ranges[0] else None
            if found is not None and not take_over and found.lease not in (0, lease):
                raise errors.RequestRefused(f"another process keeps {client._keys.relative(self._key).decode()}")
            self._known = found.mod_revision if found is not None else 0
        raise errors.Unavailable(f"others keep writing {client._keys.relative(self._key).decode()}")
