"""Logs: text or JSON, one line each, nothing of a user's steers a terminal."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from edl_controller.runtime import logs


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.security(24)
def test_json_has_one_object_per_line() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    logging.getLogger("a.b").info("Created %s", "x\ny", extra={"job": "ns/tj"})
    logging.getLogger("a.b").debug("not shown")
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert found["time"].endswith("Z")
    assert {key: found[key] for key in ("level", "logger", "msg", "job")} == {
        "level": "info",
        "logger": "a.b",
        "msg": "Created x\ny",
        "job": "ns/tj",
    }


@pytest.mark.security(24)
def test_text_is_one_escaped_line_and_a_traceback() -> None:
    stream = io.StringIO()
    logs.configure("text", "DEBUG", stream)
    logging.getLogger("a").debug("Job %s", "\x1b[2Jevil\nINFO fake", extra={"job": "n\ns"})
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("DEBUG   Job \\x1b[2Jevil\\nINFO fake job=n\\ns")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("a").exception("Failed")
    assert "ValueError: why" in stream.getvalue()


def test_configuring_twice_writes_once() -> None:
    stream = io.StringIO()
    logs.configure("text", stream=stream)
    logs.configure("text", stream=stream)
    logging.getLogger("a").warning("once")
    assert stream.getvalue().count("once") == 1


@pytest.mark.security(24)
def test_an_error_in_a_traceback_makes_no_line_of_its_own() -> None:
    stream = io.StringIO()
    logs.configure("text", stream=stream)
    try:
        raise ValueError("quoted:\n2026-01-01T00:00:00.000Z ERROR   all is lost\r\x1b[31m\u2028x")
    except ValueError:
        logging.getLogger("edl_controller.x").exception("It failed")
    first, *others = stream.getvalue().rstrip("\n").split("\n")
    assert first.endswith("It failed")
    assert len(others) > 3
    assert all(line.startswith("    ") and line.isprintable() for line in others)
