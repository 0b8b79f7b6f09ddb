"""The requests behind a claim: look at the board, create the count, put the slot key in one guarded transaction.

A transaction compares everything that the decision relied on: the count, the slot's absence (or the very key that is
replaced), and that neither this lease nor this address is on any slot. So however late an earlier attempt arrives, at
most one attempt of one process holds.
"""

from dataclasses import dataclass, replace

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd import kv
from edl_agent.etcd.kv import Kv
from edl_agent.keys import SlotFamily
from edl_agent.slots import Board, Claim, Claimant, CreateDesired, Refuse, SlotKey, Wait, decide


@dataclass(frozen=True, slots=True)
class Held:
    """A successful claim. ``revision``: up to where the slot's history is known (at least ``epoch``).

    ``replaced``: old lease of a takeover.
    """

    index: int
    epoch: int
    revision: int
    replaced: int | None = None


@dataclass(frozen=True, slots=True)
class Blocked:
    """No claim is possible on this board."""

    board: Board
    wait: Wait


class Claims:
    """Claims on one job's slots.

    Args:
        kv_service: the store.
        family: whose slots.
        clock: for deadlines.
        call_timeout: seconds per request.
    """

    def __init__(self, kv_service: Kv, family: SlotFamily, clock: Clock, call_timeout: float) -> None:
        self._kv = kv_service
        self._family = family
        self._clock = clock
        self._call_timeout = call_timeout

    def look(self) -> Board:
        """The count and all slots at one revision, in one request."""
        pairs, revision = self._kv.range(self._family.prefix, self._family.board_end, self._deadline())
        return self._board(pairs, revision)

    def attempt(self, lease_id: int, me: Claimant, draw: "list[float] | None" = None) -> Held | Blocked:
        """Decide and try until a slot is held or none can be.

        Args:
            lease_id: live lease to put the slot key under.
            me: who asks.
            draw: random numbers in [0, 1) for the choices after lost races, used in order and then again from the
                start.

        Raises:
            EdlAgentError: the decision refuses (`Refuse`), or etcd is not reached.
        """
        draws = draw or [me.draw]
        board = self.look()
        for number in range(1_000_000):
            mine = next((slot for slot in board.slots if slot.lease == lease_id), None)
            if mine is not None and mine.address == me.address:
                # An attempt whose answer was lost has in fact been applied.
                return Held(mine.index, mine.mod_revision, board.revision)
            decision = decide(board, replace(me, draw=draws[number % len(draws)]))
            match decision:
                case Refuse(error):
                    raise error
                case Wait():
                    return Blocked(board, decision)
                case CreateDesired(value):
                    self._create_desired(value)
                    board = self.look()
                case Claim():
                    try:
                        outcome = self._claim(decision, lease_id, me.address)
                    except errors.UnknownOutcome:
                        outcome = self.look()
                    if isinstance(outcome, Held):
                        return outcome
                    board, me = outcome, replace(me, contended=True)
        raise errors.ProtocolError("a million claims in a row were refused")  # pragma: no cover

    def _create_desired(self, value: int) -> None:
        key = self._family.desired
        if key is None:
            raise errors.ProtocolError("slots without a count were asked to create one")
        # The outcome does not matter: the next look shows the count that won.
        try:
            self._kv.txn([kv.absent(key)], [kv.put_op(key, str(value).encode())], [], self._deadline())
        except errors.UnknownOutcome:
            return

    def _claim(self, claim: Claim, lease_id: int, address: bytes) -> Held | Board:
        family = self._family
        slot = family.key(claim.index)
        compares = [kv.no_lease_in(family.prefix, family.end, lease_id)]
        if family.desired is not None:
            compares.append(kv.value_is(family.desired, claim.desired))
        if claim.replaces is not None:
            compares.append(kv.modified_at(slot, claim.replaces.mod_revision))
        elif claim.empty_board:
            compares.append(kv.range_absent(family.prefix, family.end))
        else:
            compares += [kv.absent(slot), kv.no_value_in(family.prefix, family.end, address)]
        result = self._kv.txn(
            compares,
            [kv.put_op(slot, address, lease_id)],
            [kv.range_op(family.prefix, family.board_end)],
            self._deadline(),
        )
        if result.succeeded:
            return Held(claim.index, result.revision, result.revision, claim.replaces.lease if claim.replaces else None)
        return self._board(result.ranges[0], result.revision)

    def _board(self, pairs: tuple[kv.KeyValue, ...], revision: int) -> Board:
        desired = None
        slots = []
        for pair in pairs:
            if pair.key == self._family.desired:
                desired = pair.value
            elif (index := self._family.index(pair.key)) is not None:
                slots.append(SlotKey(index, pair.value, pair.mod_revision, pair.lease))
        return Board(revision, desired, tuple(slots))

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._call_timeout
