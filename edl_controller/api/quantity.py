"""PURE: amounts of resources (``500m``, ``1.5Gi``, ``2e3``), exactly as Kubernetes reads and writes them.

Source of the rules: ``k8s.io/apimachinery/pkg/api/resource`` (`tests/api/quantity_golden.json` is what it answers).
Stricter in two points: an amount beyond 2^63-1 is refused (there it is cut or wraps), and so is a text without any
digit (its parser takes ``Ki`` for zero, against its documented grammar). Negative amounts are rounded away from zero,
as documented there.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

from edl_controller.errors import InvalidQuantity

Amount = str | int | float
"""An amount as JSON gives it. A float stands for its shortest decimal text, as in JSON."""

LARGEST = 2**63 - 1
"""Largest amount, in base units (in thousandths for what a container may ask for: `resource`)."""

_DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_NAMES = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_LONGEST_TEXT = 128
_LARGEST_EXPONENT = 64
_NANO = 10**9


class _Quantity(NamedTuple):
    """The amount in billionths (a finer one is rounded away from zero), and how it was written."""

    nano: int
    form: str  # "decimal", "binary" or "exponent"


def parse(value: Amount) -> Decimal:
    """Return the exact amount in base units (cores, bytes), with at most nine decimal places.

    Raises:
        InvalidQuantity: it breaks the grammar, is no finite number, or lies beyond 2^63-1.
    """
    return _decimal(_read(value).nano)


def resource(value: Amount) -> Decimal:
    """Return the amount of something that a container may ask for.

    Raises:
        InvalidQuantity: as for `parse`; also where it is negative, or so large that its thousandths, in which
            schedulers count, do not fit into 63 bits.
    """
    nano = _read(value).nano
    if nano < 0:
        raise InvalidQuantity(value, "it is negative")
    if _up(nano, _NANO // 1000) > LARGEST:
        raise InvalidQuantity(value, "its thousandths are more than 2^63-1")
    return _decimal(nano)


def milli(value: Amount) -> int:
    """Return the amount in thousandths (of a core), rounded up.

    Raises:
        InvalidQuantity: as for `parse`.
    """
    return _up(_read(value).nano, _NANO // 1000)


def units(value: Amount) -> int:
    """Return the amount in whole base units (bytes, GPUs), rounded up.

    Raises:
        InvalidQuantity: as for `parse`.
    """
    return _up(_read(value).nano, _NANO)


def mega(value: Amount) -> int:
    """Return the amount in millions of base units (10^6 bytes), rounded up.

    Raises:
        InvalidQuantity: as for `parse`.
    """
    return _up(_read(value).nano, _NANO * 10**6)


def canonical(value: Amount) -> str:
    """Return the one text that Kubernetes writes for this amount: no fraction, the largest suffix, the form kept.

    Raises:
        InvalidQuantity: as for `parse`.
    """
    return _write(_read(value))


def add(a: Amount, b: Amount) -> str:
    """Return the exact sum in canonical form: in the form of ``a``; of ``b`` where ``a`` is zero.

    Raises:
        InvalidQuantity: as for `parse`, or the sum lies beyond 2^63-1.
    """
    left, right = _read(a), _read(b)
    total = left.nano + right.nano
    if abs(total) > LARGEST * _NANO:
        raise InvalidQuantity(f"{a} + {b}", "it is more than 2^63-1")
    return _write(_Quantity(total, left.form if left.nano else right.form))


def _read(value: Amount) -> _Quantity:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InvalidQuantity(value, f"an amount is text or a number, not {type(value).__name__}")
    if isinstance(value, int) and abs(value) > LARGEST:  # before it becomes text: Python limits that
        raise InvalidQuantity("a number", "it is more than 2^63-1")
    text = value if isinstance(value, str) else repr(value)
    if len(text) > _LONGEST_TEXT:
        raise InvalidQuantity(text, f"it has more than {_LONGEST_TEXT} characters")
    match = _GRAMMAR.fullmatch(text)
    if match is None or not (match["whole"] or match["part"]):
        raise InvalidQuantity(text, "write a number and at most one of n u m k M G T P E Ki Mi Gi Ti Pi Ei e3")
    suffix, part = match["suffix"] or "", match["part"] or ""
    number = int((match["whole"] + part) or "0")
    twos, tens, form = 0, -len(part), "decimal"
    if match["exponent"] is not None:
        exponent, form = int(match["exponent"]), "exponent"
        if exponent > _LARGEST_EXPONENT:
            raise InvalidQuantity(text, f"its exponent is more than {_LARGEST_EXPONENT}")
        tens += max(exponent, -2 * _LONGEST_TEXT)  # even smaller ones are rounded up to 1n all the same
    elif suffix in _DECIMAL_SUFFIXES:
        tens += _DECIMAL_SUFFIXES[suffix]
    else:
        twos, form = 10 * _BINARY_SUFFIXES.index(suffix), "binary"
    tens += 9
    nano = _up((number << twos) * 10 ** max(tens, 0), 10 ** max(-tens, 0))
    if nano > LARGEST * _NANO:
        raise InvalidQuantity(text, "it is more than 2^63-1")
    return _Quantity(-nano if match["sign"] == "-" else nano, form)


def _write(quantity: _Quantity) -> str:
    nano, form = quantity
    if not nano:
        return "0"
    # A binary amount that is small or no whole number is written as a decimal, so that nothing is lost.
    if form == "binary" and abs(nano) >= 1024 * _NANO and nano % _NANO == 0:
        number, power = nano // _NANO, 0
        while number % 1024 == 0:
            number, power = number // 1024, power + 1
        return f"{number}{_BINARY_SUFFIXES[power]}"
    number, exponent = nano, -9
    while number % 1000 == 0:
        number, exponent = number // 1000, exponent + 3
    if form == "exponent":
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL_NAMES[exponent]}"


def _up(amount: int, unit: int) -> int:
    """Divide and round away from zero."""
    whole = -(-abs(amount) // unit)
    return -whole if amount < 0 else whole


def _decimal(nano: int) -> Decimal:
    """Exact whatever the precision of the caller's context is."""
    number, exponent = abs(nano), -9
    while exponent and number % 10 == 0:
        number, exponent = number // 10, exponent + 1
    return Decimal((int(nano < 0), tuple(map(int, str(number))), exponent))
