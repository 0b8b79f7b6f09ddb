"""``/master/addr``: where the job's master is, for the original's clients and programs with their own master."""

import logging
import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from edl_agent import errors
from edl_agent.address import check_name
from edl_agent.closing import Closing
from edl_agent.hooks import HookRunner
from edl_agent.leased_key import LeasedKey
from edl_agent.live_range import LiveRange
from edl_agent.session import SessionState, SessionView

if TYPE_CHECKING:
    from edl_agent.client import EtcdClient

_log = logging.getLogger(__name__)

KEY = "/master/addr"
"""Value: ``ip:port``. The original put it without a lease, so that it outlived its master."""

_WRITE_TIMEOUT = 2.0
_RETRY = 1.0


class MasterAddress(Closing):
    """Keeps ``/master/addr`` under the session's lease, anew after each registration; see `put_master_address`."""

    def __init__(self, client: "EtcdClient", address: str) -> None:
        client._check_usable()
        self._client = client
        self.address = check_name(address)
        self._key = LeasedKey(client, client._keys.full(KEY))
        self._lease: int | None = None
        self._condition = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="edl-master-address", daemon=True)
        client.session.listen(self._session_changed)
        client.on_close(self.close)

    def start(self, timeout: float) -> None:
        """Put it for the first time, then keep it by a thread."""
        self._lease = self._key.put(self.address.encode(), timeout, take_over=False)
        self._thread.start()

    def close(self) -> None:
        """Keep it no longer; the key goes with the lease. Idempotent."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(0.2)

    def _session_changed(self, before: SessionView, after: SessionView) -> None:
        if after.incarnation != before.incarnation or after.state != before.state:
            with self._condition:
                self._condition.notify_all()

    def _due(self) -> bool:
        view = self._client.session.view()
        return view.state is SessionState.CONNECTED and view.lease is not None and view.lease.lease_id != self._lease

    def _run(self) -> None:
        failing = False
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closed or self._due())
                if self._closed:
                    return
            try:
                self._lease = self._key.put(self.address.encode(), _WRITE_TIMEOUT, take_over=False)
                failing = False
            except errors.ClientClosed:
                return
            except errors.EdlAgentError as error:
                _log.log(logging.DEBUG if failing else logging.WARNING, "The master's address is not put: %s", error)
                failing = True
                with self._condition:
                    self._condition.wait_for(lambda: self._closed, _RETRY * random.uniform(0.5, 1.0))


def put_master_address(client: "EtcdClient", address: str, *, timeout: float = 5.0) -> MasterAddress:
    """Put ``/master/addr`` under the client's lease, and again after each registration anew, until closed.

    An address without a lease (the original's) is replaced; one that another live process keeps is not.

    Args:
        client: with a session.
        address: ``ip:port``.
        timeout: seconds for the first put.

    Returns:
        What keeps it; close it to stop.

    Raises:
        RequestRefused: another live process is the master.
        LeaseLost: there is no session.
        ConfigurationError: no usable address.
        EdlAgentError: etcd was not reached, or refuses.
    """
    kept = MasterAddress(client, address)
    kept.start(timeout)
    return kept


class MasterWatch(Closing):
    """The master's address as it is now; see `watch_master_address`."""

    def __init__(self, client: "EtcdClient", callback: Callable[[str | None], object]) -> None:
        client._check_usable()
        self._key = client._keys.full(KEY)
        self._callback = callback
        self._hooks = HookRunner()
        self._told: tuple[str | None] | None = None
        self._range = LiveRange(client, self._key, b"", "master", self._changed)
        client.on_close(self.close)
        self._range.start()

    @property
    def address(self) -> str | None:
        """``ip:port``, ``None`` where there is no master (or etcd was not read yet)."""
        return self._told[0] if self._told is not None else None

    @property
    def age(self) -> float:
        """Seconds since this was last known to be what etcd holds."""
        return self._range.age

    def close(self) -> None:
        """End the watch. Idempotent."""
        self._range.close()
        self._hooks.close(0.2)

    def _changed(self) -> None:
        known = self._range.pairs.get(self._key)
        # The original's clients empty the value in place of deleting the key.
        address = known.value.decode(errors="replace") or None if known is not None else None
        if self._told != (address,):
            self._told = (address,)
            self._hooks.call("master address", self._callback, address)


def watch_master_address(client: "EtcdClient", callback: Callable[[str | None], object]) -> MasterWatch:
    """Call ``callback(address)`` with the present master's address and with each later one; ``None`` = there is none.

    On a thread of its own: it may block or raise. Needs no session.

    Returns:
        The watch, with the present ``address``; close it to stop.
    """
    return MasterWatch(client, callback)
