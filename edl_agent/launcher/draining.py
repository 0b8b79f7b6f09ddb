"""The launcher's drain: begun by a signal, over its socket, or by a request in etcd, which can be withdrawn."""

import logging
import signal
import time
from collections.abc import Callable

from edl_agent.client import EtcdClient
from edl_agent.drain import Drain
from edl_agent.launcher.inbox import Inbox
from edl_agent.launcher.options import Options
from edl_agent.launcher.policy import Leave

_log = logging.getLogger(__name__)


class Draining:
    """Why and until when the launcher is to leave. Used on the loop's thread.

    Args:
        client: opened.
        options: of the launcher.
        inbox: of the loop; gets requests in etcd.

    Attributes:
        leave: what `policy` is told; ``None`` where nothing is asked.
    """

    def __init__(self, client: EtcdClient, options: Options, inbox: Inbox[Callable[[], object]]) -> None:
        self._client = client
        self._options = options
        self._inbox = inbox
        self._drain: Drain | None = None
        self._acknowledged = False
        self.leave: Leave | None = None

    def open(self) -> None:
        """Begin to look for requests in etcd."""
        self._drain = Drain(self._client, self._options.name)
        for register in (self._drain.on_request, self._drain.on_withdrawn):
            register(lambda drain: self._inbox.put(self._request_changed))

    def begin(self, why: str, number: int, seconds: float | None, *, running: bool) -> None:
        """Begin a drain of this machine's own, which cannot be withdrawn.

        Args:
            why: for people.
            number: signal for the command.
            seconds: until the end; ``None`` = the option's.
            running: whether the command runs, so that the deadline of a request in etcd stands.
        """
        until = time.monotonic() + (self._options.drain_seconds if seconds is None else seconds)
        before = self.leave
        if before is not None and not before.requested:
            return  # one is under way, and its deadline stands
        if before is not None:
            until = min(until, before.until) if running else until
        _log.info("Draining: %s", why)
        self.leave = Leave(why, number, until)
        if self._drain is not None:
            self._drain.start(why, max(0.0, until - time.monotonic()))

    def _request_changed(self) -> None:
        drain = self._drain
        if drain is None or (self.leave is not None and not self.leave.requested):
            return
        self._acknowledged = False
        left = drain.deadline
        if left is None:
            self.leave = None
            return
        why = f"drain requested: {drain.reason or 'no reason given'}"
        self.leave = Leave(why, signal.SIGTERM, time.monotonic() + left, requested=True)

    def acknowledge(self) -> None:
        """Say that the command has ended, once per request."""
        if self._drain is not None and not self._acknowledged:
            self._acknowledged = self._drain.acknowledge()
