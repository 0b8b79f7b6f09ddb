"""A trainer of the job: plain PaddlePaddle, without a word of edl. Trainer 0 also saves and restores.

It is stopped and started again whenever a pserver was replaced, so it only has to begin well: from the newest
checkpoint, and with the pservers of the list that it was given.
"""

import argparse
import json
import os
import socket
import time
from pathlib import Path

import checkpoints
import network
import numpy as np
import paddle
from paddle.distributed import fleet

BATCH = 64


def wait_for_pservers() -> None:
    """They have their places before they serve. (Paddle itself gives up before they have loaded its library.)"""
    for endpoint in os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(","):
        host, _, port = endpoint.rpartition(":")
        while True:
            try:
                socket.create_connection((host, int(port)), 1.0).close()
                break
            except OSError:
                time.sleep(0.1)


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "time": time.monotonic(), "pid": os.getpid(), **facts}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all pservers see too")
    parser.add_argument("--ready", type=Path, required=True, help="file to make once others may start")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    arguments = parser.parse_args()

    index = int(os.environ["PADDLE_TRAINER_ID"])
    say("begin", index=index, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"])
    training, held_out = network.load(arguments.data)
    paddle.enable_static()
    fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
    loss, right = network.build()
    network.distribute(loss)
    evaluation = network.evaluation()
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    wait_for_pservers()
    checkpoint = checkpoints.newest(arguments.checkpoints) if index == 0 else None
    if checkpoint is not None:
        # Else trainer 0 pushes its new parameters, under the hands of trainers that are at work.
        os.environ["TEST_MODE"] = "1"
    fleet.init_worker()
    step = 0
    if checkpoint is not None:
        step = int(checkpoints.restore(checkpoint)["step"])

    def pull() -> None:
        runtime = fleet.fleet._runtime_handle
        # Paddle's executor pulls the embedding's rows in each step, but all else only once.
        dense = paddle.distributed.ps.utils.public.get_the_one_recv_context(runtime.context, split_dense_table=False)
        runtime._pull_all_dense(runtime.scopes, runtime._send_ctx, dense)

    def evaluate() -> dict[str, float]:
        pull()
        found = executor.run(evaluation, feed=network.feed(held_out), fetch_list=[loss, right])
        return {"loss": float(found[0]), "right": float(found[1])}

    say("start", index=index, step=step, restored=checkpoint.name if checkpoint else None, **evaluate())
    arguments.ready.touch()
    random = np.random.default_rng([index, time.time_ns()])
    while True:
        chosen = random.integers(len(training[0]), size=BATCH)
        pull()
        batch = network.feed((training[0][chosen], training[1][chosen]))
        batch_loss = float(executor.run(feed=batch, fetch_list=[loss])[0])
        step += 1
        say("step", index=index, step=step, loss=batch_loss)
        if index == 0 and step % arguments.save_every == 0:
            about = {"step": step, **evaluate()}
            checkpoints.save(arguments.checkpoints, executor, about)
            say("saved", index=index, **about)
        time.sleep(arguments.pause)


if __name__ == "__main__":
    main()
