"""Many clients in one process, registered at the same moment: ``many_agents ENDPOINTS PREFIX DESIRED PORT COUNT``.

Prints "ready", waits for a line, registers all, prints their indexes as JSON, and stays until it is killed.
"""

from __future__ import annotations

import json
import sys
import threading

from edl_agent import EtcdClient


def main() -> None:
    endpoints, prefix = sys.argv[1:3]
    desired, port, count = map(int, sys.argv[3:6])
    clients = [EtcdClient(endpoints, num_pservers=desired, prefix=prefix, ttl=30) for _ in range(count)]
    indexes: list[int] = [-1] * count
    go = threading.Event()

    def register(place: int) -> None:
        go.wait()
        indexes[place] = clients[place].register(port + place, host="127.0.0.1", timeout=60)

    threads = [threading.Thread(target=register, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    go.set()
    for thread in threads:
        thread.join()
    print(json.dumps(indexes), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
