"""Seconds on the command line: finite, so that what waits for them also ends."""

import math
from typing import Any

import click


class Seconds(click.FloatRange):
    """A number of seconds that is not negative; ``min_open``: above zero. ``nan`` and ``inf`` are none."""

    name = "seconds"

    def __init__(self, *, min_open: bool = False) -> None:
        super().__init__(min=0, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return seconds


SECONDS, POSITIVE_SECONDS = Seconds(), Seconds(min_open=True)
