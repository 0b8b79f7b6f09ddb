"""`make fuzz` tries every parser, and fails where one does what it may not."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.security import fuzz
from tests.security.foreign_parsers import PARSERS


def fuzzed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", fuzz.__name__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)


def test_an_unknown_parser_is_named() -> None:
    done = fuzzed("nonsense", "quantity")
    assert done.returncode == 2
    assert "no such parser: nonsense; there are: quantity" in done.stderr


@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed: make fuzz does that")
def test_a_parser_is_tried_and_what_it_may_not_raise_fails(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = fuzzed("runs", "--seconds", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[1/1] runs: Done ")
    folder = tmp_path_factory.mktemp("fuzz")
    breaks = (
        f"from tests.security import fuzz, foreign_parsers as known;"
        f"known.PARSERS['runs'] = known.Parser(known.PARSERS['runs'].parse, ());"
        f"fuzz.fuzz_one('runs', ['-max_total_time=60', '-artifact_prefix={folder}/'])"
    )
    bad = subprocess.run([sys.executable, "-c", breaks], capture_output=True, text=True, check=False, timeout=200)
    assert bad.returncode != 0
    assert [*folder.iterdir()], "the bytes are kept"
    assert PARSERS["runs"].raises
