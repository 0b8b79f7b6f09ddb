"""`EtcdClient`: the agent's front door, thin over session, registration and the etcd room."""

import atexit
import contextlib
import logging
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from edl_agent import errors
from edl_agent.address import check_name, check_port, configured_host, default_name
from edl_agent.clock import Clock, SystemClock
from edl_agent.config import DEFAULT_DIAL_TIMEOUT, DEFAULT_TTL, Reclaim, make_settings
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.identity import TlsFiles
from edl_agent.etcd.kv import Kv
from edl_agent.etcd.lease import Leases
from edl_agent.hooks import HookRunner
from edl_agent.key_access import KeyAccess
from edl_agent.keys import Role
from edl_agent.live_session import Session
from edl_agent.session import closed
from edl_agent.stop_signals import StopSignals

if TYPE_CHECKING:
    from edl_agent.keeper import Keeper
    from edl_agent.registration import Goal, Registration
    from edl_agent.report import DrainState

_log = logging.getLogger(__name__)

_Hook = TypeVar("_Hook", bound=Callable[..., object])

_living: "weakref.WeakSet[EtcdClient]" = weakref.WeakSet()

_AT_EXIT = 1.0
"""Seconds that the end of a process may be held up by a client that was not shut down."""

_MOMENT = 0.2
"""Seconds that the end of a process waits for a shutdown that is under way."""

_CLOSING = 0.5
"""Seconds that what stands on the client may take to close; its calls are refused from then on."""

_LAST_ANSWER = 0.3
"""Seconds that a shutdown waits for the answer to a claim under way before it revokes the lease."""


class EtcdClient(KeyAccess):
    """A pserver's or trainer's connection to etcd. Thread-safe. Construction neither blocks nor dials.

    Args:
        endpoints: comma-separated text or a list of ``http://h:p``, ``https://h:p``, ``h:p``; must be given, by hand or
            by ``from_environment()``.
        num_pservers: creates ``/ps_desired`` if it is absent, an existing value wins; ``None`` waits for it.
        dial_timeout: seconds to find a member that answers.
        ttl: wanted lease time in seconds; etcd may grant more.
        prefix: put before every key, for example ``/edl/jobs/<namespace>/<name>/<uid>``.
        host: address to register; default ``POD_IP``, else the source address of the route to etcd.
        tls: CA, client certificate and key files for https endpoints.
        user: etcd user.
        password: its password; or
        password_file: a file with it, read again at each authentication.
        reclaim: ``"always"``: a lost slot is claimed again by itself; ``"never"``: the program calls `register` again.
        unsafe_plaintext_password: allow a password over http.
        clock: for tests.

    Raises:
        ConfigurationError: (a ``ValueError``) names the bad part.
        ForkedClient: in a forked child whose parent had a client in use: gRPC could crash there.

    Example::

        with EtcdClient("http://127.0.0.1:2379", num_pservers=2) as client:
            index = client.register(7164)
    """

    def __init__(
        self,
        endpoints: str | Iterable[str] | None = None,
        num_pservers: int | None = None,
        dial_timeout: float = DEFAULT_DIAL_TIMEOUT,
        ttl: float = DEFAULT_TTL,
        *,
        prefix: str = "",
        host: str | None = None,
        tls: TlsFiles | None = None,
        user: str | None = None,
        password: str | None = None,
        password_file: str | None = None,
        reclaim: Reclaim = "always",
        unsafe_plaintext_password: bool = False,
        clock: Clock | None = None,
    ) -> None:
        # What works for a session is loaded with the first client, not at import.
        from edl_agent.claiming import Claims
        from edl_agent.enrolment import Enrolment
        from edl_agent.keeper import Keeper
        from edl_agent.registration import Registration

        self._settings = make_settings(
            endpoints,
            num_pservers,
            dial_timeout=dial_timeout,
            ttl=ttl,
            prefix=prefix,
            host=host,
            tls=tls,
            user=user,
            password=password,
            password_file=password_file,
            reclaim=reclaim,
            unsafe_plaintext_password=unsafe_plaintext_password,
        )
        self._keys = self._settings.keys
        self._clock = clock or SystemClock()
        self._pid = os.getpid()
        self._hooks = HookRunner()
        self._connection = Connection(
            self._settings.endpoints, tls=tls, login=self._settings.login, dial_timeout=dial_timeout, clock=self._clock
        )
        self._kv = Kv(self._connection)
        self._leases = Leases(self._connection)
        self._session = Session(self._clock, self._hooks)
        roles: tuple[Role, ...] = ("pserver", "trainer")
        claims = {role: Claims(self._kv, self._keys.family(role), self._clock, dial_timeout) for role in roles}
        self._registration = Registration(
            self._settings, self._session, self._connection, self._leases, claims, self._clock, self._hooks
        )
        self._keeper = Keeper(
            self._session, self._leases, self._connection, self._clock, self._registration.log_waiting
        )
        self._lock = threading.Lock()
        self._enrolment = Enrolment(
            self._settings,
            self._session,
            self._registration,
            self._connection,
            self._clock,
            self._start,
            self._check_usable,
        )
        self._started = False
        self._usable = True  # neither closing nor in a forked child
        self._closing = False
        self._refusing = False
        self._closer: threading.Thread | None = None
        self._closed = threading.Event()
        self._closings: list[Callable[[], object]] = []
        self._signals: StopSignals | None = None
        self._drain_state: DrainState = "none"
        self._drain_listeners: list[Callable[[], object]] = []
        _living.add(self)

    # --- session and slot ---

    @property
    def session(self) -> Session:
        """State, index, epoch, lease and deadline, judged at the moment of reading."""
        return self._session

    @property
    def waiting_for(self) -> str:
        """What the registration waits for at the moment, for people; empty when it does not."""
        return self._registration.waiting

    def register(self, port: int, *, host: str | None = None, timeout: float | None = None, wait: bool = True) -> int:
        """Claim a pserver index under a lease that is kept alive, and hold it until `shutdown`.

        Waits for etcd, for ``/ps_desired`` and for a free slot. A second call returns the index held now (waiting for
        it if it was just lost); with another port or host it is refused. After an error it may be called again.

        Args:
            port: TCP port of the pserver, 1..65535.
            host: address to register in place of the client's.
            timeout: seconds; ``None`` waits for ever.
            wait: ``False`` raises `SlotsFull` at once when every slot is held.

        Returns:
            The index: the lowest free one when nobody contends.

        Raises:
            DeadlineExceeded: the timeout passed; nothing is left behind in etcd.
            InvalidDesiredCount: ``/ps_desired`` holds no usable number.
            SlotTakenOver: a newer process with the same address has taken the slot; final.
            AuthenticationFailed: no, wrong or refused credentials.
            PermissionDenied: the user may not write the job's keys.
            NoSpace: etcd's quota is used up.
            ClientClosed: `shutdown` was called.
            LeaseLost: the slot was lost and ``reclaim="never"``.
            ConfigurationError: bad port or host, or a second call that differs from the first.
        """
        self._check_usable()
        from edl_agent.registration import Goal

        found = configured_host(host if host is not None else self._settings.host, os.environ)
        return self._register(Goal("pserver", check_port(port), found, wait), timeout)

    def register_trainer(self, address: str | None = None, *, timeout: float | None = None) -> int:
        """Claim a trainer index ``/trainer/<i>``, as `register` does for pservers; there are as many as trainers come.

        Args:
            address: ``ip:port`` or a name, unique among the job's trainers; default ``POD_NAME``, else hostname-pid.
            timeout: seconds; ``None`` waits for ever.

        Returns:
            The index: the lowest free one when nobody contends.

        Raises:
            EdlAgentError: as `register`.
        """
        from edl_agent.registration import Goal

        self._check_usable()
        return self._register(Goal("trainer", host=check_name(address or default_name(os.environ))), timeout)

    def open(self, *, timeout: float | None = None) -> None:
        """Open a session without a slot (trainers): a lease, kept alive, for ``put_key(..., with_lease=True)``.

        Args:
            timeout: seconds; ``None`` waits for ever.

        Raises:
            DeadlineExceeded, AuthenticationFailed, PermissionDenied, NoSpace, ClientClosed, ConfigurationError: as
            `register`.
        """
        from edl_agent.registration import Goal

        self._check_usable()
        self._enrolment.reach(Goal(None), timeout)

    def on_registered(self, callback: _Hook) -> _Hook:
        """Call ``callback(slot)`` after each claim; usable as a decorator. `Slot` has index, epoch and address."""
        return self._hook("registered", callback)

    def on_suspended(self, callback: _Hook) -> _Hook:
        """Call ``callback()`` when etcd has not answered for most of the lease time.

        Keep serving, start nothing new.
        """
        return self._hook("suspended", callback)

    def on_connected(self, callback: _Hook) -> _Hook:
        """Call ``callback()`` when a suspended session is answered again."""
        return self._hook("connected", callback)

    def on_lost(self, callback: _Hook) -> _Hook:
        """Call ``callback(loss, slot)`` once per loss.

        A `LeaseLost` and the `Slot` that was held (``None`` for a session without one).
        """
        return self._hook("lost", callback)

    def on_desired_changed(self, callback: _Hook) -> _Hook:
        """Call ``callback(count)`` when ``/ps_desired`` is set while a slot is held."""
        return self._hook("desired_changed", callback)

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call ``callback()`` first in `shutdown`, while etcd is still connected and the lease held.

        For what stands on the client (task queue, reporter). It must be bounded in time; its errors are logged.
        """
        with self._lock:
            if not self._closing:
                self._closings.append(callback)

    # --- end ---

    def shutdown(self) -> None:
        """Revoke the lease (the slot is free at once), stop the threads, close the connection.

        Idempotent, from any thread, bounded: about ``dial_timeout`` when etcd is away. A no-op in a forked child.
        """
        self._shut_down(self._settings.dial_timeout, self._settings.dial_timeout + 2.0)

    def install_signal_handlers(self, signals: Iterable[int] = (signal.SIGTERM, signal.SIGINT)) -> None:
        """On these signals shut down, then let the signal do what it did before (by default: end the process).

        Raises:
            ValueError: not called on the main thread.
        """
        self._signals = StopSignals(self.shutdown, signals)
        self._connection.before_closed = self._signals.wait_until_handed_on

    def __enter__(self) -> "EtcdClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        endpoints = ",".join(map(str, self._settings.endpoints))
        return f"<EtcdClient {endpoints} prefix={self._keys.prefix!r} {self._session!r}>"

    def __del__(self) -> None:
        if getattr(self, "_started", False) and not self._closing and os.getpid() == self._pid:
            warnings.warn(f"{self!r} was dropped without shutdown()", ResourceWarning, stacklevel=2)
            self._registration.stopping = True
            parts = (self._registration, self._keeper, self._leases, self._connection, self._clock, True, 1.0)
            with contextlib.suppress(RuntimeError):  # the interpreter ends
                threading.Thread(target=_drop, args=parts, name="edl-dropped", daemon=True).start()

    # --- inside ---

    def _shut_down(self, seconds: float, patience: float) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            first, self._closing, self._usable = not self._closing, True, False
        if first:
            try:
                self._stop(seconds)
            finally:
                self._refusing = True
                self._closed.set()
        elif threading.current_thread() is not self._closer:
            self._closed.wait(patience)

    def _set_drain_state(self, state: "DrainState") -> None:
        """What the reports say of a drain, and news of it to who reports."""
        with self._lock:
            self._drain_state = state
            listeners = list(self._drain_listeners)
        for listener in listeners:
            listener()

    def _register(self, goal: "Goal", timeout: float | None) -> int:
        slot = self._enrolment.reach(goal, timeout).slot
        assert slot is not None
        return slot.index

    def _stop(self, seconds: float) -> None:
        """End everything, with at most about ``seconds`` for etcd."""
        self._run_closings()
        self._refusing = True
        self._registration.stop()
        self._keeper.stop()
        holds = self._session.view().lease is not None
        self._session.change(lambda view, now: closed(view))
        _release(self._registration, self._keeper, self._leases, self._connection, self._clock, holds, seconds)
        self._hooks.close(0.2)

    def _run_closings(self) -> None:
        """Close what stands on the client; on a thread, so that a callback that blocks costs its time only."""

        def run() -> None:
            for callback in reversed(self._closings):
                try:
                    callback()
                except Exception:
                    _log.exception("A part of the client failed to close")

        if not self._closings:
            return
        self._closer = threading.Thread(target=run, name="edl-closing", daemon=True)
        try:
            self._closer.start()
        except RuntimeError:  # no more threads, or the interpreter ends
            run()
        else:
            self._closer.join(_CLOSING)

    def _start(self) -> None:
        with self._lock:
            if self._closing:
                raise errors.ClientClosed("the client was shut down")
            self._started = True  # from here on there is something to end
            for thread in (self._keeper.thread, self._registration.thread):
                if thread.ident is None:
                    try:
                        thread.start()
                    except RuntimeError as error:  # no more threads: those that are missing are started next time
                        raise errors.Unavailable(f"no session can be begun here: {error}") from error

    def _check_usable(self) -> None:
        if self._usable:
            return
        if os.getpid() != self._pid:
            raise errors.ForkedClient(
                "this client was made before fork(); start workers that need etcd by 'spawn' or 'forkserver'"
            )
        # What closes on our own thread may still write its last words.
        if self._closing and (self._refusing or threading.current_thread() is not self._closer):
            self._connection.before_closed()
            raise errors.ClientClosed("the client was shut down")

    def _hook(self, name: str, callback: _Hook) -> _Hook:
        self._hooks.add(name, callback)
        return callback


def _drop(
    registration: "Registration",
    keeper: "Keeper",
    leases: Leases,
    connection: Connection,
    clock: Clock,
    holds: bool,
    seconds: float,
) -> None:
    """The end of a client that nobody can reach any more; on a thread, since a finaliser may run under any lock."""
    registration.stop()
    keeper.stop()
    _release(registration, keeper, leases, connection, clock, holds, seconds)


def _release(
    registration: "Registration",
    keeper: "Keeper",
    leases: Leases,
    connection: Connection,
    clock: Clock,
    holds: bool,
    seconds: float,
) -> None:
    """Settle what is under way in etcd, revoke the lease, end the threads."""
    # Where etcd is well, a grant or claim under way is answered in a moment; revoked before, it would come after.
    _join(registration.thread, _LAST_ANSWER)
    lease_id = registration.lease_in_work
    if lease_id is not None:
        # A lease that was only asked for, or is lost, is not worth a long wait for an etcd that does not answer.
        limit = seconds if holds else min(1.0, seconds)
        with contextlib.suppress(errors.EdlAgentError):  # etcd is away: the lease ends by itself
            leases.revoke(lease_id, clock.monotonic() + limit)
    connection.close()
    for thread in (registration.thread, keeper.thread):
        _join(thread, 1.0)


def _join(thread: threading.Thread, seconds: float) -> None:
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join(seconds)


def _refuse_in_child() -> None:
    for client in list(_living):
        client._usable = False


os.register_at_fork(after_in_child=_refuse_in_child)


@atexit.register
def _shut_down_at_exit() -> None:
    """A process that ends frees its slots, also when it forgot `EtcdClient.shutdown`."""
    for client in list(_living):
        # One that is being shut down by somebody who does not wait for it gets a moment; a stop signal its whole time.
        patience = client._settings.dial_timeout if client._signals is not None else _MOMENT
        client._shut_down(min(_AT_EXIT, client._settings.dial_timeout), patience)
