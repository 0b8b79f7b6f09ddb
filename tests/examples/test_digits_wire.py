"""What travels between the digits' trainers and pservers: exactly what was sent, or an error; nothing else."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.digits import network, wire

SHAPES = st.dictionaries(st.text(max_size=8), st.lists(st.integers(1, 4), max_size=4), max_size=4)


@given(SHAPES)
@settings(max_examples=50, deadline=None)
def test_there_and_back(shapes: dict[str, list[int]]) -> None:
    random = np.random.default_rng(1)
    sent = {name: np.asarray(random.standard_normal(shape), np.float32) for name, shape in shapes.items()}
    came = wire.decode(wire.encode(sent))
    assert came.keys() == sent.keys()
    for name in sent:
        assert came[name].dtype == np.float32
        assert came[name].shape == sent[name].shape
        assert np.array_equal(came[name], sent[name])
        assert came[name].flags.writeable


def line(shapes: object) -> bytes:
    return json.dumps(shapes).encode() + b"\n"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n",
        b"no JSON\n",
        b"\xff\xfe\n",
        line([]),
        line(3),
        line({"a": 3}) + bytes(12),
        line({"a": [3.0]}) + bytes(12),
        line({"a": [True]}) + bytes(4),
        line({"a": [-1]}) + bytes(4),
        line({"a": [0]}),
        line({"a": [1] * 5}) + bytes(4),
        line({"a": [3]}) + bytes(11),
        line({"a": [3]}) + bytes(13),
        line({"a": [1 << 40, 1 << 40]}) + bytes(64),
        line({"a": [3]})[:-1],
        b"[" * 100_000 + b"\n",
        b"[" * 60_000 + b"\n",
        b'{"a": [' + b"9" * 5000 + b"]}\n",
        line({"x" * (1 << 17): [1]}) + bytes(4),
    ],
    ids=lambda body: repr(body[:24]),
)
def test_anything_else_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        wire.decode(body)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_noise_is_a_value_error(noise: bytes) -> None:
    whole = wire.encode(network.initial(0))
    for body in (noise, whole[: len(noise)] + noise):
        with pytest.raises(ValueError):
            wire.decode(body)
