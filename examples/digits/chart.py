"""Pictures of a run: curves over time, with what happened marked. SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from .screen import rate

if TYPE_CHECKING:
    from .scene import Job

WIDTH, LEFT, RIGHT, TOP, HEIGHT, GAP = 860, 90, 20, 100, 110, 34
COLOURS = {"SIGKILL": "#c62828", "SIGTERM": "#ef6c00", "restored": "#2e7d32", "service": "#ef6c00"}
"""Of marks, by their first word."""


@dataclass(frozen=True)
class Panel:
    """One curve over time (seconds), between the first and the last of its ticks."""

    title: str
    colour: str
    points: list[tuple[float, float]]
    ticks: list[float]
    steps: bool = False
    logarithmic: bool = False


def disturbed(job: Job, undisturbed: float, accuracy: float) -> str:
    """The picture of the disturbed run: trainers, images per second and loss, with the faults."""
    begin = job.looks[0].seconds
    length = job.looks[-1].seconds
    trainers = [(look.seconds, float(look.trainers)) for look in job.looks]
    rates = [(look.seconds, rate(job, at)) for at, look in enumerate(job.looks)]
    losses = [(one.seconds, one.loss) for one in job.measures if begin <= one.seconds <= length]
    panels = [
        Panel("trainers", "#1565c0", trainers, [0, 1, 2, 3, 4], steps=True),
        Panel("images / s", "#6a1b9a", rates, [0, *half_and_whole(max(value for _, value in rates))]),
        Panel("held-out loss", "#00695c", losses, [0.1, 0.3, 1, 3], logarithmic=True),
    ]
    about = (
        f"{accuracy:.1%} of the held-out images recognised at the end; {undisturbed:.1%} in an undisturbed run;"
        f" {job.samples} of {job.samples} images seen"
    )
    title = "Training digits while pservers and trainers come, go and are killed"
    return draw(title, about, panels, [(mark.seconds, mark.fault) for mark in job.marks], begin, length)


def draw(
    title: str, about: str, panels: list[Panel], marks: Iterable[tuple[float, str]], begin: float, length: float
) -> str:
    """The text of an SVG file; it loads nothing from elsewhere. Marks: seconds, and what happened then."""
    bottom = TOP + len(panels) * (HEIGHT + GAP)

    def x(seconds: float) -> float:
        return LEFT + (seconds - begin) / max(length - begin, 1e-9) * (WIDTH - LEFT - RIGHT)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 24}" font-family="sans-serif"'
        ' font-size="12" fill="#333333">',
        f'<rect width="{WIDTH}" height="{bottom + 24}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="{LEFT}" y="42">{escape(about)}</text>',
    ]
    row = 0
    for seconds, text in marks:
        colour = next((colour for word, colour in COLOURS.items() if text.startswith(word)), None)
        if colour is None:
            continue
        at = x(seconds)
        height = 62 + row % 3 * 13
        side = "end" if at > WIDTH * 0.8 else "start"
        out.append(f'<path d="M{at:.1f} {height}V{bottom - GAP}" stroke="{colour}" stroke-dasharray="4 3"/>')
        place = f'x="{at - 4 if side == "end" else at + 4:.1f}" y="{height + 4}" text-anchor="{side}"'
        out.append(f'<text {place} fill="{colour}" font-size="11">{escape(text)}</text>')
        row += 1
    for number, panel in enumerate(panels):
        out += _draw(panel, TOP + number * (HEIGHT + GAP), x)
    for second in range(0, int(length) + 1, 5):
        if second >= begin:
            out.append(f'<text x="{x(second):.1f}" y="{bottom - GAP + 18}" text-anchor="middle">{second} s</text>')
    return "\n".join([*out, "</svg>", ""])


def _draw(panel: Panel, top: float, x: Callable[[float], float]) -> Iterable[str]:
    scale: Callable[[float], float] = math.log if panel.logarithmic else float
    low, high = scale(panel.ticks[0]), scale(panel.ticks[-1])

    def y(value: float) -> float:
        share = (scale(max(value, 1e-9)) - low) / (high - low)
        return top + HEIGHT * (1 - min(max(share, 0.0), 1.0))

    yield f'<text x="{LEFT}" y="{top - 8}" fill="{panel.colour}">{escape(panel.title)}</text>'
    for tick in panel.ticks:
        yield f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
    path = ""
    for seconds, value in panel.points:
        place, height = f"{x(seconds):.1f}", f"{y(value):.1f}"
        if not path:
            path = f"M{place} {height}"
        else:
            path += f"H{place}V{height}" if panel.steps else f"L{place} {height}"
    yield f'<path d="{path}" fill="none" stroke="{panel.colour}" stroke-width="2" stroke-linejoin="round"/>'


def half_and_whole(value: float) -> list[float]:
    """A round number that is not below the value, after its half."""
    power = 10.0 ** math.floor(math.log10(max(value, 1.0)))
    whole = next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value)
    return [whole / 2, whole]
