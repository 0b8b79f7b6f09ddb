"""An agent that is wrong on purpose: with it the random test must fail, or the random test proves nothing.

It speaks to etcd through the JSON gateway (`store_log.py`), holds a slot under a lease, and makes the mistake named by
`--mistake`. It takes the same arguments as the real agent (`agent.py`).

* `none`: as right as this small program can be; the checker must find nothing against it but slowness.
* `deaf`: goes on believing in its slot after its lease has ended, and writes without comparing (what libraries do that
  look only at whether a keepalive raised).
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import signal
import threading
import time
from pathlib import Path
from typing import Any

from tests.soak.history import (
    DESIRED_KEY,
    SLOT_PREFIX,
    WRITE_PREFIX,
    GuardedValue,
    WriteAttempted,
    WriteCommitted,
    WriteRefused,
    WriteUnknown,
)
from tests.soak.recording import Belief, Recorder
from tests.soak.store_log import StoreError, StoreLog


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class CarelessAgent:
    """Claims, keeps alive, writes; one thread."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.store = StoreLog([endpoint.removeprefix("http://") for endpoint in arguments.endpoints.split(",")])
        self.deaf = arguments.mistake == "deaf"
        self.address = f"{arguments.host}:{arguments.port}"
        self.desired = arguments.num_pservers
        self.ttl = float(arguments.ttl)
        self.name = arguments.name
        self.calls = 0
        self.belief: Belief | None = None
        self.lease = 0
        self.seq = 0

    def current(self) -> Belief | None:
        belief = self.belief
        if belief is None:
            return None
        if self.deaf:
            return dataclasses.replace(belief, deadline=time.monotonic() + self.ttl)
        return belief if time.monotonic() < belief.deadline else None

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        self.calls += 1
        return self.store.ask(path, body, self.ttl / 3)

    def step(self) -> None:
        """Keep the lease alive, or claim."""
        if self.current() is None:
            self.belief = None
            self.claim()
        sent = time.monotonic()
        if self.belief is not None:
            answer = self.ask("/v3/lease/keepalive", ID=str(self.lease)).get("result", {})
            if int(answer.get("TTL", 0)) > 0:
                self.belief = dataclasses.replace(self.belief, deadline=sent + self.ttl)
            elif not self.deaf:
                self.belief = None

    def claim(self) -> None:
        create = [{"target": "CREATE", "result": "EQUAL", "key": encode(DESIRED_KEY), "create_revision": "0"}]
        put = [{"request_put": {"key": encode(DESIRED_KEY), "value": encode(str(self.desired))}}]
        self.ask("/v3/kv/txn", compare=create, success=put)
        self.calls += 1
        board = self.store.snapshot(self.ttl / 3)
        if any(slot.address == self.address for slot in board.slots):
            return  # the old incarnation's key: wait until it ends
        free = [index for index in range(board.desired) if index not in {slot.index for slot in board.slots}]
        if not free:
            return
        sent = time.monotonic()
        self.lease = int(self.ask("/v3/lease/grant", TTL=str(int(self.ttl)))["ID"])
        key = encode(f"{SLOT_PREFIX}{free[0]}")
        compare = [
            {"target": "CREATE", "result": "EQUAL", "key": key, "create_revision": "0"},
            {"target": "VALUE", "result": "EQUAL", "key": encode(DESIRED_KEY), "value": encode(str(board.desired))},
        ]
        success = [{"request_put": {"key": key, "value": encode(self.address), "lease": str(self.lease)}}]
        answer = self.ask("/v3/kv/txn", compare=compare, success=success)
        if answer.get("succeeded"):
            epoch = int(answer["header"]["revision"])
            self.belief = Belief(free[0], epoch, self.lease, sent + self.ttl)

    def write(self, recorder: Recorder) -> None:
        belief = recorder.observe()
        if belief is None:
            return
        self.seq += 1
        key = f"{WRITE_PREFIX}{belief.index}"
        recorder.writer.write(WriteAttempted(time.monotonic(), self.name, self.seq, key, belief.index, belief.epoch))
        value = GuardedValue(self.name, self.seq, belief.index, belief.epoch).text()
        slot = encode(f"{SLOT_PREFIX}{belief.index}")
        guard = [{"target": "MOD", "result": "EQUAL", "key": slot, "mod_revision": str(belief.epoch)}]
        put = [{"request_put": {"key": encode(key), "value": encode(value)}}]
        try:
            answer = self.ask("/v3/kv/txn", compare=[] if self.deaf else guard, success=put)
        except StoreError as error:
            recorder.writer.write(WriteUnknown(time.monotonic(), self.name, self.seq, str(error)))
            return
        if answer.get("succeeded"):
            recorder.writer.write(WriteCommitted(time.monotonic(), self.name, self.seq))
        else:
            recorder.writer.write(WriteRefused(time.monotonic(), self.name, self.seq, "compare failed"))


def arguments_of_agents() -> argparse.ArgumentParser:
    """Return the parser of what the runner says to an agent."""
    parser = argparse.ArgumentParser()
    for name, kind in (
        ("name", str),
        ("endpoints", str),
        ("host", str),
        ("port", int),
        ("num-pservers", int),
        ("ttl", float),
        ("history", Path),
    ):
        parser.add_argument(f"--{name}", type=kind, required=True)
    return parser


def main() -> int:
    parser = arguments_of_agents()
    parser.add_argument("--mistake", choices=("none", "deaf"), required=True)
    arguments = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    agent = CarelessAgent(arguments)
    recorder = Recorder(arguments.history, arguments.name, agent.current, lambda: agent.calls)
    recorder.start()
    while not stop.wait(0.3):
        try:
            agent.step()
            agent.write(recorder)
        except StoreError as error:
            print(f"{time.monotonic():.3f} {error}", flush=True)
    recorder.leave()
    try:
        agent.ask("/v3/lease/revoke", ID=str(agent.lease))
    except StoreError as error:
        print(f"not revoked: {error}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
