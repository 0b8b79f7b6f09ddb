"""Reads and writes etcd for the random test, past the product: through etcd's JSON gateway, with the standard library
only.

The runner needs three things of the store: the desired count written, all slots read at one revision, and after the run
every change that ever happened, in commit order. The last is a watch from revision 1, which etcd answers from its
history as long as nothing was compacted.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Sequence
from typing import Any

from tests.soak.history import DESIRED_KEY, SLOT_PREFIX, Slot, Snapshot, StoreChange


class StoreError(RuntimeError):
    """No member answered in time, or an answer was an error."""


class StoreLog:
    """A client of the JSON gateway of all members; asks them in turn until one answers."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        """Remember the members.

        Args:
            endpoints: `host:port` of each member.
        """
        self._endpoints = list(endpoints)

    def put_desired(self, value: int, timeout: float = 10.0) -> None:
        """Write the desired count.

        Raises:
            StoreError: no answer within `timeout` seconds.
        """
        self.ask("/v3/kv/put", {"key": _encode(DESIRED_KEY), "value": _encode(str(value))}, timeout)

    def snapshot(self, timeout: float = 10.0) -> Snapshot:
        """Read desired count and slots with one linearizable request.

        Raises:
            StoreError: no answer within `timeout` seconds, or no desired count.
        """
        at = time.monotonic()
        answer = self.ask("/v3/kv/range", {"key": _encode("/ps"), "range_end": _encode("/pt")}, timeout)
        done = time.monotonic()
        desired: int | None = None
        slots = []
        for kv in answer.get("kvs", ()):
            key, value = _decode(kv["key"]), _decode(kv.get("value", ""))
            if key == DESIRED_KEY:
                desired = int(value)
            elif key.startswith(SLOT_PREFIX):
                index = int(key.removeprefix(SLOT_PREFIX))
                slots.append(Slot(index, value, int(kv.get("lease", 0)), int(kv["mod_revision"])))
        if desired is None:
            raise StoreError(f"there is no {DESIRED_KEY}")
        return Snapshot(at, done, desired, tuple(sorted(slots, key=lambda slot: slot.index)))

    def granted_ttl(self, lease: int, timeout: float = 10.0) -> float:
        """Return the TTL in seconds that the server granted to a lease.

        Raises:
            StoreError: no answer within `timeout` seconds, or the lease is gone.
        """
        answer = self.ask("/v3/lease/timetolive", {"ID": str(lease)}, timeout)
        if "grantedTTL" not in answer:
            raise StoreError(f"lease {lease:x} is gone: {answer}")
        return float(answer["grantedTTL"])

    def changes(self, timeout: float = 20.0) -> list[StoreChange]:
        """Return every change since the cluster began, in commit order.

        Raises:
            StoreError: not complete within `timeout` seconds, or compacted.
        """
        deadline = time.monotonic() + timeout
        # Any linearizable read tells how far the history goes.
        last = int(self.ask("/v3/kv/range", {"key": _encode(DESIRED_KEY)}, timeout)["header"]["revision"])
        changes: list[StoreChange] = []
        if last <= 1:
            return changes
        host, _, port = self._endpoints[0].rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=timeout)
        try:
            # From "\0" to "\0" is etcd's way to say all keys.
            request = {"create_request": {"key": _encode("\0"), "range_end": _encode("\0"), "start_revision": "1"}}
            connection.request("POST", "/v3/watch", json.dumps(request))
            answer = connection.getresponse()
            while not changes or changes[-1].revision < last:
                line = answer.readline()
                if not line or time.monotonic() > deadline:
                    raise StoreError(f"the change log ends at {changes[-1:]}, not at revision {last}")
                result = json.loads(line).get("result", {})
                if result.get("canceled"):
                    raise StoreError(f"the change log cannot be read: {result}")
                changes += [_change(event) for event in result.get("events", ())]
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise StoreError(f"the change log cannot be read: {error}") from error
        finally:
            connection.close()
        return changes

    def ask(self, path: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send one request to the first member that answers.

        A member that gives no answer may still have carried the request out: whoever changes something with it must not
        mind that it happens twice.

        Raises:
            StoreError: no answer within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        last: object = "no member"
        while True:
            for endpoint in list(self._endpoints):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StoreError(f"{path}: no answer within {timeout} s; last: {last}")
                host, _, port = endpoint.rpartition(":")
                connection = http.client.HTTPConnection(host, int(port), timeout=min(left, 2.0))
                try:
                    connection.request("POST", path, json.dumps(body))
                    answer = connection.getresponse()
                    content = answer.read()
                    if answer.status == http.HTTPStatus.OK:
                        parsed: dict[str, Any] = json.loads(content)
                        return parsed
                    last = content[:200]
                except (OSError, http.client.HTTPException) as error:
                    last = error
                finally:
                    connection.close()
                # This one does not answer: ask it last from now on.
                self._endpoints.append(self._endpoints.pop(0))
            time.sleep(0.05)


def _change(event: dict[str, Any]) -> StoreChange:
    kv = event["kv"]
    deleted = event.get("type") == "DELETE"
    value = None if deleted else _decode(kv.get("value", ""))
    return StoreChange(int(kv["mod_revision"]), _decode(kv["key"]), value, int(kv.get("lease", 0)))


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decode(text: str) -> str:
    # A value that is not text is not ours; it must not stop the reader.
    return base64.b64decode(text).decode(errors="replace")
