"""Amounts of resources against what Kubernetes' own code answers, and against the rules it documents."""

import json
from decimal import Decimal, getcontext, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_controller.api import quantity
from edl_controller.errors import EdlControllerError, InvalidQuantity

GOLDEN = json.loads(Path(__file__).with_name("quantity_golden.json").read_text())
BEYOND = {row["text"] for row in GOLDEN["amounts"] if abs(Fraction(row.get("decimal", "0"))) > quantity.LARGEST}
# Kubernetes cuts binary amounts at 2^63-1 without a word; here they are refused.
CUT = {row["text"] for row in GOLDEN["amounts"] if row.get("units") == quantity.LARGEST and row["text"].endswith("i")}

decimals = st.decimals(min_value=0, max_value=10**15, places=9, allow_nan=False)
suffixes = st.sampled_from(["", "n", "u", "m", "k", "M", "Ki", "Mi", "Gi", "e2", "E-3"])
amounts = st.builds(lambda number, suffix: f"{number:f}{suffix}", st.decimals(0, 10**7, places=4), suffixes)


@pytest.mark.security(14)
def test_amounts_are_read_and_written_as_kubernetes_does() -> None:
    wrong = [row for row in GOLDEN["amounts"] if not _as_in_kubernetes(row)]
    assert not wrong


def _as_in_kubernetes(row: dict[str, Any]) -> bool:
    text = row["text"]
    try:
        amount = quantity.parse(text)
    except InvalidQuantity:
        return row.get("error", False) or text in BEYOND | CUT or not text.lstrip("+-.")[:1].isdecimal()
    if row.get("error"):
        return False
    if amount < 0:  # Kubernetes rounds them now away from zero, as it documents, and now towards it
        return (amount, quantity.canonical(text)) == (Decimal(row["decimal"]), row["canonical"])
    milli = row.get("milli", 0)
    if amount * 1000 > quantity.LARGEST:  # Kubernetes' own conversion overflows
        milli = quantity.milli(text)
    ours = amount, quantity.canonical(text), quantity.milli(text), quantity.units(text), quantity.mega(text)
    return ours == (Decimal(row["decimal"]), row["canonical"], milli, row.get("units", 0), row.get("mega", 0))


def test_the_table_is_worth_something() -> None:
    assert len(GOLDEN["amounts"]) > 300
    assert sum(1 for row in GOLDEN["amounts"] if row.get("error")) > 30
    assert len(BEYOND | CUT) > 10


def test_sums_are_as_in_kubernetes() -> None:
    ours = [quantity.add(row["a"], row["b"]) for row in GOLDEN["sums"]]
    assert ours == [row["sum"] for row in GOLDEN["sums"]]


@pytest.mark.parametrize(
    ("value", "canonical"),
    [(1, "1"), (0, "0"), (1500, "1500"), (1000, "1k"), (0.1, "100m"), (1e3, "1k"), (1e-5, "10e-6")],
)
def test_numbers_of_json_are_read_by_their_shortest_text(value: float, canonical: str) -> None:
    assert quantity.canonical(value) == canonical


@pytest.mark.parametrize(
    "value",
    [
        *("1e400", "1e65", "9e18e", "9Ei", "8Ei", "9223372036854775808", 2**63, -(2**63), 10**5000, 1e30),
        *(float("nan"), float("inf"), "NaN", "1ki", " 1", "1 ", ".", "", "1" * 129, True, None, [], b"1", Decimal(1)),
    ],
    ids=lambda value: "" if isinstance(value, int) else repr(value)[:20],
)
@pytest.mark.security(14)
def test_what_is_no_amount_is_refused_with_a_typed_error(value: Any) -> None:
    with pytest.raises(InvalidQuantity) as caught:
        quantity.parse(value)
    assert isinstance(caught.value, EdlControllerError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.why
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("value", ["-1", "-1n", -5, -0.5, "9E", "10P", "9.3e15"])
@pytest.mark.security(14)
def test_a_container_cannot_ask_for_less_than_nothing_nor_for_what_does_not_fit_into_thousandths(value: Any) -> None:
    assert quantity.parse(value) is not None
    with pytest.raises(InvalidQuantity):
        quantity.resource(value)


@pytest.mark.parametrize("value", ["0", 1, "100m", "8Pi", "9.2e15", "64Gi"])
def test_a_container_can_ask_for_an_ordinary_amount(value: Any) -> None:
    assert quantity.resource(value) == quantity.parse(value)


@pytest.mark.security(14)
def test_a_sum_beyond_63_bits_is_refused() -> None:
    assert quantity.add("9223372036854775806", "1") == "9223372036854775807"
    with pytest.raises(InvalidQuantity, match=r"2\^63"):
        quantity.add("9223372036854775807", "1n")
    with pytest.raises(InvalidQuantity):
        quantity.add("7Ei", "7Ei")


def test_the_result_does_not_depend_on_the_callers_decimal_context() -> None:
    with localcontext() as context:
        context.prec = 3
        assert str(quantity.parse("1234567.891")) == "1234567.891"
    assert getcontext().prec > 3


@given(decimals)
def test_a_plain_number_is_itself(number: Decimal) -> None:
    assert quantity.parse(f"{number:f}") == number


@given(amounts)
def test_the_canonical_form_keeps_the_amount_and_is_its_own_canonical_form(text: str) -> None:
    written = quantity.canonical(text)
    assert quantity.parse(written) == quantity.parse(text)
    assert quantity.canonical(written) == written
    assert "." not in written


@given(amounts, amounts)
def test_a_sum_is_exact_and_does_not_depend_on_the_order(a: str, b: str) -> None:
    total = Fraction(quantity.parse(a)) + Fraction(quantity.parse(b))
    assert Fraction(quantity.parse(quantity.add(a, b))) == total
    assert Fraction(quantity.parse(quantity.add(b, a))) == total


@given(amounts)
def test_rounding_is_up_and_by_less_than_one(text: str) -> None:
    exact = Fraction(quantity.parse(text))
    for rounded, unit in ((quantity.milli, Fraction(1, 1000)), (quantity.units, 1), (quantity.mega, 10**6)):
        assert 0 <= rounded(text) * unit - exact < unit


@given(st.text(max_size=20))
@pytest.mark.security(14)
def test_any_text_is_an_amount_or_a_typed_error(text: str) -> None:
    try:
        quantity.parse(text)
    except InvalidQuantity:
        return
    assert text.isascii()


@pytest.mark.parametrize("text", ["1" * 100_000, "1." + "0" * 100_000, "1e" + "9" * 100_000, " " * 100_000])
@pytest.mark.security(14)
@pytest.mark.security(20)
def test_a_long_text_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidQuantity):
        quantity.parse(text)
