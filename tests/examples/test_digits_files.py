"""The example to copy: short programs, one dependency, data whose source and licence are named."""

from __future__ import annotations

import ast
import gzip
import hashlib
import sys

import numpy as np
import pytest

from examples.digits import network
from tests.bench.agent_process import ROOT

FOLDER = ROOT / "examples" / "digits"
SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"


@pytest.mark.parametrize("name", ["pserver.py", "trainer.py"])
def test_program_is_short_and_stands_on_the_library(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert len(text.splitlines()) < 200
    assert "from edl_agent import" in text


# The demo on a cluster is no part of the training job: it is the controller's.
PROGRAMS = sorted(path for path in FOLDER.glob("*.py") if path.name != "cluster_demo.py")


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_imports_numpy_alone(path: object) -> None:
    tree = ast.parse((FOLDER / str(path)).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0}
    foreign = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    more = {"screen.py": {"rich"}, "cluster_demo.py": {"edl_controller"}}
    allowed = {"numpy", "edl_agent"} | more.get(getattr(path, "name", ""), set())
    assert foreign <= allowed
    assert not {name.partition(".")[0] for name in names} & {"pickle", "marshal", "shelve"}


def test_data_is_what_it_says() -> None:
    content = gzip.decompress(network.DATA.read_bytes())
    assert hashlib.sha256(content).hexdigest() == SHA256
    assert network.DATA.stat().st_size < 60_000
    guide = (FOLDER / "README.md").read_text()
    for words in (SHA256, "CC BY 4.0", "Alpaydin", "10.24432/C50P49", "scikit-learn", "BSD-3-Clause"):
        assert words in guide


def test_images_are_shared_out_by_the_seed() -> None:
    train, held_out = network.load(3)
    assert (train.pixels.shape, held_out.pixels.shape) == ((1200, 64), (597, 64))
    assert (train.pixels.min(), train.pixels.max()) == (0, 1)
    assert set(train.digits) == set(held_out.digits) == set(range(10))
    assert np.array_equal(train.pixels, network.load(3)[0].pixels)
    assert not np.array_equal(train.pixels, network.load(4)[0].pixels)


def test_gradients_are_the_slope_of_the_loss() -> None:
    random = np.random.default_rng(0)
    images = network.load(3)[0].part(0, 20)
    parameters = {name: value.astype(np.float64) for name, value in network.initial(3).items()}
    exact, _ = network.gradients(parameters, images)  # type: ignore[arg-type]
    for name, values in parameters.items():
        for _ in range(3):
            place = tuple(random.integers(size) for size in values.shape)
            losses = []
            for step in (1e-5, -1e-5):
                moved = {**parameters, name: values.copy()}
                moved[name][place] += step
                losses.append(network.evaluate(moved, images)[0])  # type: ignore[arg-type]
            decay = float(network.DECAY) * values[place] if name.endswith("weights") else 0.0
            assert exact[name][place] == pytest.approx((losses[0] - losses[1]) / 2e-5 + decay, abs=1e-5)


def test_shards_are_the_originals() -> None:
    # FNV-1a, 32 bit: published test vectors.
    assert [network.shard_of(name, 1 << 32) for name in ("", "a", "foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]
    assert {network.shard_of(name, 2) for name in network.initial(0)} == {0, 1}
