"""The digits job before a real API server: what the example promises, whatever happens to the parts around it."""

from __future__ import annotations

import pytest

from tests.e2e.digits_bench import DigitsBench

GOOD = 0.93
"""Share of the held-out images; what the demo asks for, too."""


@pytest.mark.timeout(240)
def test_it_grows_gives_room_survives_a_pserver_and_comes_to_rest(digits: DigitsBench) -> None:
    digits.node()
    digits.controller().wait_leading()
    digits.submit(most=4)
    digits.wait_ready("trainer", 4)
    assert digits.wait_succeeded() >= GOOD
