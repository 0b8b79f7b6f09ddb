"""PURE: what an agent reports (version 1, at most 1 KiB of JSON), and how its samples per second are measured.

The controller imports this module. Times and durations are seconds.
"""

import json
import math
from collections import deque
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

VERSION = 1
"""Of the JSON object. A later version may only add fields; `decode` passes over what it does not know."""

MAX_BYTES = 1024
"""Of an encoded report: ten thousand agents are then at most 10 MiB in etcd."""

WINDOW = 30.0
"""Seconds over which the rate is measured, where steps are shorter than that."""

DrainState = Literal["none", "requested", "acked"]
"""``none``: go on; ``requested``: told, not yet answered; ``acked``: the program has given its work back."""

_DRAIN_STATES: tuple[DrainState, ...] = ("none", "requested", "acked")
_LONGEST = {"name": 253, "address": 253, "pod_uid": 64, "role": 32}
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Report:
    """One agent at one moment.

    Attributes:
        name: ``POD_NAME``, else hostname-pid; part of the key.
        role: ``pserver`` or ``trainer``.
        pod_uid: tells two pods of one name apart; empty where not known.
        slot: held index, ``None`` = none.
        epoch: the slot's fencing number.
        address: as registered.
        step: training steps so far.
        samples: samples so far.
        rate: samples per second, see `RateMeter`.
        busy: share of the time that was spent on work, 0..1; ``None`` = not measured.
        queue: requests or batches that wait; ``None`` = not measured.
        checkpoint_age: seconds since the last checkpoint at ``time``; ``None`` = there is none.
        drain: see `DrainState`.
        time: seconds since 1970 by the agent's clock; for people.
        v: version of the format.
    """

    name: str
    role: str = ""
    pod_uid: str = ""
    slot: int | None = None
    epoch: int | None = None
    address: str = ""
    step: int = 0
    samples: int = 0
    rate: float = 0.0
    busy: float | None = None
    queue: int | None = None
    checkpoint_age: float | None = None
    drain: DrainState = "none"
    time: float = 0.0
    v: int = VERSION

    def encode(self) -> bytes:
        """As JSON, at most `MAX_BYTES`. Whatever the fields hold, the result is valid.

        Numbers that are not finite become their default, shares are kept in 0..1, long texts are cut at their end.
        """
        clean = _cleaned(asdict(self))
        data = _dump(clean)
        while len(data) > MAX_BYTES:
            longest = max(_LONGEST, key=lambda field: len(json.dumps(clean[field], ensure_ascii=False)))
            clean[longest] = clean[longest][: len(clean[longest]) * 3 // 4]
            data = _dump(clean)
        return data

    @classmethod
    def decode(cls, data: bytes) -> "Report | None":
        """The report in a value of ``/edl/agents/<name>``, ``None`` where it holds none.

        Never raises: unknown fields are passed over, fields of a wrong type or out of range become their default.
        """
        found = load_object(data)
        if found is None or not isinstance(found.get("name"), str):
            return None
        known = {field.name: found[field.name] for field in fields(cls) if field.name in found}
        clean = _cleaned(asdict(cls(name="")) | known)
        return cls(**clean)

    def same_news(self, other: "Report") -> bool:
        """Whether the two differ in nothing but the passing of time (``time``, ``checkpoint_age``)."""
        return replace(self, time=0.0, checkpoint_age=None) == replace(other, time=0.0, checkpoint_age=None)


def load_object(data: bytes) -> dict[str, Any] | None:
    """A JSON object with a version ``v`` of at least 1, or ``None`` for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    version = found.get("v")
    return found if isinstance(version, int) and not isinstance(version, bool) and version >= 1 else None


def _cleaned(values: dict[str, Any]) -> dict[str, Any]:
    clean: dict[str, Any] = {field: _text(values[field], _LONGEST[field]) for field in _LONGEST}
    for field in ("step", "samples", "v"):
        clean[field] = _whole(values[field]) or 0
    for field in ("slot", "epoch", "queue"):
        clean[field] = _whole(values[field])
    for field in ("rate", "time"):
        clean[field] = _number(values[field], 3 if field == "time" else None) or 0.0
    busy = _number(values["busy"])
    clean["busy"] = None if busy is None else min(busy, 1.0)
    clean["checkpoint_age"] = _number(values["checkpoint_age"], 1)
    clean["drain"] = values["drain"] if values["drain"] in _DRAIN_STATES else "none"
    return clean


def _text(value: object, longest: int) -> str:
    # Lone surrogates have no UTF-8 form.
    return value.encode(errors="replace").decode()[:longest] if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, float) and math.isfinite(value):
        number = int(value)
    return None if number is None or number < 0 else min(number, _LARGEST)


def _number(value: object, decimals: int | None = None) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -1e300 < value < 1e300 or value < 0:  # also false for NaN
        return None
    return float(f"{value:.4g}") if decimals is None else round(float(value), decimals)


def _dump(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class RateMeter:
    """Samples per second from a running total, over the last `WINDOW` seconds (longer where one step takes longer).

    ``now`` is any clock that does not go back. Once no samples have come for the window and for three times the last
    step, the rate is 0: an agent that stands still does not report its old speed for ever.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()

    def add(self, now: float, total: float) -> None:
        """The total at ``now``. A lower one than before (a restart of the count) begins anew."""
        points = self._points
        if points and total < points[-1][1]:
            points.clear()
        if points and total == points[-1][1]:
            return
        # At most about one point per second, whatever the speed of the training loop.
        if len(points) > 2 and now - points[-2][0] < 1.0:
            points.pop()
        points.append((now, total))
        while len(points) > 2 and points[1][0] <= now - WINDOW:
            points.popleft()

    def rate(self, now: float) -> float:
        """Samples per second at ``now``."""
        points = self._points
        if len(points) < 2:
            return 0.0
        last_step = points[-1][0] - points[-2][0]
        if now - points[-1][0] > max(WINDOW, 3 * last_step):
            return 0.0
        # Until the next step is due its absence says nothing: measure up to the last step then.
        end = points[-1][0] if now - points[-1][0] <= max(1.0, last_step) else now
        span = end - points[0][0]
        return (points[-1][1] - points[0][1]) / span if span > 0 else 0.0
