"""The pservers of a job as a trainer sees them: by index, complete or marked as incomplete, with an age."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from edl_agent import errors
from edl_agent.closing import Closing
from edl_agent.hooks import HookRunner
from edl_agent.keys import parse_desired
from edl_agent.live_range import FRESH_EVERY, LiveRange

if TYPE_CHECKING:
    from edl_agent.client import EtcdClient


@dataclass(frozen=True, slots=True)
class Pserver:
    """A pserver that holds its slot.

    Attributes:
        index: 0-based.
        address: ``ip:port``.
        epoch: the slot's fencing number; send it with each call, so that nobody else answers for this index.
    """

    index: int
    address: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Members:
    """The pservers at one moment.

    Attributes:
        pservers: by index; those below ``desired`` whose key is under a lease.
        desired: the wanted number, ``None`` where ``/ps_desired`` is absent or no usable count.
        revision: etcd's revision up to which changes are included.
        age: seconds since this was last known to be what etcd holds.
        complete: whether every index below ``desired`` is held.
    """

    pservers: tuple[Pserver, ...]
    desired: int | None
    revision: int
    age: float
    complete: bool

    @property
    def addresses(self) -> tuple[str, ...]:
        """``ip:port`` by index, of a complete list only.

        Raises:
            Unavailable: the list is incomplete; a gap would shift every index behind it.
        """
        if not self.complete:
            raise errors.Unavailable(f"the list of pservers is incomplete: missing {self.missing_text}")
        return tuple(pserver.address for pserver in self.pservers)

    @property
    def missing_text(self) -> str:
        """What is missing, for people; empty when nothing is."""
        if self.complete:
            return ""
        if self.desired is None:
            return "/ps_desired"
        held = {pserver.index for pserver in self.pservers}
        missing = [index for index in range(self.desired) if index not in held]
        return "pserver " + ", ".join(map(str, missing[:5])) + (f" and {len(missing) - 5} more" if missing[5:] else "")


_Hook = TypeVar("_Hook", bound=Callable[[Members], object])


class Membership(Closing):
    """A live view of the job's pservers. Needs no session: a client that only looks on is fine.

    It reads once, watches from that revision on, survives reconnects and compaction, and reads again when the watch is
    silent for `fresh_every` seconds. Thread-safe; a context manager; closed by ``client.shutdown()``.

    Args:
        client: whose connection and prefix.
        fresh_every: seconds of silence after which the list is read again.

    Example::

        with Membership(client) as membership:
            for pserver in membership.wait_complete(timeout=60).pservers:
                connect(pserver.index, pserver.address, pserver.epoch)
    """

    def __init__(self, client: "EtcdClient", *, fresh_every: float = FRESH_EVERY) -> None:
        client._check_usable()
        self._client = client
        self._family = client._keys.pservers
        self._hooks = HookRunner()
        self._view: tuple[tuple[Pserver, ...], int | None, bool] | None = None
        self._range = LiveRange(
            client, self._family.prefix, self._family.board_end, "membership", self._changed, fresh_every
        )
        self._trusted = fresh_every + self._range.read_timeout
        client.on_close(self.close)
        self._range.start()

    def members(self, max_age: float | None = None) -> Members:
        """The present view, from memory; before the first read, and when it is older than asked for, after a read.

        Args:
            max_age: seconds; ``None`` takes any age (look at ``age``).

        Returns:
            The view; an incomplete one is marked (``complete``).

        Raises:
            Unavailable: etcd was not read yet, or not within ``max_age``.
            ClientClosed: closed.
            EdlAgentError: etcd refuses the read (`PermissionDenied`, `AuthenticationFailed`).
        """
        self._check_open()
        members, fresh = self._now(), False
        if members is None or (max_age is not None and members.age > max_age):
            fresh = self._range.ask_fresh(self._range.read_timeout)
            self._check_open()
            members = self._now()
        # What was read for this very call is as fresh as can be, however long the answer took.
        if members is None or (max_age is not None and not fresh and members.age > max_age):
            trouble = self._range.trouble
            if trouble is not None and not isinstance(trouble, errors.DeadlineExceeded):
                raise trouble
            age = "never read" if members is None else f"{members.age:.1f} s old, wanted {max_age:g} s"
            raise errors.Unavailable(f"the list of pservers is {age}" + (f" ({trouble})" if trouble else ""))
        return members

    def wait_complete(self, timeout: float | None = None) -> Members:
        """Wait until every index is held, as seen by a watch that is alive.

        Args:
            timeout: seconds; ``None`` waits for ever.

        Returns:
            A complete view, never an incomplete one.

        Raises:
            DeadlineExceeded: the timeout passed; the text says what is missing.
            ClientClosed: closed meanwhile.
        """
        found: list[Members] = []

        def complete() -> bool:
            members = self._now()
            if members is not None and members.complete and members.age <= self._trusted:
                found[:] = [members]
            return bool(found)

        self._check_open()
        self._range.wait(complete, timeout)
        if found:
            return found[0]
        self._check_open()
        members, trouble = self._now(), self._range.trouble
        missing = (members.missing_text if members is not None else "") or "an answer from etcd"
        text = f"the pservers were not complete within {timeout:g} s: missing {missing}"
        raise errors.DeadlineExceeded(text + (f" ({trouble})" if trouble else ""))

    def on_change(self, callback: _Hook) -> _Hook:
        """Call ``callback(members)`` for each change of pservers, epochs or count; usable as a decorator.

        First with the present view, if there is one. On a thread of its own: it may block or raise. Changes that come
        while a callback runs are all delivered, in order.
        """
        with self._range.lock:
            self._hooks.add("membership change", callback)
            members = self._now()
            if members is not None:
                self._hooks.call("membership change", callback, members)
        return callback

    def close(self) -> None:
        """End the watch. Idempotent."""
        self._range.close()
        self._hooks.close(0.2)

    # --- inside ---

    def _check_open(self) -> None:
        self._client._check_usable()
        if self._range.closed:
            raise errors.ClientClosed("the membership view was closed")

    def _now(self) -> Members | None:
        with self._range.lock:
            view, revision, age = self._view, self._range.revision, self._range.age
        if view is None:
            return None
        pservers, desired, complete = view
        return Members(pservers, desired, revision, age, complete)

    def _changed(self) -> None:
        desired: int | None = None
        found = []
        for key, known in self._range.pairs.items():
            if key == self._family.desired:
                try:
                    desired = parse_desired(known.value)
                except errors.InvalidDesiredCount:
                    desired = None
            elif (index := self._family.index(key)) is not None and known.lease:
                # A key without a lease is nobody's: whoever put it may be long dead.
                found.append(Pserver(index, known.value.decode(errors="replace"), known.mod_revision))
        held = sorted((one for one in found if desired is None or one.index < desired), key=lambda one: one.index)
        view = (tuple(held), desired, desired is not None and len(held) == desired)
        if view != self._view:
            self._view = view
            self._hooks.fire("membership change", self._now())
