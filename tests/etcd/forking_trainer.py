"""A trainer whose data loader forks workers: ``forking_trainer ENDPOINTS PREFIX PORT ROUNDS``.

Each round forks four workers by multiprocessing. A worker touches the parent's client in every way, makes a client of
its own, does some work and ends. One more child is a bare ``os.fork`` that drops the client and ends by
``sys.exit``. Prints one JSON line: what the workers saw, and what the parent has afterwards.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import multiprocessing
import os
import sys
import time
from typing import Any

from edl_agent import EtcdClient, ForkedClient, Session


def attempts(client: EtcdClient) -> dict[str, str]:
    """Use the parent's client in each way; the name of the error per way."""
    found: dict[str, str] = {}
    ways: dict[str, Any] = {
        "get": lambda: client.get_key("/k"),
        "put": lambda: client.put_key("/k", b"child", with_lease=True),
        "guarded": lambda: client.guarded_put("/k", b"child"),
        "prefix": lambda: client.get_prefix("/"),
        "watch": lambda: client.watch_prefix("/"),
        "register": lambda: client.register(1, timeout=1),
        "open": lambda: client.open(timeout=1),
    }
    for name, way in ways.items():
        try:
            way()
            found[name] = "none"
        except Exception as error:
            found[name] = type(error).__name__
    client.shutdown()
    repr(client)
    return found


def worker(endpoints: str, prefix: str, results: Any, client_box: list[EtcdClient | None]) -> None:
    faulthandler.dump_traceback_later(9, exit=True)
    client = client_box[0]
    assert client is not None
    found: dict[str, Any] = attempts(client)
    try:
        EtcdClient(endpoints, prefix=prefix)
        found["own"] = "none"
    except Exception as error:
        found["own"] = type(error).__name__
    sum(i * i for i in range(100_000))
    del client
    client_box[0] = None
    gc.collect()
    results.put(found)


def main() -> None:
    endpoints, prefix = sys.argv[1:3]
    port, rounds = map(int, sys.argv[3:5])
    context = multiprocessing.get_context("fork")
    client = EtcdClient(endpoints, num_pservers=1, prefix=prefix, ttl=3)
    index = client.register(port, host="127.0.0.1", timeout=10)
    lease, epoch = client.session.lease_id, client.session.epoch
    client.put_key("/k", b"parent")
    box: list[EtcdClient | None] = [client]
    seen: list[dict[str, Any]] = []
    codes: list[int | None] = []
    slowest = 0.0
    for _ in range(rounds):
        begun = time.monotonic()
        results = context.Queue()
        workers = [context.Process(target=worker, args=(endpoints, prefix, results, box)) for _ in range(4)]
        for one in workers:
            one.start()
        for _ in workers:
            with contextlib.suppress(Exception):
                seen.append(results.get(timeout=10))
        for one in workers:
            one.join(10)
            codes.append(one.exitcode)
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(9, exit=True)
            box.clear()
            del client
            gc.collect()
            sys.exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        slowest = max(slowest, time.monotonic() - begun)
    session: Session = client.session
    value = client.get_key("/k", timeout=3)
    client.guarded_put("/k", b"parent again", timeout=3)
    print(
        json.dumps(
            {
                "seen": seen,
                "codes": codes,
                "slowest": slowest,
                "same": (session.index, session.lease_id, session.epoch) == (index, lease, epoch),
                "value": (value or b"").decode(),
                "expected": ForkedClient.__name__,
            }
        ),
        flush=True,
    )
    client.shutdown()


if __name__ == "__main__":
    main()
