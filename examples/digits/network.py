"""What is trained: a small network for 8x8 images of digits. Nothing in here knows that the training is distributed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Parameters = dict[str, Array]
"""Name -> values; gradients have the same names and shapes."""

DATA = Path(__file__).parent / "digits.csv.gz"
HELD_OUT = 597
"""Images of the 1797 that are never trained on."""

PIXELS, HIDDEN, DIGITS = 64, 48, 10
DECAY = np.float32(3e-3)
"""Of the weights: whatever way the training went, it comes to much the same network."""


class Images(NamedTuple):
    """Pixels in 0..1, one row for each image, and which digit each one shows."""

    pixels: Array
    digits: NDArray[np.int64]

    def part(self, begin: int, end: int) -> Images:
        return Images(self.pixels[begin:end], self.digits[begin:end])


def load(seed: int) -> tuple[Images, Images]:
    """The images for training and those held out, shuffled by the seed: the same for everybody who gives the same."""
    table = np.loadtxt(DATA, delimiter=",", dtype=np.int64)
    np.random.default_rng(seed).shuffle(table)
    everything = Images((table[:, :-1] / 16).astype(np.float32), table[:, -1])
    return everything.part(HELD_OUT, len(table)), everything.part(0, HELD_OUT)


def initial(seed: int) -> Parameters:
    """Parameters to begin with."""
    random = np.random.default_rng(seed)

    def weights(rows: int, columns: int) -> Array:
        return random.standard_normal((rows, columns), np.float32) * np.float32((2 / rows) ** 0.5)

    return {
        "hidden/weights": weights(PIXELS, HIDDEN),
        "hidden/bias": np.zeros(HIDDEN, np.float32),
        "output/weights": weights(HIDDEN, DIGITS),
        "output/bias": np.zeros(DIGITS, np.float32),
    }


def shard_of(name: str, shards: int) -> int:
    """Which pserver holds a parameter: FNV-1a (32 bit) of its name, modulo their number, as in the original."""
    value = 2166136261
    for byte in name.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value % shards


def gradients(parameters: Parameters, images: Images) -> tuple[Parameters, float]:
    """How each parameter has to change for these images, and the loss (cross entropy) before that."""
    hidden, probabilities = _forward(parameters, images.pixels)
    rows = np.arange(len(images.digits))
    loss = float(-np.log(probabilities[rows, images.digits] + 1e-9).mean())
    wrong = probabilities
    wrong[rows, images.digits] -= 1
    wrong /= np.float32(len(rows))
    back = (wrong @ parameters["output/weights"].T) * (hidden > 0)
    return {
        "hidden/weights": images.pixels.T @ back + DECAY * parameters["hidden/weights"],
        "hidden/bias": back.sum(axis=0),
        "output/weights": hidden.T @ wrong + DECAY * parameters["output/weights"],
        "output/bias": wrong.sum(axis=0),
    }, loss


def evaluate(parameters: Parameters, images: Images) -> tuple[float, float]:
    """Loss, and the share of the digits that were recognised."""
    _, probabilities = _forward(parameters, images.pixels)
    right = probabilities[np.arange(len(images.digits)), images.digits]
    return float(-np.log(right + 1e-9).mean()), float((probabilities.argmax(axis=1) == images.digits).mean())


def _forward(parameters: Parameters, pixels: Array) -> tuple[Array, Array]:
    hidden = np.maximum(pixels @ parameters["hidden/weights"] + parameters["hidden/bias"], np.float32(0))
    scores = hidden @ parameters["output/weights"] + parameters["output/bias"]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)
