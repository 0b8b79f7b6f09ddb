"""Print every row of ``faults.toml`` with the tests that stand for it: ``python -m tests.fault_list [-o json]
[TESTS...]``; with ``--list tests/security.toml --mark security`` what is promised about security.

A test stands for a row by ``@pytest.mark.fault("A7")``, ``@pytest.mark.report("M07")`` or
``@pytest.mark.security(7)``. The tests are collected by pytest, not run, so marks on parameters and modules count too.
Exit status: 0 when the list is whole; 1 when a row has neither a test nor a written reason, or a mark names a row that
is not in the list; 2 when the tests cannot be collected.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
MARKS = ("fault", "report")


@dataclass
class Row:
    """One row: its name, what it is about, why it has no test (if so), and its tests; those of them that only ``make
    soak`` runs.
    """

    name: str
    title: str
    reason: str | None = None
    tests: list[str] = field(default_factory=list)
    soak_tests: list[str] = field(default_factory=list)

    @property
    def tested(self) -> bool:
        """Whether there is a test, short or long."""
        return bool(self.tests or self.soak_tests)

    @property
    def whole(self) -> bool:
        """Whether there is a test or a reason."""
        return self.tested or bool(self.reason)


@dataclass
class FaultList:
    """All rows in order, and the marks (row name -> tests) that name no row."""

    rows: dict[str, Row]
    unknown: dict[str, list[str]] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """Rows with neither a test nor a reason."""
        return [row.name for row in self.rows.values() if not row.whole]

    @property
    def whole(self) -> bool:
        """Whether nothing is missing and nothing unknown."""
        return not self.missing and not self.unknown


class CollectionFailed(RuntimeError):
    """pytest could not collect the tests; the text is its output."""


def read_rows(path: Path = HERE / "faults.toml") -> dict[str, Row]:
    """Read the list file. Raises ValueError for a row without a title, with an empty reason, or with an unknown
    field.
    """
    rows: dict[str, Row] = {}
    for name, fields in tomllib.loads(path.read_text()).items():
        title, reason = fields.pop("title", ""), fields.pop("reason", None)
        if not title or fields or (reason is not None and not str(reason).strip()):
            raise ValueError(
                f"{path.name}: row {name} needs a title, may have a reason that is not empty, and nothing else"
            )
        rows[name] = Row(name, title, reason)
    return rows


class _Marks:
    """pytest plugin: notes (mark's row, node id, is it a long test) of everything collected."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.found: list[tuple[str, str, bool]] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            soak = item.get_closest_marker("soak") is not None
            for mark in (mark for name in self.names for mark in item.iter_markers(name)):
                self.found += [(str(row), item.nodeid, soak) for row in mark.args]


def collect(tests: Sequence[str] = (str(HERE),), marks: Sequence[str] = MARKS) -> list[tuple[str, str, bool]]:
    """Collect the tests and return (row, node id, soak) for every mark. Raises CollectionFailed."""
    plugin, output = _Marks(marks), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        # The last -m wins: without it the long tests would be deselected by the project's options.
        status = pytest.main(["--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", *tests], plugins=[plugin])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        text = output.getvalue()
        raise CollectionFailed(text[max(0, text.find("= ERRORS =")) :])
    return plugin.found


def fault_list(rows: dict[str, Row], marks: Sequence[tuple[str, str, bool]]) -> FaultList:
    """Put the marks to the rows."""
    whole = FaultList(rows)
    for name, test, soak in marks:
        if name not in rows:
            whole.unknown.setdefault(name, []).append(test)
        else:
            tests = rows[name].soak_tests if soak else rows[name].tests
            if test not in tests:
                tests.append(test)
    return whole


def as_text(faults: FaultList) -> str:
    """The list for people."""
    lines: list[str] = []
    for row in faults.rows.values():
        lines.append(f"{row.name:<4} {row.title}")
        lines += [f"       {test}" for test in row.tests]
        lines += [f"       {test} (make soak)" for test in row.soak_tests]
        if row.reason:
            lines.append(f"       {'note' if row.tested else 'no test'}: {row.reason}")
        if not row.whole:
            lines.append("       MISSING: no test, no reason")
    rows = faults.rows.values()
    tested, reasoned = sum(row.tested for row in rows), sum(row.whole and not row.tested for row in rows)
    lines.append(f"{len(rows)} rows: {tested} with tests, {reasoned} with a reason, {len(faults.missing)} missing")
    lines += [f"MISSING: {', '.join(faults.missing)}"] if faults.missing else []
    lines += [f"UNKNOWN ROW {name}: marked on {', '.join(tests)}" for name, tests in sorted(faults.unknown.items())]
    return "\n".join(lines)


def as_json(faults: FaultList) -> str:
    """The list for programs."""
    rows = [vars(row) for row in faults.rows.values()]
    answer = {"rows": rows, "missing": faults.missing, "unknown": faults.unknown, "whole": faults.whole}
    return json.dumps(answer, indent=2)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault_list", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--list", type=Path, default=HERE / "faults.toml", help="the file with the rows")
    parser.add_argument("--mark", action="append", help=f"the marks that name the rows (default: {', '.join(MARKS)})")
    parser.add_argument("tests", nargs="*", default=[str(HERE)], help="what to collect (default: all tests)")
    options = parser.parse_args(arguments)
    try:
        faults = fault_list(read_rows(options.list), collect(options.tests, options.mark or MARKS))
    except CollectionFailed as error:
        print(f"the tests cannot be collected:\n{error}", file=sys.stderr)
        return 2
    print(as_json(faults) if options.output == "json" else as_text(faults))
    return 0 if faults.whole else 1


if __name__ == "__main__":
    sys.exit(main())
