"""One etcd of agents, as the controller reads it: who we are to it, how it is doing, whether anything in it changes."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from edl_agent.clock import Clock
from edl_agent.etcd import wire
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.endpoints import parse_endpoints
from edl_agent.etcd.identity import Login, TlsFiles
from edl_agent.etcd.kv import Kv

DEADLINE = 2.0
"""Seconds that one call may take."""

LONGEST_PAUSE = 10.0
"""Seconds after which a store that does not answer is asked again, at most."""

SAID_AFTER = 3
"""Failures in a row that make an outage: it is logged, once. Fewer are a job's own etcd that only begins."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EtcdAccess:
    """An etcd, and who we are to it. Equal ones share a connection."""

    endpoints: tuple[str, ...]
    tls: TlsFiles | None = None
    login: Login | None = None


class Store:
    """One etcd and how it is doing. Not thread-safe: its owner holds a lock, but for `kv` and `look`."""

    def __init__(self, access: EtcdAccess, clock: Clock) -> None:
        self.access = access
        self.users = 0
        self.busy = 0
        self.failures = 0
        self.next_try = 0.0
        self.connection = Connection(
            parse_endpoints(access.endpoints, tls=access.tls is not None),
            tls=access.tls,
            login=access.login,
            dial_timeout=DEADLINE,
            clock=clock,
        )
        self.kv = Kv(self.connection)
        self.gone = False
        self.plan = 0
        self.version = (0, 0)
        """Cluster id and revision when it was last looked at."""
        self.looked: float | None = None
        """When that was, in Unix seconds."""
        self.unexpected = ""
        """The fault of this program, not of etcd, that was logged last."""

    def look(self, key: bytes, deadline: float) -> tuple[int, int]:
        """Return cluster id and revision of the store: while they stay the same no key in it has changed.

        Args:
            key: one that may be read; it need not be there.
            deadline: on the monotonic clock.

        Raises:
            EdlAgentError: etcd did not answer.
        """
        answer = self.connection.call(wire.RANGE, wire.RangeRequest(key=key, keys_only=True), deadline)
        return answer.header.cluster_id, answer.header.revision

    def may_be_asked(self, most: int, now: float) -> bool:
        """Tell whether one more of ``most`` threads may ask it now: one alone while it fails."""
        return self.busy < (1 if self.failures else most) and now >= self.next_try

    def answered(self) -> None:
        """Note that it answers."""
        if self.failures >= SAID_AFTER:
            _log.info("The etcd %s answers again", ",".join(self.access.endpoints))
        self.failures, self.next_try = 0, 0.0

    def failed(self, now: float, error: str) -> None:
        """Note that it does not, and why: it is asked ever more rarely."""
        self.failures += 1
        if self.failures == SAID_AFTER:
            _log.warning(
                "The etcd %s cannot be read, going on trying; its jobs are not scaled meanwhile: %s",
                ",".join(self.access.endpoints),
                error,
            )
        self.next_try = now + min(LONGEST_PAUSE, 0.5 * 2 ** min(self.failures, 10))
