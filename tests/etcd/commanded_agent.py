"""An agent that does one thing per line of stdin: ``commanded_agent ENDPOINTS PREFIX PORT TTL``.

``probe VALUE``: say what the session says, then try a guarded put of the value, and say what came of it.
"""

from __future__ import annotations

import json
import sys
import time

from edl_agent import EdlAgentError, EtcdClient


def main() -> None:
    endpoints, prefix, port, ttl = sys.argv[1:5]
    with EtcdClient(endpoints, prefix=prefix, ttl=float(ttl), dial_timeout=1.0) as client:
        index = client.register(int(port), host="127.0.0.1", timeout=30)
        print(json.dumps({"registered": index, "epoch": client.session.epoch}), flush=True)
        for line in sys.stdin:
            _, value = line.split()
            told: dict[str, object] = {
                "index": client.session.index,
                "epoch": client.session.epoch,
                "state": client.session.state.value,
                "lost": client.session.lost.is_set(),
            }
            try:
                client.guarded_put("/guarded", value.encode(), timeout=2)
                told["write"] = "written"
            except EdlAgentError as error:
                told["write"] = type(error).__name__
            told["at"] = time.monotonic()
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
