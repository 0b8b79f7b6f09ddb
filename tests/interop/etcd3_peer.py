"""Runs where etcd3 0.12 can be imported; does with it what the first argument says. Values are hexadecimal text.

``get KEY`` prints the value and the lease; ``put KEY VALUE``; ``hold KEY VALUE TTL`` puts under a lease of its own;
``create KEY VALUE`` puts in a transaction if the key is absent and prints whether it did; ``watch KEY`` prints
``ready`` and then one line for the first event.
"""

import sys

import etcd3


def main(endpoint: str, action: str, key: str, *rest: str) -> None:
    host, port = endpoint.rsplit(":", 1)
    client = etcd3.client(host=host, port=int(port), timeout=10)
    if action == "get":
        value, meta = client.get(key)
        print("absent" if value is None else f"{value.hex()} {meta.lease_id}")
    elif action == "put":
        client.put(key, bytes.fromhex(rest[0]))
    elif action == "hold":
        client.put(key, bytes.fromhex(rest[0]), lease=client.lease(int(rest[1])))
    elif action == "create":
        absent, put = client.transactions.version(key) == 0, client.transactions.put(key, bytes.fromhex(rest[0]))
        print(client.transaction(compare=[absent], success=[put], failure=[])[0])
    elif action == "watch":
        events, _ = client.watch(key)
        print("ready", flush=True)
        print(type(next(events)).__name__, flush=True)
    else:
        raise SystemExit(f"unknown action {action!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
