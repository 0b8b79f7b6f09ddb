"""PURE: the key schema. Names below the job's prefix, range ends, and how values are written.

Without a prefix the names are exactly those of the original (``/ps_desired``, ``/ps/<i>``, ``/checkpoints/<i>``): old
Go pservers and trainers read and write the same keys.
"""

import re
from dataclasses import dataclass, field
from typing import Literal

from edl_agent.errors import ConfigurationError, InvalidDesiredCount

MAX_DESIRED = 10_000
"""Largest accepted ``/ps_desired``: the cap on replica counts of the security rules; a typo must not cost memory."""

Role = Literal["pserver", "trainer"]
"""Who holds a slot."""

_DECIMAL = re.compile(rb"[0-9]{1,9}")
_SLOT = re.compile(rb"(?:0|[1-9][0-9]{0,8})")
_PREFIX_PART = re.compile(r"[A-Za-z0-9._~-]+")


@dataclass(frozen=True, slots=True)
class KeySchema:
    """All keys of one job.

    Attributes:
        prefix: ``""`` or ``/part/part`` without a slash at the end.
        start: the prefix as bytes.
    """

    prefix: str = ""
    start: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str):
            raise ConfigurationError(f"prefix must be text, not {self.prefix!r}")
        parts = self.prefix.split("/")
        if parts[0] != "":
            raise ConfigurationError(f"prefix {self.prefix!r} must begin with '/'")
        for part in parts[1:]:
            if not _PREFIX_PART.fullmatch(part) or part in (".", ".."):
                raise ConfigurationError(
                    f"prefix {self.prefix!r} has the bad part {part!r}: use letters, digits, '.', '_', '~', '-'"
                )
        object.__setattr__(self, "start", self.prefix.encode())

    def full(self, key: str | bytes) -> bytes:
        """The key as etcd sees it.

        Args:
            key: as the program names it, without the prefix.

        Raises:
            ConfigurationError: the key is empty, neither text nor bytes, or could leave the job's prefix because it
                does not begin with ``/``.
        """
        try:
            raw = key.encode() if isinstance(key, str) else _raw(key)
        except UnicodeEncodeError:
            raise ConfigurationError(f"key {key!r} cannot be written in UTF-8") from None
        if raw[:1] != b"/":
            if not raw:
                raise ConfigurationError("the key is empty")
            if self.prefix:
                raise ConfigurationError(
                    f"key {raw!r} must begin with '/' since the client has the prefix {self.prefix!r}"
                )
        return self.start + raw

    def relative(self, full: bytes) -> bytes:
        """The inverse of `full`."""
        return full[len(self.start) :]

    @property
    def pservers(self) -> "SlotFamily":
        """``/ps/<i>``: as many slots as ``/ps_desired`` says."""
        return SlotFamily(
            self.full("/ps/"), self.full("/ps_desired"), self.full("/edl/claims/ps/"), self.full("/edl/queue/ps/")
        )

    @property
    def trainers(self) -> "SlotFamily":
        """``/trainer/<i>``: as many slots as trainers come."""
        return SlotFamily(
            self.full("/trainer/"), None, self.full("/edl/claims/trainer/"), self.full("/edl/queue/trainer/")
        )

    def family(self, role: Role) -> "SlotFamily":
        """The slots of a role."""
        return self.pservers if role == "pserver" else self.trainers


@dataclass(frozen=True, slots=True)
class SlotFamily:
    """Numbered slots, each held by one process.

    Attributes:
        prefix: of the slot keys.
        desired: key with the wanted number, ``None`` = no limit.
        claims: prefix of the claim keys, one for each held slot, named by address; put in one transaction with it and
            under its lease, so that one comparison tells whether an address has a slot.
        queue: prefix of the keys of those who lost a race for a slot and try again; see `places`.
    """

    prefix: bytes
    desired: bytes | None
    claims: bytes
    queue: bytes

    @property
    def end(self) -> bytes:
        """End (exclusive) of the range of slot keys."""
        return prefix_end(self.prefix)

    @property
    def board_end(self) -> bytes:
        """End (exclusive) of the smallest range from `prefix` on that holds both the slots and the count.

        One range is one request, read at one revision. Keys of others that sort in between (``/ps0`` .. ``/ps_d``) are
        passed over.
        """
        return self.end if self.desired is None else self.desired + b"\0"

    def key(self, index: int) -> bytes:
        """Key of one slot."""
        return self.prefix + str(index).encode()

    def places(self, address: bytes) -> bytes:
        """Prefix of the places in the queue that an address has had; each place is a key of its own."""
        return self.queue + address + b"/"

    def index(self, full: bytes) -> int | None:
        """The index that a full key names, or ``None`` where it is no slot key (``/ps/01`` and ``/ps/x`` are not)."""
        if not full.startswith(self.prefix):
            return None
        text = full[len(self.prefix) :]
        return int(text) if _SLOT.fullmatch(text) else None


def _raw(key: object) -> bytes:
    if not isinstance(key, (bytes, bytearray, memoryview)):
        raise ConfigurationError(f"a key must be str or bytes, not {type(key).__name__}")
    return bytes(key)


def prefix_end(prefix: bytes) -> bytes:
    """The smallest key that is greater than every key with this prefix.

    Args:
        prefix: not empty. One of only ``0xff`` bytes has no end: a zero byte then means "to the end".
    """
    for position in range(len(prefix) - 1, -1, -1):
        if prefix[position] < 0xFF:
            return prefix[:position] + bytes([prefix[position] + 1])
    return b"\0"


def parse_desired(raw: bytes) -> int:
    """The number in ``/ps_desired``.

    Args:
        raw: the value as stored: decimal ASCII digits and nothing else.

    Raises:
        InvalidDesiredCount: anything else (empty, sign, blank, newline, not in 1..`MAX_DESIRED`).
    """
    if not _DECIMAL.fullmatch(raw):
        raise InvalidDesiredCount(
            f"/ps_desired holds {raw[:40]!r}, not a decimal number: put a number in 1..{MAX_DESIRED}"
        )
    value = int(raw)
    if not 1 <= value <= MAX_DESIRED:
        raise InvalidDesiredCount(f"/ps_desired is {value}: put a number in 1..{MAX_DESIRED}")
    return value


def check_desired(value: object) -> int:
    """A pserver count given by a program.

    Raises:
        ConfigurationError: not an ``int`` in 1..`MAX_DESIRED`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DESIRED:
        raise ConfigurationError(
            f"num_pservers must be a whole number in 1..{MAX_DESIRED} (or None to wait for /ps_desired), not {value!r}"
        )
    return value
