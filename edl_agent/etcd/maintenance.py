"""What an operator asks of etcd: each member's status, alarms, whether old revisions are ever compacted."""

from typing import NamedTuple

import grpc

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd import status, wire
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.endpoints import Endpoint
from edl_agent.etcd.identity import TlsFiles
from edl_agent.etcd.peer import Peer, describe

_TRIES = 3
"""The quickest of so many answers is the latency: a busy machine delays single ones."""

_ALARMS = {0: "NONE", 1: "NOSPACE", 2: "CORRUPT"}


class MemberStatus(NamedTuple):
    """One member's own account of itself.

    Attributes:
        endpoint: where it was asked.
        version: of the server, ``"3.5.1"``.
        cluster_id: equal for all members of a cluster.
        member_id: its own id.
        leader: member id of the leader, 0 where it knows none.
        revision: of the store.
        db_size: bytes on disk.
        is_learner: whether it has no vote yet; such a member serves no clients.
        errors: texts that it reports.
        dial_seconds: name look-up, connection, TLS and first answer together.
        seconds: one answer on the open connection, the quickest of three.
    """

    endpoint: Endpoint
    version: str
    cluster_id: int
    member_id: int
    leader: int
    revision: int
    db_size: int
    is_learner: bool
    errors: tuple[str, ...]
    dial_seconds: float
    seconds: float


class Alarm(NamedTuple):
    """A raised alarm: ``NOSPACE``, ``CORRUPT`` or a number not known here."""

    member_id: int
    name: str


def member_status(endpoint: Endpoint, *, tls: TlsFiles | None, timeout: float, clock: Clock) -> MemberStatus:
    """Ask exactly this endpoint, on a connection of its own, also where the member knows no leader.

    Args:
        endpoint: whom.
        tls: TLS files for https.
        timeout: seconds for each question.
        clock: measures the two times.

    Raises:
        EdlAgentError: no answer (`Unavailable`), TLS identity or login not accepted (`AuthenticationFailed`), ...
    """
    peer = Peer(endpoint, tls, timeout)
    try:
        begin = clock.monotonic()
        peer.call(wire.STATUS.path, b"", timeout, ())
        dialled = clock.monotonic()
        seconds = []
        for _ in range(_TRIES):
            asked = clock.monotonic()
            payload = peer.call(wire.STATUS.path, b"", timeout, ())
            seconds.append(clock.monotonic() - asked)
        answer = wire.STATUS.parse(payload)
    except grpc.RpcError as error:
        code, details = describe(error)
        verdict = status.judge(code, details)
        kind = errors.Unavailable if verdict.error is errors.UnknownOutcome else verdict.error
        raise kind(details or code) from error
    finally:
        peer.close()
    return MemberStatus(
        endpoint,
        answer.version,
        answer.header.cluster_id,
        answer.header.member_id,
        answer.leader,
        answer.header.revision,
        answer.db_size,
        answer.is_learner,
        tuple(answer.errors),
        dialled - begin,
        min(seconds),
    )


def alarms(connection: Connection, deadline: float) -> tuple[Alarm, ...]:
    """The alarms that are raised now. ``deadline`` on the monotonic clock. Raises EdlAgentError."""
    answer = connection.call(wire.ALARM, wire.AlarmRequest(), deadline)
    return tuple(Alarm(one.member_id, _ALARMS.get(one.alarm, str(one.alarm))) for one in answer.alarms if one.alarm)


def ever_compacted(connection: Connection, key: bytes, deadline: float) -> bool:
    """Whether the store has forgotten its first revision.

    etcd does not tell whether it compacts itself; that nothing was ever compacted in a busy store is the visible sign
    that it does not.

    Args:
        connection: to the cluster.
        key: one that the user may read.
        deadline: on the monotonic clock, in seconds.

    Raises:
        EdlAgentError: no answer, or the user may not read ``key``.
    """
    try:
        connection.call(wire.RANGE, wire.RangeRequest(key=key, revision=1, count_only=True), deadline)
    except errors.WatchCompacted:
        return True
    return False
