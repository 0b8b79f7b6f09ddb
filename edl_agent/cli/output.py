"""How results are printed: JSON or text, colours where they are wanted, bytes that cannot harm a terminal.

A closed or full stdout is found here, by name: click says nothing into a closed one and succeeds.
"""

import io
import json
import os
import sys
from typing import Any

import click

from edl_agent.cli.failures import StreamFailed


def hold_standard_files() -> None:
    """Occupy the descriptors of closed standard streams, before a socket gets one and receives our lines.

    What stands in can neither be read (stdin) nor written (the others), so that using it fails as before.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 0 else os.O_RDONLY)  # the lowest free one is this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # for the life of the process
    elif sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what the locale cannot write is no reason to fail


def check_stdout() -> None:
    """Raises `StreamFailed` where stdout is closed or full from the start: nothing is begun whose result is lost."""
    try:
        os.write(_descriptor(), b"")
    except OSError as error:
        raise unwritable(error) from error


def unwritable(error: OSError) -> StreamFailed:
    """The error for a failed write to stdout."""
    return StreamFailed(f"stdout cannot be written: {error.strerror or error}")


def silence() -> None:
    """Send what is left in Python's buffers nowhere: it would complain when it flushes at its end."""
    void = os.open(os.devnull, os.O_WRONLY)
    os.dup2(void, _descriptor())
    os.close(void)


def say(text: str) -> None:
    """A line on stdout. Raises `StreamFailed`; `BrokenPipeError` where the reader went away."""
    try:
        click.echo(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(error) from error


def say_bytes(raw: bytes) -> None:
    """Bytes on stdout as they are. Raises as `say`."""
    try:
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(error) from error


def _descriptor() -> int:
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):  # replaced by a program that runs the command inside itself
        return 1


def print_json(value: object) -> None:
    """One JSON document on one line, flushed."""
    say(json.dumps(value))


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
