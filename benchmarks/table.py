"""The rows of the result table: numbers with units, the limits they are judged by, and how they are printed."""

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["moonshot", "must", "falls short", "stated"]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        benchmark: the name that ``--only`` takes.
        what: what is measured, in words.
        unit: of ``baseline`` and ``ours``.
        baseline: the raw number of the baseline, ``None`` where there is none.
        ours: the raw number of the product.
        compared: the number that is judged: a ratio, a difference or ``ours`` itself.
        kind: what ``compared`` is.
        must: limit for ``compared``, ``None`` = only stated.
        moonshot: the ambitious limit.
        higher_is_better: whether the limits are lower bounds.
        note: what else a reader should know (statistic, counts).
    """

    benchmark: str
    what: str
    unit: str
    baseline: float | None
    ours: float
    compared: float
    kind: Literal["ratio", "difference", "value"] = "ratio"
    must: float | None = None
    moonshot: float | None = None
    higher_is_better: bool = False
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """Which limit is kept."""
        if self.must is None:
            return "stated"
        if self.moonshot is not None and self._keeps(self.moonshot):
            return "moonshot"
        return "must" if self._keeps(self.must) else "falls short"

    def _keeps(self, limit: float) -> bool:
        return self.compared >= limit if self.higher_is_better else self.compared <= limit


def ratio(benchmark: str, what: str, unit: str, baseline: float, ours: float, **rest: Any) -> Row:
    """A row judged by ours / baseline."""
    return Row(benchmark, what, unit, baseline, ours, ours / baseline, "ratio", **rest)


def difference(benchmark: str, what: str, unit: str, baseline: float, ours: float, **rest: Any) -> Row:
    """A row judged by ours - baseline."""
    return Row(benchmark, what, unit, baseline, ours, ours - baseline, "difference", **rest)


def value(benchmark: str, what: str, unit: str, ours: float, *, baseline: float | None = None, **rest: Any) -> Row:
    """A row judged by our number itself; the baseline is only stated."""
    return Row(benchmark, what, unit, baseline, ours, ours, "value", **rest)


@dataclass(frozen=True)
class Machine:
    """Where the numbers come from."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    grpcio: str
    protobuf: str
    etcd: str
    load_before: float
    load_after: float


def describe_machine(etcd: str, load_before: float, load_after: float) -> Machine:
    """This machine. ``load_*``: one-minute load averages, to tell a busy machine."""
    import importlib.metadata
    import os

    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    except OSError:
        pass
    return Machine(
        cpu=model,
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        grpcio=importlib.metadata.version("grpcio"),
        protobuf=importlib.metadata.version("protobuf"),
        etcd=etcd,
        load_before=round(load_before, 2),
        load_after=round(load_after, 2),
    )


def as_json(rows: Iterable[Row], machine: Machine, quick: bool) -> str:
    """All of it for programs."""
    found = {
        "machine": asdict(machine),
        "quick": quick,
        "rows": [{**asdict(row), "verdict": row.verdict} for row in rows],
    }
    return json.dumps(found, indent=2)


HEAD = ("what", "unit", "baseline", "ours", "compared", "must", "moonshot", "verdict", "note")


def as_text(rows: Iterable[Row], machine: Machine, quick: bool) -> str:
    """A Markdown table, aligned to be read in a terminal, too."""
    lines = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    text = [_line(lines[0], widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
    text += [_line(line, widths) for line in lines[1:]]
    text += [
        "",
        f"{machine.cores} cores of {machine.cpu}, {machine.memory_gib} GiB, Linux {machine.kernel}; "
        f"Python {machine.python}, grpcio {machine.grpcio}, protobuf {machine.protobuf}, etcd {machine.etcd}; "
        f"load average {machine.load_before} before and {machine.load_after} after.",
    ]
    if quick:
        text.append("A quick run: too short for numbers to rely on.")
    return "\n".join(text)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _cells(row: Row) -> tuple[str, ...]:
    sign = ">=" if row.higher_is_better else "<="
    suffix, plus = ("x", "") if row.kind == "ratio" else ("", "+" if row.kind == "difference" else "")

    def limit(number: float | None) -> str:
        return "" if number is None else f"{sign} {plus}{number:g}{suffix}"

    compared = f"{row.compared:.2f}x" if row.kind == "ratio" else f"{row.compared:{plus}.3g}"
    return (
        row.what,
        row.unit,
        "" if row.baseline is None else _number(row.baseline),
        _number(row.ours),
        compared,
        limit(row.must),
        limit(row.moonshot),
        row.verdict,
        row.note,
    )


def _number(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
