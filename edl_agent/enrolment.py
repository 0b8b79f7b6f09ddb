"""Calls of `register` and `open` that wait for one goal: the waiting, its timeouts, what is left when nobody waits."""

import threading
from collections.abc import Callable

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.config import Settings, check_timeout
from edl_agent.etcd.connection import Connection
from edl_agent.live_session import Session
from edl_agent.registration import Goal, Registration
from edl_agent.session import SessionView


class Enrolment:
    """The goal of a client's session, pursued by its `Registration`, and those who wait for it.

    Args:
        settings: of the client.
        session: where the goal shows when it is reached.
        registration: who works towards it.
        connection: for words on what is wrong.
        clock: for timeouts.
        start: starts the client's threads, once; raises `ClientClosed`.
        check_usable: raises `ClientClosed` or `ForkedClient`.
    """

    def __init__(
        self,
        settings: Settings,
        session: Session,
        registration: Registration,
        connection: Connection,
        clock: Clock,
        start: Callable[[], None],
        check_usable: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._session = session
        self._registration = registration
        self._connection = connection
        self._clock = clock
        self._start = start
        self._check_usable = check_usable
        # Reentrant: a signal handler may register while the interrupted call is in here.
        self._lock = threading.RLock()
        self._goal: Goal | None = None
        self._waiting = 0

    def reach(self, goal: Goal, timeout: float | None) -> SessionView:
        """Pursue the goal and wait until it is reached.

        A call that ends without it (timeout, error, an exception out of a signal handler) gives the goal up when no
        other call waits for it and it was never reached; a slot that was held before is still claimed again.

        Raises:
            EdlAgentError: as `EtcdClient.register` says.
        """
        end = None if timeout is None else self._clock.monotonic() + check_timeout(timeout)
        found: list[SessionView] = []

        def settled() -> bool:
            view = self._session.view()
            if view.slot is not None if goal.role is not None else view.alive:
                found[:] = [view]
            return bool(found) or self._registration.stopping or self._registration.error is not None

        with self._lock:
            self._pursue(goal)
            self._waiting += 1
        try:
            self._session.wait(settled, None if end is None else max(0.0, end - self._clock.monotonic()))
            if found:
                return found[0]
            self._check_usable()
            error = self._registration.error
            if error is not None:
                raise error
            raise errors.DeadlineExceeded(self._too_late(goal, timeout))
        finally:
            with self._lock:
                self._waiting -= 1
                if not found and not self._waiting and not self._registration.reached:
                    self._goal = None
                    if self._registration.error is None:
                        self._registration.pursue(None)

    def _pursue(self, goal: Goal) -> None:
        error = self._registration.error
        if isinstance(error, errors.SlotTakenOver):
            raise error
        mine = self._goal
        if (
            mine is not None
            and error is None
            and (mine.role, mine.port, mine.host) != (goal.role, goal.port, goal.host)
        ):
            raise errors.ConfigurationError(
                "this client has a session for another role, port or host already; make a client of its own for each"
            )
        resigned = self._settings.reclaim == "never" and self._session.view().loss is not None
        self._start()
        if mine is None or error is not None or resigned:
            self._goal = goal
            self._registration.pursue(goal)

    def _too_late(self, goal: Goal, timeout: float | None) -> str:
        what = "no session" if goal.role is None else "not registered"
        trouble = self._connection.choice.trouble
        waiting = self._registration.waiting or "etcd"
        return f"{what} within {timeout:g} s, waiting for {waiting}" + (f" ({trouble})" if trouble else "")
