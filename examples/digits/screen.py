"""What the demo shows while it runs: a bar and numbers on a terminal (with rich), plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

    from .scene import Job

_LINE_EVERY = 2.0
"""Seconds between plain lines while nothing happens."""

_RATE_OVER = 1.0
"""Seconds over which images per second are counted."""


def rate(job: Job, at: int = -1) -> float:
    """Images per second at one of the looks."""
    now = job.looks[at]
    before = next((look for look in job.looks if look.seconds >= now.seconds - _RATE_OVER), now)
    return (now.samples - before.samples) / (now.seconds - before.seconds) if now.seconds > before.seconds else 0.0


class Screen:
    """Plain lines."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._marks = 0
        self._next_line = 0.0

    def follow(self, job: Job) -> None:
        """Show this job from now on."""
        self._job, self._marks, self._next_line = job, 0, 0.0
        job.show = self.show
        print(f"\n{job.name}: {job.passes} passes, {job.samples} images", flush=True)

    def show(self) -> None:
        job, now = self._job, time.monotonic()
        if job is None:
            return
        if now >= self._next_line and job.looks and job.measures:
            self._next_line = now + _LINE_EVERY
            look, measure = job.looks[-1], job.measures[-1]
            print(
                f"{look.seconds:6.2f} s  {look.samples / job.samples:4.0%}  trainers {look.trainers}  "
                f"{rate(job):5.0f} images/s  loss {measure.loss:.3f}  held out {measure.accuracy:.1%}",
                flush=True,
            )
        for mark in job.marks[self._marks :]:
            print(f"{mark.seconds:6.2f} s  {mark.text}", flush=True)
        self._marks = len(job.marks)

    def close(self) -> None:
        if self._job is not None:
            self._job.show = lambda: None


class LiveScreen(Screen):
    """Drawn anew at each look."""

    def __init__(self) -> None:
        from rich.live import Live

        super().__init__()
        self._done: list[Job] = []
        self._live = Live(refresh_per_second=8)
        self._live.start()

    def follow(self, job: Job) -> None:
        self._done.append(job)
        self._job, job.show = job, self.show

    def show(self) -> None:
        from rich.console import Group

        self._live.update(Group(*(self._draw(job) for job in self._done)))

    def _draw(self, job: Job) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        samples = job.looks[-1].samples if job.looks else 0
        numbers, bar = Table.grid(padding=(0, 3)), Table.grid()
        bar.add_row(ProgressBar(job.samples, samples, 80))
        if job.looks and job.measures:
            look, measure = job.looks[-1], job.measures[-1]
            numbers.add_row(
                f"[bold]{look.seconds:.1f} s[/]",
                f"{look.trainers} trainers",
                f"{rate(job):.0f} images/s",
                f"loss [yellow]{measure.loss:.3f}[/]",
                f"held out [green]{measure.accuracy:.1%}[/]",
            )
        log = Text("\n".join(f"{mark.seconds:6.2f} s  {mark.text}" for mark in job.marks))
        return Group(Text(f"\n{job.name}", "bold"), bar, numbers, log)

    def close(self) -> None:
        super().close()
        self._live.stop()


def make_screen(plain: bool) -> Screen:
    if plain or not sys.stdout.isatty():
        return Screen()
    try:
        return LiveScreen()
    except ImportError:
        return Screen()
