"""Being asked to go: a request in etcd or a local signal, the program's answer, and the deadline."""

import logging
import math
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from edl_agent import errors
from edl_agent.closing import Closing
from edl_agent.drain_request import LONGEST, DrainRequest
from edl_agent.hooks import HookRunner
from edl_agent.live_range import LiveRange
from edl_agent.report import DrainState
from edl_agent.reporting import check_report_name

if TYPE_CHECKING:
    from edl_agent.client import EtcdClient

_log = logging.getLogger(__name__)

_Hook = TypeVar("_Hook", bound=Callable[["Drain"], object])


class Drain(Closing):
    """Watches ``/edl/drain/<name>`` and holds what this process was asked.

    Three ways to notice: the event `requested` (``drain.requested.wait(...)`` or ``.is_set()`` in a loop), a callback
    (`on_request`), or the probe's view (`ready`). The program then finishes its work or gives it back and calls
    `acknowledge`, which the `Reporter` of the same client reports at once.

    A request that was there before this process counts, unless it names another pod (``POD_UID``), or names none and is
    past its deadline: then it was for an earlier process of the same name. Needs no session; thread-safe, but not to be
    called inside a signal handler (start a thread there); a context manager; closed by ``client.shutdown()``.

    Args:
        client: whose connection and prefix.
        name: default ``POD_NAME``, else hostname-pid; the same as the `Reporter`'s.

    Attributes:
        requested: set while this process is asked to go; cleared when the request is withdrawn.

    Raises:
        ConfigurationError: bad name.
    """

    def __init__(self, client: "EtcdClient", name: str | None = None) -> None:
        client._check_usable()
        self._client = client
        self._clock = client._clock
        self.name = check_report_name(name)
        self.requested = threading.Event()
        self._pod_uid = os.environ.get("POD_UID", "")
        self._key = client._keys.full(f"/edl/drain/{self.name}")
        self._hooks = HookRunner()
        self._looked = False
        self._remote: DrainRequest | None = None
        self._remote_end = math.inf
        self._local: tuple[str, float] | None = None
        self._acked = False
        self._range = LiveRange(client, self._key, b"", "drain", self._changed)
        self._lock = self._range.lock
        client.on_close(self.close)
        self._range.start()

    @property
    def deadline(self) -> float | None:
        """Seconds left to answer, 0 or less when past; ``None`` where nothing is asked."""
        with self._lock:
            if not self.requested.is_set():
                return None
            ends = [self._remote_end] if self._remote else []
            ends += [self._local[1]] if self._local else []
            return min(ends) - self._clock.monotonic()

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed: nobody waits for the answer any more, end now."""
        left = self.deadline
        return left is not None and left <= 0

    @property
    def reason(self) -> str:
        """Why, for people; empty where nothing is asked or no reason was given."""
        with self._lock:
            if self._local is not None:
                return self._local[0]
            return self._remote.reason if self._remote is not None else ""

    @property
    def decision(self) -> str | None:
        """Id of the controller's decision; ``None`` without a request in etcd."""
        with self._lock:
            return self._remote.decision if self._remote is not None else None

    @property
    def state(self) -> DrainState:
        """As reported."""
        if not self.requested.is_set():
            return "none"
        return "acked" if self._acked else "requested"

    @property
    def ready(self) -> bool:
        """For readiness probes: false from the request on, so that nobody sends new work."""
        return not self.requested.is_set() and not self._range.closed

    def on_request(self, callback: _Hook) -> _Hook:
        """Call ``callback(drain)`` for each request, on a thread of its own; for a present one at once.

        Another decision is another request. Usable as a decorator; it may block or raise.
        """
        with self._lock:
            self._hooks.add("drain request", callback)
            if self.requested.is_set():
                self._hooks.call("drain request", callback, self)
        return callback

    def on_withdrawn(self, callback: _Hook) -> _Hook:
        """Call ``callback(drain)`` when the request was taken back: go on as if nothing had been asked."""
        self._hooks.add("drain withdrawn", callback)
        return callback

    def start(self, reason: str, seconds: float) -> None:
        """Ask this process itself to go (SIGTERM, a preStop hook). It cannot be withdrawn; the earlier deadline counts.

        Args:
            reason: for people.
            seconds: until the deadline.

        Raises:
            ConfigurationError: ``seconds`` is negative or not finite.
        """
        if not 0 <= seconds < math.inf:
            raise errors.ConfigurationError(f"a drain needs 0 or more seconds, not {seconds!r}")
        end = self._clock.monotonic() + min(seconds, LONGEST)
        with self._lock:
            if self._local is not None:
                self._local = (self._local[0], min(end, self._local[1]))
                return
            self._local = (reason, end)
            _log.info("Asked to drain within %.0f s: %s", seconds, reason)
            if not self.requested.is_set():
                self._ask()

    def acknowledge(self) -> bool:
        """The program's answer: its work is finished or given back. Reported at once.

        Returns:
            Whether anything was asked (a request may just have been withdrawn).
        """
        with self._lock:
            if not self.requested.is_set():
                return False
            self._acked = True
            self._tell()
            return True

    def close(self) -> None:
        """End the watch. What was asked stays readable. Idempotent."""
        self._range.close()
        self._hooks.close(0.2)

    # --- inside, with the lock held ---

    def _changed(self) -> None:
        known = self._range.pairs.get(self._key)
        first, self._looked = not self._looked, True
        if known is None:
            self._withdraw()
            return
        request = DrainRequest.decode(known.value)
        now = self._clock.wall()
        if request is None:
            _log.warning("/edl/drain/%s holds no drain request; it is passed over", self.name)
        elif not request.concerns(self._pod_uid, found_at_start=first, now=now):
            _log.info("The drain request %s is for an earlier process of this name", request.decision)
            self._withdraw()
        else:
            new = self._remote is None or self._remote.decision != request.decision
            self._remote, self._remote_end = request, self._clock.monotonic() + request.left(now)
            if new:
                _log.info("Asked to drain within %.0f s: %s", request.left(now), request.reason or "no reason given")
                self._ask()

    def _ask(self) -> None:
        self._acked = False
        self.requested.set()
        self._tell()
        self._hooks.fire("drain request", self)

    def _withdraw(self) -> None:
        if self._remote is None:
            return
        _log.info("The drain request %s was withdrawn", self._remote.decision)
        self._remote, self._remote_end = None, math.inf
        if self._local is None:
            self.requested.clear()
            self._acked = False
            self._tell()
            self._hooks.fire("drain withdrawn", self)

    def _tell(self) -> None:
        self._client._set_drain_state(self.state)
