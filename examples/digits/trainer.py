"""A trainer: takes tasks, pulls parameters, computes gradients, pushes them. Any number of them, at any time.

    python -m examples.digits.trainer --endpoints http://127.0.0.1:2379

What it asks of `edl_agent`: where the pservers are (`Membership`), whether it is the one to initialise the parameters
(`Initialisation`), what to work on (`TaskQueue`), its report, its drain.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import signal
import threading
from pathlib import Path

from edl_agent import Drain, EtcdClient, Initialisation, Membership, Reporter, errors
from edl_agent.tasks import Task, TaskQueue

from . import network, wire
from .links import Links

_log = logging.getLogger("trainer")

TASK, BATCH = 40, 20
"""Images."""

LEFT = 143
"""Exit status of a trainer that was told to go while there was work left: 128 + SIGTERM, never 0."""


class Trainer:
    """The training loop, and what it stands on."""

    def __init__(self, client: EtcdClient, drain: Drain, options: argparse.Namespace) -> None:
        self._client, self._drain, self._options = client, drain, options
        self._train, self._held_out = network.load(options.seed)
        self._initialisation = Initialisation(client, partial=True)
        self._reporter = Reporter(client, role="trainer", name=options.name)
        self._leaving = threading.Event()
        self._step = self._samples = 0
        self._begin()

    def _begin(self) -> None:
        self._membership = Membership(self._client)
        self._links = Links(self._membership, self._initialise)
        self._queue = TaskQueue(self._client, self._options.name)
        self._leaving.clear()

    def run(self) -> bool:
        """Work until all passes are over (True), or until asked to leave (False): then the task is given back."""
        if self._leaving.is_set():
            self._begin()
        try:
            if not self._drain.requested.is_set():
                self._work()
                return True
        except errors.ClientClosed:
            pass
        self.leave()
        return False

    def _work(self) -> None:
        index = self._client.register_trainer(self._options.name)
        _log.info("trainer %d works", index)
        count = len(self._train.digits)
        tasks = [[begin, min(begin + TASK, count)] for begin in range(0, count, TASK)]
        # A killed trainer is no reason to set a task aside: deaths are part of this job.
        self._queue.set_dataset(tasks, self._options.passes, max_failures=20, timeout=60.0)
        while isinstance(task := self._queue.get_task(), Task):
            begin, end = task.spec
            for first in range(begin, end, BATCH):
                images = self._train.part(first, min(first + BATCH, end))
                self._links.attempt(functools.partial(self._batch, images))
            self._finish(task)
            self._save_model_if_told()
        self._save_model_if_told()
        _log.info("all passes are finished")

    def leave(self) -> None:
        """Give the task back; whatever `run` waits for ends with ClientClosed. From any thread; idempotent."""
        self._leaving.set()
        self._queue.close()
        self._links.close()
        self._membership.close()

    def _batch(self, images: network.Images) -> None:
        gradients, _ = network.gradients(self._links.pull(), images)
        # This network is too small to take any time: the demo gives it some, so that there is something to share.
        if self._leaving.wait(self._options.think):
            raise errors.ClientClosed("the trainer was asked to leave")
        self._links.push(gradients)
        self._step += 1
        self._samples += len(images.digits)
        self._reporter.update(step=self._step, samples=self._samples)

    def _initialise(self, links: Links) -> None:
        """Called when a pserver is new. One of the trainers, and only one, is told to send the first parameters."""
        duty = self._initialisation.begin(timeout=1.0)
        if duty is not None:
            for index in duty.epochs:
                links.send(index, "/parameters", network.initial(self._options.seed))
            self._initialisation.finish()

    def _finish(self, task: Task) -> None:
        while True:
            try:
                return self._queue.finish(task)
            except (errors.TaskLost, errors.UnknownOutcome) as error:
                _log.warning("Somebody may do it again: %s", error)
                return None
            except (errors.Unavailable, errors.DeadlineExceeded) as error:
                _log.warning("etcd is away, the task waits to be finished: %s", error)
                self._leaving.wait(1.0)

    def _save_model_if_told(self) -> None:
        """One of the trainers, and only one, is told so after each pass."""
        with contextlib.suppress(errors.Unavailable, errors.DeadlineExceeded, errors.UnknownOutcome):
            if not self._queue.should_save_model():
                return
            parameters = self._links.attempt(self._links.pull)
            loss, accuracy = network.evaluate(parameters, self._held_out)
            _log.info("a pass is over: loss %.3f, %.1f %% of the held out images right", loss, 100 * accuracy)
            if self._options.model is not None:
                new = self._options.model.with_suffix(".new")
                new.write_bytes(wire.encode(parameters))
                new.replace(self._options.model)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoints", default=os.environ.get("EDL_ETCD_ENDPOINTS", "http://127.0.0.1:2379"))
    parser.add_argument("--prefix", default=os.environ.get("EDL_PREFIX", ""))
    parser.add_argument("--passes", type=int, default=20, help="over the training images")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--think", type=float, default=0.0, metavar="SECONDS", help="more computation for each batch")
    parser.add_argument("--model", type=Path, help="file for the model, written after each pass by one trainer")
    parser.add_argument("--ttl", type=float, default=10.0)
    parser.add_argument("--name", help="in reports, tasks and drains; default POD_NAME, else hostname-pid")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dial = min(5.0, options.ttl / 2)
    with EtcdClient(options.endpoints, prefix=options.prefix, ttl=options.ttl, dial_timeout=dial) as client:
        drain, stopped = Drain(client, options.name), threading.Event()
        trainer = Trainer(client, drain, options)

        def stop() -> None:
            stopped.set()
            drain.start("a signal", 2.0)
            client.shutdown()  # ends also what waits for etcd

        drain.on_request(lambda _: trainer.leave())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: threading.Thread(target=stop).start())
        while not trainer.run():
            drain.acknowledge()
            _log.info("the trainer leaves: %s", drain.reason or "closed")
            # Whoever asked for it in etcd ends it with a signal, or takes the request back. To end by itself would look
            # like the end of all work: a Job counts the first exit 0 as success.
            while drain.requested.is_set() and not stopped.wait(0.1):
                pass
            if stopped.is_set():
                return LEFT
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
