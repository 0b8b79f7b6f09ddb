"""Removes what vanished jobs left in the etcd that all jobs share: their prefixes, ten minutes after they were gone.

No finalizer does it, so a job can always be deleted, and its namespace too. Whose job is gone is known by uid from a
synced cache, and it must be gone in every look for the whole time. The etcd is this controller's alone: jobs of another
cluster in it would look like vanished ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from edl_agent.errors import EdlAgentError
from edl_controller.agent_state import AgentStates
from edl_controller.agent_store import EtcdAccess
from edl_controller.cluster.port import Stop

KEPT = 600.0
"""Seconds that a vanished job's keys are kept."""
INTERVAL = 60.0
"""Seconds between two looks."""

log = logging.getLogger(__name__)


class PrefixSweeper:
    """Sweeps one etcd.

    Args:
        agents: does it.
        access: the etcd.
        lives: tells whether there is a job with this uid.
        namespaces: of the jobs this controller looks after; none: all. Others' keys are left alone.
        now: seconds, monotonic.
    """

    def __init__(
        self,
        agents: AgentStates,
        access: EtcdAccess,
        lives: Callable[[str], bool],
        namespaces: Sequence[str],
        now: Callable[[], float],
    ) -> None:
        self._agents, self._access, self._lives = agents, access, lives
        self._namespaces, self._now = frozenset(namespaces), now
        self._gone_since: dict[str, float] = {}

    def run(self, stop: Stop) -> None:
        """Look again and again until ``stop`` is set."""
        while not stop.wait(INTERVAL):
            try:
                self.look()
            except EdlAgentError as error:
                log.debug("What vanished jobs left could not be swept: %s", error)

    def look(self) -> None:
        """Look once.

        Raises:
            EdlAgentError: etcd did not answer.
        """
        now, gone = self._now(), {}
        for prefix in self._agents.prefixes(self._access):
            *_, namespace, _, uid = prefix.split("/")
            if not self._lives(uid) and (not self._namespaces or namespace in self._namespaces):
                gone[prefix] = self._gone_since.get(prefix, now)
        self._gone_since = gone
        for prefix, since in gone.items():
            if now - since >= KEPT:
                self._agents.sweep(self._access, prefix)
                log.info("Removed the keys of a vanished job below %s", prefix)
