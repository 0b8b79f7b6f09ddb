"""The requests behind a claim: look at the board, create the count, put the slot key in one guarded transaction.

A transaction compares everything that the decision relied on: the count, the slot's absence (or the very key that is
replaced), and that this address has no claim key, which is put and vanishes together with the slot key. So however late
an earlier attempt arrives, at most one attempt of one process holds, and an address never has two slots.

Comparing the slots themselves (no slot with this lease or this address) would do without a claim key, but etcd reads
every slot for that, and each loser of a race the whole board: measured, a thousand who start together then took 11
times as long as without any choice of index, and four times as long again for twice as many.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd import kv
from edl_agent.etcd.kv import Kv
from edl_agent.keys import SlotFamily, parse_desired, prefix_end
from edl_agent.slots import Board, Claim, Claimant, CreateDesired, Queue, Refuse, SlotKey, Wait, decide, next_in_queue

_PLACES = 3
"""How often a loser goes to the end of the queue before it reads the whole board."""

_AGAIN = 2 + _PLACES
"""Place of who has been in the queue, and has then looked. One digit, so that earlier places sort before later ones."""


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
        outcome, me, queued = self._first(lease_id, me)
        if isinstance(outcome, Held):
            return outcome
        board = outcome
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
                    if queued or me.contended:
                        self._leave_queue(me.address)
                    return Blocked(board, decision)
                case CreateDesired(value):
                    self._create_desired(value)
                    board = self.look()
                case Claim():
                    outcome = self._claim(decision, board, lease_id, me, first_place=_AGAIN if queued else 0)
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

    def _first(self, lease_id: int, me: Claimant) -> tuple[Held | Board, Claimant, bool]:
        """Begin without a look, as if all slots were free: of a thousand who start together none then reads the board.

        Returns a slot or the board, the claimant as it goes on, and whether it stands in the queue.
        """
        desired = None if me.held else self._expected_count(me)
        if desired is None:
            return self.look(), me, False
        claim, empty = Claim(0, desired), Board(0, desired, ())
        contended = False
        with contextlib.suppress(errors.UnknownOutcome):
            # Who is told the count expects to read it, and the refusal of the first of all creates it.
            create = desired if me.limited and me.num_pservers is not None else None
            outcome = self._put_or_queue(claim, 0, lease_id, me.address, 0, empty=True, create=create)
            if isinstance(outcome, Held):
                return outcome, me, False
            # Alone, the lowest free index is to be found. And a slot without a claim key, put by somebody else's
            # program, may carry our address.
            contended = outcome.waiting > 1 and outcome.held == outcome.claims
            if contended:
                won = self._follow_queue(claim, empty, outcome, lease_id, me.address, 1)
                if won is not None:
                    return won, me, False
        return self.look(), replace(me, contended=contended), True

    def _expected_count(self, me: Claimant) -> bytes | None:
        """What ``/ps_desired`` is going to read (any count that is no number is left to `decide`); ``None`` = look."""
        if not me.limited or self._family.desired is None:
            return b""
        if me.num_pservers is not None:
            return str(me.num_pservers).encode()
        found = self._kv.get(self._family.desired, self._deadline())
        with contextlib.suppress(errors.InvalidDesiredCount):
            if found is not None and parse_desired(found):
                return found
        return None

    def _claim(self, claim: Claim, board: Board, lease_id: int, me: Claimant, first_place: int) -> Held | Board:
        """Try one slot; after a lost race the one that the queue leaves for us."""
        try:
            if me.contended:
                return self._put(claim, board.claim, lease_id, me.address)
            outcome = self._put_or_queue(claim, board.claim, lease_id, me.address, first_place)
            if isinstance(outcome, Held):
                return outcome
            won = self._follow_queue(claim, board, outcome, lease_id, me.address, first_place + 1)
            if won is not None:
                return won
        except errors.UnknownOutcome:
            pass
        return self.look()

    def _follow_queue(
        self, refused: Claim, board: Board, queue: Queue, lease_id: int, address: bytes, place: int
    ) -> Held | None:
        """Claim what the queue leaves for us; ``None`` = the board has to be read."""
        for number in range(place, place + _PLACES):
            index = next_in_queue(board, refused, queue)
            if index is None:
                return None
            outcome = self._put_or_queue(Claim(index, refused.desired), 0, lease_id, address, number)
            if isinstance(outcome, Held):
                return outcome
            queue = outcome
        return None

    def _put_or_queue(
        self,
        claim: Claim,
        claim_revision: int,
        lease_id: int,
        address: bytes,
        place: int,
        *,
        empty: bool = False,
        create: bytes | None = None,
    ) -> Held | Queue:
        """Claim (``empty``: if no slot is held at all); a loser goes to the end of the queue.

        ``create``: the count that a loser puts where there is none.
        """
        family = self._family
        places = family.places(address)
        failure = [kv.range_op(family.claims + address), kv.put_op(places + b"%d" % place, b"", lease_id)]
        if place:
            failure.append(kv.delete_op(places, places + b"%d" % place))
        failure += [kv.count_op(prefix, prefix_end(prefix)) for prefix in (family.prefix, family.claims, family.queue)]
        if family.desired is not None:
            if create is not None:
                failure.append(kv.create_op(family.desired, create))
            failure.append(kv.range_op(family.desired))
        # Last: etcd compares in order and stops at the first that fails, so it reads the range only where slot 0 is
        # free.
        more = [kv.range_absent(family.prefix, family.end)] if empty else []
        result = self._txn(claim, claim_revision, lease_id, address, failure, more)
        if isinstance(result, Held):
            return result
        own, held, claims, waiting = result.counts[:4]
        desired = result.ranges[4][0].value if len(result.ranges) > 4 and result.ranges[4] else None
        return Queue(desired, bool(own), held, claims, waiting)

    def _leave_queue(self, address: bytes) -> None:
        """Who waits for a free slot stands before nobody."""
        places = self._family.places(address)
        with contextlib.suppress(errors.UnknownOutcome):
            self._kv.txn([], [kv.delete_op(places, prefix_end(places))], [], self._deadline())

    def _put(self, claim: Claim, claim_revision: int, lease_id: int, address: bytes) -> Held | Board:
        """Claim; a loser is shown the board."""
        family = self._family
        failure = [kv.range_op(family.prefix, family.board_end), kv.range_op(family.claims + address)]
        result = self._txn(claim, claim_revision, lease_id, address, failure)
        if isinstance(result, Held):
            return result
        board = self._board(result.ranges[0], result.revision)
        return board._replace(claim=result.ranges[1][0].mod_revision) if result.ranges[1] else board

    def _txn(
        self,
        claim: Claim,
        claim_revision: int,
        lease_id: int,
        address: bytes,
        failure: list[Any],
        compares: Sequence[Any] = (),
    ) -> Held | kv.TxnResult:
        family = self._family
        slot, own = family.key(claim.index), family.claims + address
        if claim.replaces is not None:
            # Our address keeps the one slot that it has, so its claim key need not be compared. Where somebody else's
            # program has put the slot key there is none.
            needed = [kv.modified_at(slot, claim.replaces.mod_revision)]
        else:
            needed = [kv.absent(slot), kv.modified_at(own, claim_revision)]
        if family.desired is not None:
            needed.append(kv.value_is(family.desired, claim.desired))
        success = [
            kv.put_op(slot, address, lease_id),
            kv.put_op(own, str(claim.index).encode(), lease_id),
            kv.delete_op(family.places(address), prefix_end(family.places(address))),
        ]
        result = self._kv.txn([*needed, *compares], success, failure, self._deadline())
        if result.succeeded:
            return Held(claim.index, result.revision, result.revision, claim.replaces.lease if claim.replaces else None)
        return result

    def _board(self, pairs: tuple[kv.KeyValue, ...], revision: int) -> Board:
        desired = None
        slots = []
        for pair in pairs:
            key = pair.key
            index = self._family.index(key)
            if index is not None:
                slots.append(SlotKey(index, pair.value, pair.mod_revision, pair.lease))
            elif key == self._family.desired:
                desired = pair.value
        return Board(revision, desired, tuple(slots))

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._call_timeout
