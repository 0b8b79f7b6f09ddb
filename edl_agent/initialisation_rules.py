"""PURE: whether a job's parameters are initialised, from what etcd holds at one revision.

``/init_ps/done`` alone says "1" for ever (the original's defect): so the epochs of the pservers that were initialised
are recorded beside it, and a pserver may say itself what it holds. An epoch that is gone took its data along.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from edl_agent.report import VERSION, load_object

PserverData = Literal["ready", "restoring", "empty"]
"""What a pserver says of itself: it holds parameters (from a checkpoint); it is reading one; it has none."""

_STATES: tuple[PserverData, ...] = ("ready", "restoring", "empty")


@dataclass(frozen=True, slots=True)
class InitBoard:
    """What matters, at one revision.

    Attributes:
        done: whether ``/init_ps/done`` exists.
        desired: the wanted number of pservers, ``None`` = not known.
        epochs: index -> epoch of the pservers that hold their slot.
        recorded: index -> epoch at the last initialisation; ``None`` = no record (never, or by the original's client).
        declared: index -> epoch and state, by the pservers themselves.
        checkpoints: indexes with a checkpoint in etcd.
    """

    done: bool = False
    desired: int | None = None
    epochs: Mapping[int, int] = field(default_factory=dict)
    recorded: Mapping[int, int] | None = None
    declared: Mapping[int, tuple[int, PserverData]] = field(default_factory=dict)
    checkpoints: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Initialised:
    """There are parameters. ``without``: pservers that hold none, ``unmarked``: ``/init_ps/done`` is missing."""

    without: tuple[int, ...] = ()
    unmarked: bool = False


@dataclass(frozen=True, slots=True)
class Needed:
    """The parameters of these pservers are to be initialised; ``again``: they had been before."""

    indexes: tuple[int, ...]
    again: bool


@dataclass(frozen=True, slots=True)
class NotYet:
    """Nothing can be said yet. ``reason`` is for people."""

    reason: str


Verdict = Initialised | Needed | NotYet


def judge(board: InitBoard, *, patient: bool, partial: bool) -> Verdict:
    """Whether somebody has to initialise the parameters.

    1. A pserver holds parameters if its present epoch is recorded, or if it says so. One that says nothing holds some
       if it has a checkpoint (the original's pservers restore it and say nothing), or if the original's client set
       ``/init_ps/done`` (which leaves no record).
    2. While ``patient`` nothing is concluded from silence, where there was an initialisation or a checkpoint before.
    3. If none holds any, all are initialised, once all are there and none is restoring. If some do, the others are only
       named, or with ``partial`` initialised: a program that initialises more than it is told to would throw trained
       parameters away.
    """
    lacking: list[int] = []
    silent: list[int] = []
    restoring: list[int] = []
    holding = False
    for index, epoch in sorted(board.epochs.items()):
        state = _declared(board, index, epoch)
        if (board.recorded or {}).get(index) == epoch or state == "ready":
            holding = True
        elif state == "restoring":
            restoring.append(index)
        elif state == "empty":
            lacking.append(index)
        elif index in board.checkpoints or (board.done and board.recorded is None):
            silent.append(index)
        elif board.recorded is not None:
            silent.append(index)
            lacking.append(index)
        else:
            lacking.append(index)
    if holding and not (partial and lacking):
        return Initialised(tuple(lacking), unmarked=not board.done)
    if restoring:
        return NotYet(f"pserver {restoring[0]} to restore its checkpoint")
    missing = _missing(board)
    if missing:
        return NotYet(missing)
    if silent and patient:
        return NotYet(f"pserver {silent[0]} to say whether it holds parameters")
    if not holding and len(lacking) < len(board.epochs):
        holding = True  # the silent ones with a checkpoint, or of the original's client
    if holding and not (partial and lacking):
        return Initialised(tuple(lacking), unmarked=not board.done)
    return Needed(tuple(lacking), again=board.done or board.recorded is not None)


def _declared(board: InitBoard, index: int, epoch: int) -> PserverData | None:
    of, state = board.declared.get(index, (None, None))
    return state if of == epoch else None


def _missing(board: InitBoard) -> str:
    if board.desired is None:
        return "/ps_desired to be set"
    for index in range(board.desired):
        if index not in board.epochs:
            return f"pserver {index} to come"
    return ""


# --- values in etcd ---


def encode_epochs(epochs: Mapping[int, int]) -> bytes:
    """The record of an initialisation."""
    return json.dumps(
        {"v": VERSION, "epochs": {str(index): epoch for index, epoch in sorted(epochs.items())}}, separators=(",", ":")
    ).encode()


def decode_epochs(data: bytes) -> dict[int, int]:
    """The epochs of a record; what is no number is passed over. Never raises."""
    epochs = (load_object(data) or {}).get("epochs")
    if not isinstance(epochs, dict):
        return {}
    return {
        int(index): epoch
        for index, epoch in epochs.items()
        if index.isascii() and index.isdigit() and len(index) < 10 and type(epoch) is int
    }


def encode_data(epoch: int, state: PserverData) -> bytes:
    """What a pserver says of itself."""
    return json.dumps({"v": VERSION, "epoch": epoch, "state": state}, separators=(",", ":")).encode()


def decode_data(data: bytes) -> tuple[int, PserverData] | None:
    """Epoch and state that a pserver has declared, ``None`` for anything else. Never raises."""
    found = load_object(data) or {}
    epoch, state = found.get("epoch"), found.get("state")
    if type(epoch) is not int or state not in _STATES:
        return None
    return epoch, state
