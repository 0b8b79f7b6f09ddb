"""What is trained: a small network for 8x8 images of digits, with an embedding that is spread over the pservers."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

Images = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Ids, a row for each image, and the digit that it shows."""

SLOTS, VALUES, DIGITS = 64, 17, 10
"""An image is 64 pixels of 17 shades; each pair of pixel and shade has a row of its own in the embedding."""

WIDTH, HIDDEN, RATE = 4, 32, 0.01
HELD_OUT = 597
"""Images of the 1797 that are never trained on."""


def load(path: Path) -> tuple[Images, Images]:
    """The images for training, and those held out."""
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    np.random.default_rng(1).shuffle(table)
    ids, digits = table[:, :-1] + np.arange(SLOTS) * VALUES, table[:, -1:]
    return (ids[HELD_OUT:], digits[HELD_OUT:]), (ids[:HELD_OUT], digits[:HELD_OUT])


def feed(images: Images) -> dict[str, NDArray[np.int64]]:
    """What `build` declares. Ids for a distributed embedding have the shape [-1, 1]."""
    ids, digits = images
    return {"ids": ids.reshape(-1, 1), "digits": digits}


def build() -> tuple[Any, Any]:
    """Write the network into the default program. Returns the loss and the share of right answers."""
    paddle.seed(1)
    ids = paddle.static.data("ids", [-1, 1], "int64")
    digits = paddle.static.data("digits", [-1, 1], "int64")
    rows = paddle.static.nn.sparse_embedding(
        ids, [SLOTS * VALUES, WIDTH], param_attr=paddle.ParamAttr(name="pixels"), is_test=False
    )
    hidden = paddle.static.nn.fc(paddle.reshape(rows, [-1, SLOTS * WIDTH]), HIDDEN, activation="relu")
    scores = paddle.static.nn.fc(hidden, DIGITS)
    loss = paddle.mean(paddle.nn.functional.cross_entropy(scores, digits))
    right = paddle.static.accuracy(paddle.nn.functional.softmax(scores), digits)
    return loss, right


def distribute(loss: Any) -> None:
    """Declare the optimizer: asynchronous, applied by the pservers. Both roles do it, with the same network."""
    fleet = paddle.distributed.fleet
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    # Files of the table in a checkpoint. With the default of 1000, saving takes seconds.
    strategy.sparse_table_configs = {"pixels": {"table_parameters.pixels.shard_num": 8}}
    fleet.distributed_optimizer(paddle.optimizer.SGD(RATE), strategy).minimize(loss)


def evaluation() -> Any:
    """The distributed network without what changes parameters."""
    program = paddle.static.default_main_program().clone(for_test=True)
    block = program.global_block()
    for index in reversed(range(len(block.ops))):
        if block.ops[index].type in ("distributed_push_sparse", "send"):
            block._remove_op(index)
    return program
