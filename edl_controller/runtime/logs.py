"""Logs of the programs: text on a terminal, one JSON object per line anywhere else, to stderr.

Information is for what succeeded or failed; everything else is for debugging. What users wrote is escaped. Only
programs call this: a library logs and configures nothing.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from edl_controller.errors import MissingExtra
from edl_controller.runtime.plain_text import printable

Form = Literal["auto", "text", "json"]

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has; any other was given by ``extra``."""
OBJECT = "object"
"""The key under which machines find what a line is about; in text the message says it already."""


def about(kind: str, namespace: str, name: str) -> dict[str, Any]:
    """Return the ``extra`` of a line about an object."""
    return {OBJECT: {"kind": kind, "namespace": namespace, "name": name}}


def configure(form: Form = "auto", level: int | str = logging.INFO, stream: TextIO | None = None) -> None:
    """Have the logs of this process written to ``stream`` (stderr), in place of how they were written before.

    Raises:
        MissingExtra: JSON is wanted and python-json-logger is not installed.
        ValueError: there is no such level.
    """
    stream = stream or sys.stderr
    if form == "auto":
        form = "text" if stream.isatty() else "json"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_json_formatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.setLevel(level)
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


class TextFormatter(logging.Formatter):
    """One line: time, level, message, and what was given by ``extra`` as ``key=value``; a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        extra = "".join(
            f" {key}={printable(str(value))}"
            for key, value in sorted(vars(record).items())
            if key not in _OWN | {OBJECT}
        )
        text = f"{_moment(record)} {record.levelname:<7} {printable(record.getMessage())}{extra}"
        if record.exc_info:
            # Set in and escaped: an error may quote what looks like a line of this log.
            text += "".join(f"\n    {printable(line)}" for line in self.formatException(record.exc_info).split("\n"))
        return text


def _json_formatter() -> logging.Formatter:
    try:
        from pythonjsonlogger.json import JsonFormatter
    except ImportError as error:
        raise MissingExtra("logs as JSON need python-json-logger: pip install 'edl[controller]'") from error

    class Formatter(JsonFormatter):
        """``time``, ``level``, ``logger``, ``msg``, and what was given by ``extra``; JSON escapes by itself."""

        def process_log_record(self, log_record: dict[str, object]) -> dict[str, object]:
            return {"msg" if key == "message" else key: value for key, value in log_record.items()}

        def add_fields(
            self, log_record: dict[str, object], record: logging.LogRecord, message_dict: dict[str, object]
        ) -> None:
            log_record.update({"time": _moment(record), "level": record.levelname.lower(), "logger": record.name})
            super().add_fields(log_record, record, message_dict)

    return Formatter("%(message)s")
