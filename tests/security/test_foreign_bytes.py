"""Every parser that sees bytes of others: a value or a typed error, never anything else, at once, in bounded memory.

Others are: users (TrainingJobs), the API server and what stands in between (lists, watch lines, refusals), etcd (every
key of a job can be written by whoever may write to the job), programs at the sidecar's socket, files in a checkpoint
folder. `make test` tries some hundred values for each parser, `make soak` (`EDL_SOAK_MINUTES`, default 10) goes on;
`make fuzz` lets libFuzzer look for bytes that lead to new lines.
"""

from __future__ import annotations

import os
import random
import re
import time
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.security.foreign_parsers import PARSERS, REQUESTS, run
from tests.sidecar.sidecar_process import METHODS

TOKENS = (
    b"null", b"true", b"-1", b"0", b"1e400", b"-1e-400", b"NaN", b"Infinity", b"9" * 5000, b"1.0", b'""', b"[]", b"{}",
    b'"\\ud800"', b"\xff", b"\x00", b"[" * 1200, b'{"a":' * 1200, b"\xef\xbb\xbf", b'"v":1', b"&a", b"*a", b"<<:",
    b"!!", b"0-999,0-999,", b",", b"..", b"/", b"%2f", b"\r\n", b"\x1b[31m", "\u202e".encode(), b"1" * 20,
)  # fmt: skip


def damaged(dice: random.Random, good: tuple[bytes, ...]) -> bytes:
    """One of the good values after a few cuts, swaps and insertions."""
    data = bytearray(dice.choice(good))
    for _ in range(dice.randrange(4)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(5):
            case 0:
                data[at:at] = dice.choice(TOKENS)
            case 1:
                data[at : at + dice.randrange(12)] = b""
            case 2 if at < len(data):
                data[at] = dice.randrange(256)
            case 3:
                del data[at:]
            case _:
                # A value in place of another one: what stands between two marks of JSON.
                marks = [place for place, char in enumerate(data) if char in b":,[]{}"]
                if len(marks) > 1:
                    first = dice.randrange(len(marks) - 1)
                    data[marks[first] + 1 : marks[first + 1]] = dice.choice(TOKENS)
    return bytes(data)


ROWS = {"quantity": 14, "resource": 14, "prefix": 13, "slot key": 13, "task key": 13, "sidecar key": 29}
each_parser = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.security(ROWS.get(name, 19))) for name in PARSERS]
)


@each_parser
def test_the_good_values_are_taken_by_somebody(name: str) -> None:
    """Else only the first line of a parser would be tried."""
    assert any(not isinstance(run(PARSERS[name], data), Exception) for data in PARSERS[name].good)


@each_parser
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_bytes_are_a_value_or_a_typed_error(name: str, data: st.DataObject) -> None:
    parser = PARSERS[name]
    run(
        parser,
        data.draw(st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace"))),
    )
    run(parser, damaged(data.draw(st.randoms(use_true_random=False)), parser.good))


@each_parser
def test_every_value_replaced_by_every_odd_one(name: str) -> None:
    parser = PARSERS[name]
    for good in parser.good:
        for found in re.finditer(rb"\d+(\.\d+)?|\"[^\"]*\"|\[[^\[\]]*\]", good):
            for token in TOKENS:
                data = good[: found.start()] + token + good[found.end() :]
                try:
                    run(parser, data)
                except Exception as error:
                    raise AssertionError(data) from error


HUGE: dict[str, bytes] = {
    "brackets": b"[" * 60_000,
    "closed brackets": b"[" * 50_000 + b"]" * 50_000,
    "maps": b'{"a":' * 20_000,
    "deep in a field": b'{"v":1,"name":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "deep at the edge": b'{"v":1,"name":' + b"[" * 985 + b"]" * 985 + b"}",
    "digits": b"1" * 80_000,
    "a number in a map": b'{"v":1,"epoch":' + b"1" * 80_000 + b"}",
    "a long text": b'"' + b"a" * 80_000 + b'"',
    "open text": b'"' + b'\\"' * 40_000,
    "runs": b"0-999," * 8_000 + b"0",
    "zeros": b"\x00" * 80_000,
    "high bytes": b"\xff" * 80_000,
    "many keys": b"{" + b",".join(b'"k%d":%d' % (one, one) for one in range(6_000)) + b"}",
    "commas": b"," * 80_000,
    "dots": b"a." * 50_000,
    "dashes": b"- " * 12_000,
    "many documents": b"---\n" * 12_000,
    "an escape for each": b'"' + b"\\u0041" * 12_000 + b'"',
}


@each_parser
def test_much_is_no_hang_and_takes_little_memory(name: str) -> None:
    parser = PARSERS[name]
    for title, data in HUGE.items():
        begin = time.thread_time()
        tracemalloc.start()
        try:
            run(parser, data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # Tracing makes it some five times as slow; YAML in Python's own types is the slowest and the largest.
        assert time.thread_time() - begin < 5, title
        assert peak < 200 * len(data) + 2**20, (title, peak)


@pytest.mark.soak
@each_parser
def test_many_bytes(name: str) -> None:
    seconds = float(os.environ.get("EDL_SOAK_MINUTES", "10")) * 60 / len(PARSERS)
    seed = int(os.environ.get("EDL_SOAK_SEED", time.time_ns() % 2**32))
    print(f"EDL_SOAK_SEED={seed}")
    dice, parser, end = random.Random(seed), PARSERS[name], time.monotonic() + seconds
    tried = 0
    while time.monotonic() < end:
        data = damaged(dice, parser.good) if dice.random() < 0.8 else dice.randbytes(dice.randrange(80))
        begin = time.thread_time()
        try:
            run(parser, data)
        except Exception as error:
            raise AssertionError(f"{name}: {data!r}") from error
        assert time.thread_time() - begin < 2, data
        tried += 1
    print(f"{name}: {tried} values")


def test_the_sidecars_methods_are_all_tried() -> None:
    assert len(REQUESTS) == len(METHODS)
