"""PURE: how an index is claimed. (what is there, who am I) -> claim, create the count, wait, or refuse.

What is there is a `Board`: ``/ps_desired`` and all slot keys, read at one revision. The decision is only a proposal:
the transaction that carries it out compares everything that the decision relied on, so a stale board costs a second try
and nothing else.
"""

from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from edl_agent.errors import EdlAgentError, InvalidDesiredCount, LeaseLost, SlotTakenOver, SlotWithdrawn
from edl_agent.keys import parse_desired


@dataclass(frozen=True, slots=True)
class SlotKey:
    """One slot key as stored: who (address), since which put (mod revision = epoch), under which lease (0 = none)."""

    index: int
    address: bytes
    mod_revision: int
    lease: int


class Board(NamedTuple):
    """All that matters for a claim, at one revision. ``desired`` is the raw value of ``/ps_desired`` or ``None``.

    ``claim``: mod revision of the claim key of who asks; 0 = there is none, or it was not looked at.
    """

    revision: int
    desired: bytes | None
    slots: tuple[SlotKey, ...]
    claim: int = 0


class Queue(NamedTuple):
    """What a lost race is answered with: little, whatever the number of slots.

    Attributes:
        desired: raw value of the count, ``None`` = absent.
        claimed: whether the own address has a claim key.
        held: number of slot keys.
        claims: number of claim keys.
        waiting: number of queue keys, the own one included.
    """

    desired: bytes | None
    claimed: bool
    held: int
    claims: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who asks.

    Attributes:
        address: ``ip:port``.
        num_pservers: the count to create where none is set; ``None`` waits for somebody else to set it.
        limited: whether there is a count at all (pservers) or as many slots as come (trainers).
        own_leases: every lease that this client had.
        held: whether this client ever held a slot.
        preferred: the index held last.
        contended: whether a claim of ours has just failed against another's.
        draw: a number in [0, 1) drawn by the caller, used to spread contenders.
    """

    address: bytes
    num_pservers: int | None = None
    limited: bool = True
    own_leases: frozenset[int] = frozenset()
    held: bool = False
    preferred: int | None = None
    contended: bool = False
    draw: float = 0.0


class CreateDesired(NamedTuple):
    """Put ``/ps_desired`` if it is still absent, then look again."""

    value: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Put the slot key ``index``, if ``/ps_desired`` still reads ``desired`` and the slot is as seen.

    Attributes:
        index: the slot.
        desired: raw value of the count that was decided on.
        replaces: the key that is taken over (our own older incarnation's); ``None`` = the slot must be free.
    """

    index: int
    desired: bytes
    replaces: SlotKey | None = None


class Wait(NamedTuple):
    """Nothing can be done until the board changes. ``full`` tells a full board from a missing count."""

    reason: str
    full: bool = False


class Refuse(NamedTuple):
    """Waiting would not help."""

    error: EdlAgentError


_SPREAD = 16
"""Free slots beyond the held ones among which contenders for unlimited slots choose."""

Decision = CreateDesired | Claim | Wait | Refuse


def decide(board: Board, me: Claimant) -> Decision:
    """What to do next.

    Rules, first match:

    1. no count: create it, or wait where none was given; an unusable count is refused;
    2. a slot key with my address: mine from before (same process, or an older one that had this address) is taken over
       in place, so an address never holds two slots; after having held a slot myself, a foreign lease on my address
       means a newer twin: give up for good;
    3. the index held last, if free;
    4. the lowest free index, or after lost races any free one (the first lost race is answered by `next_in_queue`);
    5. nothing free: wait.
    """
    if me.limited and board.desired is None:
        if me.num_pservers is None:
            return Wait("/ps_desired to be set")
        return CreateDesired(me.num_pservers)
    raw = board.desired or b""
    # Without a limit there is always a free slot: room for everybody seen, and some more to spread contenders over.
    desired = len(board.slots) + _SPREAD
    if me.limited:
        try:
            desired = parse_desired(raw)
        except InvalidDesiredCount as error:
            return Refuse(error)
    for slot in board.slots:
        if slot.address == me.address:
            return _own_address(slot, raw, desired, me)
    taken = {slot.index for slot in board.slots}
    free = [index for index in range(desired) if index not in taken]
    if not free:
        return Wait(_full_text(board, desired), full=True)
    if me.preferred in free:
        index = me.preferred
    elif me.contended:
        index = free[int(me.draw * len(free))]
    else:
        index = free[0]
    return Claim(index, raw)


def next_in_queue(board: Board, refused: Claim, queue: Queue) -> int | None:
    """The index that is left for us when all who stand before us in the queue have got theirs; ``None``: look again.

    Slots taken since the board was read, and contenders before us, take the free indices of the board from below. Each
    contender leaves the queue in the transaction that gives it a slot, so a thousand who start together are handed a
    thousand different indices, without any of them reading what the others hold. It is a guess, no more: where somebody
    died in the queue, or took a slot without queueing, the claim fails and the board is read.
    """
    if queue.claimed or (queue.desired or b"") != refused.desired:
        return None
    place = queue.held - len(board.slots) + queue.waiting - 1
    if place < 0:
        return None
    taken = {slot.index for slot in board.slots}
    limit = parse_desired(refused.desired) if refused.desired else len(taken) + place + 1
    return next(islice((index for index in range(limit) if index not in taken), place, None), None)


def _own_address(slot: SlotKey, raw: bytes, desired: int, me: Claimant) -> Decision:
    if slot.lease == 0:
        return Wait(
            f"slot {slot.index}, which carries this address without a lease, to be deleted by hand (etcdctl del)"
        )
    if me.held and slot.lease not in me.own_leases:
        return Refuse(
            SlotTakenOver(
                f"a newer process with the address {me.address.decode(errors='replace')} holds slot {slot.index}"
            )
        )
    if me.limited and slot.index >= desired:
        return Wait(f"the old key of slot {slot.index}, above the desired count {desired}, to expire")
    return Claim(slot.index, raw, replaces=slot)


def _full_text(board: Board, desired: int) -> str:
    stuck = sorted(slot.index for slot in board.slots if slot.lease == 0)
    text = f"a free slot (all {desired} are held)"
    if stuck:
        text += f"; held by keys without a lease, which never expire (etcdctl del frees them): {stuck}"
    return text


# --- guarding a held slot ---


@dataclass(frozen=True, slots=True)
class Holding:
    """What a holder knows: its index, its address, its epoch (mod revision of its key), its lease (0 = not told)."""

    index: int
    address: bytes
    epoch: int
    lease: int = 0

    def renewed_by(self, present: SlotKey | None) -> bool:
        """Whether the key, as just seen, is a newer put of the holder's own (`EtcdClient.renew_epoch`).

        Nobody else writes under a lease that is ours: a newer process with our address has a lease of its own.
        """
        return (
            present is not None
            and self.lease != 0
            and (present.lease, present.address) == (self.lease, self.address)
            and present.mod_revision > self.epoch
        )


def judge_slot(present: SlotKey | None, mine: Holding) -> LeaseLost | None:
    """Whether the slot key, as just seen, still means that I hold it; the reason if not.

    A key put by somebody else is never written back over (fault row A36). My own address under a newer put and a lease
    is a newer process with the same address: final.
    """
    if present is None:
        return LeaseLost(f"the key of slot {mine.index} was deleted")
    if present.mod_revision <= mine.epoch or mine.renewed_by(present):
        return None
    if present.address == mine.address and present.lease:
        return SlotTakenOver(
            f"a newer process with the address {mine.address.decode(errors='replace')} took slot {mine.index} over"
        )
    return LeaseLost(f"the key of slot {mine.index} was overwritten by somebody else")


def judge_desired(raw: bytes, mine: Holding) -> tuple[int | None, LeaseLost | None]:
    """The new count (``None`` = unusable, then nothing changes) and the loss if it leaves no room for my index.

    Rule for a lowered count: holders of an index at or above it release their slot and wait for a free one; nobody else
    is renumbered.
    """
    try:
        desired = parse_desired(raw)
    except InvalidDesiredCount:
        return None, None
    if mine.index >= desired:
        return desired, SlotWithdrawn(f"/ps_desired was lowered to {desired}; slot {mine.index} is released")
    return desired, None
