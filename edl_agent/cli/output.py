"""How results are printed: JSON or text, colours where they are wanted, bytes that cannot harm a terminal."""

import json
import os
import sys
from typing import Any

import click


def print_json(value: object) -> None:
    """One JSON document on one line, flushed."""
    click.echo(json.dumps(value))


def paint(text: str, **style: Any) -> str:
    """Coloured where stdout is a terminal and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return click.style(text, **style)


def printable(raw: bytes) -> str:
    """Text of bytes found in etcd, control characters and bad UTF-8 escaped."""
    text = raw.decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns padded with blanks; cells may be coloured."""
    widths = [max(len(click.unstyle(row[i])) for row in [header, *rows]) for i in range(len(header))]

    def line(row: list[str]) -> str:
        return "  ".join(
            cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True)
        )

    return "\n".join(line(row).rstrip() for row in [header, *rows])
