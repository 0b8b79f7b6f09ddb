"""A pserver: holds a shard of the parameters, applies gradients, saves it, and restores what its predecessor saved.

    python -m examples.digits.pserver --endpoints http://127.0.0.1:2379 --num-pservers 2 --directory checkpoints

What it asks of `edl_agent`: an index with an epoch (`EtcdClient.register`), checkpoints that survive whatever kills it
(`CheckpointStore`), a word to the trainers on whether it has parameters (`Initialisation`), its report, its drain.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading

import numpy as np

from edl_agent import Drain, EtcdClient, Initialisation, Reporter, errors
from edl_agent.checkpoints import CheckpointStore

from . import wire
from .network import Parameters

_log = logging.getLogger("pserver")

NO_ANSWER = (errors.Unavailable, errors.DeadlineExceeded, errors.UnknownOutcome)
"""etcd is away. The slot is held meanwhile, as long as its lease can be trusted."""

HALVED_AT = 300
"""Steps after which the learning rate is half of what it was."""


class Shard:
    """The parameters of one index in one epoch: from the moment the slot is held to its loss."""

    def __init__(self, index: int, epoch: int, store: CheckpointStore, rate: float) -> None:
        self.index, self.epoch, self.store = index, epoch, store
        self.step = 0
        self._rate = rate
        self._parameters: Parameters = {}
        self._saved_step = -1
        self._over = False
        self._lock = threading.Lock()

    def restore(self) -> bool:
        """Begin with the newest checkpoint of this index, whoever saved it. Returns whether there is one."""
        found = self.store.restore("newest")
        if found is None:
            return False
        with found.open() as file:
            self._parameters = wire.decode(file.read())
        self.step = self._saved_step = found.step
        return True

    def pull(self) -> bytes:
        with self._lock:
            self._check(self._parameters)
            return wire.encode(self._parameters)

    def initialise(self, parameters: Parameters) -> None:
        with self._lock:
            # An initialiser may have died half-way: its successor begins anew. Nobody has trained on it until then.
            self._check(self.step == 0)
            self._parameters = parameters

    def apply(self, gradients: Parameters) -> None:
        """One step of asynchronous gradient descent."""
        with self._lock:
            self._check(self._parameters)
            if {n: v.shape for n, v in gradients.items()} != {n: v.shape for n, v in self._parameters.items()}:
                raise ValueError("these are not the names and shapes of this shard")
            if not all(np.isfinite(gradient).all() for gradient in gradients.values()):
                raise ValueError("a gradient is not finite")
            rate = np.float32(self._rate / (1 + self.step / HALVED_AT))
            for name, gradient in gradients.items():
                self._parameters[name] -= rate * gradient
            self.step += 1

    def save(self, *, last: bool = False) -> None:
        """Save what is new. After the last time nothing can be changed any more: what was answered is saved."""
        with self._lock:
            self._over = self._over or last
            step, parameters = self.step, wire.encode(self._parameters)
            new = bool(self._parameters) and step != self._saved_step
        if new:
            self.store.save(step, parameters)
            self._saved_step = step

    def _check(self, holds: object) -> None:
        if self._over or not holds:
            raise wire.Refused(f"pserver {self.index} is going" if self._over else f"pserver {self.index} is empty")


class Pserver:
    """Answers for the shard that is held at the moment, and for no other."""

    def __init__(self, client: EtcdClient, options: argparse.Namespace) -> None:
        self._client, self._options = client, options
        self._said = Initialisation(client)
        self._shard: Shard | None = None

    def answer(self, call: wire.Call) -> bytes:
        # The session's epoch is judged by the clock at this very moment, also in a process that was paused.
        shard, now = self._shard, self._client.session.epoch
        if shard is None or now != shard.epoch or (call.shard, call.epoch) != (str(shard.index), str(shard.epoch)):
            raise wire.Refused(f"pserver {call.shard} in epoch {call.epoch} is not here")
        if call.what == "GET /parameters":
            return shard.pull()
        if call.what == "POST /parameters":
            shard.initialise(wire.decode(call.body))
        elif call.what == "POST /gradients":
            shard.apply(wire.decode(call.body))
        else:
            raise ValueError(f"there is no {call.what}")
        return b""

    def serve(self, port: int, reporter: Reporter) -> None:
        """From the claim of a slot to its loss. Raises LeaseLost or ClientClosed at the end."""
        index = self._client.register(port)
        lost, epoch = self._client.session.lost, self._client.session.epoch
        if epoch is None:
            return
        self._said.declare("restoring")
        store = CheckpointStore(self._client, self._options.directory, index)
        shard = Shard(index, epoch, store, self._options.rate)
        restored = shard.restore()
        self._said.declare("ready" if restored else "empty")
        self._shard = shard
        _log.info("pserver %d epoch %d: %s", index, epoch, f"restored step {shard.step}" if restored else "empty")
        try:
            while not lost.wait(self._options.checkpoint_every):
                try:
                    shard.save()
                except (errors.CheckpointError, *NO_ANSWER) as error:
                    _log.warning("pserver %d did not save: %s", index, error)
                reporter.update(step=shard.step, checkpoint_age=store.age)
        finally:
            self._shard = None

    def leave(self) -> None:
        """Save once more, then give the slot back at once: `serve` ends with ClientClosed."""
        try:
            if self._shard is not None:
                self._shard.save(last=True)
        finally:
            self._client.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoints", default=os.environ.get("EDL_ETCD_ENDPOINTS", "http://127.0.0.1:2379"))
    parser.add_argument("--prefix", default=os.environ.get("EDL_PREFIX", ""))
    parser.add_argument("--num-pservers", type=int, help="write /ps_desired where it is absent")
    parser.add_argument("--host", default=os.environ.get("POD_IP", "127.0.0.1"), help="to listen on and to register")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--directory", default="checkpoints", help="shared by the pservers of this job")
    parser.add_argument("--checkpoint-every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--rate", type=float, default=0.2, help="learning rate of the first step")
    parser.add_argument("--ttl", type=float, default=10.0)
    parser.add_argument("--name", help="in reports and drains; default POD_NAME, else hostname-pid")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    # "never": a lost slot is claimed again by the loop below only, which then restores what another may have saved.
    with EtcdClient(
        options.endpoints,
        options.num_pservers,
        prefix=options.prefix,
        host=options.host,
        ttl=options.ttl,
        dial_timeout=min(5.0, options.ttl / 2),
        reclaim="never",
    ) as client:
        reporter, drain = Reporter(client, role="pserver", name=options.name), Drain(client, options.name)
        pserver = Pserver(client, options)
        drain.on_request(lambda _: pserver.leave())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: threading.Thread(target=drain.start, args=("a signal", 10.0)).start())
        with wire.Server((options.host, options.port), pserver.answer) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            while True:
                try:
                    pserver.serve(server.server_port, reporter)
                except errors.ClientClosed:
                    return 0
                except errors.SlotTakenOver as error:
                    _log.error("pserver ends: %s", error)
                    return 1
                except (errors.LeaseLost, *NO_ANSWER) as error:
                    _log.warning("pserver stops serving: %s", error)


if __name__ == "__main__":
    raise SystemExit(main())
