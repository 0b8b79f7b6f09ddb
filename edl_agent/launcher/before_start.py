"""What is waited for before the command starts: the slot, the pservers, trainer 0; and what the command is told."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from edl_agent import errors
from edl_agent.address import route_source
from edl_agent.claiming import Claims
from edl_agent.client import EtcdClient
from edl_agent.keys import parse_desired
from edl_agent.launcher import policy
from edl_agent.launcher.environment import Facts
from edl_agent.launcher.inbox import Inbox
from edl_agent.launcher.options import Options
from edl_agent.launcher.policy import Held, Pservers, Running
from edl_agent.launcher.trainer_zero import TrainerZero
from edl_agent.membership import Members, Membership
from edl_agent.session import SessionState

_log = logging.getLogger(__name__)

_READ_TIMEOUT = 2.0
"""Seconds: for each look at etcd, and for the slot's key put anew. The loop stands still meanwhile."""

_PAUSE = 0.5
"""Seconds before a start that failed for want of etcd is tried again."""


class BeforeStart:
    """Claims the slot, time and again; watches the pservers and trainer 0. Used on the loop's thread.

    Args:
        client: opened by `open`.
        options: of the launcher.
        inbox: of the loop; woken by news.

    Attributes:
        not_before: monotonic seconds; nothing is started earlier.
        used_epoch: the newest epoch that a command was told.
        fatal: exit code and reason, once no slot can ever be held.
    """

    def __init__(self, client: EtcdClient, options: Options, inbox: Inbox[Callable[[], object]]) -> None:
        self._client = client
        self._options = options
        self._rules = options.rules
        self._inbox = inbox
        self._membership: Membership | None = None
        self._members: Members | None = None
        self._zero: TrainerZero | None = None
        self.not_before = 0.0
        self.used_epoch = 0
        self.fatal: tuple[int, str] | None = None

    def open(self) -> None:
        """Begin to claim and to watch."""
        if self._rules.needs_pservers:
            self._membership = Membership(self._client)
            self._membership.on_change(self._members_changed)
        if self._rules.zero_first and self._rules.role == "trainer":
            self._zero = TrainerZero(self._client, self._wake)
        threading.Thread(target=self._hold, name="edl-launcher-slot", daemon=True).start()

    def _wake(self) -> None:
        self._inbox.put(lambda: None)

    # --- the slot ---

    def _hold(self) -> None:
        """Claim the slot, again after each loss; what ends it for good ends the launcher."""
        try:
            while True:
                if self._rules.role == "pserver":
                    self._client.register(self._options.port or 0)
                else:
                    self._client.register_trainer(self._trainer_address())
                self._client.session.lost.wait()
        except errors.ClientClosed:
            return
        except BaseException as error:
            failure = error
            self._inbox.put(lambda: self._failed(failure))

    def _trainer_address(self) -> str:
        if self._options.port is None:
            return self._options.name
        host = self._options.host or self._host()
        return f"[{host}]:{self._options.port}" if ":" in host else f"{host}:{self._options.port}"

    def _failed(self, error: BaseException) -> None:
        code = policy.EXIT_LOST if isinstance(error, errors.LeaseLost) else 5
        self.fatal = (code, str(error))

    def slot(self) -> Held | None:
        """The slot as held now. From any thread."""
        slot = self._client.session.view().slot
        return None if slot is None else Held(slot.index, slot.epoch, slot.lease_id)

    def fresh_slot(self) -> Held | None:
        """The slot with an epoch that no command has been told before; ``None``: look again."""
        if self._client.session.state is not SessionState.CONNECTED:
            # While etcd does not answer nothing new is started, and nothing is waited for here.
            self.not_before = time.monotonic() + _PAUSE
            return None
        slot = self.slot()
        if slot is None or slot.epoch > self.used_epoch:
            return slot
        try:
            self._client.renew_epoch(_READ_TIMEOUT)
        except errors.ClientClosed:
            raise
        except errors.EdlAgentError as error:
            _log.warning("The slot's key cannot be put anew: %s", error)
            self.not_before = time.monotonic() + _PAUSE
            return None
        return self.slot()

    # --- the pservers ---

    def _members_changed(self, members: Members) -> None:
        self._members = members
        self._wake()

    def pservers(self) -> Pservers:
        """As last told: a read here would hold up the loop where etcd is away. News come while the watch is alive.

        A pserver's list that does not have its own slot yet, as it holds it now, is older than its claim: not complete.
        """
        members = self._members
        if members is None:
            return Pservers()
        held = [(one.index, one.address, one.epoch) for one in members.pservers]
        slot = self._client.session.view().slot
        has_own = slot is None or slot.role != "pserver" or (slot.index, slot.address, slot.epoch) in held
        return policy.as_pservers(held, members.desired, members.complete and has_own)

    def pservers_at_start(self) -> Pservers | None:
        """For the command's environment; ``None`` where it needs them all and they are not complete."""
        pservers = self.pservers() if self._membership is not None else self._pservers_once()
        return None if self._rules.needs_pservers and not pservers.complete else pservers

    def _pservers_once(self) -> Pservers:
        """For a pserver, which does not watch the others: one look."""
        client = self._client
        with contextlib.suppress(errors.EdlAgentError):
            board = Claims(client._kv, client._keys.pservers, client._clock, _READ_TIMEOUT).look()
            desired = parse_desired(board.desired) if board.desired else None
            held = sorted((one for one in board.slots if one.lease), key=lambda one: one.index)
            peers = [(one.index, one.address.decode(errors="replace"), one.mod_revision) for one in held]
            complete = desired is not None and [one.index for one in held] == list(range(desired))
            return policy.as_pservers(peers, desired, complete)
        return Pservers()

    # --- trainer 0 ---

    def zero_runs(self, pservers: Pservers) -> bool:
        """Whether trainer 0 runs with these pservers, or nobody waits for it."""
        return self._zero is None or self._zero.runs_with(pservers)

    def say_zero_runs(self, running: Running | None) -> None:
        """Say that trainer 0 runs, where this is it and its program serves. Cheap when said already."""
        if self._zero is None or running is None or running.stage != "running" or running.slot.index != 0:
            return
        if not self._options.ready_file or os.path.exists(self._options.ready_file):
            self._zero.running(running.slot, running.pservers)

    def say_zero_stopped(self, slot: Held) -> None:
        """Take it back, where it was said."""
        if self._zero is not None:
            self._zero.stopped(slot)

    # --- what the command is told ---

    def facts(self, slot: Held, pservers: Pservers, *, control: str, pservers_file: str) -> Facts:
        """What goes into the command's environment.

        Args:
            slot: that it runs with.
            pservers: that it runs with.
            control: path of the launcher's socket, empty = none.
            pservers_file: path of the list, empty = none.
        """
        options = self._options
        address = self._client.session.address or ""
        trainers: tuple[tuple[int, str], ...] = ()
        if options.tf_config or options.live_trainers:
            trainers = self._trainers()
        return Facts(
            role=self._rules.role,
            index=slot.index,
            epoch=slot.epoch,
            name=options.name,
            address=address,
            host=options.host or os.environ.get("POD_IP") or self._host(),
            port=options.port,
            pservers=pservers.addresses,
            num_pservers=pservers.desired,
            num_trainers=num_trainers(options, len(trainers), os.environ.get("TRAINERS", "")),
            trainers=trainers,
            endpoints=options.endpoints,
            prefix=options.prefix,
            socket=options.socket,
            control=control,
            pservers_file=pservers_file,
            tf_config=options.tf_config,
        )

    def _host(self) -> str:
        connection = self._client._connection
        try:
            return route_source(connection.choice.endpoint or connection.endpoints[0])
        except errors.Unavailable:
            return "127.0.0.1"

    def _trainers(self) -> tuple[tuple[int, str], ...]:
        family = self._client._keys.trainers
        with contextlib.suppress(errors.EdlAgentError):
            pairs = self._client.get_prefix("/trainer/", _READ_TIMEOUT)
            found = [(family.index(self._client._keys.full(pair.key)), pair.value) for pair in pairs if pair.lease]
            return tuple((index, value.decode(errors="replace")) for index, value in found if index is not None)
        return ()


def num_trainers(options: Options, held: int, given: str) -> int | None:
    """How many trainers the command is told of; ``None`` = nobody said.

    Args:
        options: of the launcher.
        held: trainers that hold a slot now; 0 also where etcd could not be read.
        given: ``TRAINERS`` of the launcher's own environment: the number at the job's start.
    """
    if not options.live_trainers:
        return options.num_trainers
    at_start = options.num_trainers or (int(given) if given.isascii() and given.isdecimal() else 0)
    return max(held, at_start) or None
