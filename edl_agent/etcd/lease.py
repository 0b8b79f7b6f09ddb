"""Leases: grant with an id of our own, keep alive once, revoke."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from edl_agent import errors
from edl_agent.etcd import status, wire
from edl_agent.etcd.connection import Connection


class Leases:
    """The lease service. Deadlines are points on the monotonic clock, in seconds."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def grant(self, lease_id: int, ttl: float, deadline: float) -> float:
        """Grant a lease.

        Args:
            lease_id: random and positive, chosen by the caller: a repeated grant whose first answer was lost is then
                recognised.
            ttl: wanted seconds, rounded up.
            deadline: when to give up.

        Returns:
            The lease time in seconds from the sending of this call on: the granted TTL (etcd raises small ones to its
            minimum, 1.5 x election timeout), or what is left of it where an earlier attempt had granted the lease.
        """
        try:
            answer = self._connection.call(
                wire.LEASE_GRANT, wire.LeaseGrantRequest(id=lease_id, ttl=-int(-ttl // 1)), deadline
            )
        except errors.RequestRefused as error:
            if status.LEASE_EXISTS not in str(error):
                raise
            # Created by an earlier attempt, and running since then: only what is left of it counts from now on.
            left = self.time_to_live(lease_id, deadline)[0]
            if left <= 0:
                raise errors.Unavailable("the lease of an earlier attempt has ended") from error
            return float(left)
        if answer.error:
            raise errors.ProtocolError(f"etcd refused the lease: {answer.error}")
        return float(answer.ttl)

    def time_to_live(self, lease_id: int, deadline: float) -> tuple[int, int]:
        """Seconds left (-1 = gone) and granted seconds."""
        answer = self._connection.call(wire.LEASE_TIME_TO_LIVE, wire.LeaseTimeToLiveRequest(id=lease_id), deadline)
        return answer.ttl, answer.granted_ttl

    def revoke(self, lease_id: int, deadline: float) -> None:
        """End a lease and delete its keys. One that is gone already is no error."""
        try:
            self._connection.call(wire.LEASE_REVOKE, wire.LeaseRevokeRequest(id=lease_id), deadline)
        except errors.LeaseLost:
            return

    def keep_alive(self, lease_id: int, deadline: float, limit: float) -> float:
        """Renew once, on a stream of its own.

        A stream that stays open sticks to a member that hangs (etcd 15247); one stream per renewal is free to go
        elsewhere. It is half-closed only after the answer, since etcd's grpc-proxy cancels half-closed keepalives
        (python-etcd3 560).

        Args:
            lease_id: the lease.
            deadline: when to give up looking for an endpoint.
            limit: seconds for the answer; a member that needs longer counts as failed.

        Returns:
            The new TTL in seconds, 0 where etcd no longer knows the lease.

        Raises:
            EdlAgentError: no answer; the endpoint was counted as failed.
        """
        done = threading.Event()
        peer, call = self._connection.stream(wire.KEEPALIVE_PATH, _one_request(lease_id, done), deadline, limit)
        try:
            answer = wire.LeaseKeepAliveResponse.FromString(next(call))
        except StopIteration:
            self._connection.choice.failed(peer, "the keepalive stream ended without an answer")
            raise errors.Unavailable(f"{peer.endpoint}: the keepalive stream ended without an answer") from None
        except grpc.RpcError as error:
            raise self._connection.stream_failed(peer, error, deadline) from error
        finally:
            done.set()
            call.cancel()
        # "No such lease" from another cluster says nothing about the lease.
        self._connection.choice.check_cluster(peer, answer.header.cluster_id)
        return float(max(answer.ttl, 0))


def _one_request(lease_id: int, done: threading.Event) -> Iterator[Any]:
    yield wire.LeaseKeepAliveRequest(id=lease_id).SerializeToString()
    done.wait()
